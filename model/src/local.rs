//! Local documents: replicators' checkpoints and the like, which are never replicated.
//!
//! They have no revision tree, no row in `changes` and no counters. Their revision is `0-N`; as in
//! CouchDB 3 it is what the writer says plus one, and nobody conflicts.
//!
//! Source: `couch_db:increment_local_doc_revs/1` of CouchDB.

use kv_api::{Database, KeySelector, Read, Transaction, TransactionExt};

use crate::all_docs::{AllDocsRequest, BODIES_AT_ONCE};
use crate::blob;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::json::{JsonKind, JsonText};
use crate::keys::DatabaseKey;
use crate::limits::{LOCAL_PREFIX, check_document_id, check_document_size};
use crate::txids::Outcome;

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
pub struct LocalRow {
    /// The id, `_local/` included.
    pub id: String,
    /// The `N` of its revision `0-N`; `None` where there is no document, and the id was asked for.
    pub rev: Option<u64>,
    /// The body, if asked for.
    pub body: Option<JsonText>,
}

/// A batch of a listing of local documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDocs {
    /// The rows. A batch may be empty and not the last.
    pub rows: Vec<LocalRow>,
    /// The request for the rest; `None` after the last batch.
    pub next: Option<AllDocsRequest>,
}

impl<D: Database> Documents<D> {
    /// A local document. `id` has `_local/` at its front, here and below.
    ///
    /// # Errors
    /// 404 `missing`; `illegal_docid`.
    pub async fn get_local(&self, id: &str) -> Result<LocalDocument> {
        check_local_id(id)?;
        let key = self.keys().key(DatabaseKey::Local(id));
        let found = self
            .read(|transaction| {
                let instance = self.instance(&transaction, Read::Snapshot);
                let rows = transaction.get_all(blob::range(&key), Read::Snapshot);
                async move {
                    instance.await?;
                    blob::read(&rows.await?)
                }
            })
            .await?;
        let (head, body) = found.ok_or_else(|| Error::not_found(NotFound::Missing))?;
        Ok(LocalDocument { id: id.to_owned(), rev: head.rev, body })
    }

    /// Writes a local document over whatever is there; the `N` of its new revision, one more than
    /// `rev`.
    ///
    /// # Errors
    /// `illegal_docid`, 413, 400 for a body that is no object.
    pub async fn put_local(&self, id: &str, rev: Option<u64>, body: JsonText) -> Result<u64> {
        check_local_id(id)?;
        check_document_size(id, body.len(), self.max_document_size())?;
        if body.kind() != JsonKind::Object {
            return Err(Error::bad_request("Document must be a JSON object"));
        }
        let key = self.keys().key(DatabaseKey::Local(id));
        let next = rev.unwrap_or(0).checked_add(1).ok_or_else(|| Error::bad_request("Invalid rev format"))?;
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let (key, body) = (&key, &body);
                async move {
                    instance.await?;
                    blob::set(&transaction, key, next, body);
                    Ok(Outcome::Write(next))
                }
            })
            .await
    }

    /// Removes a local document.
    ///
    /// # Errors
    /// 404 `missing`.
    pub async fn delete_local(&self, id: &str) -> Result<()> {
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

    /// The first batch of a listing of local documents; go on with its `next`. Ids have `_local/` at
    /// their front, in the request too. `conflicts` and `update_seq` mean nothing here.
    ///
    /// # Errors
    /// 404 where the database is gone.
    pub async fn local_docs(&self, request: &AllDocsRequest) -> Result<LocalDocs> {
        self.read(|transaction| async move {
            let instance = self.instance(&transaction, Read::Snapshot);
            let ids = match &request.keys {
                Some(ids) => {
                    let mut ids = ids.clone();
                    if request.descending {
                        ids.reverse();
                    }
                    ids
                }
                None => self.local_ids(&transaction, request).await?,
            };
            instance.await?;
            let some = ids.iter().skip(request.skip);
            let some: Vec<&String> = some.take(request.limit.unwrap_or(usize::MAX).min(BODIES_AT_ONCE)).collect();
            let reads: Vec<_> = some
                .iter()
                .map(|id| {
                    let key = self.keys().key(DatabaseKey::Local(id));
                    transaction.get_all(blob::range(&key), Read::Snapshot)
                })
                .collect();
            let mut rows = Vec::with_capacity(some.len());
            for (id, found) in some.into_iter().zip(reads) {
                let found = blob::read(&found.await?)?;
                let rev = found.as_ref().map(|(head, _)| head.rev);
                let body = found.map(|(_, body)| body).filter(|_| request.include_docs);
                rows.push(LocalRow { id: id.clone(), rev, body });
            }
            let limit = request.limit.map(|limit| limit - rows.len());
            let more = request.skip + rows.len() < ids.len() && limit != Some(0);
            let next = AllDocsRequest { skip: request.skip + rows.len(), limit, ..request.clone() };
            Ok(LocalDocs { next: Some(next).filter(|_| more), rows })
        })
        .await
    }

    /// The ids of all local documents in a range. There are few: one for each replication.
    async fn local_ids(&self, transaction: &D::Transaction, request: &AllDocsRequest) -> Result<Vec<String>> {
        let (first, beyond) = self.keys().bounds(DatabaseKey::Locals);
        let key_of = |id: &String| self.keys().key(DatabaseKey::Local(id));
        let (low, high) =
            if request.descending { (&request.end, &request.start) } else { (&request.start, &request.end) };
        let (low, high) = (low.as_ref().map_or(first, key_of), high.as_ref());
        let high = match high {
            // The parts of a document stand behind it; they are left out below.
            Some(id) => KeySelector::first_greater_than(key_of(id)),
            None => KeySelector::first_greater_or_equal(beyond),
        };
        if high.key < low {
            return Ok(Vec::new());
        }
        let range = kv_api::RangeRequest::selectors(KeySelector::first_greater_or_equal(low), high);
        let mut ids = Vec::new();
        for row in transaction.get_all(range, Read::Snapshot).await? {
            if let (id, None) = self.keys().read_local(&row.key)? {
                ids.push(id);
            }
        }
        if !request.inclusive_end {
            let end = request.end.as_ref();
            ids.retain(|id| Some(id) != end);
        }
        if request.descending {
            ids.reverse();
        }
        Ok(ids)
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
