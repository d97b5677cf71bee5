//! Checks contents of attachments and the references to them.
//!
//! ```text
//!  lists       with each page of documents: each attachment has its content and its reference
//!  references  each names a leaf, or a replaced revision whose body is kept, whose list has the content
//!  parts       all store ids are collected; those of uploads and contents are removed; the rest has no owner
//!  contents    each has a reference; its bytes have the right hashes
//! ```
//!
//! Each statement is based on rows that one transaction read. A store id moves from an upload to a content and never
//! back, so reading the uploads first does not miss any.
//!
//! If a repair has moved unreadable rows of `docs`, these may be lists. Then contents and references without an
//! owner are not reported, and all of them are kept.

use std::collections::{BTreeMap, BTreeSet};

use kv_api::{Bytes, Database, KeySelector, KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use super::report::{CheckReport, PAGE_ROWS};
use crate::attachments::{Attachment, ContentId, ContentRow, Hashes, StoreId, clear_content, list_at, read_list};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result, alone};
use crate::keys::{ATTACHMENTS, DatabaseKey, Key, Leaf, Subspace, end_of};
use crate::write::txids::Outcome;
use crate::write::unguarded::Unguarded;

/// An attachment with inconsistent rows.
pub(super) struct BadAttachment {
    pub(super) id: String,
    pub(super) leaf: Leaf,
    pub(super) content: ContentId,
    pub(super) what: String,
    /// Whether only the reference is missing.
    pub(super) lacks_reference: bool,
}

/// Rows without a document.
#[derive(Default)]
pub(super) struct Unowned {
    /// References of leaves that do not have the content.
    pub(super) references: Vec<(ContentId, String, Leaf)>,
    /// Contents without references.
    pub(super) contents: Vec<ContentId>,
    /// Parts without a content or an upload.
    pub(super) parts: Vec<StoreId>,
}

impl<D: Database> Documents<D> {
    /// Compares the lists of attachments in these rows of `docs` with contents and references.
    pub(super) async fn bad_attachments(
        &self,
        transaction: &D::Transaction,
        docs: &[KeyValue],
    ) -> Result<Vec<BadAttachment>> {
        let keys = self.keys();
        let mut lists: BTreeMap<(String, Leaf), (usize, Vec<KeyValue>)> = BTreeMap::new();
        for row in docs {
            if let Ok((id, leaf, prefix)) = keys.read_doc(&row.key)
                && row.key.get(prefix) == Some(&ATTACHMENTS)
            {
                lists.entry((id, leaf)).or_insert((prefix, Vec::new())).1.push(row.clone());
            }
        }
        let mut reads = Vec::new();
        for ((id, leaf), (prefix, rows)) in lists {
            // An unreadable list is reported with the body.
            for Attachment { name, digest, content, .. } in read_list(prefix, &rows).unwrap_or_default() {
                let row = transaction.get(&keys.key(DatabaseKey::Content(&content)), Read::Snapshot);
                let reference =
                    transaction.get(&keys.key(DatabaseKey::Reference(&content, &id, &leaf)), Read::Snapshot);
                reads.push((id.clone(), leaf.clone(), name, digest, content, row, reference));
            }
        }
        let mut bad = Vec::new();
        for (id, leaf, name, digest, content, row, reference) in reads {
            let (row, reference) = (row.await?.map(|row| ContentRow::read(&row)), reference.await?);
            let (what, lacks_reference) = match (row, reference) {
                (None, _) => ("has no content".to_owned(), false),
                (Some(Err(error)), _) => (format!("its content cannot be read: {}", error.reason()), false),
                (Some(Ok(row)), _) if row.md5 != digest => ("its content has another digest".to_owned(), false),
                (Some(Ok(_)), None) => ("does not refer to its content".to_owned(), true),
                (Some(Ok(_)), Some(_)) => continue,
            };
            let what = format!("the attachment {name:?} at {}: {what}", leaf.rev);
            bad.push(BadAttachment { id, leaf, content, what, lacks_reference });
        }
        Ok(bad)
    }

    /// Checks contents, parts and references.
    pub(super) async fn check_contents(&self, report: &mut CheckReport) -> Result<Unowned> {
        let mut unowned = Unowned::default();
        let mut stores = self.part_stores().await?;
        if stores.is_empty() && self.is_empty(Subspace::Contents).await? && self.is_empty(Subspace::References).await? {
            return Ok(unowned);
        }
        let some_moved = self.some_moved().await?;
        for store in self.staged_stores().await? {
            stores.remove(&store);
        }
        let mut all_read = true;
        let mut after = None;
        while let Some((rows, reached)) = self.contents_page(after.take()).await? {
            for (key, value, is_referred_to) in rows {
                let read = self.keys().read_content(&key).and_then(|id| Ok((id, ContentRow::read(&value)?)));
                let (id, row) = match read {
                    Ok(read) => read,
                    Err(error) => {
                        all_read = false;
                        report.add(None, format!("a content cannot be read: {}", error.reason()));
                        continue;
                    }
                };
                report.contents += 1;
                stores.remove(&row.store);
                if !is_referred_to && !some_moved {
                    report.add(None, format!("no leaf refers to the content {id:?}"));
                    unowned.contents.push(id);
                }
                if let Some(what) = self.verify_content(&id, &row).await? {
                    report.add(None, format!("the content {id:?}: {what}"));
                }
            }
            after = Some(reached);
        }
        self.check_references(report, &mut unowned, some_moved).await?;
        // A content that cannot be read may own any of them.
        for store in stores.into_iter().filter(|_| all_read) {
            if self.has_parts(&store).await? {
                report.add(None, "there are parts of no content and no upload");
                unowned.parts.push(store);
            }
        }
        Ok(unowned)
    }

    /// Reads a content. Returns its problem, if there is one.
    async fn verify_content(&self, id: &ContentId, row: &ContentRow) -> Result<Option<String>> {
        let mut reader = self.content_reader(id, row);
        let mut hashes = Hashes::default();
        loop {
            match alone(reader.next().await) {
                Ok(Ok(Some(piece))) => hashes.update(&piece),
                Ok(Ok(None)) => break,
                Ok(Err(damage)) => return Ok(Some(damage.reason().into_owned())),
                // It was removed meanwhile.
                Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Attachment) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok((hashes.finish() != (*id, row.md5)).then(|| "its hashes differ".to_owned()))
    }

    /// Contents after a key, each with whether it has references, and the last key; `None` after the last content.
    async fn contents_page(&self, after: Option<Bytes>) -> Result<Option<(Vec<(Bytes, Bytes, bool)>, Bytes)>> {
        let keys = self.keys();
        let request = self.behind(Subspace::Contents, after);
        self.read_batch(PAGE_ROWS, |transaction, rows| {
            let request = request.clone().limit(rows);
            async move {
                self.instance(&transaction, Read::Snapshot).await?;
                let batch = transaction.get_range(&request, Read::Snapshot).await?;
                let Some(reached) = batch.rows.last().map(|row| row.key.clone()) else { return Ok(None) };
                let references: Vec<_> = batch
                    .rows
                    .iter()
                    .map(|row| {
                        let id = keys.read_content(&row.key).ok()?;
                        let first = keys.range(DatabaseKey::ReferencesTo(&id)).limit(1);
                        Some(transaction.get_range(&first, Read::Snapshot))
                    })
                    .collect();
                let mut rows = Vec::with_capacity(references.len());
                for (row, reference) in batch.rows.into_iter().zip(references) {
                    let is_referred_to = match reference {
                        Some(reference) => !reference.await?.rows.is_empty(),
                        None => true,
                    };
                    rows.push((row.key, row.value, is_referred_to));
                }
                Ok(Some((rows, reached)))
            }
        })
        .await
    }

    async fn check_references(&self, report: &mut CheckReport, unowned: &mut Unowned, some_moved: bool) -> Result<()> {
        let keys = self.keys();
        let mut after: Option<Bytes> = None;
        loop {
            let request = self.behind(Subspace::References, after.take());
            let page = self.read_batch(PAGE_ROWS, |transaction, rows| {
                let request = request.clone().limit(rows);
                async move {
                    let keep = self.instance(&transaction, Read::Snapshot).await?.keep;
                    let rows = transaction.get_range(&request, Read::Snapshot).await?.rows;
                    let reads: Vec<_> = rows
                        .into_iter()
                        .map(|row| {
                            let reference = keys.read_reference(&row.key);
                            let lists = reference.as_ref().ok().map(|(_, id, leaf)| {
                                let replaced = keep.map(|_| DatabaseKey::ReplacedAttachments(id, leaf));
                                let lists = [Some(DatabaseKey::Attachments(id, leaf)), replaced].into_iter().flatten();
                                lists.map(|key| list_at(&transaction, keys, key)).collect::<Vec<_>>()
                            });
                            (row.key, reference, lists)
                        })
                        .collect();
                    let mut page = Vec::with_capacity(reads.len());
                    for (key, reference, lists) in reads {
                        let holds = match (&reference, lists) {
                            (Ok((content, ..)), Some(lists)) => {
                                let mut holds = false;
                                for list in lists {
                                    let list = alone(list.await)?;
                                    // An unreadable list may have it.
                                    holds |= list.map_or(true, |list| list.iter().any(|one| one.content == *content));
                                }
                                holds
                            }
                            _ => true,
                        };
                        page.push((key, reference, holds));
                    }
                    Ok(page)
                }
            });
            for (key, reference, holds) in page.await? {
                after = Some(key);
                match reference {
                    Err(error) => report.add(None, format!("a key of references cannot be read: {}", error.reason())),
                    Ok((content, id, leaf)) if !holds && !some_moved => {
                        let what = format!(
                            "there is a reference of {} to the content {content:?}, which it does not have",
                            leaf.rev
                        );
                        report.add(Some(&id), what);
                        unowned.references.push((content, id, leaf));
                    }
                    Ok(_) => {}
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// The store ids of all parts.
    pub(crate) async fn part_stores(&self) -> Result<BTreeSet<StoreId>> {
        let keys = self.keys();
        let (mut from, end) = keys.bounds(DatabaseKey::All(Subspace::Parts));
        let mut stores = BTreeSet::new();
        loop {
            let next = KeySelector::first_greater_or_equal(from);
            let key = self.read(|transaction| {
                let key = transaction.get_key(&next, Read::Snapshot);
                async move { Ok(key.await?) }
            });
            let key = key.await?;
            if key.as_ref() >= end.as_slice() {
                return Ok(stores);
            }
            let (store, _) = keys.read_part(&key)?;
            stores.insert(store);
            from = keys.bounds(DatabaseKey::PartsOf(&store)).1;
        }
    }

    /// The rows of all contents.
    pub(crate) async fn content_rows(&self) -> Result<Vec<ContentRow>> {
        let (mut rows, mut after) = (Vec::new(), None);
        while let Some((page, reached)) = self.contents_page(after.take()).await? {
            for (_, value, _) in page {
                rows.push(ContentRow::read(&value)?);
            }
            after = Some(reached);
        }
        Ok(rows)
    }

    async fn has_parts(&self, store: &StoreId) -> Result<bool> {
        let first = self.keys().range(DatabaseKey::PartsOf(store)).limit(1);
        self.has_rows(first).await
    }

    async fn is_empty(&self, subspace: Subspace) -> Result<bool> {
        Ok(!self.has_rows(self.keys().range(DatabaseKey::All(subspace)).limit(1)).await?)
    }

    /// Whether a repair moved rows of `docs`, which may be lists. The first row moved from a key goes to one subspace.
    async fn some_moved(&self) -> Result<bool> {
        let Some(begin) = self.keys().moved(&self.keys().key(DatabaseKey::All(Subspace::Docs)), 0) else {
            return Ok(true);
        };
        let end = end_of(&begin);
        self.has_rows(RangeRequest::keys(begin, end).limit(1)).await
    }

    /// Whether there are rows in a range.
    pub(super) async fn has_rows(&self, request: RangeRequest) -> Result<bool> {
        self.read(|transaction| {
            let rows = transaction.get_range(&request, Read::Snapshot);
            async move { Ok(!rows.await?.rows.is_empty()) }
        })
        .await
    }

    /// The store ids of uploads to this database that no edit has named.
    async fn staged_stores(&self) -> Result<Vec<StoreId>> {
        let root = &self.shared.guard.root;
        let (begin, end) = Key::stagings(root, None);
        let request = RangeRequest::keys(begin, end);
        self.read(|transaction| {
            let rows = transaction.get_all(request.clone(), Read::Snapshot);
            async move {
                let read = rows.await?.into_iter().map(|row| Key::read_staging(root, &row.key));
                let stores: Vec<(u64, StoreId)> = read.collect::<Result<_>>()?;
                let own = stores.into_iter().filter(|(database, _)| *database == self.keys().number());
                Ok(own.map(|(_, store)| store).collect())
            }
        })
        .await
    }

    fn behind(&self, subspace: Subspace, after: Option<Bytes>) -> RangeRequest {
        let (first, beyond) = self.keys().bounds(DatabaseKey::All(subspace));
        let begin = match after {
            Some(key) => KeySelector::first_greater_than(key),
            None => KeySelector::first_greater_or_equal(first),
        };
        RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond))
    }

    /// Repairs what can be repaired: see [`repair`](Self::repair). Returns the number of rows written or removed.
    pub(super) async fn repair_attachment(&self, bad: &BadAttachment) -> Result<u64> {
        if !bad.lacks_reference {
            return Err(Error::corrupt(bad.what.clone()));
        }
        let keys = self.keys();
        let reference = keys.key(DatabaseKey::Reference(&bad.content, &bad.id, &bad.leaf));
        let leaf = keys.key(DatabaseKey::Revision(&bad.id, &bad.leaf));
        let content = keys.key(DatabaseKey::Content(&bad.content));
        let (reference, leaf, content) = (reference.as_slice(), leaf.as_slice(), content.as_slice());
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable);
                let leaf = transaction.get(leaf, Read::Serializable);
                let content = transaction.get(content, Read::Serializable);
                instance.await?;
                if leaf.await?.is_none() || content.await?.is_none() {
                    return Ok(Outcome::ReadOnly(0));
                }
                transaction.set(reference, &[]);
                Ok(Outcome::Write(1))
            })
            .await
    }

    /// Removes rows without an owner, each in a transaction that has read that. Returns their number.
    pub(super) async fn remove_unowned(&self, unowned: &Unowned) -> Result<u64> {
        let (keys, guard) = (self.keys(), &self.shared.guard);
        let mut removed = 0;
        for (content, id, leaf) in &unowned.references {
            let reference = keys.key(DatabaseKey::Reference(content, id, leaf));
            let revision = keys.key(DatabaseKey::Revision(id, leaf));
            let replaced = keys.key(DatabaseKey::Replaced(id, leaf));
            let (reference, revision, replaced) = (reference.as_slice(), revision.as_slice(), replaced.as_slice());
            removed += guard
                .run(|transaction| async move {
                    let instance = self.instance(&transaction, Read::Serializable);
                    // Every edit of the leaf writes or removes this row. The same holds for the row of a replaced
                    // revision.
                    let revision = transaction.get(revision, Read::Serializable);
                    let head = transaction.get(replaced, Read::Serializable);
                    let lists = [DatabaseKey::Attachments(id, leaf), DatabaseKey::ReplacedAttachments(id, leaf)]
                        .map(|key| list_at(&transaction, keys, key));
                    instance.await?;
                    revision.await?;
                    head.await?;
                    let mut holds = false;
                    for list in lists {
                        holds |= list.await?.iter().any(|one| one.content == *content);
                    }
                    if holds {
                        return Ok(Outcome::ReadOnly(0));
                    }
                    transaction.clear(reference);
                    Ok(Outcome::Write(1))
                })
                .await?;
        }
        let contents = unowned.contents.iter().chain(unowned.references.iter().map(|(content, ..)| content));
        for content in contents.collect::<BTreeSet<_>>() {
            let key = keys.key(DatabaseKey::Content(content));
            let key = key.as_slice();
            removed += guard
                .run(|transaction| async move {
                    let instance = self.instance(&transaction, Read::Serializable);
                    let row = transaction.get(key, Read::Serializable);
                    let first = keys.range(DatabaseKey::ReferencesTo(content)).limit(1);
                    let first = transaction.get_range(&first, Read::Serializable);
                    instance.await?;
                    match (row.await?, first.await?.rows.is_empty()) {
                        (Some(row), true) => {
                            clear_content(&transaction, keys, key, &ContentRow::read(&row)?);
                            Ok(Outcome::Write(1))
                        }
                        _ => Ok(Outcome::ReadOnly(0)),
                    }
                })
                .await?;
        }
        for store in &unowned.parts {
            let (begin, end) = keys.bounds(DatabaseKey::PartsOf(store));
            let (begin, end) = (begin.as_slice(), end.as_slice());
            removed += guard
                .run(|transaction| async move {
                    self.instance(&transaction, Read::Serializable).await?;
                    // Store ids are never reused: parts without an owner will never get one.
                    transaction.clear_range_unguarded(begin, end);
                    Ok(Outcome::Write(1))
                })
                .await?;
        }
        Ok(removed)
    }
}
