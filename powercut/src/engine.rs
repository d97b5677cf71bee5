//! What the harness must know of an engine: how to open and close it.

use std::collections::BTreeMap;
use std::path::Path;

use futures_executor::block_on;
use kv_api::{Bytes, Database, RangeRequest, Read, Result, Transaction, TransactionExt};

/// An engine on the disk.
pub trait Engine {
    /// Its database.
    type Database: Database;

    /// What to call it.
    const NAME: &'static str;

    /// Whether a store, opened again after a sync of it has failed, relies on nothing that this sync should have
    /// written.
    const DISTRUSTS_FAILED_SYNCS: bool = true;

    /// Opens a folder, which may not be there yet, with limits so low that some tens of commits are flushed several
    /// times.
    ///
    /// # Errors
    ///
    /// The engine's own.
    fn open(folder: &Path) -> Result<Self::Database>;

    /// Closes the database.
    ///
    /// # Errors
    ///
    /// The engine's own.
    fn close(database: &Self::Database) -> Result<()>;
}

/// What a database holds.
pub type Rows = BTreeMap<Bytes, Bytes>;

/// One change of a commit.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Set(Bytes, Bytes),
    Clear(Bytes),
    ClearRange(Bytes, Bytes),
}

impl Change {
    /// Does to a map what the database does.
    pub(crate) fn apply(&self, rows: &mut Rows) {
        match self {
            Change::Set(key, value) => drop(rows.insert(key.clone(), value.clone())),
            Change::Clear(key) => drop(rows.remove(key)),
            Change::ClearRange(begin, end) => rows.retain(|key, _| key < begin || key >= end),
        }
    }
}

/// Commits changes in one transaction.
pub(crate) fn commit(database: &impl Database, changes: &[Change]) -> Result<()> {
    let transaction = database.begin()?;
    for change in changes {
        match change {
            Change::Set(key, value) => transaction.set(key, value),
            Change::Clear(key) => transaction.clear(key),
            Change::ClearRange(begin, end) => transaction.clear_range(begin, end),
        }
    }
    block_on(transaction.commit())
}

/// All rows.
pub(crate) fn rows(database: &impl Database) -> Result<Rows> {
    let transaction = database.begin()?;
    let rows = block_on(transaction.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot))?;
    Ok(rows.into_iter().map(|row| (row.key, row.value)).collect())
}
