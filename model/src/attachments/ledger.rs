//! The effects of one transaction's edits on contents.
//!
//! ```text
//!  first round trip    of removed leaves: the lists of their attachments
//!                      of added attachments: the rows of contents and uploads        serializable
//!  written             references of removed leaves are cleared, those of added leaves are set
//!                      new contents are set
//!  second round trip   of contents that lost a reference: the first reference left, and the row     serializable
//!  written             contents without references are cleared
//! ```
//!
//! Rows of `references` and `contents` take write conflict ranges. If two edits remove the last two references to
//! a content, the second one fails, retries, and finds that its own is the last. If an edit adds a reference to a
//! content that another edit is about to remove, one of the two fails.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;

use kv_api::{KeyValue, Read, Transaction, TransactionExt};

use super::address::ContentRow;
use super::staging::{Staged, new_store, part_rows};
use super::sweep::clear_staged;
use super::uploaded::UploadedBytes;
use super::{Attachment, AttachmentEdit, AttachmentSource, Content, ContentId, read_list};
use crate::admin::environment::Environment;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Key, Leaf};
use crate::write::unguarded::Unguarded;

/// Effects of the edits of one document.
pub(crate) struct Change<'e> {
    pub(crate) id: &'e str,
    /// Removed leaves with attachments.
    pub(crate) removed: Vec<Leaf>,
    /// Added leaves with attachments.
    pub(crate) added: Vec<Added<'e>>,
    /// Replaced revisions whose bodies are no longer kept, with the contents of their attachments.
    pub(crate) forgotten: Vec<(Leaf, HashSet<ContentId>)>,
}

impl<'e> Change<'e> {
    /// The change of a document whose leaves remain.
    pub(crate) fn forgetting(id: &'e str, forgotten: Vec<(Leaf, HashSet<ContentId>)>) -> Self {
        Change { id, removed: Vec::new(), added: Vec::new(), forgotten }
    }
}

/// An added leaf with attachments.
pub(crate) struct Added<'e> {
    pub(crate) leaf: Leaf,
    pub(crate) attachments: Arc<[Attachment]>,
    /// The edit's description of each attachment.
    pub(crate) sources: &'e [AttachmentEdit],
}

impl<'e> Added<'e> {
    fn each(&self) -> impl Iterator<Item = (&Attachment, &'e AttachmentSource)> {
        self.attachments.iter().zip(self.sources.iter().map(|edit| &edit.source))
    }
}

/// The contents of each removed leaf.
type Removed = Vec<(Leaf, HashSet<ContentId>)>;

/// The rows that were read for the changes of one transaction.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The row of each content that is referred to, if it exists; an error if it cannot be read.
    contents: HashMap<ContentId, Result<Option<ContentRow>>>,
    /// The keys of the existing uploads.
    staged: HashSet<Vec<u8>>,
    /// For each change, the contents of each removed leaf; an error if one of their lists cannot be read.
    removed: Vec<Result<Removed>>,
}

/// Reads the rows of a leaf's attachments. The call issues the read. The leaf's own row provides the conflict.
pub(crate) fn list_of<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    id: &str,
    leaf: &Leaf,
) -> impl Future<Output = Result<Vec<Attachment>>> + Send + use<T> {
    list_at(transaction, keys, DatabaseKey::Attachments(id, leaf))
}

/// The same for a list with this key.
pub(crate) fn list_at<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    key: DatabaseKey<'_>,
) -> impl Future<Output = Result<Vec<Attachment>>> + Send + use<T> {
    let prefix = keys.key(key).len() - 1;
    let rows = transaction.get_all(keys.range(key), Read::Snapshot);
    async move {
        let rows: Vec<KeyValue> = rows.await?;
        read_list(prefix, &rows)
    }
}

impl Ledger {
    /// Reads the rows for the changes, and decides whether each change is possible.
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
            // The list of a removed leaf is cleared with it. Its contents would then be lost track of.
            removed.as_ref().map_err(Error::clone)?;
            ledger.is_possible(root, keys, change)
        });
        let possible: Vec<Result<()>> = possible
            .zip(changes)
            .map(|(possible, change)| possible.map_err(|error| error.of_document(change.id)))
            .collect();
        Ok((ledger, possible))
    }

    /// Whether every content that a change adds exists or can be written.
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
                // The leaf with it is gone.
                AttachmentSource::Same(_) => {
                    let (id, name) = (change.id.to_owned(), attachment.name.clone());
                    return Err(ErrorKind::MissingStub { id, name }.into());
                }
                _ => return Err(Error::corrupt(format!("the attachment {:?} has no content", attachment.name))),
            }
        }
        Ok(())
    }

    /// Writes the possible changes; `which` tells which are made.
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
        let removed = changes.iter().zip(&self.removed).zip(which).filter(|(_, made)| **made);
        let removed =
            removed.flat_map(|((change, removed), _)| removed.iter().flatten().map(move |one| (change.id, one)));
        let forgotten = made().flat_map(|change| change.forgotten.iter().map(move |one| (change.id, one)));
        for (id, (leaf, contents)) in removed.chain(forgotten) {
            for content in contents {
                transaction.clear(&keys.key(DatabaseKey::Reference(content, id, leaf)));
                lost.insert(*content);
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
            // An unreadable row is kept, and so are the parts that it may name.
            if let (true, Some(Ok(row))) = (references.rows.is_empty(), row.map(|row| ContentRow::read(&row))) {
                clear_content(transaction, keys, &key, &row);
            }
        }
        Ok(())
    }

    /// Makes sure that an uploaded content is stored, once.
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
            // Checked earlier: such a change is not made.
            Some(Err(_)) => return,
        };
        let staged = staging_key(root, keys, content).filter(|key| self.staged.remove(key));
        if let Some(there) = there {
            if let (UploadedBytes::Staged(Staged { store, .. }), Some(staged)) = (&uploaded.place, staged) {
                // The same content exists already. These parts are not needed, unless they belong to it.
                if there.store == *store {
                    transaction.clear(&staged);
                } else {
                    clear_staged(transaction, keys, &staged, store);
                }
            }
            return;
        }
        let store = match (&uploaded.place, staged) {
            (UploadedBytes::Memory(bytes), _) => {
                // Parts under one store id never change, even if a content is removed and added again.
                let store = new_store(environment);
                let part_bytes = usize::try_from(uploaded.part_bytes).unwrap_or(usize::MAX);
                for (key, value) in part_rows(keys, &store, 0, bytes, part_bytes) {
                    transaction.set_unguarded(key, value);
                }
                store
            }
            (UploadedBytes::Staged(Staged { store, .. }), Some(staged)) => {
                transaction.clear(&staged);
                *store
            }
            // Checked earlier.
            (UploadedBytes::Staged(_), None) => return,
        };
        let row = ContentRow { store, part_bytes: uploaded.part_bytes, md5: uploaded.md5 };
        transaction.set(keys.key(DatabaseKey::Content(&uploaded.id)), row.write());
        self.contents.insert(uploaded.id, Ok(Some(row)));
    }
}

/// Clears a content and its parts. The transaction must have read that no leaf refers to it.
pub(crate) fn clear_content<T: Transaction>(transaction: &T, keys: &DatabaseKeys, key: &[u8], row: &ContentRow) {
    let (begin, end) = keys.bounds(DatabaseKey::PartsOf(&row.store));
    transaction.clear(key);
    transaction.clear_range_unguarded(&begin, &end);
}

/// The key of a staged upload.
fn staging_key(root: &[u8], keys: &DatabaseKeys, content: &Content) -> Option<Vec<u8>> {
    let uploaded = content.uploaded();
    match &uploaded.place {
        UploadedBytes::Memory(_) => None,
        UploadedBytes::Staged(Staged { store, deadline_ms, .. }) => {
            Some(Key::Staging { deadline_ms: *deadline_ms, database: keys.number(), store }.under(root))
        }
    }
}
