//! The documents of `_users` and `_replicator` that may be copied.
//!
//! Design documents of the system are not: each server has its own. Users are copied whose names do not exist
//! here, or whose document here came from the old server. A copy of another one would be a conflict, and its winner,
//! which decides about the password, could be either of them. So it is left out, and reported.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use model::limits::DESIGN_PREFIX;
use model::{BulkGet, Edit, JsonText, Purge, RevId, RevsDiff, WriteMode};
use parking_lot::Mutex;
use peer::{
    Attachment, ByteStream, Changes, Error, ErrorKind, FeedRequest, IdRange, Info, ListingPage, LocalDocument, Peer,
    ReadOptions, Result, Revision,
};

/// A database of the old server's system, whose feed has only the documents that may be copied.
#[derive(Debug)]
pub(super) struct SystemDocuments {
    old: Arc<dyn Peer>,
    /// The users here; `None` for replications.
    users: Option<Arc<dyn Peer>>,
    /// Ids of the documents that were left out.
    left: Mutex<BTreeSet<String>>,
}

impl SystemDocuments {
    pub(super) fn of_users(old: Arc<dyn Peer>, here: Arc<dyn Peer>) -> Self {
        SystemDocuments { old, users: Some(here), left: Mutex::default() }
    }

    pub(super) fn of_replications(old: Arc<dyn Peer>) -> Self {
        SystemDocuments { old, users: None, left: Mutex::default() }
    }

    /// The documents that were left out until now.
    pub(super) fn left(&self) -> BTreeSet<String> {
        self.left.lock().clone()
    }

    /// Those of the ids that have a leaf here which is not in the history of the old server's document.
    async fn of_others(&self, ids: &[String]) -> Result<HashSet<String>> {
        let Some(users) = &self.users else { return Ok(HashSet::new()) };
        let here = leaves(&**users, ids, false).await?;
        let existing: Vec<String> =
            ids.iter().zip(&here).filter(|(_, leaves)| !leaves.is_empty()).map(|(id, _)| id.clone()).collect();
        let there = leaves(&*self.old, &existing, true).await?;
        let mut others = HashSet::new();
        let known = existing.into_iter().zip(there);
        let mut here = here.into_iter().filter(|leaves| !leaves.is_empty());
        for (id, there) in known {
            let history: HashSet<RevId> = there.iter().flat_map(ancestry).collect();
            if here.next().unwrap_or_default().iter().any(|leaf| !history.contains(&leaf.rev)) {
                others.insert(id);
            }
        }
        Ok(others)
    }
}

/// A leaf and its ancestors.
fn ancestry(leaf: &Revision) -> Vec<RevId> {
    let ancestors = leaf.history.iter().flat_map(|history| {
        let positions = (1..=history.position).rev();
        positions.zip(&history.ids).filter_map(|(position, hash)| RevId::new(position, hash.clone()).ok())
    });
    ancestors.chain([leaf.rev.clone()]).collect()
}

/// All leaves of each document.
async fn leaves(peer: &dyn Peer, ids: &[String], ancestors: bool) -> Result<Vec<Vec<Revision>>> {
    let wanted: Vec<BulkGet> = ids.iter().map(|id| BulkGet { id: id.clone(), rev: None }).collect();
    let mut found = Vec::with_capacity(ids.len());
    while found.len() < wanted.len() {
        let some = peer.read(&wanted[found.len()..], ReadOptions { ancestors, ..ReadOptions::default() }).await?;
        if some.is_empty() {
            return Err(Error::new(ErrorKind::Nonsense, "the server answers for no document"));
        }
        for leaves in some {
            match leaves {
                Err(error) if error.kind() == ErrorKind::NoDatabase => found.push(Vec::new()),
                leaves => found.push(leaves?),
            }
        }
    }
    Ok(found)
}

#[async_trait]
impl Peer for SystemDocuments {
    async fn info(&self) -> Result<Info> {
        self.old.info().await
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        let mut page = self.old.changes(request).await?;
        page.rows.retain(|row| !row.id.starts_with(DESIGN_PREFIX));
        let ids: Vec<String> = page.rows.iter().map(|row| row.id.clone()).collect();
        let others = self.of_others(&ids).await?;
        page.rows.retain(|row| !others.contains(&row.id));
        self.left.lock().extend(others);
        Ok(page)
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        self.old.list(range).await
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        self.old.winners(ids).await
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.old.read(wanted, options).await
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        self.old.attachment(id, rev, attachment)
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        self.old.revs_diff(wanted).await
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        self.old.write(edits, mode).await
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        self.old.put(revision, contents).await
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.old.purge(purges).await
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        self.old.get_local(id).await
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        self.old.put_local(id, rev, body).await
    }

    async fn commit(&self) -> Result<String> {
        self.old.commit().await
    }
}
