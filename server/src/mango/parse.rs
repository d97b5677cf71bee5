//! From the JSON of a selector to its normal form.
//!
//! CouchDB normalises in three passes (`norm_ops`, `norm_fields`, `norm_negations`); here they are one
//! walk that carries the path down to the condition and whether the number of negations above is odd:
//!
//! ```text
//!   {"$not": {"a": {"b": {"$gt": 1}, "$exists": true}}}
//!       walk: path []  -> ["a"] -> ["a", "b"], negated
//!   Or[ Field(["a","b"], Lte 1), Field(["a"], Exists false) ]
//! ```
//! A negation is carried into the condition rather than wrapped around it. That decides what a
//! *missing* field means: `{"$not": {"x": 5}}` is `{"x": {"$ne": 5}}`, which a document without `x`
//! does not match. Inside `$elemMatch`, `$allMatch` and `$keyMapMatch` CouchDB leaves negations where
//! they stand, and so does this.
//!
//! Source: `mango_selector.erl`.

use model::{Event, JsonKind, JsonRef, JsonText};
use regex::RegexBuilder;

use super::error::SelectorError;
use super::field;
use super::{Condition, Node, Selector};

/// How deeply a selector may be nested, its arguments included. It bounds the recursion of parsing,
/// matching and comparing.
pub const MAX_DEPTH: usize = 100;

/// The most memory a compiled regular expression may take, in bytes; matching is linear in the text.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// What becomes of a negation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Negations {
    /// It moves down into the conditions.
    Pushed,
    /// It stays where it stands.
    Kept,
}

pub(super) fn parse(text: &JsonText) -> Result<Selector, SelectorError> {
    let selector = text.root();
    if !selector.is_object() {
        return Err(SelectorError::not_an_object());
    }
    if depth_exceeds(selector, MAX_DEPTH) {
        return Err(SelectorError::too_deep(MAX_DEPTH));
    }
    if selector.members().next().is_none() {
        return Ok(Selector { root: Node::And(Vec::new()) });
    }
    let root = Walk { text, negations: Negations::Pushed }.node(selector, &mut Vec::new(), false)?;
    match root {
        Node::Field { path, .. } if path.is_empty() => Err(SelectorError::missing_field_name()),
        root => Ok(Selector { root }),
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
    /// The whole selector, which the arguments share the buffer of.
    text: &'a JsonText,
    negations: Negations,
}

impl Walk<'_> {
    /// The node for `value` under `path`.
    fn node(&self, value: JsonRef<'_>, path: &mut Vec<String>, negated: bool) -> Result<Node, SelectorError> {
        let mut members = value.members();
        match (members.next(), members.next()) {
            // A bare value, the empty object among them, means equality.
            (None, _) => Ok(field_node(path, self.equality(value, negated))),
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

    fn member(
        &self,
        name: &str,
        argument: JsonRef<'_>,
        path: &mut Vec<String>,
        negated: bool,
    ) -> Result<Node, SelectorError> {
        let list = |name: &str| match argument.kind() {
            JsonKind::Array => Ok(argument.elements()),
            _ => Err(SelectorError::bad_argument(name, argument.text())),
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
                // CouchDB cannot evaluate a $nor here and matches nothing; this one means what it says.
                let nodes = list(name)?
                    .map(|part| Ok(Node::Not(Box::new(self.node(part, path, false)?))))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(Node::And(nodes))
            }
            "$not" if !argument.is_object() => Err(SelectorError::bad_argument(name, argument.text())),
            "$not" if self.negations == Negations::Pushed => self.node(argument, path, !negated),
            "$not" => Ok(Node::Not(Box::new(self.node(argument, path, false)?))),
            operator if operator.starts_with('$') => {
                let condition = self.condition(operator, argument)?;
                Ok(field_node(path, if negated { condition.negate() } else { condition }))
            }
            field => {
                let above = path.len();
                field::parse(field, path)?;
                let node = self.node(argument, path, negated);
                path.truncate(above);
                node
            }
        }
    }

    fn owned(&self, value: JsonRef<'_>) -> JsonText {
        self.text.slice_ref(value)
    }

    fn equality(&self, value: JsonRef<'_>, negated: bool) -> Condition {
        let value = self.owned(value);
        if negated { Condition::Ne(value) } else { Condition::Eq(value) }
    }

    /// An operator that ends a path, with its argument checked.
    fn condition(&self, operator: &str, argument: JsonRef<'_>) -> Result<Condition, SelectorError> {
        let bad = || SelectorError::bad_argument(operator, argument.text());
        let values = || match argument.kind() {
            JsonKind::Array => Ok(argument.elements().map(|value| self.owned(value)).collect()),
            _ => Err(bad()),
        };
        let inner = || match argument.kind() {
            JsonKind::Object => Walk { text: self.text, negations: Negations::Kept }
                .node(argument, &mut Vec::new(), false)
                .map(Box::new),
            _ => Err(bad()),
        };
        Ok(match operator {
            "$lt" => Condition::Lt(self.owned(argument)),
            "$lte" => Condition::Lte(self.owned(argument)),
            "$eq" => Condition::Eq(self.owned(argument)),
            "$ne" => Condition::Ne(self.owned(argument)),
            "$gte" => Condition::Gte(self.owned(argument)),
            "$gt" => Condition::Gt(self.owned(argument)),
            "$exists" => Condition::Exists(argument.as_bool().ok_or_else(bad)?),
            "$type" => Condition::Type(argument.as_str().ok_or_else(bad)?.into_owned()),
            "$in" => Condition::In(values()?),
            "$nin" => Condition::Nin(values()?),
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
            // CouchDB has these two words for an argument that is no string.
            "$regex" | "$beginsWith" if argument.kind() != JsonKind::String => {
                return Err(SelectorError::invalid_operator(operator));
            }
            "$regex" => {
                let pattern = argument.as_str().ok_or_else(bad)?;
                let regex = RegexBuilder::new(&pattern).size_limit(MAX_REGEX_BYTES).build();
                Condition::Regex(regex.map_err(|problem| SelectorError::bad_regex(&pattern, &problem.to_string()))?)
            }
            "$beginsWith" => Condition::BeginsWith(argument.as_str().ok_or_else(bad)?.into_owned()),
            "$all" => Condition::All(values()?),
            "$elemMatch" => Condition::ElemMatch(inner()?),
            "$allMatch" => Condition::AllMatch(inner()?),
            "$keyMapMatch" => Condition::KeyMapMatch(inner()?),
            "$text" | "$where" | "$geoWithin" | "$geoIntersects" | "$near" | "$nearSphere" => {
                return Err(SelectorError::not_supported(operator));
            }
            unknown => return Err(SelectorError::invalid_operator(unknown)),
        })
    }
}

fn field_node(path: &[String], condition: Condition) -> Node {
    Node::Field { path: path.to_vec(), condition }
}
