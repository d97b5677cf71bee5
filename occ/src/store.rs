//! What a store must offer for this crate to make a transactional database of it: very little.
//!
//! A [`Store`] is a sorted map of byte strings with cheap snapshots. It knows nothing of
//! transactions, versions or conflicts; it is written by one thread at a time, in batches that are
//! atomic, and read by any number of threads through [`View`]s that never change.
//!
//! ```text
//!   time ──►   apply(batch 7)   view()   sync()        apply(batch 8)   view()   sync()
//!   readers    view 6 ───────────────────────┤ view 7 ────────────────────────────────┤ view 8
//! ```
//!
//! Nobody reads a view before the batch in it is synced.

use bytes::Bytes;
use kv_api::{Direction, Durability, Error, KeyValue, RangeBatch, Result};

use crate::transaction::size;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Set {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Removes a key, which may be absent.
    Clear {
        /// The key.
        key: Bytes,
    },
    /// Removes every key from `begin` up to, not including, `end`: those set earlier in the batch too.
    /// `begin` is less than `end`.
    ClearRange {
        /// The first key.
        begin: Bytes,
        /// The first key that stays.
        end: Bytes,
    },
}

impl Op {
    /// About how many bytes it takes, in memory or in a log.
    pub(crate) fn size(&self) -> usize {
        size::MUTATION
            + match self {
                Op::Set { key, value } => key.len() + value.len(),
                Op::Clear { key } => key.len(),
                Op::ClearRange { begin, end } => begin.len() + end.len(),
            }
    }
}

/// Changes that take effect together, in this order: a later one wins over an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The commit version of the batch; each is greater than the one before.
    pub version: i64,
    /// The changes.
    pub ops: Vec<Op>,
}

/// Why a batch was not applied.
#[derive(Clone, Debug)]
pub enum ApplyError {
    /// Certainly nothing of it was, and the store is as it was before: the commits fail, the database
    /// goes on. A full disk that is met before the first byte is written is such a case.
    NothingApplied(Error),
    /// It may have been, in part or in whole: the commits' outcome is unknown and the database closes.
    Unknown(Error),
}

/// A sorted map of byte strings under a database of this crate.
pub trait Store: Send + Sync + 'static {
    /// Its snapshots.
    type View: View;

    /// A snapshot at the head: with every applied batch in it, and never with a later one. Cheap: taken
    /// after each batch.
    fn view(&self) -> Result<Self::View>;

    /// A snapshot of what `view`, one of this store's, shows, where the store has one by now that costs less to
    /// read or to keep. Called whenever a transaction begins to read: cheap.
    fn renewed(&self, view: &Self::View) -> Option<Self::View> {
        let _ = view;
        None
    }

    /// Applies a batch atomically, also with respect to a crash. Called by one thread at a time.
    fn apply(&self, batch: Batch) -> Result<(), ApplyError>;

    /// Makes every applied batch as durable as [`durability`](Store::durability) says. Called after
    /// `apply` by the same thread, before anyone hears of the batch.
    fn sync(&self) -> Result<()>;

    /// What an applied and synced batch survives.
    fn durability(&self) -> Durability;

    /// Whether another process may open what this one leaves, if only after a close: the store then
    /// remembers the last commit version, so that versions go on.
    fn outlives_process(&self) -> bool {
        self.durability() != Durability::Process
    }

    /// Called once, when the database closes: no call follows but through views.
    fn close(&self) -> Result<()> {
        self.sync()
    }
}

/// How much of a range is read: up to the row with which one of these is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Rows.
    pub rows: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

impl Most {
    /// Takes rows until one of the limits is reached.
    pub fn take(self, rows: impl Iterator<Item = Result<(Bytes, Bytes)>>) -> Result<RangeBatch> {
        /// Room for so many rows is made when the first comes: those of a document, as a rule.
        const FEW: usize = 16;
        let mut taken = RangeBatch::default();
        let mut bytes = 0;
        for row in rows {
            let (key, value) = row?;
            if taken.rows.is_empty() {
                taken.rows.reserve(self.rows.min(FEW));
            }
            bytes += key.len() + value.len();
            taken.rows.push(KeyValue { key, value });
            taken.more = taken.rows.len() >= self.rows || bytes >= self.bytes;
            if taken.more {
                break;
            }
        }
        Ok(taken)
    }
}

/// A snapshot of a [`Store`]. Reads of it give the same answer for ever.
pub trait View: Clone + Send + Sync + 'static {
    /// Rows of a range, in the direction asked for.
    type Range<'a>: Iterator<Item = Result<(Bytes, Bytes)>>;

    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The rows from `begin` up to, not including, `end`; `begin` is less than `end`. Reads as it is
    /// iterated: dropping it early costs nothing more.
    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a>;

    /// The rows of a range, as [`range`](View::range) has them, until `most` is reached, when there may be more. For
    /// stores to which many rows at once are less work than one after the other.
    fn read(&self, begin: &[u8], end: &[u8], direction: Direction, most: Most) -> Result<RangeBatch> {
        most.take(self.range(begin, end, direction))
    }

    /// About how many bytes of keys and values the range holds, where the store knows better than by
    /// walking it.
    fn estimate(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        let _ = (begin, end);
        None
    }
}
