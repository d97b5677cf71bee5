//! Reads a document at its winner.
//!
//! RFC 004, "CRUD Operations", describes two ways: read the winner from `revisions` and then its body, or read the
//! document's bodies in reverse order and stop at another revision. This module relies on two facts: a live leaf always
//! has rows in `docs`, and it sorts after tombstones. So the last live leaf there is the winner:
//!
//! ```text
//!  first round trip    the last row of the document's live leaves: its key names the winner
//!  second              the other rows of the winner; skipped if the body is a single row
//! ```
//!
//! So it does not read `revisions`, whose ancestors may be longer than the document, or another branch's body:
//! a document with conflicts may have thousands.
//!
//! `revisions` is read only if there is no live leaf. It distinguishes a deleted document from one that never existed.
//! Additional data (`revs`, `conflicts`, …) are read in the first round trip.

use std::future::Future;

use kv_api::{Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use crate::attachments::{read_list, split_rows};
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf, end_of};
use crate::read::batch::FIRST_BYTES;
use crate::read::document::{Body, Document, GetOptions, OpenRev, OpenRevs, RevInfo, RevStatus};
use crate::rows::body::{CorruptDocument, decode_rows};
use crate::rows::branch::{Branch, branches};
use crate::rows::revid::RevId;
use crate::write::edit::RevHistory;

impl<D: Database> Documents<D> {
    /// Reads the document at its winner or at `options.rev`.
    ///
    /// If a revision is named, only `revs`, `latest` and the options of attachments apply, as in CouchDB. With
    /// `latest`, the winner is returned for a revision that does not exist.
    ///
    /// # Errors
    /// 404: `missing` if the document or the leaf does not exist, `deleted` if the winner is a tombstone. A tombstone
    /// can be read by its revision.
    pub async fn get(&self, id: &str, options: &GetOptions) -> Result<Document> {
        self.check_id_to_read(id).await?;
        if let Some(rev) = &options.rev {
            // Boxed: otherwise the large future makes every other read slower.
            return Box::pin(self.get_revision(id, rev, options)).await;
        }
        let found = self.read(|transaction| self.winner(transaction, id, options)).await;
        found.map_err(|error| error.of_document(id))
    }

    async fn get_revision(&self, id: &str, rev: &RevId, options: &GetOptions) -> Result<Document> {
        let these = OpenRevs::These(vec![rev.clone()]);
        let mut found = self.open_revs(id, &these, options).await?;
        // The first of several leaves is the newest.
        match found.drain(..).next() {
            Some(OpenRev::Found(document)) => Ok(document),
            _ if options.latest => {
                let options = GetOptions {
                    revs: options.revs,
                    attachments: options.attachments,
                    atts_since: options.atts_since.clone(),
                    att_encoding_info: options.att_encoding_info,
                    ..GetOptions::default()
                };
                self.read(|transaction| self.winner(transaction, id, &options)).await
            }
            Some(OpenRev::Missing(_)) | None => Err(Error::not_found(NotFound::Missing)),
        }
    }

    pub(crate) async fn winner(&self, transaction: D::Transaction, id: &str, options: &GetOptions) -> Result<Document> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let live = last_live(&transaction, keys, id);
        // Rare cases are boxed: otherwise their large future makes every other read slower.
        let tree = TreePart::wanted_by(options).map(|wanted| Box::pin(wanted.read(&transaction, keys, id)));
        let instance = instance.await?;
        let Some((leaf, body)) = live.await? else {
            return Err(Box::pin(why_not_live(&transaction, keys, id)).await?);
        };
        let mut document = Document::new(id.to_owned(), leaf.rev, false, body);
        let tree = match tree {
            Some(tree) => {
                let tree = tree.await?;
                add_meta(&mut document, &tree, options)?;
                if let (Some(keep), Some(infos)) = (instance.keep, &mut document.revs_info) {
                    Box::pin(self.mark_replaced(&transaction, keep, id, infos)).await?;
                }
                document.forget_beyond(instance.revs_limit as usize);
                tree
            }
            None => Vec::new(),
        };
        document.mark_wanted(options, || history_of(tree.first()))?;
        Ok(document)
    }
}

/// Reads the last live leaf of a document with its body. The call issues the first read.
pub(crate) fn last_live<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    id: &str,
) -> impl Future<Output = Result<Option<(Leaf, Body)>>> + Send + use<T> {
    let live = keys.range(DatabaseKey::DocsOfKind(id, true)).reverse().limit(1);
    // The flag of live leaves is one byte, after the document's own prefix.
    let document = live.begin.key.len() - 1;
    let last = transaction.get_range(&live, Read::Snapshot);
    let transaction = transaction.clone();
    async move {
        let Some(last) = last.await?.rows.pop() else { return Ok(None) };
        let (leaf, prefix) = DatabaseKeys::read_doc_leaf(&last.key, document)?;
        let prefix = last.key.slice(..prefix);
        let mut rows = Vec::new();
        if last.key.len() > prefix.len() {
            let before = RangeRequest::keys(prefix.clone(), last.key.clone());
            rows = transaction.get_all(before, Read::Snapshot).await?;
        }
        rows.push(last);
        let body = decode(&prefix, &rows)?;
        Ok(Some((leaf, body)))
    }
}

/// The same for one of many documents. The first read has all rows of its live leaves, the winner's last, unless they
/// exceed the limit in bytes that all bodies of a batch have. It reads forward: engines on disk find the start of a
/// range faster than its end.
pub(crate) fn last_live_of_many<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    id: &str,
) -> impl Future<Output = Result<Option<(Leaf, Body)>>> + Send + use<T> {
    let live = keys.range(DatabaseKey::DocsOfKind(id, true)).target_bytes(FIRST_BYTES);
    let document = live.begin.key.len() - 1;
    let first = transaction.get_range(&live, Read::Snapshot);
    let (transaction, keys, id) = (transaction.clone(), keys.clone(), id.to_owned());
    async move {
        let batch = first.await?;
        if batch.more {
            return last_live(&transaction, &keys, &id).await;
        }
        let Some(last) = batch.rows.last() else { return Ok(None) };
        let (leaf, prefix) = DatabaseKeys::read_doc_leaf(&last.key, document)?;
        let prefix = last.key.slice(..prefix);
        let losers = batch.rows.partition_point(|row| !row.key.starts_with(&prefix));
        let body = decode(&prefix, &batch.rows[losers..])?;
        Ok(Some((leaf, body)))
    }
}

/// The error that tells why a document has no live leaf.
pub(crate) async fn why_not_live<T: Transaction>(transaction: &T, keys: &DatabaseKeys, id: &str) -> Result<Error> {
    let winner = TreePart::Winner.read(transaction, keys, id).await?;
    Ok(Error::not_found(match winner.first() {
        None => NotFound::Missing,
        Some(branch) if !branch.leaf.not_deleted => NotFound::Deleted,
        Some(branch) => return Err(Error::corrupt(format!("there is no body at {}", branch.leaf.rev))),
    }))
}

/// Builds a body from its rows, and reads the attachments in the last of them.
pub(crate) fn decode(prefix: &[u8], rows: &[KeyValue]) -> Result<Body> {
    let (rows, list) = split_rows(prefix.len(), rows);
    let pairs = rows.iter().map(|row| (row.key.as_ref(), row.value.as_ref()));
    let text = decode_rows(prefix.len(), pairs).map_err(|error| corrupt_at(prefix, error))?;
    Ok(Body { text, attachments: read_list(prefix.len(), list)? })
}

/// The error of a body whose rows cannot be read.
pub(crate) fn corrupt_at(prefix: &[u8], error: CorruptDocument) -> Error {
    let what = format!("{} at {}", error, prefix.escape_ascii());
    if error == CorruptDocument::UNKNOWN_FORMAT { Error::unknown_format(what) } else { Error::corrupt(what) }
}

/// Reads the body of a leaf. The call issues the first read, which is limited in bytes like all bodies of a batch.
/// `None` if the body has no rows.
pub(crate) fn body_of<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    id: &str,
    leaf: &Leaf,
) -> impl Future<Output = Result<Option<Body>>> + Send + use<T> {
    body_at(transaction, keys.key(DatabaseKey::Doc(id, leaf)))
}

/// The same for a body with this key.
pub(crate) fn body_at<T: Transaction>(
    transaction: &T,
    prefix: Vec<u8>,
) -> impl Future<Output = Result<Option<Body>>> + Send + use<T> {
    let end = end_of(&prefix);
    let range = RangeRequest::keys(prefix.clone(), end);
    let first = transaction.get_range(&range.clone().target_bytes(FIRST_BYTES), Read::Snapshot);
    let transaction = transaction.clone();
    async move {
        let batch = first.await?;
        let rest = range.after(&batch);
        let mut rows = batch.rows;
        if let Some(rest) = rest {
            rows.extend(transaction.get_all(rest, Read::Snapshot).await?);
        }
        if rows.is_empty() { Ok(None) } else { decode(&prefix, &rows).map(Some) }
    }
}

/// The body of a leaf whose rows were read. A tombstone without rows has an empty body.
pub(crate) fn body_or_empty(leaf: &Leaf, body: Option<Body>) -> Result<Body> {
    match body {
        Some(body) => Ok(body),
        None if !leaf.not_deleted => Ok(Body::empty()),
        None => Err(Error::corrupt(format!("there is no body at {}", leaf.rev))),
    }
}

/// The part of a document's tree that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreePart {
    /// The winner.
    Winner,
    /// All branches.
    Whole,
}

impl TreePart {
    pub(crate) fn wanted_by(options: &GetOptions) -> Option<TreePart> {
        if options.conflicts || options.deleted_conflicts {
            Some(TreePart::Whole)
        } else if options.revs || options.revs_info || options.local_seq || options.atts_since.is_some() {
            Some(TreePart::Winner)
        } else {
            None
        }
    }

    /// Reads the branches, the winner first. The call issues the first read.
    pub(crate) fn read<T: Transaction>(
        self,
        transaction: &T,
        keys: &DatabaseKeys,
        id: &str,
    ) -> impl Future<Output = Result<Vec<Branch>>> + Send + use<T> {
        let range = keys.range(DatabaseKey::RevisionsOf(id)).reverse();
        let rows = transaction.get_all(if self == TreePart::Winner { range.limit(1) } else { range }, Read::Snapshot);
        let (keys, id) = (keys.clone(), id.to_owned());
        async move { branches(&keys, &id, &rows.await?) }
    }
}

/// The branch's history, as in `_revisions`.
pub(crate) fn history(branch: &Branch) -> Result<RevHistory> {
    Ok(RevHistory { position: branch.leaf.rev.position(), ids: branch.path()? })
}

/// The same for a branch that must exist.
pub(crate) fn history_of(branch: Option<&Branch>) -> Result<RevHistory> {
    branch.map_or_else(|| Err(Error::corrupt("there is a body but no revision")), history)
}

/// Adds what was requested. The first of `branches` is the winner.
pub(crate) fn add_meta(document: &mut Document, branches: &[Branch], options: &GetOptions) -> Result<()> {
    let Some((winner, losers)) = branches.split_first() else {
        return Err(Error::corrupt("there is a body but no revision"));
    };
    if winner.leaf.rev != document.rev {
        return Err(Error::corrupt(format!("there is no body at the winner {}", winner.leaf.rev)));
    }
    if options.revs || options.revs_info {
        let history = history(winner)?;
        if options.revs_info {
            document.revs_info = Some(revs_info(&history, document.deleted)?);
        }
        document.revisions = Some(history).filter(|_| options.revs);
    }
    if options.local_seq {
        document.local_seq = Some(winner.winner_info()?.seq);
    }
    let lost = |not_deleted: bool| {
        let revs: Vec<RevId> = losers
            .iter()
            .filter(|branch| branch.leaf.not_deleted == not_deleted)
            .map(|branch| branch.leaf.rev.clone())
            .collect();
        Some(revs).filter(|revs| !revs.is_empty())
    };
    document.conflicts = lost(true).filter(|_| options.conflicts);
    document.deleted_conflicts = lost(false).filter(|_| options.deleted_conflicts);
    Ok(())
}

fn revs_info(history: &RevHistory, deleted: bool) -> Result<Vec<RevInfo>> {
    let mut infos = Vec::with_capacity(history.ids.len());
    for (back, hash) in history.ids.iter().enumerate() {
        let position = history.position.saturating_sub(back as u64);
        let rev = RevId::new(position, hash.clone()).map_err(|_| Error::corrupt("more ancestors than positions"))?;
        let status = match (back, deleted) {
            (0, false) => RevStatus::Available,
            (0, true) => RevStatus::Deleted,
            _ => RevStatus::Missing,
        };
        infos.push(RevInfo { rev, status });
    }
    Ok(infos)
}
