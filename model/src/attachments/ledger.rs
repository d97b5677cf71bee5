//! What the edits of one transaction do to contents.
//!
//! ```text
//!  first round trip    of leaves that go: the lists of their attachments
//!                      of attachments that come: the contents' rows, and the rows of uploads        serializable
//!  written             references of leaves that go are cleared, those of leaves that come are set
//!                      contents that are new
//!  second round trip   of contents that lost a reference: the first reference left, and the row     serializable
//!  written             contents to which nobody refers are cleared
//! ```
//!
//! Rows of `references` and `contents` take write conflict ranges: of two edits that take the last two references to a
//! content away the second fails, looks again, and finds that its own was the last; one that adds a reference to a
//! content which is about to go fails, or makes the one that would remove it fail.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;

use kv_api::{KeyValue, Read, Transaction, TransactionExt};

use super::address::{ContentRow, Place};
use super::staging::{chunk_rows, clear_staged, new_store};
use super::{Attachment, AttachmentEdit, AttachmentSource, Content, ContentId, read_list};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Key, Leaf};
use crate::txids::Unguarded;

/// What the edits of one document do.
pub(crate) struct Change<'e> {
    pub(crate) id: &'e str,
    /// Leaves with attachments that go.
    pub(crate) removed: Vec<Leaf>,
    /// Leaves with attachments that come.
    pub(crate) added: Vec<Added<'e>>,
}

/// A leaf with attachments that comes.
pub(crate) struct Added<'e> {
    pub(crate) leaf: Leaf,
    pub(crate) attachments: Arc<[Attachment]>,
    /// What the edit says of each of them.
    pub(crate) sources: &'e [AttachmentEdit],
}

impl<'e> Added<'e> {
    fn each(&self) -> impl Iterator<Item = (&Attachment, &'e AttachmentSource)> {
        self.attachments.iter().zip(self.sources.iter().map(|edit| &edit.source))
    }
}

/// The contents of each leaf that goes.
type Removed = Vec<(Leaf, HashSet<ContentId>)>;

/// What was read for the changes of one transaction.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The row of each content that is referred to, if it is there; an error where it cannot be read.
    contents: HashMap<ContentId, Result<Option<ContentRow>>>,
    /// The keys of the uploads that are there.
    staged: HashSet<Vec<u8>>,
    /// For each change, the contents of each leaf that goes; an error where a list of them cannot be read.
    removed: Vec<Result<Removed>>,
}

/// Reads the rows of a leaf's attachments; the read is issued by the call. The rows go with the leaf, which is what
/// conflicts.
pub(crate) fn list_of<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    id: &str,
    leaf: &Leaf,
) -> impl Future<Output = Result<Vec<Attachment>>> + Send + use<T> {
    let key = DatabaseKey::Attachments(id, leaf);
    let prefix = keys.key(key).len() - 1;
    let rows = transaction.get_all(keys.range(key), Read::Snapshot);
    async move {
        let rows: Vec<KeyValue> = rows.await?;
        read_list(prefix, &rows)
    }
}

impl Ledger {
    /// Reads what the changes need, and says of each whether it can be done.
    pub(crate) async fn read<T: Transaction>(
        transaction: &T,
        root: &[u8],
        keys: &DatabaseKeys,
        changes: &[Change<'_>],
    ) -> Result<(Ledger, Vec<Result<()>>)> {
        let mut ledger = Ledger::default();
        let get = |key: &[u8]| transaction.get(key, Read::Serializable);
        let lists: Vec<Vec<_>> = changes
            .iter()
            .map(|change| {
                let lists = change.removed.iter();
                lists.map(|leaf| (leaf.clone(), list_of(transaction, keys, change.id, leaf))).collect()
            })
            .collect();
        let (mut contents, mut staged) = (HashMap::new(), HashMap::new());
        for (attachment, source) in changes.iter().flat_map(|change| &change.added).flat_map(Added::each) {
            let id = attachment.content;
            contents.entry(id).or_insert_with(|| get(&keys.key(DatabaseKey::Content(&id))));
            if let AttachmentSource::Content(content) = source
                && let Some(key) = staging_key(root, keys, content)
            {
                staged.entry(key.clone()).or_insert_with(|| get(&key));
            }
        }
        for lists in lists {
            let mut removed = Ok(Removed::with_capacity(lists.len()));
            for (leaf, list) in lists {
                match (alone(list.await)?, &mut removed) {
                    (Ok(list), Ok(removed)) => {
                        removed.push((leaf, list.iter().map(|attachment| attachment.content).collect()));
                    }
                    (Err(damage), _) => removed = Err(damage),
                    (Ok(_), Err(_)) => {}
                }
            }
            ledger.removed.push(removed);
        }
        for (id, row) in contents {
            let row = row.await?;
            ledger.contents.insert(id, row.map(|row| ContentRow::read(&row)).transpose());
        }
        for (key, row) in staged {
            if row.await?.is_some() {
                ledger.staged.insert(key);
            }
        }
        let possible = changes.iter().zip(&ledger.removed).map(|(change, removed)| {
            // The list of a leaf that goes is cleared with it. Nothing would know its contents any more.
            removed.as_ref().map_err(Error::clone)?;
            ledger.is_possible(root, keys, change)
        });
        let possible: Vec<Result<()>> = possible
            .zip(changes)
            .map(|(possible, change)| possible.map_err(|error| error.of_document(change.id)))
            .collect();
        Ok((ledger, possible))
    }

    /// Whether each content of a change that comes is there, or can be written.
    fn is_possible(&self, root: &[u8], keys: &DatabaseKeys, change: &Change<'_>) -> Result<()> {
        for (attachment, source) in change.added.iter().flat_map(Added::each) {
            match self.contents.get(&attachment.content) {
                Some(Ok(Some(_))) => continue,
                Some(Err(damage)) => return Err(damage.clone()),
                Some(Ok(None)) | None => {}
            }
            match source {
                AttachmentSource::Content(content) => match staging_key(root, keys, content) {
                    None => {}
                    Some(key) if self.staged.contains(&key) => {}
                    Some(_) => return Err(ErrorKind::UploadGone.into()),
                },
                // The leaf that had it is not there any more.
                AttachmentSource::Same(_) => {
                    let (id, name) = (change.id.to_owned(), attachment.name.clone());
                    return Err(ErrorKind::MissingStub { id, name }.into());
                }
                _ => return Err(Error::corrupt(format!("the attachment {:?} has no content", attachment.name))),
            }
        }
        Ok(())
    }

    /// Writes changes that are possible; `which` says of each whether it is made.
    pub(crate) async fn write<T: Transaction>(
        mut self,
        transaction: &T,
        root: &[u8],
        environment: &dyn Environment,
        keys: &DatabaseKeys,
        changes: &[Change<'_>],
        which: &[bool],
    ) -> Result<()> {
        let made = || changes.iter().zip(which).filter(|(_, made)| **made).map(|(change, _)| change);
        let mut lost: HashSet<ContentId> = HashSet::new();
        for ((change, removed), _) in changes.iter().zip(&self.removed).zip(which).filter(|(_, made)| **made) {
            for (leaf, contents) in removed.iter().flatten() {
                for content in contents {
                    transaction.clear(&keys.key(DatabaseKey::Reference(content, change.id, leaf)));
                    lost.insert(*content);
                }
            }
        }
        for change in made() {
            for added in &change.added {
                for (attachment, source) in added.each() {
                    if let AttachmentSource::Content(content) = source {
                        self.place(transaction, root, environment, keys, content);
                    }
                    let reference = DatabaseKey::Reference(&attachment.content, change.id, &added.leaf);
                    transaction.set(keys.key(reference), &[]);
                    lost.remove(&attachment.content);
                }
            }
        }
        let left: Vec<_> = lost
            .into_iter()
            .map(|content| {
                let references = keys.range(DatabaseKey::ReferencesTo(&content)).limit(1);
                let references = transaction.get_range(&references, Read::Serializable);
                let key = keys.key(DatabaseKey::Content(&content));
                let row = transaction.get(&key, Read::Serializable);
                (key, references, row)
            })
            .collect();
        for (key, references, row) in left {
            let (references, row) = (references.await?, row.await?);
            // A row that cannot be read stays, and so do the chunks that it would name.
            if let (true, Some(Ok(row))) = (references.rows.is_empty(), row.map(|row| ContentRow::read(&row))) {
                clear_content(transaction, keys, &key, &row);
            }
        }
        Ok(())
    }

    /// Sees to it that an uploaded content is there, once.
    fn place<T: Transaction>(
        &mut self,
        transaction: &T,
        root: &[u8],
        environment: &dyn Environment,
        keys: &DatabaseKeys,
        content: &Content,
    ) {
        let uploaded = content.uploaded();
        let there = match self.contents.get(&uploaded.id) {
            None => None,
            Some(Ok(there)) => *there,
            // Seen before: such a change is not made.
            Some(Err(_)) => return,
        };
        let staged = staging_key(root, keys, content).filter(|key| self.staged.remove(key));
        if let Some(there) = there {
            if let (Place::Staged { store, .. }, Some(staged)) = (&uploaded.place, staged) {
                // The same content came before: these chunks are not needed, unless they are its own.
                if there.store == *store {
                    transaction.clear(&staged);
                } else {
                    clear_staged(transaction, keys, &staged, store);
                }
            }
            return;
        }
        let store = match (&uploaded.place, staged) {
            (Place::Memory(bytes), _) => {
                // Chunks of a store never change, also where a content is removed and comes again.
                let store = new_store(environment);
                let chunk_bytes = usize::try_from(uploaded.chunk_bytes).unwrap_or(usize::MAX);
                for (key, value) in chunk_rows(keys, &store, 0, bytes, chunk_bytes) {
                    transaction.set_unguarded(key, value);
                }
                store
            }
            (Place::Staged { store, .. }, Some(staged)) => {
                transaction.clear(&staged);
                *store
            }
            // Seen to be possible before.
            (Place::Staged { .. }, None) => return,
        };
        let row = ContentRow { store, chunk_bytes: uploaded.chunk_bytes, md5: uploaded.md5 };
        transaction.set(keys.key(DatabaseKey::Content(&uploaded.id)), row.write());
        self.contents.insert(uploaded.id, Ok(Some(row)));
    }
}

/// Clears a content and its chunks, as part of a transaction that has read that nobody refers to it.
pub(crate) fn clear_content<T: Transaction>(transaction: &T, keys: &DatabaseKeys, key: &[u8], row: &ContentRow) {
    let (begin, end) = keys.bounds(DatabaseKey::ChunksOf(&row.store));
    transaction.clear(key);
    transaction.clear_range_unguarded(&begin, &end);
}

/// The key of an upload that was staged.
fn staging_key(root: &[u8], keys: &DatabaseKeys, content: &Content) -> Option<Vec<u8>> {
    let uploaded = content.uploaded();
    match &uploaded.place {
        Place::Memory(_) => None,
        Place::Staged { store, deadline_ms } => {
            Some(Key::Staging { deadline_ms: *deadline_ms, database: keys.number(), store }.under(root))
        }
    }
}
