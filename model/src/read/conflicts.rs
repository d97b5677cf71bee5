//! Documents with conflicts: those with more than one live leaf.

use kv_api::Database;

use crate::documents::Documents;
use crate::error::Result;
use crate::feed::change::{Change, ChangesRequest, Since, Style};
use crate::feed::seq::Seq;
use crate::rows::revid::RevId;

/// A document with conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicted {
    /// The sequence of its last change.
    pub seq: Seq,
    /// The document.
    pub id: String,
    /// Its live leaves, the winner first: at least two.
    pub revs: Vec<RevId>,
}

/// A batch of documents with conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts {
    /// The documents. A batch that is not the last may be empty.
    pub rows: Vec<Conflicted>,
    /// The last sequence that was read: continue after it.
    pub last_seq: Seq,
    /// Whether there is more to read now.
    pub more: bool,
}

impl<D: Database> Documents<D> {
    /// The documents with conflicts in the next part of the feed, at most `limit` of them. One pass over the feed finds
    /// all of them. Leaves are read only for documents with more than one branch. Documents with damaged rows are left
    /// out: a [check](Self::check) finds them.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn conflicts(&self, since: Seq, limit: Option<usize>) -> Result<Conflicts> {
        let request = ChangesRequest { since: Since::Seq(since), style: Style::Live, ..ChangesRequest::default() };
        let batch = self.changes(&request).await?;
        let conflicted = |change: Change| {
            let Change { seq, id, revs, deleted, error, .. } = change;
            (revs.len() > 1 && !deleted && error.is_none()).then_some(Conflicted { seq, id, revs })
        };
        let mut rows: Vec<Conflicted> = batch.rows.into_iter().filter_map(conflicted).collect();
        let (mut last_seq, mut more) = (batch.last_seq, batch.more);
        if let Some(limit) = limit.filter(|&limit| rows.len() > limit) {
            rows.truncate(limit);
            last_seq = rows.last().map_or(since, |row| row.seq);
            more = true;
        }
        Ok(Conflicts { rows, last_seq, more })
    }
}
