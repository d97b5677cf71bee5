//! The row of a document that a collection condemned, or that it deleted and whose body is in the trash.
//!
//! ```text
//!  condemned    (Format, 0, Since, Collection)
//!  in trash     (Format, 1, Since, Collection, Position, Hash, Bytes)   the tombstone that the collection made
//!  not revived  (Format, 2, Since, Collection, Position, Hash, Bytes)   the same, after an edit named it in vain
//! ```

use super::revid::RevId;
use super::row::Reader;
use super::tuple;
use crate::error::{Error, Result};
use crate::keys;

const FORMAT: u64 = 1;

const CONDEMNED: u64 = 0;
const IN_TRASH: u64 = 1;
const NOT_REVIVED: u64 = 2;

/// The row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrashRow {
    /// When it was condemned or deleted, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// The number of the collection that wrote the row.
    pub(crate) collection: u64,
    /// `None` if the document is condemned, and lives.
    pub(crate) trashed: Option<Trashed>,
}

/// A document that was deleted, and whose body is in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trashed {
    /// The tombstone that the collection made. A revival is its child, even if it was purged here: other replicas have
    /// it, and know its ancestors.
    pub(crate) tombstone: RevId,
    /// Whether an edit named the document, and it could not be revived.
    pub(crate) in_vain: bool,
    /// Bytes of the body.
    pub(crate) bytes: u64,
}

impl TrashRow {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        tuple::append_u64(&mut out, FORMAT);
        let state = match &self.trashed {
            None => CONDEMNED,
            Some(Trashed { in_vain: false, .. }) => IN_TRASH,
            Some(Trashed { in_vain: true, .. }) => NOT_REVIVED,
        };
        tuple::append_u64(&mut out, state);
        tuple::append_u64(&mut out, self.since_ms);
        tuple::append_u64(&mut out, self.collection);
        if let Some(Trashed { tombstone, bytes, .. }) = &self.trashed {
            tuple::append_u64(&mut out, tombstone.position());
            tuple::append_bytes(&mut out, tombstone.hash().as_bytes());
            tuple::append_u64(&mut out, *bytes);
        }
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<TrashRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a row of the trash in format {other}"))),
        }
        let in_vain = match reader.int()? {
            CONDEMNED => None,
            IN_TRASH => Some(false),
            NOT_REVIVED => Some(true),
            other => return Err(Error::corrupt(format!("a row of the trash in unknown state {other}"))),
        };
        let (since_ms, collection) = (reader.int()?, reader.int()?);
        let trashed = match in_vain {
            None => None,
            Some(in_vain) => Some(Trashed { tombstone: keys::read_rev(&mut reader)?, in_vain, bytes: reader.int()? }),
        };
        reader.end()?;
        Ok(TrashRow { since_ms, collection, trashed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let trashed = |in_vain| Trashed { tombstone: "300-00ab".parse().unwrap(), in_vain, bytes: 70_000 };
        for trashed in [None, Some(trashed(false)), Some(trashed(true))] {
            let row = TrashRow { since_ms: 1 << 41, collection: 300, trashed };
            let written = row.write();
            assert_eq!(TrashRow::read(&written).unwrap(), row);
            for cut in 0..written.len() {
                assert!(TrashRow::read(&written[..cut]).is_err(), "cut at {cut}");
            }
        }
        assert!(TrashRow::read(&[0x15, 1, 0x15, 3, 0x14, 0x14]).is_err(), "an unknown state");
    }
}
