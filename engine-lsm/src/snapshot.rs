//! Snapshots: the tables as of a flush.
//!
//! ```text
//!   flush       1 ─────────────── 2 ──────────►
//!   tables      A B   AB          AB C   ABC         a compaction changes no row
//!   snapshots   of flush 1: AB    of flush 2: ABC
//! ```
//!
//! The snapshots of one flush share their tables. When a compaction replaces them before the next flush, the snapshots
//! get the new tables. So the newest snapshot never keeps tables that were compacted long ago.

use std::sync::Arc;

use bytes::Bytes;
use disk::panics::caught;
use kv_api::keys::key_after;
use kv_api::{Direction, Result};
use lsm_tree::Slice;
use lsm_tree::table::filter::standard_bloom::Builder;
use occ::store::Snapshot;
use parking_lot::{Mutex, RwLock};

use crate::error::{failed_to_read, is_damage};
use crate::keys;
use crate::rows::Rows;
use crate::tables::Tables;

/// Values of this size or more share the memory of their block, which then has little else.
const SHARED: usize = 32 << 10;

/// Number of rows that a snapshot remembers, and the maximum bytes of one.
const REMEMBERED: usize = 64;
const MOST_REMEMBERED: usize = 1 << 10;

/// The tables as of one flush. Compactions replace them.
pub(crate) struct Flushed {
    tables: RwLock<Arc<Tables>>,
    /// Recently read small rows, each at a place given by its key. Every transaction reads its database's instance row,
    /// and finding it in the tables takes longer than the rest of many reads.
    remembered: [Mutex<Option<Row>>; REMEMBERED],
}

/// A key, and its value if there is one.
type Row = (Bytes, Option<Bytes>);

impl Flushed {
    pub(crate) fn new(tables: Arc<Tables>) -> Self {
        Flushed { tables: RwLock::new(tables), remembered: [const { Mutex::new(None) }; REMEMBERED] }
    }

    /// Replaces the tables by others with the same rows.
    pub(crate) fn replace(&self, tables: Arc<Tables>) {
        *self.tables.write() = tables;
    }

    pub(crate) fn tables(&self) -> Arc<Tables> {
        self.tables.read().clone()
    }

    /// Where a row with this key would be remembered.
    fn place(&self, key: &[u8]) -> &Mutex<Option<Row>> {
        &self.remembered[Builder::get_hash(key) as usize % REMEMBERED]
    }
}

/// A snapshot of an [`LsmStore`](crate::LsmStore).
#[derive(Clone)]
pub struct LsmSnapshot(pub(crate) Arc<Flushed>);

impl std::fmt::Debug for LsmSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmSnapshot").finish_non_exhaustive()
    }
}

impl Snapshot for LsmSnapshot {
    type Range<'a> = LsmRange;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let place = self.0.place(key);
        if let Some((_, value)) = place.lock().as_ref().filter(|(remembered, _)| remembered == key) {
            return Ok(value.clone());
        }
        let value = caught("a table", || {
            let value = self.0.tables().get(&keys::stored(key)).map_err(|failure| match is_damage(&failure) {
                true => failed_to_read(failure).with_damage(Bytes::copy_from_slice(key), key_after(key)),
                false => failed_to_read(failure),
            })?;
            Ok(value.map(|value| shared(value).unwrap_or_else(|value| Bytes::copy_from_slice(&value))))
        })?;
        if key.len() + value.as_ref().map_or(0, Bytes::len) <= MOST_REMEMBERED {
            *place.lock() = Some((Bytes::copy_from_slice(key), value.clone()));
        }
        Ok(value)
    }

    fn range(&self, begin: &[u8], end: &[u8], direction: Direction) -> LsmRange {
        LsmRange(Some(self.0.tables().range(&keys::stored(begin), &keys::stored(end), direction)))
    }
}

/// A large value, shared without a copy; `Err` gives a small one back.
fn shared(value: Slice) -> Result<Bytes, Slice> {
    if value.len() < SHARED { Err(value) } else { Ok(Bytes::from_owner(value)) }
}

/// Rows of an [`LsmSnapshot`]. Ends after an error.
pub struct LsmRange(Option<Rows>);

impl std::fmt::Debug for LsmRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmRange").finish_non_exhaustive()
    }
}

impl Iterator for LsmRange {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.0.as_mut()?;
        let row = caught("a table", || rows.next().transpose());
        if row.is_err() {
            self.0 = None;
        }
        let row = row.transpose()?.map(|(key, value)| {
            let key = keys::ours(&key);
            let value = match shared(value) {
                Ok(value) => return (Bytes::copy_from_slice(key), value),
                Err(value) => value,
            };
            // One allocation for both.
            let mut bytes = Vec::with_capacity(key.len() + value.len());
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&value);
            let mut key_bytes = Bytes::from(bytes);
            let value = key_bytes.split_off(key.len());
            (key_bytes, value)
        });
        Some(row)
    }
}
