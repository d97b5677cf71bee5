//! When a process writes the next row of counts, and when it thins them.

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::keys::DatabaseKeys;

/// Number of edits of a database by one process between two rows. A transaction with more has a row of its own.
pub(super) const EDITS_BETWEEN: u32 = 32;

/// Number of rows that a process writes between two calls of [`Documents::thin_counts`](crate::Documents::thin_counts).
const ROWS_BETWEEN_THINNING: u32 = 16;

/// The edits of each database by this process since its last row. Databases share the slots: one that has a slot with
/// others gets a row a little earlier, or later.
pub(crate) struct EditCounts {
    slots: [Slot; SLOTS],
}

const SLOTS: usize = 256;

#[derive(Default)]
pub(super) struct Slot {
    /// Edits since the last row.
    edits: AtomicU32,
    /// Rows since the last thinning.
    rows: AtomicU32,
    /// The key after which the next thinning goes on.
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

    /// Counts the edits of a transaction that is about to commit. Returns whether it is to write a row. Edits of an
    /// attempt that fails count too: the next row is written a little earlier.
    pub(super) fn is_row_due(&self, keys: &DatabaseKeys, edits: usize) -> bool {
        let slot = self.slot(keys);
        let edits = u32::try_from(edits).unwrap_or(EDITS_BETWEEN);
        if slot.edits.fetch_add(edits, Ordering::Relaxed).saturating_add(edits) < EDITS_BETWEEN {
            return false;
        }
        slot.edits.store(0, Ordering::Relaxed);
        slot.rows.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(super) fn is_thinning_due(&self, keys: &DatabaseKeys) -> bool {
        let rows = &self.slot(keys).rows;
        rows.load(Ordering::Relaxed) >= ROWS_BETWEEN_THINNING
            && rows.swap(0, Ordering::Relaxed) >= ROWS_BETWEEN_THINNING
    }
}
