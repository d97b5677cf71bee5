//! Views of values in a text.

use std::borrow::Cow;

use super::events::{Events, scalar_end};
use super::number::is_integer;
use super::string::{JsonStr, string_end};

/// The kinds of JSON values. Integers and floats are different: `1` is not `1.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JsonKind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// A number without fraction and exponent, of any length.
    Integer,
    /// A number with a fraction or an exponent.
    Float,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

impl JsonKind {
    /// The kind of a normalised text.
    pub(super) fn of(text: &[u8]) -> JsonKind {
        match text.first() {
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b'"') => JsonKind::String,
            Some(b't' | b'f') => JsonKind::Bool,
            Some(b'n') | None => JsonKind::Null,
            Some(_) if is_integer(text) => JsonKind::Integer,
            Some(_) => JsonKind::Float,
        }
    }
}

/// A view of a value in a [`JsonText`](super::JsonText). Looking up a member scans the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonRef<'a>(&'a str);

impl<'a> JsonRef<'a> {
    pub(super) fn new(text: &'a str) -> JsonRef<'a> {
        JsonRef(text)
    }

    /// The normalised text of this value.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// The string, if it is one, and otherwise the text of this value.
    pub fn str_or_text(self) -> Cow<'a, str> {
        self.as_str().unwrap_or(Cow::Borrowed(self.0))
    }

    /// The object's member with this name, or the array's element with this index.
    pub fn step(self, name: &str) -> Option<JsonRef<'a>> {
        match self.kind() {
            JsonKind::Object => self.get(name),
            JsonKind::Array => self.elements().nth(name.parse().ok()?),
            _ => None,
        }
    }

    /// The kind of the value.
    pub fn kind(self) -> JsonKind {
        JsonKind::of(self.0.as_bytes())
    }

    /// The string, if this is one.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        self.as_json_str().map(|string| string.to_cow())
    }

    /// The string as in the text, if this is one.
    pub fn as_json_str(self) -> Option<JsonStr<'a>> {
        let raw = self.0.strip_prefix('"')?.strip_suffix('"')?;
        Some(JsonStr::new(raw, memchr::memchr(b'\\', raw.as_bytes()).is_some()))
    }

    /// The integer, if this is one and it fits. A float is not an integer, not even `1.0`.
    pub fn as_i64(self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The integer, if this is one and it fits.
    pub fn as_u64(self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The number as a double. An integer that no double equals is rounded. `None` for other values, and for integers
    /// beyond all doubles.
    pub fn as_f64(self) -> Option<f64> {
        match self.kind() {
            JsonKind::Integer | JsonKind::Float => self.0.parse().ok().filter(|value: &f64| value.is_finite()),
            _ => None,
        }
    }

    /// The truth value, if this is one.
    pub fn as_bool(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Whether this is an object.
    pub fn is_object(self) -> bool {
        self.kind() == JsonKind::Object
    }

    /// Whether this is an array.
    pub fn is_array(self) -> bool {
        self.kind() == JsonKind::Array
    }

    /// The members in text order; empty if this is not an object.
    pub fn members(self) -> Members<'a> {
        Members(Children::new(self.0, b'{'))
    }

    /// The elements in order; empty if this is not an array.
    pub fn elements(self) -> Elements<'a> {
        Elements(Children::new(self.0, b'['))
    }

    /// The value of the member with this name; `None` if it is missing, or if this is not an object.
    pub fn get(self, name: &str) -> Option<JsonRef<'a>> {
        let mut members = self.members();
        while let Some(member) = members.next_raw() {
            if member.name.is(name) {
                return Some(member.value);
            }
        }
        None
    }

    /// The value as a flat sequence of events, in text order.
    pub fn events(self) -> Events<'a> {
        Events::new(self.0)
    }
}

/// The members of an object.
#[derive(Clone, Debug)]
pub struct Members<'a>(Children<'a>);

/// A member and its position in its object.
pub(super) struct RawMember<'a> {
    /// Position of its name's opening quote in the object's text.
    pub(super) start: usize,
    /// Position of its value's end.
    pub(super) end: usize,
    pub(super) name: JsonStr<'a>,
    pub(super) value: JsonRef<'a>,
}

impl<'a> Members<'a> {
    pub(super) fn next_raw(&mut self) -> Option<RawMember<'a>> {
        let start = self.0.next_start()?;
        let text = self.0.text;
        let (name_end, escaped) = string_end(text.as_bytes(), start + 1)?;
        let name = JsonStr::new(text.get(start + 1..name_end)?, escaped);
        let value = self.0.value(name_end + 2)?;
        Some(RawMember { start, end: self.0.at, name, value })
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, JsonRef<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_raw().map(|member| (member.name.to_cow(), member.value))
    }
}

/// The elements of an array.
#[derive(Clone, Debug)]
pub struct Elements<'a>(Children<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = JsonRef<'a>;

    fn next(&mut self) -> Option<JsonRef<'a>> {
        let start = self.0.next_start()?;
        self.0.value(start)
    }
}

/// An iterator over the values directly in a container.
#[derive(Clone, Debug)]
struct Children<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Children<'a> {
    /// The children of `text`; empty if it does not begin with `opening`.
    fn new(text: &'a str, opening: u8) -> Children<'a> {
        if text.as_bytes().first() == Some(&opening) { Children { text, at: 0 } } else { Children { text: "", at: 0 } }
    }

    /// Position of the next child: after the opening bracket or a comma.
    fn next_start(&self) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let start = match bytes.get(self.at)? {
            b'{' | b'[' if self.at == 0 => 1,
            b',' => self.at + 1,
            _ => return None,
        };
        match bytes.get(start)? {
            b'}' | b']' => None,
            _ => Some(start),
        }
    }

    fn value(&mut self, start: usize) -> Option<JsonRef<'a>> {
        let end = value_end(self.text.as_bytes(), start)?;
        self.at = end;
        self.text.get(start..end).map(JsonRef)
    }
}

/// The value that begins at `start`. Only this part of the text is looked at, however long the text is.
pub(super) fn value_at(bytes: &[u8], start: usize) -> Option<JsonRef<'_>> {
    std::str::from_utf8(bytes.get(start..value_end(bytes, start)?)?).ok().map(JsonRef)
}

/// Position of the end of the value that begins at `start`.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => string_end(bytes, start + 1).map(|(end, _)| end + 1),
        b'{' | b'[' => {
            let mut depth = 0usize;
            let mut at = start;
            loop {
                match bytes.get(at)? {
                    b'"' => at = string_end(bytes, at + 1)?.0,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        _ => scalar_end(bytes, start),
    }
}
