//! JSON values as one flat buffer of normalised text.
//!
//! A document is parsed once, hashed, stored, joined and sent, but hardly ever edited; so it is held
//! as text rather than as a tree. [`JsonText::parse`] is the one way in from outside.
//!
//! # Normalised text
//! * No white space. Members in the order of the input; of equal names the last one, in its place.
//! * Strings are UTF-8 and escaped in exactly one way (see `string`).
//! * Integers are kept digit for digit, whatever their length; `-0` is `0`.
//! * Numbers with a fraction or an exponent are doubles, in the shortest form that reads back as the
//!   same double and still reads as a float: `1.0` stays `1.0`, `1e2` becomes `100.0`.
//!
//! # Invariant
//! A [`JsonText`] is normalised text of exactly one value, and UTF-8. Every reader here relies on it
//! for its answers, none of them for its safety: on broken text they end early.
//!
//! Nothing in this module recurses, so depth is bounded by memory alone.

mod error;
mod events;
mod number;
mod parse;
mod patch;
#[cfg(test)]
mod random;
mod scan;
mod serde;
mod split;
mod string;
mod view;
mod writer;

use std::fmt;

use bytes::Bytes;

pub use error::{JsonError, JsonErrorKind};
pub use events::{Event, Events};
pub use number::{FloatText, append_u64};
pub use parse::{MAX_INPUT_BYTES, ParseOptions};
pub use patch::{Patch, PatchError};
pub use scan::{RawStr, Scan, Token};
pub use serde::{FromSerdeError, TooDeepForSerde};
pub use split::SplitObject;
pub use string::JsonStr;
pub use string::append_escaped;
pub use view::{Elements, JsonKind, JsonRef, Members};
pub use writer::JsonWriter;

/// One JSON value as normalised compact text. Clones share the buffer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Reads one JSON value under the default [`ParseOptions`].
    ///
    /// # Errors
    /// [`JsonError`] says at which byte the text stops being JSON, and why.
    pub fn parse(input: &[u8]) -> Result<JsonText, JsonError> {
        JsonText::parse_with(input, ParseOptions::default())
    }

    /// Reads one JSON value.
    ///
    /// # Errors
    /// [`JsonError`] says at which byte the text stops being JSON, and why.
    pub fn parse_with(input: &[u8], options: ParseOptions) -> Result<JsonText, JsonError> {
        parse::normalise(input, options).map(|text| JsonText(text.into()))
    }

    /// Takes over text that [`JsonWriter`] wrote, or that was read back from where normalised text was stored;
    /// `None` where it is not even UTF-8. Other text gives wrong answers.
    pub fn from_normalised(text: impl Into<Bytes>) -> Option<JsonText> {
        let text = text.into();
        std::str::from_utf8(&text).ok()?;
        Some(JsonText(text))
    }

    /// The object without members.
    pub fn empty_object() -> JsonText {
        JsonText(Bytes::from_static(b"{}"))
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Both ways in check it; an empty string would be a wrong answer, never undefined behaviour.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The length of the text in bytes, which is what limits on documents count.
    #[allow(clippy::len_without_is_empty, reason = "the text of a value is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The buffer itself.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// A view of the whole value.
    pub fn root(&self) -> JsonRef<'_> {
        JsonRef::new(self.as_str())
    }

    /// What kind of value this is.
    pub fn kind(&self) -> JsonKind {
        JsonKind::of(&self.0)
    }

    /// The value's tokens, in the order of the text.
    pub fn scan(&self) -> Scan<'_> {
        Scan::new(&self.0)
    }

    /// The value as a flat sequence of events, in the order of the text.
    pub fn events(&self) -> Events<'_> {
        self.root().events()
    }

    /// The value of the member of that name; `None` where there is none or this is no object.
    pub fn get(&self, name: &str) -> Option<JsonRef<'_>> {
        self.root().get(name)
    }

    /// The part of this text that `value`, a view into it, covers; shares the buffer.
    pub fn slice_ref(&self, value: JsonRef<'_>) -> JsonText {
        JsonText(self.0.slice_ref(value.text().as_bytes()))
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JsonText").field(&self.as_str()).finish()
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<[u8]> for JsonText {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
