//! Contents of attachments: their addresses and their rows.
//!
//! ```text
//!  (9, Sha256, Length) = (Format = 1, Store, PartBytes, Md5)
//! ```

use std::fmt;

use md5::Md5;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::rows::row::Reader;
use crate::rows::tuple;

const FORMAT: u64 = 1;

/// Size of a part in bytes, unless the store allows only shorter values.
const PART_BYTES: usize = 90_000;

/// Name of the parts of one content: random bytes, chosen when they are first written.
pub(crate) type StoreId = [u8; 16];

/// Address of a content in its database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ContentId {
    pub(crate) sha256: [u8; 32],
    pub(crate) length: u64,
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.sha256[..8] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "…/{}", self.length)
    }
}

/// Size of a part in a store with this limit on values.
pub(super) fn part_bytes(max_value_bytes: usize) -> usize {
    PART_BYTES.min(max_value_bytes).max(1)
}

/// Value of a content's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentRow {
    pub(crate) store: StoreId,
    /// Size of each part except the last.
    pub(crate) part_bytes: u64,
    pub(crate) md5: [u8; 16],
}

impl ContentRow {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_bytes(&mut out, &self.store);
        tuple::append_u64(&mut out, self.part_bytes);
        tuple::append_bytes(&mut out, &self.md5);
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<ContentRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a content in format {other}"))),
        }
        let torn = |_| Error::corrupt("a content whose row cannot be read");
        let store = reader.bytes()?.as_ref().try_into().map_err(torn)?;
        let part_bytes = reader.int()?;
        let md5 = reader.bytes()?.as_ref().try_into().map_err(torn)?;
        reader.end()?;
        if part_bytes == 0 {
            return Err(Error::corrupt("a content in parts of no bytes"));
        }
        Ok(ContentRow { store, part_bytes, md5 })
    }
}

/// Hashes of bytes that arrive in pieces.
#[derive(Clone, Default)]
pub(crate) struct Hashes {
    md5: Md5,
    sha256: Sha256,
    length: u64,
}

impl Hashes {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.md5.update(piece);
        self.sha256.update(piece);
        self.length += piece.len() as u64;
    }

    pub(crate) fn finish(self) -> (ContentId, [u8; 16]) {
        (ContentId { sha256: self.sha256.finalize().into(), length: self.length }, self.md5.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let row = ContentRow { store: [0; 16], part_bytes: 90_000, md5: [7; 16] };
        let written = row.write();
        assert_eq!(ContentRow::read(&written).unwrap(), row);
        for cut in 0..written.len() {
            assert!(ContentRow::read(&written[..cut]).is_err(), "cut at {cut}");
        }
    }
}
