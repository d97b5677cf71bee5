//! What is wrong with a text that is not JSON, and where.

use thiserror::Error;

/// Why a text was refused, at which byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invalid JSON at byte {offset}: {kind}")]
pub struct JsonError {
    /// The byte of the input at which reading stopped, counted from 0.
    pub offset: usize,
    /// The reason.
    pub kind: JsonErrorKind,
}

/// The reasons for which [`JsonText::parse`](super::JsonText::parse) refuses a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The bytes are not UTF-8.
    #[error("invalid UTF-8")]
    Utf8,
    /// The text ended inside a value, or holds none.
    #[error("unexpected end of input")]
    UnexpectedEnd,
    /// A value was expected, something else stands there.
    #[error("expected a value")]
    ExpectedValue,
    /// The name of a member was expected, something else stands there.
    #[error("expected a member name")]
    ExpectedName,
    /// A colon was expected after the name of a member.
    #[error("expected ':'")]
    ExpectedColon,
    /// A comma or the end of the object was expected.
    #[error("expected ',' or '}}'")]
    ExpectedCommaOrBrace,
    /// A comma or the end of the array was expected.
    #[error("expected ',' or ']'")]
    ExpectedCommaOrBracket,
    /// More text after the value.
    #[error("trailing characters")]
    TrailingCharacters,
    /// A number that JSON's grammar does not know (`01`, `1.`, `-`).
    #[error("invalid number")]
    InvalidNumber,
    /// A number with a fraction or an exponent that no double can hold (`1e400`).
    #[error("number out of range")]
    NumberOutOfRange,
    /// An integer of more digits than [`ParseOptions::max_integer_digits`](super::ParseOptions::max_integer_digits).
    #[error("integer too long")]
    IntegerTooLong,
    /// A control character that is not escaped, inside a string.
    #[error("unescaped control character in a string")]
    ControlCharacter,
    /// A backslash followed by something that is no escape.
    #[error("invalid escape")]
    InvalidEscape,
    /// One half of a surrogate pair without its other half.
    #[error("lone surrogate")]
    LoneSurrogate,
    /// Nesting deeper than [`ParseOptions::max_depth`](super::ParseOptions::max_depth).
    #[error("nested too deeply")]
    TooDeep,
    /// More input than one text may have ([`MAX_INPUT_BYTES`](super::MAX_INPUT_BYTES)).
    #[error("input too large")]
    TooLarge,
}
