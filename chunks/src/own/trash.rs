//! What the collections of a vault left: chunks that are condemned, and chunks in the trash.

use kv_api::Database;
use model::Documents;
use serde_json::{Value, json};

use super::census::Amount;
use super::json::amount;
use crate::error::{Result, StoreError};

/// Rows that are read at a time.
const ROWS: usize = 1_000;

/// What to say of a trash that is not empty, where lists of chunks cannot be read.
pub const TRASH_ADVICE: &str = "text in the trash may be needed";

/// What is condemned, and what is in the trash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trash {
    /// Number of chunks that are condemned, and live.
    pub condemned: u64,
    /// Chunks that were deleted and whose text is in the trash.
    pub deleted: Amount,
    /// Number of those in the trash that a file named and that could not be brought back. The log and a check say why.
    pub not_revived: u64,
    /// Number of rows that cannot be read.
    pub unreadable: u64,
    /// When one of them was condemned or deleted last, in milliseconds since 1970; `None` if there are none.
    pub changed_ms: Option<u64>,
}

impl Trash {
    /// Counts what a database has.
    ///
    /// # Errors
    /// The store's failures.
    pub async fn read<D: Database>(documents: &Documents<D>) -> Result<Trash> {
        let (mut trash, mut next) = (Trash::default(), Some(None));
        while let Some(from) = next {
            let page = documents.trash(from, ROWS).await.map_err(StoreError::from)?;
            trash.unreadable += page.unreadable;
            for one in &page.documents {
                match one.trashed {
                    Some(bytes) => trash.deleted.add(bytes),
                    None => trash.condemned += 1,
                }
                trash.not_revived += u64::from(one.in_vain);
                trash.changed_ms = trash.changed_ms.max(Some(one.since_ms));
            }
            next = page.next.map(Some);
        }
        Ok(trash)
    }

    /// What to say of it where lists of chunks cannot be read: nobody can tell what they need. `None` if the trash has no
    /// text.
    pub fn warning(&self) -> Option<&'static str> {
        (self.deleted.count > 0 || self.unreadable > 0).then_some(TRASH_ADVICE)
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let Trash { condemned, deleted, not_revived, unreadable, changed_ms } = self;
        json!({
            "condemned": condemned,
            "deleted": amount(deleted),
            "not_revived": not_revived,
            "unreadable": unreadable,
            "changed": changed_ms,
        })
    }
}
