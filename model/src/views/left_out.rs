//! Documents left out of a view: they cannot be read, or their functions exceed a limit.
//!
//! If a function throws, the document has no rows. Left-out documents may have rows, so a query reports that they are
//! missing. Few documents are left out, so a query reads their rows only if the group's row counts some.

use kv_api::{Database, RangeRequest, Read, Transaction};

use super::Upto;
use super::errors::{FunctionError, ViewError};
use crate::documents::Documents;
use crate::error::Result;
use crate::keys::DatabaseKey;

/// Maximum number of left-out documents that a query names.
const NAMED: usize = 10;

/// The documents left out of a view, or of one of its partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The first of them by id, at most ten.
    pub documents: Vec<ViewError>,
    /// Whether there are more.
    pub more: bool,
}

impl<D: Database> Documents<D> {
    /// The documents left out of a view, or of one of its partitions.
    pub(super) async fn left_out(
        &self,
        tx: &D::Transaction,
        group: u64,
        view: usize,
        upto: Upto,
        partition: Option<&str>,
    ) -> Result<LeftOut> {
        if upto.left_out == 0 {
            return Ok(LeftOut::default());
        }
        let (keys, view) = (self.keys(), view as u64);
        let at = |id: &str| keys.key(DatabaseKey::ViewLeftOut { group, view, id });
        let (begin, end) = match partition {
            // The character after the colon ends the ids of a partition.
            Some(partition) => (at(&format!("{partition}:")), at(&format!("{partition};"))),
            None => (at(""), keys.key(DatabaseKey::ViewLeftOut { group, view: view + 1, id: "" })),
        };
        let mut rows = tx.get_range(&RangeRequest::keys(begin, end).limit(NAMED + 1), Read::Snapshot).await?.rows;
        let more = rows.len() > NAMED;
        rows.truncate(NAMED);
        let error = |row: kv_api::KeyValue| {
            Ok(ViewError { id: keys.read_left_out(&row.key)?, error: FunctionError::of_row(row.value)? })
        };
        Ok(LeftOut { documents: rows.into_iter().map(error).collect::<Result<_>>()?, more })
    }
}
