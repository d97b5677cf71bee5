//! Settings that a client needs.

use crate::units;

/// What a setting must be.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// This value.
    Exactly(&'static str),
    /// Any value. This one if there is none.
    Any(&'static str),
    /// A number of bytes that is at least this one.
    AtLeast(u64),
    /// A list, separated by commas, with all of these, or `*` for everything.
    Listed(Vec<String>),
}

impl Wanted {
    /// The value to set; `None` if the present one is right.
    pub(super) fn change(&self, present: Option<&str>) -> Option<String> {
        let present = present.map(str::trim).filter(|value| !value.is_empty());
        match (self, present) {
            (Wanted::Exactly(value), _) => (present != Some(value)).then(|| (*value).to_owned()),
            (Wanted::Any(value), _) => present.is_none().then(|| (*value).to_owned()),
            (Wanted::AtLeast(least), _) => {
                let is_enough =
                    |value: &str| value == "infinity" || units::bytes(value).is_ok_and(|size| size >= *least);
                (!present.is_some_and(is_enough)).then(|| least.to_string())
            }
            (Wanted::Listed(_), Some("*")) => None,
            (Wanted::Listed(values), _) => {
                let listed = present.into_iter().flat_map(|value| value.split(',')).map(str::trim);
                let mut all: Vec<&str> = listed.filter(|value| !value.is_empty()).collect();
                let before = all.len();
                for value in values {
                    if !all.contains(&value.as_str()) {
                        all.push(value);
                    }
                }
                (all.len() > before).then(|| all.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_right_changes() {
        let listed = Wanted::Listed(vec!["a://a".to_owned(), "b://b".to_owned()]);
        for (wanted, present, change) in [
            (Wanted::Exactly("true"), None, Some("true")),
            (Wanted::Exactly("true"), Some("false"), Some("true")),
            (Wanted::Exactly("true"), Some("true"), None),
            (Wanted::Any("x"), None, Some("x")),
            (Wanted::Any("x"), Some(""), Some("x")),
            (Wanted::Any("x"), Some("y"), None),
            (Wanted::AtLeast(50), None, Some("50")),
            (Wanted::AtLeast(50), Some("49"), Some("50")),
            (Wanted::AtLeast(50), Some("many"), Some("50")),
            (Wanted::AtLeast(50), Some("50"), None),
            (Wanted::AtLeast(50), Some("1kB"), None),
            (Wanted::AtLeast(50), Some("infinity"), None),
            (listed.clone(), None, Some("a://a,b://b")),
            (listed.clone(), Some("c://c, b://b"), Some("c://c,b://b,a://a")),
            (listed.clone(), Some("b://b , a://a"), None),
            (listed, Some("*"), None),
        ] {
            assert_eq!(wanted.change(present).as_deref(), change, "{wanted:?} {present:?}");
        }
    }
}
