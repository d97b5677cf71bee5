//! Whether the versions of a store went back: the check that [adoption](crate::admin::adoption) ends.

use std::future::Future;

use kv_api::{RangeRequest, Read, Transaction};

use crate::error::{ErrorKind, Result};
use crate::keys::Key;

/// Fails if rows of the store record a version that its engine has not reached. The reads are issued by the call.
pub(crate) fn check_versions<T: Transaction>(
    transaction: &T,
    root: &[u8],
) -> impl Future<Output = Result<()>> + Send + use<T> {
    let (begin, end) = Key::transactions(root);
    let last = transaction.get_range(&RangeRequest::keys(begin, end).reverse().limit(1), Read::Snapshot);
    let event = transaction.get(&Key::Events.under(root), Read::Snapshot);
    let version = transaction.get_read_version();
    let root = root.to_vec();
    async move {
        let id = last.await?.rows.first().map(|row| Key::transaction_version(&root, &row.key)).transpose()?;
        let event = event.await?.map_or(0, |stamp| version_of(&stamp));
        let (newest, version) = (id.unwrap_or_default().max(event), version.await?);
        if newest > u64::try_from(version).unwrap_or_default() {
            return Err(ErrorKind::WentBack { newest, version }.into());
        }
        Ok(())
    }
}

/// The version of the last event, in its row.
fn version_of(stamp: &[u8]) -> u64 {
    stamp.first_chunk().map_or(0, |version| u64::from_be_bytes(*version))
}
