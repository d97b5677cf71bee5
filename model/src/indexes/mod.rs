//! Mango's indexes: their definitions, and their rows, which every edit maintains.
//!
//! ```text
//!  (0)                        instance     …, NextIndex, Count, (Index, Active) …
//!  (12, Index)                definition   (Format, DesignID, Name, Definition)      format 2: partitioned
//!  (13, Index)                progress of an index that is being built: (Format, DocID, Documents)
//!  (13, Index, Key, DocID)    rows         the values as JSON; empty if they are too long
//!  (14, DocID)                id row       the document's rows: Format, and for each row Index, Length, Key
//! ```
//!
//! Invariants:
//! * In each active index, a live document that is not a design document has the row that [`mango::Index::row`] returns
//!   for its winner, or no row if that returns none. In an index that is being built, this holds for documents up to
//!   the progress. Other documents have no rows. The document's id row names the same rows, and may also name rows of
//!   dropped indexes.
//! * The number of an index is used only once, and its definition never changes. So a process reads each definition
//!   once.
//! * Every writer reads the instance with a conflict range, and so knows the indexes to maintain.
//! * A database without indexes has none of these rows, and its writers do not read any.
//!
//! | file | |
//! |---|---|
//! | [`edit`] | changes rows and definitions in transactions that change winners |
//! | [`build`] | adds the rows of documents that are older than the index |
//! | [`ahead`] | reads the next batch of a build while one is written |
//! | [`winners`] | reads the parts of documents that a build needs |
//! | [`job`] | adds and removes the job that builds indexes |
//! | [`read`] | reads a range of rows |
//!
//! Sources: RFC 006, and RFC 008 for the id row; [0028](../../docs/adr/0028-indexes-inside-the-edit.md).

mod ahead;
mod build;
mod edit;
mod job;
mod known;
mod read;
mod winners;

use std::sync::Arc;

use bytes::Bytes;
use json::JsonText;
use kv_api::{Database, Read, Transaction};
use mango::Index;

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::DatabaseKey;
use crate::rows::instance::{Instance, Kept};
use crate::rows::row::Reader;
use crate::rows::tuple;

pub use ahead::{BatchAhead, IndexBuild, ReadAhead};
pub use build::BuildProgress;
pub use job::BUILD_JOBS;
pub use read::{IndexInfo, IndexPage, IndexRequest, IndexRow, ParallelDocuments, ParallelRead};

pub(crate) use build::Built;
pub(crate) use edit::{Indexing, Source, Touched};
pub(crate) use job::checked;
pub(crate) use known::Definitions;

/// Maximum number of indexes of a database. An id row fits into a value: each of its keys has at most
/// [`mango::MAX_KEY`] bytes.
pub const MAX_INDEXES: usize = 64;

/// Maximum size of a definition's row. An index with longer names is not maintained.
const MAX_DEFINITION_ROW: usize = 90_000;

const FORMAT: u64 = 1;

/// The format of the definition of a partitioned index.
const PARTITIONED: u64 = 2;

/// The row of a definition; `None` if it is too long.
fn definition_row(index: &Index) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(64 + index.definition().len());
    tuple::append_u64(&mut out, if index.is_partitioned() { PARTITIONED } else { FORMAT });
    tuple::append_str(&mut out, index.design_id());
    tuple::append_str(&mut out, index.name());
    tuple::append_str(&mut out, index.definition().as_str());
    (out.len() <= MAX_DEFINITION_ROW).then_some(out)
}

fn read_definition(row: &[u8]) -> Result<Arc<Index>> {
    let mut reader = Reader::new(row);
    let is_partitioned = match reader.int()? {
        FORMAT => false,
        PARTITIONED => true,
        other => return Err(Error::unknown_format(format!("an index in format {other}"))),
    };
    let (design_id, name, definition) = (reader.str()?, reader.str()?, reader.str()?);
    reader.end()?;
    let definition = JsonText::parse(definition.as_bytes()).map_err(|_| Error::corrupt("an index that is not JSON"))?;
    let index = Index::parse(&design_id, &name, &definition, is_partitioned);
    Ok(Arc::new(index.ok_or_else(|| Error::corrupt(format!("the definition of the index {name:?}")))?))
}

/// An id row: the indexes by number, and the document's key in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexed(pub(crate) Vec<(u64, Vec<u8>)>);

impl Indexed {
    /// The keys are stored raw. As tuple elements, 64 of them might not fit into a value.
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.0.iter().map(|(_, key)| key.len() + 8).sum::<usize>());
        tuple::append_u64(&mut out, FORMAT);
        for (index, key) in &self.0 {
            tuple::append_u64(&mut out, *index);
            tuple::append_u64(&mut out, key.len() as u64);
            out.extend_from_slice(key);
        }
        out
    }

    pub(crate) fn read(row: &[u8]) -> Result<Indexed> {
        let mut reader = Reader::new(row);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("rows of indexes in format {other}"))),
        }
        let mut rows = Vec::new();
        while !reader.rest().is_empty() {
            let (index, len) = (reader.int()?, reader.int()?);
            rows.push((index, reader.raw(len)?.to_vec()));
        }
        Ok(Indexed(rows))
    }

    pub(crate) fn key(&self, index: u64) -> Option<&[u8]> {
        self.0.iter().find(|(number, _)| *number == index).map(|(_, key)| key.as_slice())
    }
}

/// The value of an index row.
pub(crate) fn values_of(row: &mango::IndexRow) -> Bytes {
    row.values.clone().map_or_else(Bytes::new, JsonText::into_bytes)
}

impl<D: Database> Documents<D> {
    /// The definitions of the database's indexes. Unknown ones are read in one round trip.
    pub(crate) async fn definitions(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
    ) -> Result<Vec<(Kept, Arc<Index>)>> {
        let each = self.each_definition(transaction, instance).await?;
        each.into_iter().map(|(kept, definition)| Ok((kept, definition?))).collect()
    }

    /// The same, with an error for each definition that cannot be read.
    async fn each_definition(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
    ) -> Result<Vec<(Kept, Result<Arc<Index>>)>> {
        let (keys, known) = (self.keys(), &self.shared.indexes);
        let reads: Vec<_> = instance
            .indexes
            .kept
            .iter()
            .map(|&kept| match known.get(keys.number(), kept.number) {
                Some(index) => (kept, Ok(index)),
                None => (kept, Err(transaction.get(&keys.key(DatabaseKey::Index(kept.number)), Read::Snapshot))),
            })
            .collect();
        let mut definitions = Vec::with_capacity(reads.len());
        for (kept, read) in reads {
            let definition = match read {
                Ok(index) => Ok(index),
                Err(row) => {
                    let missing = || Error::corrupt(format!("there is no definition of the index {}", kept.number));
                    row.await?.ok_or_else(missing).and_then(|row| read_definition(&row))
                }
            };
            if let Ok(index) = &definition {
                known.put(keys.number(), kept.number, index.clone());
            }
            definitions.push((kept, definition));
        }
        Ok(definitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let indexed = Indexed(vec![(0, Vec::new()), (3, vec![0; 1_000]), (70_000, vec![0xff, 0, 1])]);
        let row = indexed.write();
        assert_eq!(Indexed::read(&row).unwrap(), indexed);
        let ends: Vec<Vec<u8>> = (0..3).map(|count| Indexed(indexed.0[..count].to_vec()).write()).collect();
        for cut in (0..row.len()).filter(|&cut| ends.iter().all(|end| end.len() != cut)) {
            assert!(Indexed::read(&row[..cut]).is_err(), "cut at {cut}");
        }

        let full = Indexed((0..MAX_INDEXES as u64).map(|at| (1 << 40 | at, vec![0; mango::MAX_KEY])).collect());
        assert!(full.write().len() <= 100_000, "it fits into a value");
    }

    #[test]
    fn definitions_round_trip_and_others_are_refused() {
        let view = br#"{"map":{"fields":{"a":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{"fields":["a"]}}}"#;
        let definition = JsonText::parse(view).unwrap();
        let partitioned = Index::parse("_design/x", "by a", &definition, true).unwrap();
        assert!(read_definition(&definition_row(&partitioned).unwrap()).unwrap().is_partitioned());
        let index = Index::parse("_design/x", "by a", &definition, false).unwrap();
        let row = definition_row(&index).unwrap();
        let found = read_definition(&row).unwrap();
        assert_eq!((found.design_id(), found.name(), found.definition()), ("_design/x", "by a", &definition));
        assert!(!found.is_partitioned());
        for cut in 0..row.len() {
            assert!(read_definition(&row[..cut]).is_err(), "cut at {cut}");
        }

        let other = [&[0x15, 3], &row[2..]].concat();
        assert!(matches!(read_definition(&other).unwrap_err().kind(), ErrorKind::UnknownFormat(_)));

        let long = Index::parse("_design/x", &"n".repeat(MAX_DEFINITION_ROW), &definition, false).unwrap();
        assert!(definition_row(&long).is_none());
    }

    #[test]
    fn a_filter_of_elements_is_stored_without_empty_names() {
        let view = br#"{"map":{"fields":{"a":"asc"},"partial_filter_selector":{"l":{"$elemMatch":{"":{"$gt":3}}}}},"options":{}}"#;
        let index = Index::parse("_design/x", "p", &JsonText::parse(view).unwrap(), false).unwrap();
        let row =
            b"\x15\x01\x02_design/x\0\x02p\0\x02{\"map\":{\"fields\":{\"a\":\"asc\"},\"partial_filter_selector\":\
            {\"l\":{\"$elemMatch\":{\"$gt\":3}}}},\"options\":{}}\0";
        assert_eq!(definition_row(&index).unwrap().escape_ascii().to_string(), row.escape_ascii().to_string());
        let found = read_definition(row).unwrap();
        assert_eq!(found.definition(), index.definition());
    }
}
