//! A value as a flat sequence of events. It can be traversed without recursion.
//!
//! Normalised text can be read without a stack: a string is a member's name exactly if a colon follows it.

use super::number::is_integer;
use super::string::{JsonStr, string_end};

/// One step of traversing a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// An object begins.
    BeginObject,
    /// An object ends.
    EndObject,
    /// An array begins.
    BeginArray,
    /// An array ends.
    EndArray,
    /// The name of a member; its value comes next.
    Name(JsonStr<'a>),
    /// A string.
    Str(JsonStr<'a>),
    /// An integer of any length: its digits, with a sign if it is negative.
    Int(&'a str),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

/// An iterator over the events of a value; see [`JsonText::events`](super::JsonText::events).
#[derive(Clone, Debug)]
pub struct Events<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Events<'a> {
    pub(super) fn new(text: &'a str) -> Events<'a> {
        Events { text, at: 0 }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let bytes = self.text.as_bytes();
        while let Some(b',' | b':') = bytes.get(self.at) {
            self.at += 1;
        }
        let start = self.at;
        let (event, len) = match bytes.get(start)? {
            b'{' => (Event::BeginObject, 1),
            b'}' => (Event::EndObject, 1),
            b'[' => (Event::BeginArray, 1),
            b']' => (Event::EndArray, 1),
            b'"' => {
                let (end, escaped) = string_end(bytes, start + 1)?;
                let string = JsonStr::new(self.text.get(start + 1..end)?, escaped);
                let event = if bytes.get(end + 1) == Some(&b':') { Event::Name(string) } else { Event::Str(string) };
                (event, end + 1 - start)
            }
            b't' => (Event::Bool(true), 4),
            b'f' => (Event::Bool(false), 5),
            b'n' => (Event::Null, 4),
            _ => {
                let text = self.text.get(start..scalar_end(bytes, start)?)?;
                (number(text)?, text.len())
            }
        };
        self.at = start + len;
        Some(event)
    }
}

/// Position of the end of the number or literal that begins at `start`; `None` if there is none.
pub(super) fn scalar_end(bytes: &[u8], start: usize) -> Option<usize> {
    let rest = bytes.get(start..)?;
    let len = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']')).unwrap_or(rest.len());
    (len > 0).then_some(start + len)
}

fn number<'a>(text: &'a str) -> Option<Event<'a>> {
    if is_integer(text.as_bytes()) { Some(Event::Int(text)) } else { text.parse().ok().map(Event::Float) }
}
