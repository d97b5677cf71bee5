//! Errors with their causes, in one line.

use std::error::Error;

/// The causes of an error, each behind a colon.
pub fn causes(error: &dyn Error) -> String {
    let (mut line, mut cause) = (String::new(), error.source());
    while let Some(source) = cause {
        line = format!("{line}: {source}");
        cause = source.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] Option<Box<Caused>>);

    #[test]
    fn causes_come_in_their_order() {
        let error = Caused("a", Some(Box::new(Caused("b", Some(Box::new(Caused("c", None)))))));
        assert_eq!(causes(&error), ": b: c");
        assert_eq!(causes(&Caused("a", None)), "");
    }
}
