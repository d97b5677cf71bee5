//! The row by which a server holds its running jobs.

use foundationdb_tuple::pack;

use crate::error::Result;
use crate::row::Reader;

const FORMAT: u64 = 1;

/// A lease's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Whether no server has begun to take over from it.
    pub(crate) is_alive: bool,
    /// A number that changes each time the row is written.
    pub(crate) beat: u64,
    /// Time for which it must be seen unchanged before it expires.
    pub(crate) for_ms: u64,
    /// The server's name.
    pub(crate) server: String,
}

impl Lease {
    pub(crate) fn write(&self) -> Vec<u8> {
        pack(&(FORMAT, self.is_alive, &self.server, self.beat, self.for_ms))
    }

    pub(crate) fn read(row: &[u8]) -> Result<Lease> {
        let mut reader = Reader::new(row);
        reader.format(FORMAT)?;
        let (is_alive, server) = (reader.take()?, reader.take()?);
        let lease = Lease { is_alive, beat: reader.take()?, for_ms: reader.take()?, server };
        reader.end()?;
        Ok(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn leases_round_trip_and_torn_ones_are_errors() {
        for is_alive in [true, false] {
            let lease = Lease { is_alive, beat: 0, for_ms: 30_000, server: "a\0b".into() };
            let row = lease.write();
            assert_eq!(Lease::read(&row), Ok(lease));
            for cut in 0..row.len() {
                assert!(matches!(Lease::read(&row[..cut]), Err(Error::Corrupt(_))), "cut at {cut}");
            }
        }
        assert_eq!(Lease::read(&pack(&(2u64, "another"))), Err(Error::UnknownFormat(2)));
    }
}
