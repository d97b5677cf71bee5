//! When a process writes the next row of counts, and when it thins them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::keys::DatabaseKeys;

/// Number of edits of a database by one process between two rows. A transaction with more edits has its own row.
pub(super) const EDITS_BETWEEN: u32 = 32;

/// Time between two rows of a database by one process, in milliseconds, if it edits the database at all.
pub(super) const MS_BETWEEN: u64 = 300_000;

/// Number of rows that a process writes between two calls of [`Documents::thin_counts`](crate::Documents::thin_counts).
const ROWS_BETWEEN_THINNING: u32 = 16;

/// The edits of each database by this process since its last row. Databases share the slots: one that shares its slot
/// gets a row a little earlier, or later.
pub(crate) struct EditCounts {
    slots: [Slot; SLOTS],
}

const SLOTS: usize = 256;

#[derive(Default)]
pub(super) struct Slot {
    /// Edits since the last row.
    edits: AtomicU32,
    /// Time of the last row, or of the first edit; 0 before that.
    row_ms: AtomicU64,
    /// The latest time of an edit, by the clock of this process.
    pub(super) latest_ms: AtomicU64,
    /// Rows since the last thinning.
    rows: AtomicU32,
    /// The key after which the next thinning continues.
    pub(super) thinned: Mutex<Bytes>,
}

impl Default for EditCounts {
    fn default() -> Self {
        EditCounts { slots: std::array::from_fn(|_| Slot::default()) }
    }
}

impl EditCounts {
    pub(super) fn slot(&self, keys: &DatabaseKeys) -> &Slot {
        &self.slots[keys.number() as usize % SLOTS]
    }

    /// Counts the edits of a transaction that is about to commit. Returns whether it must write a row. Edits of a
    /// failed attempt count too: the next row is written a little earlier.
    pub(super) fn is_row_due(&self, keys: &DatabaseKeys, edits: usize, now_ms: u64) -> bool {
        let slot = self.slot(keys);
        let edits = u32::try_from(edits).unwrap_or(EDITS_BETWEEN);
        let count = slot.edits.fetch_add(edits, Ordering::Relaxed).saturating_add(edits);
        let row_ms = slot.row_ms.load(Ordering::Relaxed);
        let is_due = count >= EDITS_BETWEEN || (row_ms > 0 && now_ms.saturating_sub(row_ms) >= MS_BETWEEN);
        if is_due {
            slot.edits.store(0, Ordering::Relaxed);
            slot.rows.fetch_add(1, Ordering::Relaxed);
        }
        if is_due || row_ms == 0 {
            slot.row_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due
    }

    pub(super) fn is_thinning_due(&self, keys: &DatabaseKeys) -> bool {
        let rows = &self.slot(keys).rows;
        rows.load(Ordering::Relaxed) >= ROWS_BETWEEN_THINNING
            && rows.swap(0, Ordering::Relaxed) >= ROWS_BETWEEN_THINNING
    }
}
