//! Parses the JSON of a selector into the normal form.
//!
//! CouchDB normalises in three passes (`norm_ops`, `norm_fields`, `norm_negations`). Here one walk does it. It carries
//! the path down to the condition, and whether the number of negations above is odd:
//!
//! ```text
//!   {"$not": {"a": {"b": {"$gt": 1}, "$exists": true}}}
//!       walk: path []  -> ["a"] -> ["a", "b"], negated
//!   Or[ Field(["a","b"], Lte 1), Field(["a"], Exists false) ]
//! ```
//! A negation is moved into the condition instead of being wrapped around it. This decides about a *missing* field:
//! `{"$not": {"x": 5}}` becomes `{"x": {"$ne": 5}}`, which a document without `x` does not match. Inside `$elemMatch`,
//! `$allMatch` and `$keyMapMatch`, negations stay in their place, as in CouchDB.
//!
//! Source: `mango_selector.erl`.

use std::cell::Cell;

use json::{Event, JsonArray, JsonKind, JsonRef, JsonText};

use super::node::{Choice, Condition, Node, Relation};
use crate::collate::Order;
use crate::error::Error;
use crate::path::{MAX_DEPTH, Path};
use crate::regex::Regex;

/// Maximum number of conditions of a selector, including nested ones. It limits the time for one document.
pub const MAX_CONDITIONS: usize = 10_000;

/// Maximum number of values in the tree of a selector, with combinations that are empty or have one part. It limits the
/// memory.
const MAX_NODES: usize = 10 * MAX_CONDITIONS;

/// Maximum size of the field names of all conditions in bytes. Each condition counts its whole path.
const MAX_PATH_BYTES: usize = 1_000_000;

/// Maximum number of regular expressions in a selector. It limits their total memory.
pub const MAX_REGEXES: usize = 100;

/// The treatment of negations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Negations {
    /// They move down into the conditions.
    Pushed,
    /// They stay in their place.
    Kept,
}

/// The normal form of a selector; `None` for `{}`.
pub(super) fn parse(text: &JsonText) -> Result<Option<Node>, Error> {
    let selector = text.root();
    if !selector.is_object() {
        return Err(Error::not_an_object());
    }
    if depth_exceeds(selector, MAX_DEPTH) {
        return Err(Error::too_deep(MAX_DEPTH));
    }
    if selector.members().next().is_none() {
        return Ok(None);
    }
    let counts = Counts::default();
    let root =
        Walk { text, negations: Negations::Pushed, counts: &counts }.node(selector, &mut Path::default(), false)?;
    match root {
        Node::Field { path, .. } if path.is_empty() => Err(Error::missing_field_name()),
        root => Ok(Some(root)),
    }
}

fn depth_exceeds(value: JsonRef<'_>, limit: usize) -> bool {
    let mut depth = 0usize;
    for event in value.events() {
        match event {
            Event::BeginObject | Event::BeginArray => depth += 1,
            Event::EndObject | Event::EndArray => depth -= 1,
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

struct Walk<'a> {
    /// The whole selector. The arguments share its buffer.
    text: &'a JsonText,
    negations: Negations,
    counts: &'a Counts,
}

/// Counts of the limited parts of a selector.
#[derive(Default)]
struct Counts {
    nodes: Cell<usize>,
    conditions: Cell<usize>,
    regexes: Cell<usize>,
    path_bytes: Cell<usize>,
}

impl Counts {
    fn add(count: &Cell<usize>, some: usize, limit: usize, what: &str) -> Result<(), Error> {
        count.set(count.get() + some);
        if count.get() > limit { Err(Error::too_many(limit, what)) } else { Ok(()) }
    }
}

impl Walk<'_> {
    /// The node for `value` under `path`.
    fn node(&self, value: JsonRef<'_>, path: &mut Path, negated: bool) -> Result<Node, Error> {
        Counts::add(&self.counts.nodes, 1, MAX_NODES, "conditions and combinations")?;
        let mut members = value.members();
        match (members.next(), members.next()) {
            // A bare value, including the empty object, means equality.
            (None, _) => Ok(self.field(path, self.compare(Relation::Eq, value, path), negated)?),
            (Some((name, argument)), None) => self.member(&name, argument, path, negated),
            // Several members are an implicit $and.
            (Some(_), Some(_)) => {
                let nodes = value
                    .members()
                    .map(|(name, argument)| self.member(&name, argument, path, negated))
                    .collect::<Result<_, _>>()?;
                Ok(if negated { Node::Or(nodes) } else { Node::And(nodes) })
            }
        }
    }

    fn member(&self, name: &str, argument: JsonRef<'_>, path: &mut Path, negated: bool) -> Result<Node, Error> {
        let list = |name: &str| match argument.kind() {
            JsonKind::Array => Ok(argument.elements()),
            _ => Err(Error::bad_argument(name, argument.text())),
        };
        match name {
            "$and" | "$or" => {
                let nodes = list(name)?.map(|part| self.node(part, path, negated)).collect::<Result<Vec<_>, _>>()?;
                Ok(if (name == "$and") != negated { Node::And(nodes) } else { Node::Or(nodes) })
            }
            "$nor" if self.negations == Negations::Pushed => {
                let nodes = list(name)?.map(|part| self.node(part, path, !negated)).collect::<Result<Vec<_>, _>>()?;
                Ok(if negated { Node::Or(nodes) } else { Node::And(nodes) })
            }
            "$nor" => {
                // CouchDB cannot evaluate a `$nor` here and matches nothing. Here it works.
                let nodes = list(name)?
                    .map(|part| Ok(Node::Not(Box::new(self.node(part, path, false)?))))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(Node::And(nodes))
            }
            "$not" if !argument.is_object() => Err(Error::bad_argument(name, argument.text())),
            "$not" if self.negations == Negations::Pushed => self.node(argument, path, !negated),
            "$not" => Ok(Node::Not(Box::new(self.node(argument, path, false)?))),
            operator if operator.starts_with('$') => {
                let condition = self.condition(operator, argument, path)?;
                self.field(path, condition, negated)
            }
            // The empty name of an element itself, in CouchDB's normal form, as in design documents.
            "" if self.negations == Negations::Kept && path.is_empty() => self.node(argument, path, negated),
            "" => Err(Error::missing_field_name()),
            field => {
                let above = path.lengths();
                path.push(field)?;
                let node = self.node(argument, path, negated);
                path.truncate(above);
                node
            }
        }
    }

    fn owned(&self, value: JsonRef<'_>) -> JsonText {
        self.text.slice_ref(value)
    }

    fn field(&self, path: &Path, condition: Condition, negated: bool) -> Result<Node, Error> {
        Counts::add(&self.counts.conditions, 1, MAX_CONDITIONS, "conditions")?;
        // Each condition has its own copy of the path.
        let path = path.kept();
        Counts::add(
            &self.counts.path_bytes,
            path.size(),
            MAX_PATH_BYTES,
            "bytes of field names, counted for each condition",
        )?;
        Ok(Node::Field { path, condition: if negated { condition.negate() } else { condition } })
    }

    fn compare(&self, relation: Relation, value: JsonRef<'_>, path: &[String]) -> Condition {
        Condition::Compare { relation, value: self.owned(value), order: Order::of(path) }
    }

    /// The condition of an operator at the end of a path. Checks the argument.
    fn condition(&self, operator: &str, argument: JsonRef<'_>, path: &[String]) -> Result<Condition, Error> {
        let bad = || Error::bad_argument(operator, argument.text());
        let choice = || {
            let given = self.owned(argument);
            let values = given.to_array().ok_or_else(bad)?;
            Ok(Choice::new(given, values, Order::of(path)))
        };
        let inner = || match argument.kind() {
            JsonKind::Object => Walk { text: self.text, negations: Negations::Kept, counts: self.counts }
                .node(argument, &mut Path::default(), false)
                .map(Box::new),
            _ => Err(bad()),
        };
        Ok(match operator {
            "$lt" => self.compare(Relation::Lt, argument, path),
            "$lte" => self.compare(Relation::Lte, argument, path),
            "$eq" => self.compare(Relation::Eq, argument, path),
            "$ne" => self.compare(Relation::Ne, argument, path),
            "$gte" => self.compare(Relation::Gte, argument, path),
            "$gt" => self.compare(Relation::Gt, argument, path),
            "$exists" => Condition::Exists(argument.as_bool().ok_or_else(bad)?),
            "$type" => Condition::Type(argument.as_str().ok_or_else(bad)?.into_owned()),
            "$in" => Condition::In(choice()?),
            "$nin" => Condition::Nin(choice()?),
            "$size" => Condition::Size(argument.as_u64().ok_or_else(bad)?),
            "$mod" => {
                let mut numbers = argument.elements();
                match (
                    numbers.next().and_then(JsonRef::as_i64),
                    numbers.next().and_then(JsonRef::as_i64),
                    numbers.next(),
                ) {
                    (Some(divisor), Some(remainder), None) if divisor != 0 => Condition::Mod { divisor, remainder },
                    _ => return Err(bad()),
                }
            }
            // CouchDB's error for an argument that is not a string.
            "$regex" | "$beginsWith" if argument.kind() != JsonKind::String => {
                return Err(Error::invalid_operator(operator));
            }
            "$regex" => {
                Counts::add(&self.counts.regexes, 1, MAX_REGEXES, "regular expressions")?;
                let pattern = argument.as_str().ok_or_else(bad)?.into_owned();
                let regex = Regex::new(&pattern).map_err(|problem| Error::bad_regex(&pattern, &problem))?;
                Condition::Regex { pattern, regex }
            }
            "$beginsWith" => Condition::BeginsWith(argument.as_str().ok_or_else(bad)?.into_owned()),
            "$all" if argument.is_array() => Condition::All(self.owned(argument)),
            "$all" => return Err(bad()),
            "$elemMatch" => Condition::ElemMatch(inner()?),
            "$allMatch" => Condition::AllMatch(inner()?),
            "$keyMapMatch" => Condition::KeyMapMatch(inner()?),
            "$text" | "$where" | "$geoWithin" | "$geoIntersects" | "$near" | "$nearSphere" => {
                return Err(Error::not_supported(operator));
            }
            unknown => return Err(Error::invalid_operator(unknown)),
        })
    }
}

impl Choice {
    fn new(given: JsonText, values: JsonArray, order: Order) -> Self {
        Choice { given, sorted: values.sorted_by(|a, b| order.compare(a, b)), order }
    }
}
