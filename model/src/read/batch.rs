//! The size of one transaction's reads or writes.
//!
//! A transaction has about five seconds and ten megabytes. Work on a long list is therefore cut into
//! batches of one transaction each. A batch is full at a number of items or at [`BATCH_BYTES`],
//! whichever comes first; it always takes one item, however large that is. If a transaction still
//! becomes too old (1007), the next attempt takes half as many items: see
//! [`reading::run_batch`](crate::read::reading::run_batch) for reads, and `halves` in `write` for writes.

use kv_api::TransactionOption;

/// Number of bytes at which a batch is full.
pub(crate) const BATCH_BYTES: usize = 4_000_000;

/// Number of bodies that are read at the same time.
pub(crate) const BODIES_AT_ONCE: usize = 100;

/// Number of bytes of each body that are read together with other bodies: all of them together fill a batch. The rest
/// of a longer body is read when its turn comes, if the batch is not full by then.
pub(crate) const FIRST_BYTES: usize = BATCH_BYTES / BODIES_AT_ONCE;

/// Maximum number of retries of a transaction in long work, such as an index build or a relocation. After that, its
/// error ends the work. These transactions need not know whether an earlier attempt was committed: they find out, or
/// have the same effect again.
pub(crate) const RETRIES: TransactionOption = TransactionOption::RetryLimit(Some(50));

/// A batch that is being filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    most: usize,
    items: usize,
    bytes: usize,
}

impl Batch {
    /// An empty batch for this many items at most.
    pub(crate) fn of(most: usize) -> Self {
        Batch { most, items: 0, bytes: 0 }
    }

    /// Adds an item; `false` if it does not fit, and the batch is unchanged. For items whose size is known before
    /// they are read or written.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let fits = self.items == 0 || (self.items < self.most && self.bytes.saturating_add(bytes) <= BATCH_BYTES);
        if fits {
            self.add(bytes);
        }
        fits
    }

    /// Adds an item that was read.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.items += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether it has the maximum number of items or bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.items >= self.most.max(1) || self.bytes >= BATCH_BYTES
    }

    /// Number of items.
    pub(crate) fn items(&self) -> usize {
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_at_its_items_or_its_bytes_and_takes_one_item_always() {
        let mut few = Batch::of(2);
        assert_eq!([few.take(1), few.take(1), few.take(1)], [true, true, false]);
        assert_eq!((few.items(), few.is_full()), (2, true));
        let mut large = Batch::of(10);
        assert!(large.take(usize::MAX) && large.is_full() && !large.take(0));
        let mut filled = Batch::of(10);
        assert!(filled.take(BATCH_BYTES - 1) && !filled.is_full() && !filled.take(2) && filled.take(1));
        assert!(filled.is_full() && !filled.take(1));
    }
}
