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
//! equal here as they are in CouchDB, `$eq` included. So are strings that differ in characters that the
//! collation ignores: `"a\u0000b"` equals `"ab"`. Rows of an index with equal keys are in the order of
//! their documents' ids.
//!
//! There are two ways to the same order: [`compare`] looks at two values, and [`append_key`] writes a value as
//! bytes that compare as the value does. A test compares the two on random values.
//!
//! Source: `couch_ejson_compare:less/2`.

mod key;
mod number;

use std::cmp::Ordering;
use std::sync::LazyLock;

use icu_collator::options::{CollatorOptions, Strength};
use icu_collator::{Collator, CollatorBorrowed};
use json::{JsonKind, JsonRef};

pub use key::{COLLATION_VERSION, append_key};
pub(crate) use number::remainder;

static ROOT: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| collator(Strength::Tertiary));

/// Tells apart what differs in letters, not in accents or case.
static PRIMARY: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| collator(Strength::Primary));

fn collator(strength: Strength) -> CollatorBorrowed<'static> {
    let mut options = CollatorOptions::default();
    options.strength = Some(strength);
    Collator::try_new(Default::default(), options).expect("the root collation is compiled into this program")
}

/// How the values of a field compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As views sort them.
    Collated,
    /// As ids do: strings by their bytes, and behind everything else.
    Raw,
}

impl Order {
    /// How the values at a path compare.
    pub(crate) fn of(path: &[String]) -> Order {
        if matches!(path, [id] if id == "_id") { Order::Raw } else { Order::Collated }
    }

    /// Appends the key of a value: keys compare as bytes as the values do in this order.
    pub(crate) fn append_key(self, out: &mut Vec<u8>, value: JsonRef<'_>) {
        match value.as_str() {
            Some(id) if self == Order::Raw => key::append_id(out, &id),
            _ => append_key(out, value),
        }
    }

    /// Appends what the keys of all strings begin with that begin with `prefix`, in the sense of `$beginsWith`.
    pub(crate) fn append_prefix(self, out: &mut Vec<u8>, prefix: &str) {
        match self {
            Order::Collated => key::append_prefix(out, prefix),
            Order::Raw => key::append_id_prefix(out, prefix),
        }
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

/// The order of two values. Recurses as deep as the shallower of the two: one of them should be of bounded depth,
/// such as a part of a selector.
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
mod tests;
