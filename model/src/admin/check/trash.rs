//! Checks the rows of the trash: each can be read, and each document in the trash has its body there.
//!
//! A repair does not change these rows: documents do not depend on them.

use kv_api::keys::key_after;
use kv_api::{Bytes, Database, RangeRequest, Read, Transaction, TransactionExt};

use super::report::CheckReport;
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::{DatabaseKey, Subspace};
use crate::rows::blob;
use crate::rows::trash_row::TrashRow;

/// Number of rows that are read at a time. Each may have a body.
const AT_ONCE: usize = 50;

impl<D: Database> Documents<D> {
    pub(super) async fn check_trash(&self, report: &mut CheckReport) -> Result<()> {
        let (first, beyond) = self.keys().bounds(DatabaseKey::All(Subspace::Trash));
        let mut next = Some(Bytes::from(first));
        while let Some(from) = next {
            let range = &RangeRequest::keys(from, beyond.clone());
            let page = self.read_batch(AT_ONCE, |transaction, rows| self.trash_page(transaction, range, rows));
            let (problems, after) = page.await?;
            problems.into_iter().for_each(|(id, what)| report.add(id.as_deref(), what));
            next = after;
        }
        Ok(())
    }

    /// The problems of the first rows, and the key at which to continue.
    async fn trash_page(
        &self,
        transaction: D::Transaction,
        range: &RangeRequest,
        rows: usize,
    ) -> Result<(Vec<(Option<String>, String)>, Option<Bytes>)> {
        let keys = self.keys();
        let batch = transaction.get_range(&range.clone().limit(rows), Read::Snapshot).await?;
        let mut problems = Vec::new();
        for row in &batch.rows {
            let read = keys.read_trash(&row.key).and_then(|id| Ok((id, TrashRow::read(&row.value)?)));
            match alone(read)? {
                Err(error) => problems.push((None, format!("a row of the trash: {}", error.reason()))),
                Ok((id, TrashRow { trashed: Some(trashed), .. })) => {
                    if trashed.in_vain {
                        problems.push((Some(id.clone()), "a file names it, and it could not be brought back".into()));
                    }
                    let body = blob::range(&keys.key(DatabaseKey::TrashDoc(&id)));
                    let body = transaction.get_all(body, Read::Snapshot).await?;
                    match alone(blob::read(&body))? {
                        Ok(Some(_)) => {}
                        Ok(None) => problems.push((Some(id), "its body is not in the trash".into())),
                        Err(error) => problems.push((Some(id), format!("its body in the trash: {}", error.reason()))),
                    }
                }
                Ok(_) => {}
            }
        }
        let next = batch.rows.last().filter(|_| batch.more).map(|row| key_after(&row.key));
        Ok((problems, next))
    }
}
