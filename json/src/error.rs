//! Errors of parsing: the reason, and the position in the text.

use thiserror::Error;

/// Why a text is not JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invalid JSON at byte {offset}: {kind}")]
pub struct JsonError {
    /// The byte of the input at which parsing stopped, counted from 0.
    pub offset: usize,
    /// The reason.
    pub kind: JsonErrorKind,
}

/// A reason why [`JsonText::parse`](super::JsonText::parse) refuses a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The bytes are not UTF-8.
    #[error("invalid UTF-8")]
    Utf8,
    /// The text ended inside a value, or is empty.
    #[error("unexpected end of input")]
    UnexpectedEnd,
    /// Something else was found in place of a value.
    #[error("expected a value")]
    ExpectedValue,
    /// Something else was found in place of a member's name.
    #[error("expected a member name")]
    ExpectedName,
    /// There is no colon after a member's name.
    #[error("expected ':'")]
    ExpectedColon,
    /// There is neither a comma nor the end of the object.
    #[error("expected ',' or '}}'")]
    ExpectedCommaOrBrace,
    /// There is neither a comma nor the end of the array.
    #[error("expected ',' or ']'")]
    ExpectedCommaOrBracket,
    /// There is more text after the value.
    #[error("trailing characters")]
    TrailingCharacters,
    /// A number that JSON's grammar does not allow (`01`, `1.`, `-`).
    #[error("invalid number")]
    InvalidNumber,
    /// A number with a fraction or an exponent that no double can hold (`1e400`).
    #[error("number out of range")]
    NumberOutOfRange,
    /// An integer of more digits than [`ParseOptions::max_integer_digits`](super::ParseOptions::max_integer_digits).
    #[error("integer too long")]
    IntegerTooLong,
    /// An unescaped control character in a string.
    #[error("unescaped control character in a string")]
    ControlCharacter,
    /// A backslash that does not begin an escape.
    #[error("invalid escape")]
    InvalidEscape,
    /// One half of a surrogate pair without the other.
    #[error("lone surrogate")]
    LoneSurrogate,
    /// Deeper nesting than [`ParseOptions::max_depth`](super::ParseOptions::max_depth).
    #[error("nested too deeply")]
    TooDeep,
    /// More input than a text may have ([`MAX_INPUT_BYTES`](super::MAX_INPUT_BYTES)).
    #[error("input too large")]
    TooLarge,
}
