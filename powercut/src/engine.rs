//! What the harness needs to know about an engine: how to open and close it.

use std::collections::BTreeMap;
use std::path::Path;

use futures_executor::block_on;
use kv_api::{Bytes, Database, RangeRequest, Read, Result, Transaction, TransactionExt};

/// An engine on the disk.
pub trait Engine {
    /// Type of its database.
    type Database: Database;

    /// Name of the engine.
    const NAME: &'static str;

    /// Opens a folder, which may not exist yet. Limits are so low that some tens of commits cause several flushes.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    fn open(folder: &Path) -> Result<Self::Database>;

    /// Closes the database.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    fn close(database: &Self::Database) -> Result<()>;
}

/// The rows of a database.
pub type Rows = BTreeMap<Bytes, Bytes>;

/// One change in a commit.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Set(Bytes, Bytes),
    Clear(Bytes),
    ClearRange(Bytes, Bytes),
}

impl Change {
    /// Applies the change to a map.
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
