//! The sequence of an edit: RFC 001's `Incarnation` and `Versionstamp` in one value that sorts.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::rows::row::STAMP_LEN;

/// The sequence of a document's last change.
///
/// ```text
///   0             1                       9       11      13
///   ├─────────────┼───────────────────────┼───────┼───────┤
///   │ incarnation │ commit version (u64)  │ order │ edit  │   all big-endian
///   └─────────────┴───────────────────────┴───────┴───────┘
/// ```
///
/// `order` is the transaction's order in its commit batch, `edit` the edit's order in the transaction. The text
/// form has 26 hexadecimal digits, which sort like the value (RFC 003).
///
/// ```
/// use model::Seq;
///
/// assert_eq!("0".parse::<Seq>().unwrap(), Seq::ZERO);
/// assert_eq!(Seq::ZERO.to_string().len(), 26);
/// assert!("12-abc".parse::<Seq>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq([u8; Seq::LEN]);

impl Seq {
    /// Length in bytes.
    pub const LEN: usize = 1 + STAMP_LEN;

    /// Before every edit.
    pub const ZERO: Seq = Seq([0; Seq::LEN]);

    /// After every edit.
    pub(crate) const LAST: Seq = Seq([0xff; Seq::LEN]);

    /// The sequence with these bytes.
    pub const fn from_bytes(bytes: [u8; Seq::LEN]) -> Self {
        Seq(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; Seq::LEN] {
        &self.0
    }

    pub(crate) fn new(incarnation: u8, stamp: &[u8; STAMP_LEN]) -> Self {
        let mut bytes = [incarnation; Seq::LEN];
        bytes[1..].copy_from_slice(stamp);
        Seq(bytes)
    }

    /// The database's incarnation when the edit was made: the number of times that it had moved between stores, or that
    /// its store had been [adopted](crate::Layer::adopt).
    pub fn incarnation(&self) -> u8 {
        self.0[0]
    }

    /// After every edit of earlier incarnations, and before every edit of this one.
    pub(crate) fn beginning_of(incarnation: u8) -> Seq {
        Seq::new(incarnation, &[0; STAMP_LEN])
    }

    /// After every edit of this incarnation up to a version, and before every later one.
    pub(crate) fn end_of(incarnation: u8, version: u64) -> Seq {
        let mut stamp = [0xff; STAMP_LEN];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        Seq::new(incarnation, &stamp)
    }

    /// Whether the sequence lies ahead: a database of this incarnation can give it out only after `version`, or in
    /// another store.
    pub(crate) fn is_after(&self, incarnation: u8, version: i64) -> bool {
        self.0[0] > incarnation
            || (self.0[0] == incarnation && self.version() > u64::try_from(version).unwrap_or_default())
    }

    /// The version of the edit's commit.
    pub(crate) fn version(&self) -> u64 {
        self.0[1..9].iter().fold(0, |version, byte| version << 8 | u64::from(*byte))
    }

    /// The edit's order in its transaction.
    pub(crate) fn edit(&self) -> u16 {
        u16::from_be_bytes([self.0[Seq::LEN - 2], self.0[Seq::LEN - 1]])
    }

    pub(crate) fn is_of_same_transaction(&self, other: Seq) -> bool {
        self.0[..Seq::LEN - 2] == other.0[..Seq::LEN - 2]
    }

    pub(crate) fn stamp(&self) -> [u8; STAMP_LEN] {
        let mut stamp = [0; STAMP_LEN];
        stamp.copy_from_slice(&self.0[1..]);
        stamp
    }
}

/// Before every edit.
impl Default for Seq {
    fn default() -> Self {
        Seq::ZERO
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seq({self})")
    }
}

/// A sequence as clients see it: `N-` and its digits, since CouchDB's sequences start with a number.
///
/// `number` is about the number of edits of the database up to the sequence. It is below 2^53, never falls along the
/// feed, and never changes for a sequence. Programs take the difference of two as the number of changes between them.
/// Only the digits decide: a sequence is read with any number before them, or without one.
///
/// ```
/// use model::{NumberedSeq, Seq};
///
/// let shown = NumberedSeq { number: 12, seq: Seq::ZERO }.to_string();
/// assert_eq!(shown, "12-00000000000000000000000000");
/// assert_eq!(shown.parse::<Seq>().unwrap(), Seq::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedSeq {
    /// About the number of edits up to the sequence.
    pub number: u64,
    /// The sequence.
    pub seq: Seq,
}

impl fmt::Display for NumberedSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.seq)
    }
}

impl FromStr for Seq {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "0" {
            return Ok(Seq::ZERO);
        }
        let malformed = || Error::bad_request("Malformed sequence supplied in 'since' parameter.");
        let text = match text.split_once('-') {
            Some((number, digits)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => digits,
            _ => text,
        };
        if text.len() != 2 * Seq::LEN || !text.is_ascii() {
            return Err(malformed());
        }
        let mut bytes = [0; Seq::LEN];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(malformed);
            *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
        }
        Ok(Seq(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_sorts_like_the_value() {
        let seqs: Vec<Seq> = (0..40u8).map(|n| Seq::new(n / 20, &[n * 6; STAMP_LEN])).collect();
        assert!(seqs.is_sorted());
        let texts: Vec<String> = seqs.iter().map(Seq::to_string).collect();
        assert!(texts.is_sorted());
        for (seq, text) in seqs.iter().zip(&texts) {
            assert_eq!(text.parse::<Seq>().unwrap(), *seq);
            assert_eq!(text.to_uppercase().parse::<Seq>().unwrap(), *seq);
            assert_eq!(format!("18446744073709551616-{text}").parse::<Seq>().unwrap(), *seq);
        }
    }

    #[test]
    fn a_sequence_of_later_is_known_by_incarnation_and_version() {
        let seq = |incarnation, version: u64| {
            Seq::new(incarnation, &[&version.to_be_bytes()[..], &[0xff; 4]].concat().try_into().unwrap())
        };
        assert_eq!(seq(3, 1 << 50).version(), 1 << 50);
        for (seq, is_after) in [
            (Seq::ZERO, false),
            (seq(1, 7), false),
            (seq(1, 8), true),
            (seq(0, 1 << 60), false),
            (Seq::beginning_of(1), false),
            (Seq::beginning_of(2), true),
        ] {
            assert_eq!(seq.is_after(1, 7), is_after, "{seq}");
        }
    }

    #[test]
    fn sequences_from_another_world_are_refused() {
        for text in [
            "",
            "00",
            "now",
            "12-g1AAAA",
            "g0000000000000000000000000",
            "0000000000000000000000000é",
            "-1",
            "-00000000000000000000000000",
            "x-00000000000000000000000000",
        ] {
            assert_eq!(text.parse::<Seq>().unwrap_err().status(), 400, "{text:?}");
        }
    }
}
