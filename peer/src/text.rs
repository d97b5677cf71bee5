//! Texts that come from outside, before they are stored or logged.

use std::borrow::Cow;

/// Maximum length of a sentence in an error, and of a text from outside in a line of the log, in bytes.
pub const MOST_TEXT: usize = 1_000;

/// A text of about `most` bytes at most. A longer one is cut between two characters, and says how much was cut off.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(most);
    Cow::Owned(format!("{}… ({} bytes more)", &text[..end], text.len() - end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters_and_say_so() {
        assert_eq!(cut("", 0), "");
        assert_eq!(cut("äöü", 6), "äöü");
        assert_eq!(cut("äöü", 5), "äö… (2 bytes more)");
        assert_eq!(cut("äöü", 1), "… (6 bytes more)");
        let cut = cut(&"x".repeat(5_000_000), MOST_TEXT).into_owned();
        assert!(cut.len() < MOST_TEXT + 50 && cut.ends_with("x… (4999000 bytes more)"), "{cut}");
    }
}
