//! Reads rows: tuples whose elements have known types.
//!
//! The format is FoundationDB's (`design/tuple.md`). [`mod@crate::rows::tuple`] appends elements and reads untyped
//! ones. This module adds what this layer's rows need. Rows come from the store, so every step can fail, and damage is
//! an error.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::rows::tuple::{BYTES, FALSE, STRING, TRUE, ZERO, read_run};

pub(crate) const NESTED: u8 = 0x05;
const STAMP: u8 = 0x33;

/// Length of a versionstamp element without its type code: ten bytes of the commit, two of the user.
pub(crate) const STAMP_LEN: usize = 12;

pub(crate) fn append_stamp(out: &mut Vec<u8>, stamp: &[u8; STAMP_LEN]) {
    out.push(STAMP);
    out.extend_from_slice(stamp);
}

/// Reads a tuple, element by element.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The unread part.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| malformed("it ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn expect(&mut self, code: u8) -> Result<()> {
        match self.rest.split_first() {
            Some((&found, rest)) if found == code => {
                self.rest = rest;
                Ok(())
            }
            Some((found, _)) => Err(malformed(format_args!("type {found:#04x} where {code:#04x} belongs"))),
            None => Err(malformed("it ends early")),
        }
    }

    pub(crate) fn int(&mut self) -> Result<u64> {
        let code = self.take(1)?[0];
        let len = match code.checked_sub(ZERO) {
            Some(len @ 0..=8) => usize::from(len),
            _ => return Err(malformed(format_args!("type {code:#04x} where a non-negative integer belongs"))),
        };
        let mut bytes = [0; 8];
        let taken = self.take(len)?;
        // Each value must have exactly one encoding, so that walks which continue after a key always advance.
        if taken.first() == Some(&0) {
            return Err(malformed("an integer that is longer than necessary"));
        }
        bytes[8 - len..].copy_from_slice(taken);
        Ok(u64::from_be_bytes(bytes))
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.take(1)?[0] {
            TRUE => Ok(true),
            FALSE => Ok(false),
            code => Err(malformed(format_args!("type {code:#04x} where a boolean belongs"))),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Cow<'a, [u8]>> {
        self.expect(BYTES)?;
        self.escaped()
    }

    pub(crate) fn str(&mut self) -> Result<Cow<'a, str>> {
        self.expect(STRING)?;
        match self.escaped()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| malformed("not UTF-8")),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| malformed("not UTF-8")),
        }
    }

    pub(crate) fn stamp(&mut self) -> Result<[u8; STAMP_LEN]> {
        self.expect(STAMP)?;
        let mut stamp = [0; STAMP_LEN];
        stamp.copy_from_slice(self.take(STAMP_LEN)?);
        Ok(stamp)
    }

    /// Reads bytes that are not an element.
    pub(crate) fn raw(&mut self, len: u64) -> Result<&'a [u8]> {
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(malformed("something follows its last element")) }
    }

    fn escaped(&mut self) -> Result<Cow<'a, [u8]>> {
        let (contents, rest) = read_run(self.rest).ok_or_else(|| malformed("it ends early"))?;
        self.rest = rest;
        Ok(contents)
    }
}

fn malformed(why: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("a tuple cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use foundationdb_tuple::{Bytes, Versionstamp, pack};

    use super::*;
    use crate::rows::tuple::{append_bool, append_bytes, append_str, append_u64};

    #[test]
    fn elements_are_those_of_the_tuple_crate() {
        for value in [0u64, 1, 255, 256, 65_535, 65_536, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            assert_eq!(Reader::new(&pack(&value)).int().unwrap(), value);
        }
        for text in ["", "a", "a\0b", "\0", "\0\0", "ä\0ö", "plain"] {
            assert_eq!(Reader::new(&pack(&text)).str().unwrap(), text);
            assert_eq!(Reader::new(&pack(&Bytes::from(text.as_bytes()))).bytes().unwrap(), text.as_bytes());
        }
        let mut out = Vec::new();
        append_bool(&mut out, true);
        append_stamp(&mut out, b"0123456789ab");
        assert_eq!(out, pack(&(true, Versionstamp::complete(*b"0123456789", u16::from_be_bytes(*b"ab")))));
    }

    #[test]
    fn torn_tuples_are_errors() {
        let mut whole = Vec::new();
        append_u64(&mut whole, 300);
        append_str(&mut whole, "na\0me");
        append_bytes(&mut whole, b"");
        append_stamp(&mut whole, b"0123456789ab");
        for cut in 0..=whole.len() {
            let mut reader = Reader::new(&whole[..cut]);
            let read = reader
                .int()
                .and_then(|_| reader.str().map(drop))
                .and_then(|_| reader.bytes().map(drop))
                .and_then(|_| reader.stamp());
            assert_eq!(read.is_ok(), cut == whole.len(), "cut at {cut}");
        }
        let mut wrong = Reader::new(&whole);
        assert!(wrong.bytes().is_err());
    }
}
