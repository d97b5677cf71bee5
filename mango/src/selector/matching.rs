//! Matches values against a selector in normal form.
//!
//! It recurses over the selector and never over the document, so documents may have any depth.
//!
//! Source: `mango_selector:match/3` and `mango_doc:get_field/2`.

use std::collections::HashSet;

use json::{JsonKind, JsonRef, JsonText, JsonWriter};
use unicode_segmentation::GraphemeCursor;

use super::node::{Choice, Condition, Node, Relation};
use crate::collate::{compare_terms, remainder as remainder_of};
use crate::path::{AtPath, look_up};
use crate::regex::{Steps, TooManySteps};

impl Node {
    pub(super) fn matches(&self, value: JsonRef<'_>, steps: &Steps) -> Result<bool, TooManySteps> {
        match self {
            Node::And(parts) => all(parts, |part| part.matches(value, steps)),
            Node::Or(parts) => Ok(parts.is_empty() || any(parts, |part| part.matches(value, steps))?),
            Node::Not(part) => Ok(!part.matches(value, steps)?),
            Node::Field { path, condition } => match look_up(value, path) {
                AtPath::Value(value) => condition.matches(value, steps),
                AtPath::Nothing => Ok(matches!(condition, Condition::Exists(false))),
                AtPath::BadPath => Ok(false),
            },
        }
    }
}

impl Condition {
    /// The condition that is true when this one is false, for an existing value.
    pub(super) fn negate(self) -> Self {
        match self {
            Condition::Compare { relation, value, order } => {
                Condition::Compare { relation: relation.negate(), value, order }
            }
            Condition::In(values) => Condition::Nin(values),
            Condition::Nin(values) => Condition::In(values),
            Condition::Exists(expected) => Condition::Exists(!expected),
            other => Condition::Not(Box::new(other)),
        }
    }

    fn matches(&self, value: JsonRef<'_>, steps: &Steps) -> Result<bool, TooManySteps> {
        Ok(match self {
            Condition::Compare { relation, value: other, order } => {
                let order = order.compare(value, other.root());
                match relation {
                    Relation::Lt => order.is_lt(),
                    Relation::Lte => order.is_le(),
                    Relation::Eq => order.is_eq(),
                    Relation::Ne => order.is_ne(),
                    Relation::Gte => order.is_ge(),
                    Relation::Gt => order.is_gt(),
                }
            }
            // The value exists.
            Condition::Exists(expected) => *expected,
            Condition::Type(name) => type_name(value) == name,
            Condition::In(values) => values.has(value),
            Condition::Nin(values) => !values.has(value),
            Condition::Size(size) => value.is_array() && value.elements().count() as u64 == *size,
            Condition::Mod { divisor, remainder } => {
                value.kind() == JsonKind::Integer && remainder_of(value.text(), *divisor) == Some(*remainder)
            }
            Condition::Regex { regex, .. } => match value.as_str() {
                Some(text) => regex.is_match_within(&text, steps)?,
                None => false,
            },
            Condition::BeginsWith(prefix) => value.as_str().is_some_and(|text| begins_with(&text, prefix)),
            Condition::All(values) => has_all(value, values.root()),
            Condition::ElemMatch(node) => any(value.elements(), |element| node.matches(element, steps))?,
            Condition::AllMatch(node) => {
                let mut elements = value.elements().peekable();
                elements.peek().is_some() && all(elements, |element| node.matches(element, steps))?
            }
            Condition::KeyMapMatch(node) => any(value.members(), |(name, _)| {
                as_value(&name).map_or(Ok(false), |name| node.matches(name.root(), steps))
            })?,
            Condition::Not(condition) => !condition.matches(value, steps)?,
        })
    }
}

/// Whether one of them matches. The later ones are not evaluated.
fn any<T>(
    parts: impl IntoIterator<Item = T>,
    mut matches: impl FnMut(T) -> Result<bool, TooManySteps>,
) -> Result<bool, TooManySteps> {
    for part in parts {
        if matches(part)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether all of them match.
fn all<T>(
    parts: impl IntoIterator<Item = T>,
    mut matches: impl FnMut(T) -> Result<bool, TooManySteps>,
) -> Result<bool, TooManySteps> {
    Ok(!any(parts, |part| matches(part).map(|matches| !matches))?)
}

impl Relation {
    fn negate(self) -> Self {
        match self {
            Relation::Lt => Relation::Gte,
            Relation::Lte => Relation::Gt,
            Relation::Eq => Relation::Ne,
            Relation::Ne => Relation::Eq,
            Relation::Gte => Relation::Lt,
            Relation::Gt => Relation::Lte,
        }
    }
}

impl Choice {
    /// Whether the value, or an element of it if it is an array, is one of the arguments.
    fn has(&self, value: JsonRef<'_>) -> bool {
        let is_one = |value| self.sorted.has_by(|one| self.order.compare(one, value));
        if value.is_array() { value.elements().any(is_one) } else { is_one(value) }
    }
}

/// Whether `text` begins with `prefix` and the prefix ends between two graphemes.
fn begins_with(text: &str, prefix: &str) -> bool {
    // The cursor has the whole text, so it never fails.
    text.starts_with(prefix) && GraphemeCursor::new(prefix.len(), text.len(), true).is_boundary(text, 0).unwrap_or(true)
}

/// Elements are equal only if their texts are. CouchDB compares them exactly (`=:=`): `1` is not `1.0`. But it compares
/// the whole value by `==`, for which they are equal.
fn has_all(value: JsonRef<'_>, values: JsonRef<'_>) -> bool {
    let mut first = values.elements();
    match (first.next(), first.next()) {
        _ if !value.is_array() => false,
        (None, _) => false,
        // A single array may also be the whole value.
        (Some(list), None) if list.is_array() && compare_terms(list, value).is_eq() => true,
        _ => {
            let elements: HashSet<&str> = value.elements().map(JsonRef::text).collect();
            values.elements().all(|one| elements.contains(one.text()))
        }
    }
}

fn type_name(value: JsonRef<'_>) -> &'static str {
    match value.kind() {
        JsonKind::Null => "null",
        JsonKind::Bool => "boolean",
        JsonKind::Integer | JsonKind::Float => "number",
        JsonKind::String => "string",
        JsonKind::Array => "array",
        JsonKind::Object => "object",
    }
}

/// The name of a member as a value, to be matched against a selector.
fn as_value(name: &str) -> Option<JsonText> {
    let mut text = Vec::with_capacity(name.len() + 2);
    JsonWriter::new(&mut text).str(name);
    JsonText::from_normalised(text)
}
