//! The text form of instructions: JSON, with bytes that a person can read.
//!
//! Printable ASCII bytes are written as they are. Any other byte, and `%`, `"` and `\`, is `%` and two hexadecimal
//! digits: `a%00`. Ten `\xff` bytes, the place of a versionstamp, are `%{}`. The stamp of the tape's third commit,
//! which differs between engines, is `%{3}`.

use std::fmt::Write;

use kv_api::{Bytes, Direction, KeySelector, MutationType, RangeRequest, Read, Versionstamp};
use serde::{Deserialize, Serialize};

const LEN: usize = Versionstamp::LEN;

/// Encodes bytes. `stamp` returns the number of the commit whose stamp these ten bytes are, if any.
pub(crate) fn encode(bytes: &[u8], stamp: impl Fn(&[u8; LEN]) -> Option<usize>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some((ten, beyond)) = rest.split_first_chunk::<LEN>() {
            let written = if ten == Versionstamp::PENDING.as_bytes() {
                write!(text, "%{{}}").is_ok()
            } else {
                stamp(ten).is_some_and(|commit| write!(text, "%{{{commit}}}").is_ok())
            };
            if written {
                rest = beyond;
                continue;
            }
        }
        match byte {
            b'%' | b'"' | b'\\' | 0..=0x1f | 0x7f..=0xff => _ = write!(text, "%{byte:02X}"),
            printable => text.push(char::from(printable)),
        }
        rest = after;
    }
    text
}

/// Decodes a text without stamps of commits. `None` for any other text.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            (0x20..0x7f).contains(&byte).then(|| bytes.push(byte))?;
        } else if let Some(after) = rest.strip_prefix(b"{}") {
            bytes.extend_from_slice(Versionstamp::PENDING.as_bytes());
            rest = after;
        } else {
            let (digits, after) = rest.split_first_chunk::<2>()?;
            let digit = |digit: u8| char::from(digit).to_digit(16);
            bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
            rest = after;
        }
    }
    Some(bytes)
}

/// Serde functions for bytes in instructions.
pub(super) mod bytes {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(bytes.as_ref(), |_| None))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, B: From<Vec<u8>>>(deserializer: D) -> Result<B, D::Error> {
        let text = String::deserialize(deserializer)?;
        match super::decode(&text) {
            Some(bytes) => Ok(bytes.into()),
            None => Err(de::Error::custom(format!("{text:?} is not a text of bytes"))),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Read", rename_all = "snake_case")]
pub(super) enum ReadText {
    Serializable,
    Snapshot,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Direction", rename_all = "snake_case")]
enum DirectionText {
    Forward,
    Reverse,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "MutationType", rename_all = "snake_case")]
pub(super) enum MutationText {
    Add,
    BitAnd,
    BitOr,
    BitXor,
    AppendIfFits,
    Max,
    Min,
    SetVersionstampedKey,
    SetVersionstampedValue,
    ByteMin,
    ByteMax,
    CompareAndClear,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "KeySelector", deny_unknown_fields)]
pub(super) struct SelectorText {
    #[serde(with = "bytes")]
    key: Bytes,
    or_equal: bool,
    offset: i32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RangeRequest", deny_unknown_fields)]
pub(super) struct RequestText {
    #[serde(with = "SelectorText")]
    begin: KeySelector,
    #[serde(with = "SelectorText")]
    end: KeySelector,
    #[serde(default, skip_serializing_if = "is_zero")]
    limit: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    target_bytes: usize,
    #[serde(with = "DirectionText")]
    direction: Direction,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn bytes_are_readable_and_come_back() {
        let stamp = Versionstamp::new(7, 1);
        let of = |ten: &[u8; LEN]| (ten == stamp.as_bytes()).then_some(3);
        let bytes =
            [b"v%\"\\\0\x7f\xff ".as_slice(), stamp.as_bytes(), Versionstamp::PENDING.as_bytes(), b"1"].concat();
        assert_eq!(encode(&bytes, of), "v%25%22%5C%00%7F%FF %{3}%{}1");
        assert_eq!(decode(&encode(&bytes, |_| None)).as_deref(), Some(&bytes[..]));
        for text in ["%{3}", "%", "%0", "%G0", "é", "\n", "%{", "%{x}", "%+1"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_bytes_come_back() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let length = random.below(30);
            let bytes: Vec<u8> = (0..length).map(|_| *random.pick(&[0, b'%', b'{', b'}', b'a', 0xff, 0xff])).collect();
            assert_eq!(decode(&encode(&bytes, |_| None)).as_ref(), Some(&bytes));
        }
    }
}
