//! Selectors: they select the documents that match.
//!
//! A selector is parsed once into a normal form. It is then matched against the text of any number of documents,
//! without copying or parsing them.
//!
//! # Operators
//! Combining: `$and`, `$or`, `$not`, `$nor`, and several members, which are an implicit `$and`. On
//! arrays and objects: `$all`, `$elemMatch`, `$allMatch`, `$keyMapMatch`. Conditions: `$lt`, `$lte`,
//! `$eq`, `$ne`, `$gte`, `$gt`, `$exists`, `$type`, `$in`, `$nin`, `$size`, `$mod`, `$regex`,
//! `$beginsWith`; a bare value is an implicit `$eq`. `$text` needs an index and is refused.
//!
//! # Like CouchDB
//! * A condition on a missing field is false. This includes `$ne`, `$nin`, and conditions below `$not`. Only
//!   `{"$exists": false}` is true.
//! * Values of different types are compared in CouchDB's order, and strings in ICU's (see `collate`). Values of `_id`
//!   are compared as bytes.
//! * `$eq` on objects depends on the order of members.
//! * An empty `$or` and an empty `$and` match everything; an empty `$in` and an empty `$all` match nothing. A selector
//!   that is only an empty combination finds nothing: [`Selector::is_empty_combination`].
//! * `$in` on an array checks its elements, not the array itself.
//! * `$regex` works on bytes: `é` matches `^..$`.
//! * `$beginsWith` compares whole graphemes: `é` does not begin with `e`, however it is encoded.
//!
//! # Unlike CouchDB
//! * `$regex` that would cut characters apart, such as `[ä]`, is matched on code points. One that takes too many steps
//!   is an error, and the caller decides what that means; in CouchDB the condition is false. See [`crate::Regex`].
//! * Selectors have at most [`MAX_DEPTH`] levels, [`MAX_CONDITIONS`] conditions and [`MAX_REGEXES`] regular
//!   expressions. The divisor of `$mod` must fit in 64 bits.
//! * `$nor` works inside `$elemMatch`, `$allMatch` and `$keyMapMatch`.
//!
//! Source: `mango_selector.erl` and its tests; CouchDB's manual, "Selector Syntax".

mod analysis;
mod matching;
mod node;
#[cfg(test)]
mod oracle;
mod parse;
mod range;
#[cfg(test)]
mod tests;
mod write;

use json::{JsonRef, JsonText};

pub use crate::path::MAX_DEPTH;
pub use analysis::IdRange;
pub use parse::{MAX_CONDITIONS, MAX_REGEXES};
pub(crate) use range::{ABOVE, Bound, FieldRange, Kind};

use self::node::Node;
use crate::error::Error;
use crate::regex::Steps;

/// A parsed selector.
///
/// ```
/// use json::JsonText;
/// use mango::Selector;
///
/// let selector = JsonText::parse(br#"{"type": "city", "population": {"$gt": 1000000}}"#).unwrap();
/// let selector = Selector::parse(&selector).unwrap();
/// let document = JsonText::parse(br#"{"type": "city", "population": 3769495}"#).unwrap();
/// assert!(selector.matches(document.root()).unwrap());
/// ```
#[derive(Clone, Debug)]
pub struct Selector {
    /// `None` for `{}`, which matches everything.
    root: Option<Node>,
}

impl Selector {
    /// Parses a selector, an object in CouchDB's selector syntax.
    ///
    /// # Errors
    /// [`Error`] names the wrong operator or field.
    pub fn parse(selector: &JsonText) -> Result<Self, Error> {
        parse::parse(selector).map(|root| Selector { root })
    }

    /// Whether `document` matches. It must be the whole document, with `_id` and `_rev`.
    ///
    /// # Errors
    /// Regular expressions took too many steps on it.
    pub fn matches(&self, document: JsonRef<'_>) -> Result<bool, Error> {
        let Some(root) = &self.root else { return Ok(true) };
        root.matches(document, &Steps::default()).map_err(Error::too_many_steps)
    }

    /// Whether this is only an empty `$and`, `$or` or `$nor`. CouchDB does not search then.
    pub fn is_empty_combination(&self) -> bool {
        matches!(&self.root, Some(Node::And(parts) | Node::Or(parts)) if parts.is_empty())
    }
}
