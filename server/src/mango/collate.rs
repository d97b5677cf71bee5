//! CouchDB's order of JSON values:
//!
//! ```text
//!   null < false < true < numbers < strings < arrays < objects
//! ```
//! Numbers by value; strings by the Unicode Collation Algorithm with CLDR's root order, as CouchDB has
//! it from ICU (`a < A < b`); arrays element by element, the shorter first; objects member by member in
//! the order they were written, name before value.
//!
//! Two strings that Unicode calls canonically equivalent, such as `é` as one code point and as two, are
//! equal here as they are in CouchDB, `$eq` included.
//!
//! Source: `couch_ejson_compare:less/2`.

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::{Collator, CollatorBorrowed};
use model::{JsonKind, JsonRef};

use super::number;

static ROOT: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
    Collator::try_new(Default::default(), Default::default()).expect("the root collation is compiled into this program")
});

/// The order of two values. Recurses as deep as the shallower of the two: one of them is always part of
/// a selector, whose depth is bounded.
pub(super) fn compare(a: JsonRef<'_>, b: JsonRef<'_>) -> Ordering {
    if a.text() == b.text() {
        return Ordering::Equal;
    }
    let (a_rank, b_rank) = (rank(a), rank(b));
    if a_rank != b_rank {
        return a_rank.cmp(&b_rank);
    }
    match a_rank {
        Rank::Null | Rank::False | Rank::True => Ordering::Equal,
        Rank::Number => number::compare(a.text(), b.text()),
        Rank::String => compare_strings(&a.as_str().unwrap_or_default(), &b.as_str().unwrap_or_default()),
        Rank::Array => {
            let (mut a, mut b) = (a.elements(), b.elements());
            loop {
                match (a.next(), b.next()) {
                    (Some(a), Some(b)) => match compare(a, b) {
                        Ordering::Equal => {}
                        unequal => return unequal,
                    },
                    (a, b) => return a.is_some().cmp(&b.is_some()),
                }
            }
        }
        Rank::Object => {
            let (mut a, mut b) = (a.members(), b.members());
            loop {
                match (a.next(), b.next()) {
                    (Some((a_name, a)), Some((b_name, b))) => {
                        match compare_strings(&a_name, &b_name).then_with(|| compare(a, b)) {
                            Ordering::Equal => {}
                            unequal => return unequal,
                        }
                    }
                    (a, b) => return a.is_some().cmp(&b.is_some()),
                }
            }
        }
    }
}

fn compare_strings(a: &str, b: &str) -> Ordering {
    // Most comparisons of a selector are for equality, and most equal strings are equal bytes.
    if a == b { Ordering::Equal } else { ROOT.compare(a, b) }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Null,
    False,
    True,
    Number,
    String,
    Array,
    Object,
}

fn rank(value: JsonRef<'_>) -> Rank {
    match value.kind() {
        JsonKind::Null => Rank::Null,
        JsonKind::Bool if value.as_bool() == Some(true) => Rank::True,
        JsonKind::Bool => Rank::False,
        JsonKind::Integer | JsonKind::Float => Rank::Number,
        JsonKind::String => Rank::String,
        JsonKind::Array => Rank::Array,
        JsonKind::Object => Rank::Object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::JsonText;

    #[test]
    fn values_stand_in_the_order_couchdb_documents() {
        // The list of CouchDB's manual ("View Collation"), each greater than the one before it.
        let rising = [
            "null",
            "false",
            "true",
            "1",
            "2",
            "3.0",
            "4",
            r#""a""#,
            r#""A""#,
            r#""aa""#,
            r#""b""#,
            r#""B""#,
            r#""ba""#,
            r#""bb""#,
            r#""Ö""#,
            r#""z""#,
            r#"["a"]"#,
            r#"["b"]"#,
            r#"["b","c"]"#,
            r#"["b","c","a"]"#,
            r#"["b","d"]"#,
            r#"["b","d","e"]"#,
            r#"{"a":1}"#,
            r#"{"a":2}"#,
            r#"{"b":1}"#,
            r#"{"b":2}"#,
            r#"{"b":2,"a":1}"#,
            r#"{"b":2,"c":2}"#,
        ]
        .map(|text| JsonText::parse(text.as_bytes()).unwrap());
        for (i, a) in rising.iter().enumerate() {
            for (j, b) in rising.iter().enumerate() {
                assert_eq!(compare(a.root(), b.root()), i.cmp(&j), "{a} against {b}");
            }
        }
    }

    #[test]
    fn canonically_equivalent_strings_are_equal() {
        let (one, two) = (r#""\u00e9""#, r#""e\u0301""#);
        let [one, two] = [one, two].map(|text| JsonText::parse(text.as_bytes()).unwrap());
        assert_ne!(one, two);
        assert_eq!(compare(one.root(), two.root()), Ordering::Equal);
    }
}
