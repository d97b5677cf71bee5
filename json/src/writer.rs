//! Writes JSON text without building a tree.

use super::number::{FloatText, append_u64};
use super::string::append_escaped;
use super::view::JsonRef;
use super::{JsonKind, JsonText};

/// Appends normalised JSON to a buffer, commas included.
///
/// It does not check the order of calls. Unbalanced calls, or a value instead of a name, give text that is not JSON.
///
/// ```
/// use json::JsonWriter;
///
/// let mut out = Vec::new();
/// let mut json = JsonWriter::new(&mut out);
/// json.begin_object();
/// json.name("ok").bool(true);
/// json.name("rev").str("1-967a00dff5e02add41819138abb3284d");
/// json.end_object();
/// assert_eq!(out, br#"{"ok":true,"rev":"1-967a00dff5e02add41819138abb3284d"}"#);
/// ```
#[derive(Debug)]
pub struct JsonWriter<'o> {
    out: &'o mut Vec<u8>,
    /// Whether the next name or value needs a comma before it.
    comma: bool,
}

impl<'o> JsonWriter<'o> {
    /// A writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>) -> JsonWriter<'o> {
        JsonWriter { out, comma: false }
    }

    fn separate(&mut self) {
        if self.comma {
            self.out.push(b',');
        }
        self.comma = true;
    }

    fn plain(&mut self, text: &[u8]) -> &mut Self {
        self.separate();
        self.out.extend_from_slice(text);
        self
    }

    /// Begins an object.
    pub fn begin_object(&mut self) -> &mut Self {
        self.plain(b"{");
        self.comma = false;
        self
    }

    /// Ends the innermost object.
    pub fn end_object(&mut self) -> &mut Self {
        self.comma = false;
        self.plain(b"}")
    }

    /// Begins an array.
    pub fn begin_array(&mut self) -> &mut Self {
        self.plain(b"[");
        self.comma = false;
        self
    }

    /// Ends the innermost array.
    pub fn end_array(&mut self) -> &mut Self {
        self.comma = false;
        self.plain(b"]")
    }

    /// Writes the name of a member; its value comes next.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.str(name);
        self.out.push(b':');
        self.comma = false;
        self
    }

    /// Writes a string.
    pub fn str(&mut self, value: &str) -> &mut Self {
        self.separate();
        self.out.push(b'"');
        append_escaped(self.out, value.as_bytes());
        self.out.push(b'"');
        self
    }

    /// Writes the text that `append` appends as a string. It must have nothing to escape.
    pub fn unescaped(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.separate();
        self.out.push(b'"');
        append(self.out);
        self.out.push(b'"');
        self
    }

    /// Writes the display text of `value`, for example a sequence, as a string.
    pub fn display(&mut self, value: impl std::fmt::Display) -> &mut Self {
        struct Escaping<'a>(&'a mut Vec<u8>);
        impl std::fmt::Write for Escaping<'_> {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                append_escaped(self.0, text.as_bytes());
                Ok(())
            }
        }
        self.separate();
        self.out.push(b'"');
        // Appending to a buffer cannot fail. If a `Display` implementation fails, its output is incomplete.
        let _ = std::fmt::Write::write_fmt(&mut Escaping(self.out), format_args!("{value}"));
        self.out.push(b'"');
        self
    }

    /// Writes an integer.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.separate();
        if value < 0 {
            self.out.push(b'-');
        }
        append_u64(self.out, value.unsigned_abs());
        self
    }

    /// Writes an integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.separate();
        append_u64(self.out, value);
        self
    }

    /// Writes a double that reads back as a float; `null` if it is not finite.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        if value.is_finite() { self.plain(FloatText::new().write(value).as_bytes()) } else { self.null() }
    }

    /// Writes `true` or `false`.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        let text = if value { "true" } else { "false" };
        self.plain(text.as_bytes())
    }

    /// Writes `null`.
    pub fn null(&mut self) -> &mut Self {
        self.plain(b"null")
    }

    /// Writes a JSON value.
    pub fn value(&mut self, value: JsonRef<'_>) -> &mut Self {
        self.plain(value.text().as_bytes())
    }

    /// Writes a JSON text.
    pub fn text(&mut self, value: &JsonText) -> &mut Self {
        self.plain(value.as_bytes())
    }

    /// Writes the members of `object` into the open object; nothing if it has no members or is not an object. Documents
    /// are composed like that: `_id`, `_rev`, then the members of the body.
    pub fn members_of(&mut self, object: &JsonText) -> &mut Self {
        let text = object.as_bytes();
        if object.kind() == JsonKind::Object && text.len() > 2 {
            self.separate();
            self.out.extend_from_slice(&text[1..text.len() - 1]);
        }
        self
    }
}
