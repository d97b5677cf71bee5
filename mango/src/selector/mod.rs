//! Selectors: which documents match.
//!
//! A selector is parsed once into a normal form, then matched against any number of documents as they
//! stand in their text; nothing of a document is copied or turned into a tree.
//!
//! # Operators
//! Combining: `$and`, `$or`, `$not`, `$nor`, and several members, which are an implicit `$and`. On
//! arrays and objects: `$all`, `$elemMatch`, `$allMatch`, `$keyMapMatch`. Conditions: `$lt`, `$lte`,
//! `$eq`, `$ne`, `$gte`, `$gt`, `$exists`, `$type`, `$in`, `$nin`, `$size`, `$mod`, `$regex`,
//! `$beginsWith`; a bare value is an implicit `$eq`. `$text` needs an index and is refused.
//!
//! # What is as in CouchDB, and worth knowing
//! * A condition on a missing field is false, `$ne`, `$nin` and a `$not` above it included; only
//!   `{"$exists": false}` is true.
//! * Values of different types compare, in CouchDB's order; strings by ICU's (see `collate`). Values of `_id`
//!   compare by their bytes.
//! * `$eq` on objects looks at the order of members.
//! * An empty `$or` and an empty `$and` match everything, an empty `$in` and an empty `$all` nothing. A whole
//!   selector that is an empty combination finds nothing: [`Selector::is_empty_combination`].
//! * `$in` over an array looks at its elements, never at the array itself.
//! * `$regex` works on bytes: `é` matches `^..$`.
//! * `$beginsWith` compares whole characters as people see them: `e` does not begin `é`, however that is written.
//!
//! # What is not
//! * `$regex` has the syntax of the [`regex`] crate: no back-references and no look-around, and in return
//!   linear time whatever the pattern. `$` is the very end of the text. A pattern that means nothing over bytes, such
//!   as `[ä]`, is taken over code points.
//! * Selectors are at most [`MAX_DEPTH`] levels deep and have at most [`MAX_CONDITIONS`] conditions and
//!   [`MAX_REGEXES`] regular expressions; the divisor of `$mod` fits 64 bits.
//! * `$nor` works inside `$elemMatch`, `$allMatch` and `$keyMapMatch`.
//!
//! Source: `mango_selector.erl` and its tests; CouchDB's manual, "Selector Syntax".

mod analysis;
mod matching;
#[cfg(test)]
mod oracle;
mod parse;
mod range;
#[cfg(test)]
mod tests;
mod write;

use json::{JsonRef, JsonText};
use regex::bytes::Regex;

pub use analysis::IdRange;
pub use parse::{MAX_CONDITIONS, MAX_DEPTH, MAX_REGEXES};
pub(crate) use range::{ABOVE, FieldRange, Kind};

use crate::collate::Order;
use crate::error::Error;

/// A selector, ready to match documents.
///
/// ```
/// use json::JsonText;
/// use mango::Selector;
///
/// let selector = JsonText::parse(br#"{"type": "city", "population": {"$gt": 1000000}}"#).unwrap();
/// let selector = Selector::parse(&selector).unwrap();
/// let document = JsonText::parse(br#"{"type": "city", "population": 3769495}"#).unwrap();
/// assert!(selector.matches(document.root()));
/// ```
#[derive(Clone, Debug)]
pub struct Selector {
    /// `None` for `{}`, which everything matches.
    root: Option<Node>,
}

impl Selector {
    /// Reads a selector, an object of CouchDB's selector syntax.
    ///
    /// # Errors
    /// [`Error`] names the operator or the field at fault.
    pub fn parse(selector: &JsonText) -> Result<Self, Error> {
        parse::parse(selector)
    }

    /// Whether `document` matches: the whole document, with its `_id` and `_rev`.
    pub fn matches(&self, document: JsonRef<'_>) -> bool {
        self.root.as_ref().is_none_or(|root| root.matches(document))
    }

    /// Whether this is an empty `$and`, `$or` or `$nor` and nothing else. CouchDB does not even search then.
    pub fn is_empty_combination(&self) -> bool {
        matches!(&self.root, Some(Node::And(parts) | Node::Or(parts)) if parts.is_empty())
    }
}

/// A selector in normal form.
#[derive(Clone, Debug)]
enum Node {
    /// True if it has no parts.
    And(Vec<Node>),
    /// True if it has no parts, as in CouchDB.
    Or(Vec<Node>),
    /// Only inside `$elemMatch` and its like.
    Not(Box<Node>),
    /// A condition on the value at a path; the empty path is the value itself.
    Field { path: Vec<String>, condition: Condition },
}

#[derive(Clone, Debug)]
enum Condition {
    Compare {
        relation: Relation,
        value: JsonText,
        order: Order,
    },
    Exists(bool),
    Type(String),
    In(Choice),
    Nin(Choice),
    Size(u64),
    Mod {
        divisor: i64,
        remainder: i64,
    },
    Regex {
        pattern: String,
        regex: Regex,
    },
    BeginsWith(String),
    All(Vec<JsonText>),
    ElemMatch(Box<Node>),
    AllMatch(Box<Node>),
    KeyMapMatch(Box<Node>),
    /// The negation of a condition that has no opposite of its own.
    Not(Box<Condition>),
}

/// How a value stands to the one in the selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Lt,
    Lte,
    Eq,
    Ne,
    Gte,
    Gt,
}

/// The values of an `$in`.
#[derive(Clone, Debug)]
struct Choice {
    /// As they were given.
    given: Vec<JsonText>,
    /// By `order`, so that a value is looked up among many of them quickly.
    sorted: Vec<JsonText>,
    order: Order,
}
