//! CouchDB's order of JSON values:
//!
//! ```text
//!   null < false < true < numbers < strings < arrays < objects
//! ```
//! Numbers are compared by value. Strings are compared by the Unicode Collation Algorithm with CLDR's root order, which
//! is CouchDB's by ICU (`a < A < b`). Arrays are compared element by element, and a shorter prefix comes first. Objects
//! are compared member by member in the order of the text, name before value.
//!
//! Canonically equivalent strings, such as `é` as one code point and as two, are equal here as in CouchDB, also for
//! `$eq`. So are strings that differ only in characters that the collation ignores: `"a\u0000b"` equals `"ab"`. Index
//! rows with equal keys are sorted by their documents' ids.
//!
//! Views may have CouchDB's raw order instead, that of Erlang's terms: [`compare_terms`], [`append_term_key`].
//!
//! The same order has two implementations. [`compare`] compares two values. [`append_key`] writes a value as bytes that
//! compare like the value. A test compares the two on random values.
//!
//! Source: `couch_ejson_compare:less/2`.

mod key;
mod number;
mod term;

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::options::{CollatorOptions, Strength};
use icu_collator::{Collator, CollatorBorrowed};
use json::{JsonKind, JsonRef};

pub(crate) use key::append_prefix;
pub use key::{COLLATION_VERSION, append_key, append_term_key};
pub(crate) use number::remainder;
pub use term::compare_terms;

static ROOT: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| collator(Strength::Tertiary));

/// Distinguishes letters, but not accents or case.
static PRIMARY: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| collator(Strength::Primary));

fn collator(strength: Strength) -> CollatorBorrowed<'static> {
    let mut options = CollatorOptions::default();
    options.strength = Some(strength);
    Collator::try_new(Default::default(), options).expect("the root collation is compiled into this program")
}

/// The order in which a selector compares a field's values. Indexes and ranges are always in the order of views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The order of views.
    Collated,
    /// The order of ids: strings are compared as bytes, and sort after all other values.
    Raw,
}

impl Order {
    /// The order of the values at a path.
    pub(crate) fn of(path: &[String]) -> Order {
        if matches!(path, [id] if id == "_id") { Order::Raw } else { Order::Collated }
    }

    pub(crate) fn compare(self, a: JsonRef<'_>, b: JsonRef<'_>) -> Ordering {
        if self == Order::Collated {
            return compare(a, b);
        }
        match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => a.cmp(&b),
            (None, None) => compare(a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        }
    }
}

/// Compares two values. Recurses as deep as the shallower of the two, so one of them should have a limited depth, as
/// parts of selectors have.
pub fn compare(a: JsonRef<'_>, b: JsonRef<'_>) -> Ordering {
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
    // Most comparisons of a selector test for equality, and most equal strings have equal bytes.
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
mod tests;
