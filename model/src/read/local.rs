//! Local documents, such as checkpoints of replicators. They are never replicated.
//!
//! They have no revision tree, no row in `changes` and no counters. Their revision is `0-N`. As in CouchDB 3, it is the
//! revision that the writer names plus one, and there are no conflicts.
//!
//! Source: `couch_db:increment_local_doc_revs/1` of CouchDB.

use kv_api::{Database, KeySelector, Read, Transaction, TransactionExt};

use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::keys::DatabaseKey;
use crate::limits::{LOCAL_PREFIX, check_document_id, check_document_size};
use crate::read::all_docs::AllDocsRequest;
use crate::read::batch::{BODIES_AT_ONCE, Batch};
use crate::rows::blob;
use crate::write::edit::check_body;
use crate::write::txids::Outcome;
use crate::write::validation::Writing;
use json::JsonText;

/// A local document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDocument {
    /// Its id, `_local/` included.
    pub id: String,
    /// The `N` of its revision `0-N`.
    pub rev: u64,
    /// The members without the special ones.
    pub body: JsonText,
}

/// A row of a listing of local documents.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalRow {
    /// The id, `_local/` included.
    pub id: String,
    /// The `N` of its revision `0-N`; `None` if the id was requested and no such document exists.
    pub rev: Option<u64>,
    /// The body, if requested.
    pub body: Option<JsonText>,
}

/// A batch of a listing of local documents.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDocs {
    /// The rows. A batch that is not the last may be empty.
    pub rows: Vec<LocalRow>,
    /// The request for the rest; `None` after the last batch.
    pub next: Option<AllDocsRequest>,
}

impl<D: Database> Documents<D> {
    /// Reads a local document. `id` starts with `_local/`, here and in the methods below.
    ///
    /// # Errors
    /// 404 `missing`; `illegal_docid`.
    pub async fn get_local(&self, id: &str) -> Result<LocalDocument> {
        check_local_id(id)?;
        let found = self.read(|transaction| self.local(&transaction, id, Read::Snapshot)).await?;
        found.ok_or_else(|| Error::not_found(NotFound::Missing))
    }

    /// A local document, if it exists. The call issues the reads.
    fn local(
        &self,
        transaction: &D::Transaction,
        id: &str,
        read: Read,
    ) -> impl Future<Output = Result<Option<LocalDocument>>> + Send + use<D> {
        let key = self.keys().key(DatabaseKey::Local(id));
        let instance = self.instance(transaction, Read::Snapshot);
        let rows = transaction.get_all(blob::range(&key), read);
        let id = id.to_owned();
        async move {
            instance.await?;
            let found = blob::read(&rows.await?)?;
            Ok(found.map(|(head, body)| LocalDocument { id, rev: head.rev, body }))
        }
    }

    /// Reads a local document in a writing transaction.
    pub(crate) async fn local_within(&self, transaction: &D::Transaction, id: &str) -> Result<Option<LocalDocument>> {
        check_local_id(id)?;
        self.local(transaction, id, Read::Serializable).await
    }

    /// Writes a local document in a transaction.
    pub(crate) async fn put_local_within(
        &self,
        transaction: &D::Transaction,
        id: &str,
        rev: Option<u64>,
        body: &JsonText,
    ) -> Result<u64> {
        self.authorize(Writing::Local(id)).await?;
        check_local_id(id)?;
        check_document_size(id, body.len(), self.max_document_size())?;
        check_body(body)?;
        let next = rev.unwrap_or(0).checked_add(1).ok_or_else(|| Error::bad_request("Invalid rev format"))?;
        self.instance(transaction, Read::Serializable).await?;
        blob::set(transaction, &self.keys().key(DatabaseKey::Local(id)), next, body);
        Ok(next)
    }

    /// Writes a local document, whatever is stored. Returns the `N` of its new revision: `rev` plus one.
    ///
    /// # Errors
    /// `illegal_docid`; 413; 400 for a body that is not an object or has special members.
    pub async fn put_local(&self, id: &str, rev: Option<u64>, body: JsonText) -> Result<u64> {
        self.require_quota_of_local().await?;
        let (id, body) = (id, &body);
        let put = |transaction: D::Transaction| async move {
            Ok(Outcome::Write(self.put_local_within(&transaction, id, rev, body).await?))
        };
        self.shared.guard.run(put).await
    }

    /// Removes a local document.
    ///
    /// # Errors
    /// 404 `missing`.
    pub async fn delete_local(&self, id: &str) -> Result<()> {
        self.authorize(Writing::Local(id)).await?;
        check_local_id(id)?;
        let key = self.keys().key(DatabaseKey::Local(id));
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let head = transaction.get(&key, Read::Serializable);
                let key = &key;
                async move {
                    instance.await?;
                    head.await?.ok_or_else(|| Error::not_found(NotFound::Missing))?;
                    blob::clear(&transaction, key);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }

    /// The first batch of a listing of local documents. Continue with its `next`. Ids start with `_local/`, in the
    /// request too. `conflicts` and `update_seq` are ignored.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn local_docs(&self, request: &AllDocsRequest) -> Result<LocalDocs> {
        self.read_batch(BODIES_AT_ONCE, |transaction, at_once| async move {
            let instance = self.instance(&transaction, Read::Snapshot);
            let limit = request.limit.unwrap_or(usize::MAX);
            let most = request.skip.saturating_add(limit).min(at_once);
            let (mut ids, mut more) = match &request.keys {
                Some(ids) => {
                    let some: Vec<String> = request.next_of(ids, limit.min(at_once)).into_iter().cloned().collect();
                    let more = request.skip + some.len() < ids.len();
                    (some, more)
                }
                None => self.local_ids(&transaction, request, most).await?,
            };
            instance.await?;
            let reached = ids.last().cloned();
            let skipped = if request.keys.is_some() { 0 } else { request.skip.min(ids.len()) };
            ids.drain(..skipped);
            let mut rows = self.local_rows(&transaction, ids, request.include_docs).await?;
            let whole = rows.iter().take_while(|(_, is_whole)| *is_whole).count();
            let reached = if whole < rows.len() {
                more = true;
                rows.truncate(whole);
                rows.last().map(|(row, _)| row.id.clone())
            } else {
                reached
            };
            let rows: Vec<LocalRow> = rows.into_iter().map(|(row, _)| row).collect();
            let limit = request.limit.map(|limit| limit - rows.len());
            let rest = AllDocsRequest { limit, ..request.clone() };
            let next = if request.keys.is_some() {
                AllDocsRequest { skip: request.skip + rows.len(), ..rest }
            } else {
                AllDocsRequest { start: reached, inclusive_start: false, skip: request.skip - skipped, ..rest }
            };
            Ok(LocalDocs { next: Some(next).filter(|_| more && limit != Some(0)), rows })
        })
        .await
    }

    /// The ids of the first local documents in a range, and whether there may be more. Each id is found with its own
    /// key selector, so bodies are not read.
    async fn local_ids(
        &self,
        transaction: &D::Transaction,
        request: &AllDocsRequest,
        most: usize,
    ) -> Result<(Vec<String>, bool)> {
        let (first, beyond) = self.keys().bounds(DatabaseKey::Locals);
        let of = |id: &String| self.keys().bounds(DatabaseKey::Local(id));
        let (start, end) = ((&request.start, request.inclusive_start), (&request.end, request.inclusive_end));
        let ((low, with_low), (high, with_high)) = if request.descending { (end, start) } else { (start, end) };
        let mut low = low.as_ref().map_or(first, |id| if with_low { of(id).0 } else { of(id).1 });
        let mut high = high.as_ref().map_or(beyond, |id| if with_high { of(id).1 } else { of(id).0 });
        let mut ids = Vec::new();
        while ids.len() < most && low < high {
            let next = if request.descending {
                KeySelector::last_less_than(high.clone())
            } else {
                KeySelector::first_greater_or_equal(low.clone())
            };
            let key = transaction.get_key(&next, Read::Snapshot).await?;
            if key < low || key >= high {
                return Ok((ids, false));
            }
            let (id, _) = self.keys().read_local(&key)?;
            let (begin, end) = of(&id);
            if request.descending {
                high = begin;
            } else {
                low = end;
            }
            ids.push(id);
        }
        Ok((ids, low < high))
    }

    /// The rows of these documents, and whether each row is complete. The batch's size limits the number of bodies.
    async fn local_rows(
        &self,
        transaction: &D::Transaction,
        ids: Vec<String>,
        include_docs: bool,
    ) -> Result<Vec<(LocalRow, bool)>> {
        let keys: Vec<Vec<u8>> = ids.iter().map(|id| self.keys().key(DatabaseKey::Local(id))).collect();
        let heads: Vec<_> = keys.iter().map(|key| transaction.get(key, Read::Snapshot)).collect();
        let (mut rows, mut bodies) = (Vec::with_capacity(ids.len()), Vec::new());
        let mut batch = Batch::of(ids.len());
        for ((id, key), head) in ids.into_iter().zip(&keys).zip(heads) {
            let head = head.await?.map(|head| blob::read_head(&head)).transpose()?;
            let bytes =
                head.filter(|_| include_docs).map_or(0, |head| usize::try_from(head.bytes).unwrap_or(usize::MAX));
            let is_whole = batch.take(bytes);
            let body = include_docs && is_whole && head.is_some();
            bodies.push(body.then(|| transaction.get_all(blob::range(key), Read::Snapshot)));
            rows.push((LocalRow { id, rev: head.map(|head| head.rev), body: None }, is_whole));
        }
        for ((row, _), body) in rows.iter_mut().zip(bodies) {
            if let Some(body) = body {
                row.body = blob::read(&body.await?)?.map(|(_, body)| body);
            }
        }
        Ok(rows)
    }
}

fn check_local_id(id: &str) -> Result<()> {
    check_document_id(id)?;
    if id.starts_with(LOCAL_PREFIX) {
        Ok(())
    } else {
        Err(ErrorKind::IllegalDocId("Ids of local documents begin with `_local/`.".into()).into())
    }
}
