//! The row of a document that a collection condemned, or that it deleted and whose body is in the trash.

use super::row::Reader;
use super::tuple;
use crate::error::{Error, Result};

const FORMAT: u64 = 1;

const CONDEMNED: u64 = 0;
const IN_TRASH: u64 = 1;

/// The row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrashRow {
    /// Whether the document was deleted and its body is in the trash. It is condemned, and lives, if not.
    pub(crate) in_trash: bool,
    /// When it was condemned or deleted, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// The number of the collection that wrote the row.
    pub(crate) collection: u64,
}

impl TrashRow {
    pub(crate) fn write(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_u64(&mut out, if self.in_trash { IN_TRASH } else { CONDEMNED });
        tuple::append_u64(&mut out, self.since_ms);
        tuple::append_u64(&mut out, self.collection);
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<TrashRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a row of the trash in format {other}"))),
        }
        let in_trash = match reader.int()? {
            CONDEMNED => false,
            IN_TRASH => true,
            other => return Err(Error::corrupt(format!("a row of the trash in unknown state {other}"))),
        };
        let row = TrashRow { in_trash, since_ms: reader.int()?, collection: reader.int()? };
        reader.end()?;
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        for in_trash in [false, true] {
            let row = TrashRow { in_trash, since_ms: 1 << 41, collection: 300 };
            let written = row.write();
            assert_eq!(TrashRow::read(&written).unwrap(), row);
            for cut in 0..written.len() {
                assert!(TrashRow::read(&written[..cut]).is_err(), "cut at {cut}");
            }
        }
        assert!(TrashRow::read(&[0x15, 1, 0x15, 2, 0x14, 0x14]).is_err(), "an unknown state");
    }
}
