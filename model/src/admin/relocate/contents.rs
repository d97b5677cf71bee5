//! Copies contents of attachments.
//!
//! ```text
//!  for each content whose row differs at the target        1. its parts are mirrored, 250 kB a step
//!                                                          2. its row is set
//!  after the fence                                         3. parts at the target without a content are cleared
//! ```
//!
//! So a content with a row at the target has all its bytes there. Parts never change: those copied before the fence
//! are not read again. Uploads that no edit has named are not copied.

use kv_api::{Bytes, Database};

use crate::attachments::ContentRow;
use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, Subspace};
use crate::write::unguarded::Unguarded;

use super::arrival::Arriving;
use super::mirror::{self, Cursor, Difference, Ranges};

/// Copies the differing contents in one step of their range. Returns where to continue, `None` at the end. Calls
/// `on` between any two transactions.
pub(super) async fn copy<S: Database, T: Database>(
    source: &Documents<S>,
    target: &Arriving<T>,
    from: Option<Cursor>,
    on: &mut (impl FnMut() -> Result<()> + Send),
) -> Result<Option<Cursor>> {
    let ranges = Ranges::whole(source, &target.documents, DatabaseKey::All(Subspace::Contents));
    let from = from.unwrap_or_else(|| ranges.begin());
    let (differences, next) = mirror::compare(source, &target.documents, &ranges, &from).await?;
    for difference in differences {
        let value = match &difference {
            Difference::Missing(row) | Difference::Other(row) => Some(row.value.clone()),
            Difference::Added(_) => None,
        };
        if let Some(value) = &value {
            let store = ContentRow::read(value)?.store;
            let parts = Ranges::whole(source, &target.documents, DatabaseKey::PartsOf(&store));
            let mut cursor = Some(parts.begin());
            while let Some(from) = cursor {
                cursor = mirror::mirror(source, target, &parts, &from).await?;
                on()?;
            }
        }
        set(target, difference.key(), value).await?;
        on()?;
    }
    Ok(next)
}

/// Sets or clears a content's row at the target.
async fn set<T: Database>(target: &Arriving<T>, key: &Bytes, value: Option<Bytes>) -> Result<()> {
    let key = [target.documents.keys().prefix().as_ref(), key].concat();
    target
        .write(None, |transaction| {
            match &value {
                Some(value) => transaction.set_unguarded(&key, value),
                None => transaction.clear_unguarded(&key),
            }
            std::future::ready(Ok(()))
        })
        .await
}

/// Clears parts at the target that belong to no content of the source, which is closed.
pub(super) async fn tidy<S: Database, T: Database>(source: &Documents<S>, target: &Arriving<T>) -> Result<()> {
    let mut stores = target.documents.part_stores().await?;
    if stores.is_empty() {
        return Ok(());
    }
    for row in source.content_rows().await? {
        stores.remove(&row.store);
    }
    for store in stores {
        let (begin, end) = target.documents.keys().bounds(DatabaseKey::PartsOf(&store));
        target
            .write(None, |transaction| {
                transaction.clear_range_unguarded(&begin, &end);
                std::future::ready(Ok(()))
            })
            .await?;
    }
    Ok(())
}
