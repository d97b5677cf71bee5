//! Writes a selector in normal form as JSON, as `_explain` shows it (`mango_util:join_keys/1`).

use json::{JsonText, JsonWriter};

use super::Selector;
use super::node::{Condition, Node, Relation};

/// How a condition on an element itself is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    /// Under an empty name, as CouchDB does.
    Named,
    /// By itself, as clients do.
    Bare,
}

impl Selector {
    /// The selector as understood: each condition has its whole path, and negations are moved down to the conditions.
    pub fn to_json(&self) -> JsonText {
        self.write(Elements::Named)
    }

    /// The same, without empty names for elements.
    pub(crate) fn to_bare_json(&self) -> JsonText {
        self.write(Elements::Bare)
    }

    fn write(&self, elements: Elements) -> JsonText {
        let mut text = Vec::new();
        let mut json = JsonWriter::new(&mut text);
        match &self.root {
            Some(root) => root.write(&mut json, elements),
            None => {
                json.begin_object().end_object();
            }
        }
        JsonText::parse(&text).unwrap_or_else(|_| JsonText::empty_object())
    }
}

impl Node {
    fn write(&self, json: &mut JsonWriter<'_>, elements: Elements) {
        if let Node::Field { path, condition } = self
            && path.is_empty()
            && elements == Elements::Bare
        {
            return condition.write(json, elements);
        }
        json.begin_object();
        match self {
            Node::And(parts) => write_parts(json, "$and", parts, elements),
            Node::Or(parts) => write_parts(json, "$or", parts, elements),
            Node::Not(part) => {
                json.name("$not");
                part.write(json, elements);
            }
            Node::Field { path, condition } if let Some(name) = path.written() => {
                condition.write(json.name(name), elements);
            }
            Node::Field { path, condition } => {
                // A field name cannot continue after an empty one, so the rest is nested.
                let inner = path.iter().position(String::is_empty).map_or(path.len(), |empty| empty + 1);
                json.name(&crate::path::write(&path[..inner]));
                let mut field = &path[inner..];
                let mut open = 0;
                while !field.is_empty() {
                    let inner = field.iter().position(String::is_empty).map_or(field.len(), |empty| empty + 1);
                    json.begin_object().name(&crate::path::write(&field[..inner]));
                    (field, open) = (&field[inner..], open + 1);
                }
                condition.write(json, elements);
                for _ in 0..open {
                    json.end_object();
                }
            }
        }
        json.end_object();
    }
}

fn write_parts(json: &mut JsonWriter<'_>, operator: &str, parts: &[Node], elements: Elements) {
    json.name(operator).begin_array();
    parts.iter().for_each(|part| part.write(json, elements));
    json.end_array();
}

impl Relation {
    fn operator(self) -> &'static str {
        match self {
            Relation::Lt => "$lt",
            Relation::Lte => "$lte",
            Relation::Eq => "$eq",
            Relation::Ne => "$ne",
            Relation::Gte => "$gte",
            Relation::Gt => "$gt",
        }
    }
}

impl Condition {
    fn write(&self, json: &mut JsonWriter<'_>, elements: Elements) {
        json.begin_object();
        match self {
            Condition::Compare { relation, value, .. } => {
                json.name(relation.operator()).text(value);
            }
            Condition::Exists(expected) => {
                json.name("$exists").bool(*expected);
            }
            Condition::Type(name) => {
                json.name("$type").str(name);
            }
            Condition::In(values) => {
                json.name("$in").text(&values.given);
            }
            Condition::Nin(values) => {
                json.name("$nin").text(&values.given);
            }
            Condition::All(values) => {
                json.name("$all").text(values);
            }
            Condition::Size(size) => {
                json.name("$size").u64(*size);
            }
            Condition::Mod { divisor, remainder } => {
                json.name("$mod").begin_array().i64(*divisor).i64(*remainder).end_array();
            }
            Condition::Regex { pattern, .. } => {
                json.name("$regex").str(pattern);
            }
            Condition::BeginsWith(prefix) => {
                json.name("$beginsWith").str(prefix);
            }
            Condition::ElemMatch(node) => node.write(json.name("$elemMatch"), elements),
            Condition::AllMatch(node) => node.write(json.name("$allMatch"), elements),
            Condition::KeyMapMatch(node) => node.write(json.name("$keyMapMatch"), elements),
            Condition::Not(condition) => condition.write(json.name("$not"), elements),
        }
        json.end_object();
    }
}
