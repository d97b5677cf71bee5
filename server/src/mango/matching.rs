//! Whether a value matches a selector in normal form.
//!
//! Recurses over the selector, never over the document, so that a document may be as deep as it likes.
//!
//! Source: `mango_selector:match/3` and `mango_doc:get_field/2`.

use std::cmp::Ordering;

use model::{JsonKind, JsonRef, JsonText, JsonWriter};

use super::collate::compare;
use super::{Condition, Node, number};

impl Node {
    pub(super) fn matches(&self, value: JsonRef<'_>) -> bool {
        match self {
            Node::And(parts) => parts.iter().all(|part| part.matches(value)),
            Node::Or(parts) => parts.is_empty() || parts.iter().any(|part| part.matches(value)),
            Node::Not(part) => !part.matches(value),
            Node::Field { path, condition } => match look_up(value, path) {
                Found::Value(value) => condition.matches(value),
                Found::Nothing => matches!(condition, Condition::Exists(false)),
                Found::BadPath => false,
            },
        }
    }
}

impl Condition {
    /// The condition that holds where this one does not, for a value that is there.
    pub(super) fn negate(self) -> Self {
        match self {
            Condition::Lt(value) => Condition::Gte(value),
            Condition::Lte(value) => Condition::Gt(value),
            Condition::Eq(value) => Condition::Ne(value),
            Condition::Ne(value) => Condition::Eq(value),
            Condition::Gte(value) => Condition::Lt(value),
            Condition::Gt(value) => Condition::Lte(value),
            Condition::In(values) => Condition::Nin(values),
            Condition::Nin(values) => Condition::In(values),
            Condition::Exists(expected) => Condition::Exists(!expected),
            other => Condition::Not(Box::new(other)),
        }
    }

    fn matches(&self, value: JsonRef<'_>) -> bool {
        match self {
            Condition::Lt(than) => compare(value, than.root()).is_lt(),
            Condition::Lte(than) => compare(value, than.root()).is_le(),
            Condition::Eq(to) => compare(value, to.root()).is_eq(),
            Condition::Ne(to) => compare(value, to.root()).is_ne(),
            Condition::Gte(than) => compare(value, than.root()).is_ge(),
            Condition::Gt(than) => compare(value, than.root()).is_gt(),
            // The value is there.
            Condition::Exists(expected) => *expected,
            Condition::Type(name) => type_name(value) == name,
            Condition::In(values) => is_in(value, values),
            Condition::Nin(values) => !is_in(value, values),
            Condition::Size(size) => value.is_array() && value.elements().count() as u64 == *size,
            Condition::Mod { divisor, remainder } => {
                value.kind() == JsonKind::Integer && number::remainder(value.text(), *divisor) == Some(*remainder)
            }
            Condition::Regex(regex) => value.as_str().is_some_and(|text| regex.is_match(&text)),
            Condition::BeginsWith(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix.as_str())),
            Condition::All(values) => has_all(value, values),
            Condition::ElemMatch(node) => value.elements().any(|element| node.matches(element)),
            Condition::AllMatch(node) => {
                let mut elements = value.elements().peekable();
                elements.peek().is_some() && elements.all(|element| node.matches(element))
            }
            Condition::KeyMapMatch(node) => {
                value.members().any(|(name, _)| as_value(&name).is_some_and(|name| node.matches(name.root())))
            }
            Condition::Not(condition) => !condition.matches(value),
        }
    }
}

enum Found<'a> {
    Value(JsonRef<'a>),
    /// An object on the way has no such member.
    Nothing,
    /// A step goes into a scalar, or beyond the end of an array.
    BadPath,
}

fn look_up<'a>(mut value: JsonRef<'a>, path: &[String]) -> Found<'a> {
    for name in path {
        value = match value.kind() {
            JsonKind::Object => match value.get(name) {
                Some(member) => member,
                None => return Found::Nothing,
            },
            JsonKind::Array => match name.parse().ok().and_then(|index| value.elements().nth(index)) {
                Some(element) => element,
                None => return Found::BadPath,
            },
            _ => return Found::BadPath,
        };
    }
    Found::Value(value)
}

fn is_in(value: JsonRef<'_>, values: &[JsonText]) -> bool {
    let equals_one = |value| values.iter().any(|one| compare(value, one.root()) == Ordering::Equal);
    if value.is_array() { value.elements().any(equals_one) } else { equals_one(value) }
}

/// Elements are the same only if their texts are: CouchDB compares exactly here, `1` is not `1.0`.
fn has_all(value: JsonRef<'_>, values: &[JsonText]) -> bool {
    let contains = |one: &JsonText| value.elements().any(|element| element.text() == one.as_str());
    match values {
        _ if !value.is_array() => false,
        [] => false,
        // A single list may also be the whole value.
        [list] if list.root().is_array() && list.as_str() == value.text() => true,
        values => values.iter().all(contains),
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

/// The name of a member as a value, to match a selector against.
fn as_value(name: &str) -> Option<JsonText> {
    let mut text = Vec::with_capacity(name.len() + 2);
    JsonWriter::new(&mut text).str(name);
    JsonText::parse(&text).ok()
}
