//! A row of `changes`: the document that changed, its winner, and the number of its branches.

use crate::error::{Error, Result};
use crate::keys::{self, Leaf};
use crate::rows::row::Reader;
use crate::rows::tuple;

/// The format of a row of `changes` (RFC 003's `SeqFormat`).
const SEQ_FORMAT: u64 = 1;

/// A row of `changes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeRow {
    pub(crate) id: String,
    pub(crate) winner: Leaf,
    pub(crate) branches: u64,
}

impl ChangeRow {
    pub(crate) fn read(value: &[u8]) -> Result<ChangeRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            SEQ_FORMAT => {}
            other => return Err(Error::unknown_format(format!("a change in format {other}"))),
        }
        let id = reader.str()?.into_owned();
        let rev = keys::read_rev(&mut reader)?;
        let branches = reader.int()?;
        let not_deleted = reader.bool()?;
        reader.end()?;
        Ok(ChangeRow { id, winner: Leaf { not_deleted, rev }, branches })
    }

    /// The row: `(SeqFormat, DocID, RevPosition, RevHash, BranchCount, NotDeleted)`.
    pub(crate) fn row(&self) -> Vec<u8> {
        let mut row = Vec::new();
        Self::append(&mut row, &self.id, &self.winner, self.branches);
        row
    }

    /// Appends a row to `out`.
    pub(crate) fn append(out: &mut Vec<u8>, id: &str, winner: &Leaf, branches: u64) {
        tuple::append_u64(out, SEQ_FORMAT);
        tuple::append_str(out, id);
        tuple::append_u64(out, winner.rev.position());
        tuple::append_bytes(out, winner.rev.hash().as_bytes());
        tuple::append_u64(out, branches);
        tuple::append_bool(out, winner.not_deleted);
    }

    /// The document in a row whose rest cannot be read.
    pub(crate) fn read_id(value: &[u8]) -> Result<String> {
        let mut reader = Reader::new(value);
        reader.int()?;
        Ok(reader.str()?.into_owned())
    }
}
