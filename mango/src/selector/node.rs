//! The normal form of a selector.

use json::{JsonArray, JsonText};

use crate::collate::Order;
use crate::path::Path;
use crate::regex::Regex;

/// A selector in normal form.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// True if it is empty.
    And(Vec<Node>),
    /// True if it is empty, as in CouchDB.
    Or(Vec<Node>),
    /// Only inside `$elemMatch` and similar operators.
    Not(Box<Node>),
    /// A condition on the value at a path. The empty path is the value itself.
    Field { path: Path, condition: Condition },
}

#[derive(Clone, Debug)]
pub(super) enum Condition {
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
    /// An array.
    All(JsonText),
    ElemMatch(Box<Node>),
    AllMatch(Box<Node>),
    KeyMapMatch(Box<Node>),
    /// The negation of a condition that has no opposite.
    Not(Box<Condition>),
}

/// The relation between a value and the selector's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Lt,
    Lte,
    Eq,
    Ne,
    Gte,
    Gt,
}

/// The arguments of an `$in`.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The array in the selector.
    pub(super) given: JsonText,
    /// The same, sorted by `order` for fast lookups.
    pub(super) sorted: JsonArray,
    pub(super) order: Order,
}
