//! JSON values as one flat buffer of normalised text.
//!
//! A document is parsed once, then hashed, stored, read and sent, but rarely edited. So it is kept as text, not as a
//! tree. External text enters only through [`JsonText::parse`].
//!
//! # Normalised text
//! * There is no white space. Members have the order of the input. If names are equal, only the last one stays, in its
//!   place.
//! * Strings are UTF-8 and escaped in exactly one way (see `string`).
//! * Integers keep all digits, whatever their length. `-0` becomes `0`.
//! * Numbers with a fraction or an exponent are doubles. Their text is the shortest that reads back as the same double
//!   and as a float: `1.0` stays `1.0`, `1e2` becomes `100.0`.
//!
//! # Invariant
//! A [`JsonText`] is the normalised UTF-8 text of exactly one value. All readers here need that for correct results,
//! but not for safety: on broken text they end early.
//!
//! Nothing in this crate recurses, so only memory limits the depth of values.

mod array;
mod error;
mod events;
mod number;
mod parse;
mod patch;
mod scan;
mod serde;
mod split;
mod string;
mod view;
mod writer;

use std::fmt;

use bytes::Bytes;

pub use array::JsonArray;
pub use error::{JsonError, JsonErrorKind};
pub use events::{Event, Events};
pub use number::{FloatText, append_u64, is_integer};
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
    /// Parses one JSON value with the default [`ParseOptions`].
    ///
    /// # Errors
    /// [`JsonError`] has the reason and the position.
    pub fn parse(input: &[u8]) -> Result<JsonText, JsonError> {
        JsonText::parse_with(input, ParseOptions::default())
    }

    /// Parses one JSON value.
    ///
    /// # Errors
    /// [`JsonError`] has the reason and the position.
    pub fn parse_with(input: &[u8], options: ParseOptions) -> Result<JsonText, JsonError> {
        parse::normalise(input, options).map(|text| JsonText(text.into()))
    }

    /// Wraps text that [`JsonWriter`] wrote, or that was stored as normalised text. `None` if it is not UTF-8. Other
    /// text gives wrong results.
    pub fn from_normalised(text: impl Into<Bytes>) -> Option<JsonText> {
        let text = text.into();
        std::str::from_utf8(&text).ok()?;
        Some(JsonText(text))
    }

    /// An object without members.
    pub fn empty_object() -> JsonText {
        JsonText(Bytes::from_static(b"{}"))
    }

    /// `null`.
    pub fn null() -> JsonText {
        JsonText(Bytes::from_static(b"null"))
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Both constructors check this. An empty string would be a wrong result, but never undefined behaviour.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Length of the text in bytes. Limits on documents count it.
    #[allow(clippy::len_without_is_empty, reason = "the text of a value is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The buffer.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// A view of the whole value.
    pub fn root(&self) -> JsonRef<'_> {
        JsonRef::new(self.as_str())
    }

    /// The kind of the value.
    pub fn kind(&self) -> JsonKind {
        JsonKind::of(&self.0)
    }

    /// The value's tokens, in text order.
    pub fn scan(&self) -> Scan<'_> {
        Scan::new(&self.0)
    }

    /// The value as a flat sequence of events, in text order.
    pub fn events(&self) -> Events<'_> {
        self.root().events()
    }

    /// The value of the member with this name; `None` if it is missing, or if the value is not an object.
    pub fn get(&self, name: &str) -> Option<JsonRef<'_>> {
        self.root().get(name)
    }

    /// The part of this text that `value`, a view of it, covers. Shares the buffer.
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
