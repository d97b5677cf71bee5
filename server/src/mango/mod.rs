//! Mango selectors: which documents a `filter=_selector` feed lets through.
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
//! * Values of different types compare, in CouchDB's order; strings by ICU's (see `collate`).
//! * `$eq` on objects looks at the order of members.
//! * An empty `$or` and an empty `$and` match everything, an empty `$in` and an empty `$all` nothing.
//! * `$in` over an array looks at its elements, never at the array itself.
//!
//! # What is not
//! * `$regex` has the syntax of the [`regex`] crate over Unicode: no back-references and no
//!   look-around, and in return linear time whatever the pattern. `$` is the very end of the text.
//! * `$beginsWith` compares code points where CouchDB compares grapheme clusters.
//! * Selectors are at most [`MAX_DEPTH`] levels deep; the divisor of `$mod` fits 64 bits.
//! * `$nor` works inside `$elemMatch`, `$allMatch` and `$keyMapMatch`.
//!
//! Source: `mango_selector.erl` and its tests; CouchDB's manual, "Selector Syntax".

mod collate;
mod error;
mod field;
mod matching;
mod number;
mod parse;
#[cfg(test)]
mod tests;

use model::{JsonRef, JsonText};
use regex::Regex;

pub use error::SelectorError;
pub use parse::MAX_DEPTH;

/// A selector, ready to match documents.
///
/// ```
/// use model::JsonText;
/// use server::mango::Selector;
///
/// let selector = JsonText::parse(br#"{"type": "city", "population": {"$gt": 1000000}}"#).unwrap();
/// let selector = Selector::parse(&selector).unwrap();
/// let document = JsonText::parse(br#"{"type": "city", "population": 3769495}"#).unwrap();
/// assert!(selector.matches(document.root()));
/// ```
#[derive(Clone, Debug)]
pub struct Selector {
    root: Node,
}

impl Selector {
    /// Reads a selector, an object of CouchDB's selector syntax.
    ///
    /// # Errors
    /// [`SelectorError`] names the operator or the field at fault.
    pub fn parse(selector: &JsonText) -> Result<Self, SelectorError> {
        parse::parse(selector)
    }

    /// Whether `document` matches: the whole document, with its `_id` and `_rev`.
    pub fn matches(&self, document: JsonRef<'_>) -> bool {
        self.root.matches(document)
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
    Lt(JsonText),
    Lte(JsonText),
    Eq(JsonText),
    Ne(JsonText),
    Gte(JsonText),
    Gt(JsonText),
    Exists(bool),
    Type(String),
    In(Vec<JsonText>),
    Nin(Vec<JsonText>),
    Size(u64),
    Mod {
        divisor: i64,
        remainder: i64,
    },
    Regex(Regex),
    BeginsWith(String),
    All(Vec<JsonText>),
    ElemMatch(Box<Node>),
    AllMatch(Box<Node>),
    KeyMapMatch(Box<Node>),
    /// The negation of a condition that has no opposite of its own.
    Not(Box<Condition>),
}
