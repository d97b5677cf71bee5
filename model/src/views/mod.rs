//! Views: the rows that map functions emit for documents, in the order of their keys, with reductions of them.
//!
//! ```text
//!  (16)                                            the number of the next view group
//!  (16, 0, Signature)                              view group: (Format, Group, Secret, IsOfDesign, Name)
//!  (16, 1, Group)                                  how far it is built: (Format, Seq, PurgeSeq, LeftOut)
//!  (16, 1, Group, 0, DocID[, Part])                id row: the rows that the document has
//!  (16, 1, Group, 1, View, 0, Key, DocID, Emit)    row: [key, value] as JSON
//!  (16, 1, Group, 1, View, Level[, Key, DocID, Emit])   node: the number of rows below it, and their reduction
//!  (16, 1, Group, 2, View, Key, DocID, Emit, Part)      a row that is too long for one value, in parts
//!  (16, 1, Group, 3, DocID)                        why a document has no rows
//!  (16, 1, Group, 4, View, DocID)                  why a document is left out of a view, though it may have rows there
//! ```
//!
//! A view group has the views of one design document, or of a program that embeds this crate. Its signature identifies
//! the functions, so equal groups share their rows, and changed functions make another group. An edit writes nothing to
//! it: a query first brings the group up to date from the changes feed. So views cost nothing in databases without
//! views, and slow map functions do not slow down edits.
//!
//! Invariants:
//! * A group that is built up to a sequence has, for each document whose last change is not after it, the rows that the
//!   map functions emit for the document's winner, and no others. The id row names the same rows.
//! * A document that cannot be read, or whose rows are unknown because its functions exceed a limit, is left out of
//!   these views, and each of them has a row that says so. The group's row has the number of these rows ([`left_out`]).
//! * Only [`step`] writes rows, in transactions that read and write the row `(16, 1, Group)` with conflict ranges. So
//!   updates of a group are serialised, and a repeated update finds that it is already done.
//! * Each node holds the sums of the rows from its own place up to the next node of its level ([`tree`]).
//! * `Key` is bytes that compare as the emitted keys do. In a partitioned group, those of the document's partition come
//!   first ([`mango::append_partition`]), so the rows of a partition are one range of each level. It is cut after
//!   [`MAX_KEY`] bytes; readers order rows with the same cut key by the whole key.
//!
//! | file | |
//! |---|---|
//! | [`group`] | what a group is, and the trait of its functions |
//! | [`rust`] | functions in Rust |
//! | [`rows`] | encodes rows |
//! | [`prepare`] | maps documents |
//! | [`update`], [`step`] | bring a group up to date, and write one transaction of the update |
//! | [`nodes`] | keeps sums |
//! | [`tree`] | reads sums |
//! | [`reduce`] | CouchDB's built-in reduce functions |
//! | [`request`], [`window`] | a query, and its range of rows |
//! | [`query`] | reads rows |
//! | [`left_out`] | documents that are left out |
//! | [`groups`] | the groups of a range |
//! | [`grouped`] | reads reductions |
//! | [`upkeep`] | lists and removes groups |
//! | [`trial`] | tries a view on some documents before it is stored |
//! | [`check`] | compares rows with documents, and nodes with rows |
//!
//! Sources: RFC 008 and 012; [0041](../../docs/adr/0041-view-groups.md), [0042](../../docs/adr/0042-sums-in-levels.md),
//! [0086](../../docs/adr/0086-views-say-what-they-lack.md).

mod check;
mod errors;
mod group;
mod grouped;
mod groups;
mod left_out;
mod nodes;
mod prepare;
mod query;
mod reduce;
mod request;
mod rows;
mod rust;
mod step;
mod tree;
mod trial;
mod update;
mod upkeep;
mod window;

use bytes::Bytes;
use kv_api::{Database, Read, Transaction};

use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::rows::row::Reader;
use crate::rows::tuple;

pub use errors::{FunctionError, ViewError};
pub use group::{Emitted, Mapped, Reduce, ReduceRow, Reduced, Reduction, View, ViewFunctions, ViewGroup, ViewOptions};
pub use grouped::{ReducedPage, ReducedRow};
pub use left_out::LeftOut;
pub use request::{Grouping, Resume, ViewPage, ViewRequest, ViewRow};
pub use rust::{Emit, RustView};
pub use trial::Trial;
pub use update::{MapAhead, MappedBatch, ViewProgress, ViewUpdate};
pub use upkeep::{ViewGroupInfo, ViewGroupStats};

/// Maximum size of the bytes of a key that order a row. With the longest id and each zero byte escaped, a key of the
/// store has room for twice as many.
pub const MAX_KEY: usize = 2_000;

/// Maximum size of a value of the store.
const MAX_VALUE: usize = 90_000;

const FORMAT: u64 = 1;

/// A view group as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupRow {
    number: u64,
    /// Key of the hash that decides the levels of rows. It is secret, so that clients cannot choose keys by their
    /// levels.
    secret: [u8; 16],
    is_of_design: bool,
    name: String,
}

impl GroupRow {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.name.len());
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_u64(&mut out, self.number);
        tuple::append_bytes(&mut out, &self.secret);
        tuple::append_bool(&mut out, self.is_of_design);
        tuple::append_str(&mut out, &self.name);
        out
    }

    fn read(row: &[u8]) -> Result<GroupRow> {
        let mut reader = Reader::new(row);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a view group in format {other}"))),
        }
        let number = reader.int()?;
        let secret = crate::rows::instance::read_id(&mut reader)?;
        let (is_of_design, name) = (reader.bool()?, reader.str()?.into_owned());
        reader.end()?;
        Ok(GroupRow { number, secret, is_of_design, name })
    }
}

/// How far a group is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Upto {
    seq: Seq,
    purge_seq: u64,
    /// Number of rows that leave a document out of a view.
    left_out: u64,
}

/// A group and how far it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BuiltGroup {
    head: GroupRow,
    upto: Upto,
}

impl Upto {
    /// The position in the feed and in the purges, which decides which documents come next.
    fn place(&self) -> (Seq, u64) {
        (self.seq, self.purge_seq)
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_bytes(&mut out, self.seq.as_bytes());
        tuple::append_u64(&mut out, self.purge_seq);
        tuple::append_u64(&mut out, self.left_out);
        out
    }

    fn read(row: &[u8]) -> Result<Upto> {
        let mut reader = Reader::new(row);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a progress of views in format {other}"))),
        }
        let seq = reader.bytes()?.as_ref().try_into().map_err(|_| Error::corrupt("a sequence of wrong length"))?;
        let (purge_seq, left_out) = (reader.int()?, reader.int()?);
        reader.end()?;
        Ok(Upto { seq: Seq::from_bytes(seq), purge_seq, left_out })
    }
}

impl<D: Database> Documents<D> {
    /// The head of the group with this signature.
    fn view_head(
        &self,
        transaction: &D::Transaction,
        signature: &[u8; 16],
        read: Read,
    ) -> impl Future<Output = Result<Option<GroupRow>>> + Send + use<D> {
        let row = transaction.get(&self.keys().key(DatabaseKey::ViewGroup(signature)), read);
        async move { row.await?.map(|row| GroupRow::read(&row)).transpose() }
    }

    /// How far a group is built. 404 if it was removed.
    async fn view_upto(&self, transaction: &D::Transaction, group: u64, read: Read) -> Result<Upto> {
        let row: Option<Bytes> = transaction.get(&self.keys().key(DatabaseKey::ViewRows(group)), read).await?;
        row.map_or_else(|| Err(Error::not_found(NotFound::Index)), |row| Upto::read(&row))
    }

    /// The head of a built group, for a query. 404 if it was removed meanwhile.
    async fn built_view(&self, transaction: &D::Transaction, group: &ViewGroup) -> Result<(GroupRow, Upto)> {
        let instance = self.instance(transaction, Read::Snapshot);
        let head = self.view_head(transaction, group.signature(), Read::Snapshot);
        instance.await?;
        let head = head.await?.ok_or_else(|| Error::not_found(NotFound::Index))?;
        let upto = self.view_upto(transaction, head.number, Read::Snapshot).await?;
        Ok((head, upto))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let head = GroupRow { number: 300, secret: [0; 16], is_of_design: true, name: "_design/x".to_owned() };
        let upto = Upto { seq: Seq::new(3, &[0; 12]), purge_seq: 70_000, left_out: 300 };
        let (row, progress) = (head.write(), upto.write());
        assert_eq!((GroupRow::read(&row).unwrap(), Upto::read(&progress).unwrap()), (head, upto));
        assert!((0..row.len()).all(|cut| GroupRow::read(&row[..cut]).is_err()));
        assert!((0..progress.len()).all(|cut| Upto::read(&progress[..cut]).is_err()));
        let later = [&[0x15, 2], &row[2..]].concat();
        assert_eq!(GroupRow::read(&later).unwrap_err().status(), 500);
    }
}
