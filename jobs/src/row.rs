//! Reads rows, which are tuples in FoundationDB's encoding.

use foundationdb_tuple::{PackResult, TupleDepth, TupleUnpack, unpack};

use crate::error::{Error, Result};

/// The name of a lease: the sixteen bytes of its server's id, and the number of leases that the server had before.
pub(crate) type LeaseId = [u8; 24];

/// Reads the name of a lease.
pub(crate) fn lease_id(bytes: &[u8]) -> Result<LeaseId> {
    bytes.try_into().map_err(|_| Error::Corrupt("a lease's name of wrong length".into()))
}

/// The first element of a tuple, and the rest.
struct First<'a, T>(T, &'a [u8]);

impl<'a, T: TupleUnpack<'a>> TupleUnpack<'a> for First<'a, T> {
    fn unpack(input: &'a [u8], depth: TupleDepth) -> PackResult<(&'a [u8], Self)> {
        let (rest, element) = T::unpack(input, depth)?;
        Ok((&[], First(element, rest)))
    }
}

/// Reads a tuple, element by element.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(row: &'a [u8]) -> Self {
        Reader { rest: row }
    }

    pub(crate) fn take<T: TupleUnpack<'a>>(&mut self) -> Result<T> {
        let First(element, rest) = unpack(self.rest).map_err(|error| Error::Corrupt(error.to_string()))?;
        self.rest = rest;
        Ok(element)
    }

    /// Reads the format, which must be `known`.
    pub(crate) fn format(&mut self, known: u64) -> Result<()> {
        match self.take()? {
            format if format == known => Ok(()),
            other => Err(Error::UnknownFormat(other)),
        }
    }

    pub(crate) fn lease(&mut self) -> Result<LeaseId> {
        let bytes: foundationdb_tuple::Bytes<'a> = self.take()?;
        lease_id(&bytes)
    }

    /// The part that is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Corrupt("there is more after the last element".into())) }
    }
}
