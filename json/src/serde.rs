//! Conversion from and to `serde_json::Value`, for code that need not be fast.

use serde_json::{Map, Number, Value};
use thiserror::Error;

use super::events::Event;
use super::view::JsonRef;
use super::writer::JsonWriter;
use super::{JsonText, ParseOptions};

/// The value is nested deeper than the caller allows. `serde_json` drops and prints its trees by recursion, so a deep
/// tree would end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("nested deeper than {max_depth} levels")]
pub struct TooDeepForSerde {
    /// The maximum depth.
    pub max_depth: usize,
}

/// The tree has a number that JSON cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a number that JSON cannot express")]
pub struct FromSerdeError;

/// An open container, and its name in the container around it.
struct Open {
    name: Option<String>,
    value: Value,
}

impl JsonRef<'_> {
    /// The value as a tree. Integers that fit neither `i64` nor `u64` become doubles. If they exceed these too, they
    /// become `null`, since `serde_json` has no better type for them.
    ///
    /// # Errors
    /// [`TooDeepForSerde`] if more than `max_depth` containers are open. `serde_json` itself parses up to 128.
    pub fn to_serde(self, max_depth: usize) -> Result<Value, TooDeepForSerde> {
        let mut open: Vec<Open> = Vec::new();
        let mut name = None;
        for event in self.events() {
            let value = match event {
                Event::BeginObject | Event::BeginArray => {
                    if open.len() >= max_depth {
                        return Err(TooDeepForSerde { max_depth });
                    }
                    let object = matches!(event, Event::BeginObject);
                    let value = if object { Value::Object(Map::new()) } else { Value::Array(Vec::new()) };
                    open.push(Open { name: name.take(), value });
                    continue;
                }
                Event::Name(text) => {
                    name = Some(text.to_cow().into_owned());
                    continue;
                }
                Event::EndObject | Event::EndArray => {
                    let Some(done) = open.pop() else { break };
                    name = done.name;
                    done.value
                }
                Event::Str(text) => Value::String(text.to_cow().into_owned()),
                Event::Int(digits) => integer(digits),
                Event::Float(value) => double(value),
                Event::Bool(value) => Value::Bool(value),
                Event::Null => Value::Null,
            };
            match open.last_mut().map(|around| &mut around.value) {
                Some(Value::Object(members)) => {
                    members.insert(name.take().unwrap_or_default(), value);
                }
                Some(Value::Array(elements)) => elements.push(value),
                _ => return Ok(value),
            }
        }
        Ok(Value::Null)
    }
}

fn integer(digits: &str) -> Value {
    if let Ok(value) = digits.parse::<i64>() {
        return value.into();
    }
    if let Ok(value) = digits.parse::<u64>() {
        return value.into();
    }
    digits.parse().map_or(Value::Null, double)
}

fn double(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The part of a tree that remains to be written.
enum Pending<'v> {
    Object(serde_json::map::Iter<'v>),
    Array(std::slice::Iter<'v, Value>),
}

impl JsonText {
    /// The value as a tree; see [`JsonRef::to_serde`].
    ///
    /// # Errors
    /// Like [`JsonRef::to_serde`].
    pub fn to_serde(&self, max_depth: usize) -> Result<Value, TooDeepForSerde> {
        self.root().to_serde(max_depth)
    }

    /// The text of a tree.
    ///
    /// # Errors
    /// [`FromSerdeError`] for a number that is not JSON. It can only exist with `serde_json`'s arbitrary precision.
    pub fn from_serde(value: &Value) -> Result<JsonText, FromSerdeError> {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        let mut pending = Vec::new();
        let mut current = Some(value);
        loop {
            if let Some(value) = current {
                match value {
                    Value::Object(members) => {
                        json.begin_object();
                        pending.push(Pending::Object(members.iter()));
                    }
                    Value::Array(elements) => {
                        json.begin_array();
                        pending.push(Pending::Array(elements.iter()));
                    }
                    Value::String(text) => {
                        json.str(text);
                    }
                    Value::Number(number) => {
                        // Through the parser, so the text is normalised whatever `serde_json` prints.
                        let text = JsonText::parse_with(number.to_string().as_bytes(), ParseOptions::default());
                        json.text(&text.map_err(|_| FromSerdeError)?);
                    }
                    Value::Bool(value) => {
                        json.bool(*value);
                    }
                    Value::Null => {
                        json.null();
                    }
                }
            }
            current = match pending.last_mut() {
                None => break,
                Some(Pending::Object(members)) => match members.next() {
                    Some((name, value)) => {
                        json.name(name);
                        Some(value)
                    }
                    None => {
                        json.end_object();
                        pending.pop();
                        None
                    }
                },
                Some(Pending::Array(elements)) => {
                    let next = elements.next();
                    if next.is_none() {
                        json.end_array();
                        pending.pop();
                    }
                    next
                }
            };
        }
        Ok(JsonText(out.into()))
    }
}
