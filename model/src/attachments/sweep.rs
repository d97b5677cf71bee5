//! Removes abandoned uploads: see [`staging`](super::staging).

use kv_api::{Database, RangeRequest, Read, Runner, Transaction, TransactionOption};

use super::StoreId;
use crate::error::Result;
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::write::unguarded::Unguarded;

/// Number of uploads that one sweep clears.
const SWEPT_AT_ONCE: usize = 100;

/// Maximum number of retries of a sweep. The next sweep does the rest.
const SWEEP_RETRIES: u32 = 5;

/// Removes the first expired uploads, in all databases. The next sweep removes those that fail.
pub(crate) async fn sweep<D: Database>(engine: &D, root: &[u8], now_ms: u64) {
    let (begin, end) = Key::stagings(root, Some(now_ms));
    let Ok(transaction) = engine.begin() else { return };
    let first = transaction.get_range(&RangeRequest::keys(begin, end).limit(1), Read::Snapshot).await;
    if first.is_ok_and(|first| first.rows.is_empty()) {
        return;
    }
    // A sweep can be repeated, so this run needs no transaction id.
    let swept: Result<()> = Runner::new(engine)
        .option(TransactionOption::RetryLimit(Some(SWEEP_RETRIES)))
        .option(TransactionOption::BypassStorageQuota)
        .run(|transaction, _| async move {
            let (mut begin, end) = Key::stagings(root, Some(now_ms));
            loop {
                let expired = RangeRequest::keys(begin, end.clone()).limit(SWEPT_AT_ONCE);
                let rows = transaction.get_range(&expired, Read::Serializable).await?.rows;
                let mut is_done = rows.is_empty();
                for row in &rows {
                    // An unreadable row is kept, with the parts that it names.
                    if let Ok((database, store)) = Key::read_staging(root, &row.key) {
                        clear_staged(&transaction, &DatabaseKeys::new(root, database), &row.key, &store);
                        is_done = true;
                    }
                }
                match rows.last() {
                    Some(last) if !is_done => begin = [&last.key[..], &[0]].concat(),
                    _ => return Ok(()),
                }
            }
        })
        .await;
    drop(swept);
}

/// Clears an upload's row and parts. The transaction must have read the row.
pub(super) fn clear_staged<T: Transaction>(transaction: &T, keys: &DatabaseKeys, row: &[u8], store: &StoreId) {
    let (begin, end) = keys.bounds(DatabaseKey::PartsOf(store));
    transaction.clear(row);
    transaction.clear_range_unguarded(&begin, &end);
}
