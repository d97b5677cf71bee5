//! A database in this process.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kv_api::Database;
use model::{
    AllDocsEntry, AllDocsRequest, BulkGet, ChangesRequest, Document, Documents, ErrorKind, GetOptions, JsonText,
    NotFound, OpenRev, RevHash, RevHistory, RevId, Seq, Since, WriteMode,
};
use serde_json::Value;

use super::pace::Pace;
use super::{
    Body, Change, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, Page, Refusal, Row, StoreResult, Written, sort,
};
use crate::error::{StoreError, StoreErrorKind};

/// Maximum depth of a document: `serde_json` walks trees by recursion.
const MAX_DEPTH: usize = 128;

/// Bytes of documents in one transaction, except for a single larger document: a tenth of the limit.
const BYTES_AT_ONCE: usize = 1 << 20;
/// A transaction that takes longer was too large: a tenth of the lifetime of a read version.
const SLOW: Duration = Duration::from_millis(500);

/// A database in this process, over any engine.
#[derive(Clone)]
pub struct ModelStore<D> {
    documents: Documents<D>,
    reading: Arc<Pace>,
    writing: Arc<Pace>,
}

impl<D: Database> ModelStore<D> {
    /// The database behind `documents`.
    pub fn new(documents: Documents<D>) -> Self {
        let (reading, writing) = (Arc::new(Pace::new(100, 2_000, SLOW)), Arc::new(Pace::new(100, 1_000, SLOW)));
        ModelStore { documents, reading, writing }
    }

    /// Writes edits in as many transactions as they need. Returns the results up to the first failure with an
    /// unknown outcome, and that failure.
    async fn write_parts(
        &self,
        edits: &[model::Edit],
        mode: WriteMode,
    ) -> (Vec<std::result::Result<RevId, model::Error>>, Option<model::Error>) {
        let mut results = Vec::with_capacity(edits.len());
        while results.len() < edits.len() {
            let rest = &edits[results.len()..];
            let mut bytes = 0;
            let fit = rest.iter().take(self.writing.at_once()).take_while(|edit| {
                bytes += edit.body.len();
                bytes <= BYTES_AT_ONCE
            });
            let count = fit.count().max(1);
            let began = Instant::now();
            match self.documents.write(rest[..count].to_vec(), mode).await {
                Ok(some) => {
                    self.writing.took(count, began.elapsed());
                    results.extend(some);
                }
                Err(error) => return (results, Some(error)),
            }
        }
        (results, None)
    }
}

impl<D> fmt::Debug for ModelStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.documents.fmt(f)
    }
}

#[async_trait]
impl<D: Database> DocumentStore for ModelStore<D> {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        let options = GetOptions { revs: with_ancestors, ..GetOptions::default() };
        let mut all = Vec::with_capacity(ids.len());
        while all.len() < ids.len() {
            let some: Vec<&String> = ids[all.len()..].iter().take(self.reading.at_once()).collect();
            let requests = some.iter().map(|id| BulkGet { id: (*id).clone(), rev: None }).collect();
            let began = Instant::now();
            let found = self.documents.get_many(requests, &options).await.map_err(failure)?;
            self.reading.took(some.len(), began.elapsed());
            for (_, opened) in found {
                // A document that cannot be read does not count as missing.
                let opened = opened.map_err(failure)?;
                let mut leaves = Vec::with_capacity(opened.len());
                for open in opened {
                    if let OpenRev::Found(document) = open {
                        leaves.push(leaf(document)?);
                    }
                }
                sort(&mut leaves);
                all.push(leaves);
            }
        }
        Ok(all)
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        match self.documents.get_local(id).await {
            Ok(document) => body(&document.body).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing)) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        let mut revs = Vec::with_capacity(ids.len());
        while revs.len() < ids.len() {
            let some: Vec<String> = ids[revs.len()..].iter().take(self.reading.at_once()).cloned().collect();
            let count = some.len();
            let request = AllDocsRequest { keys: Some(some.into()), ..AllDocsRequest::default() };
            let began = Instant::now();
            match self.documents.all_docs(&request).await {
                // The model does not split a listing of keys by itself.
                Err(error) if count > 1 && is_undone(&error) => self.reading.failed(count),
                Err(error) => return Err(failure(error)),
                Ok(batch) if batch.rows.is_empty() => {
                    return Err(StoreError::new(StoreErrorKind::Nonsense, "a listing of keys without rows"));
                }
                Ok(batch) => {
                    self.reading.took(count, began.elapsed());
                    for row in batch.rows {
                        revs.push(match row.entry {
                            AllDocsEntry::Damaged { error } => return Err(failure(error)),
                            AllDocsEntry::Live { rev, .. } => Some(rev.to_string()),
                            _ => None,
                        });
                    }
                }
            }
        }
        Ok(revs)
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        let mut outcomes: Vec<Option<Written>> = vec![None; edits.len()];
        let (mut places, mut fit) = (Vec::new(), Vec::new());
        for (place, edit) in edits.into_iter().enumerate() {
            // A malformed revision is no leaf.
            let rev = edit.rev.map(|rev| RevId::parse(&rev));
            if let Some(Err(_)) = rev {
                outcomes[place] = Some(Err(Refusal::Conflict));
                continue;
            }
            let made = model::Edit::new(edit.id, text(edit.body)?);
            let made = if edit.deleted { made.deleting() } else { made };
            places.push(place);
            fit.push(match rev {
                Some(Ok(rev)) => made.over(rev),
                _ => made,
            });
        }
        let (results, failed) = self.write_parts(&fit, WriteMode::Interactive).await;
        if let Some(error) = failed.clone().filter(|error| results.is_empty() || !is_transient(error)) {
            return Err(failure(error));
        }
        let mut results = results.into_iter();
        for place in places {
            outcomes[place] = match (results.next(), &failed) {
                (Some(result), _) => Some(result.map(|rev| rev.to_string()).map_err(refusal)),
                // Later edits were not tried. A caller finds that out by reading the document.
                (None, Some(error)) => Some(Err(refusal(error.clone()))),
                (None, None) => None,
            };
        }
        let unsaid = || Err(Refusal::Unknown("no outcome".into()));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsaid)).collect())
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        let mut edits = Vec::with_capacity(leaves.len());
        for (id, leaf) in leaves {
            let edit = model::Edit::new(id, text(leaf.body)?).with_history(history(&leaf.rev, &leaf.ancestors)?);
            edits.push(if leaf.deleted { edit.deleting() } else { edit });
        }
        let (results, failed) = self.write_parts(&edits, WriteMode::Replicated).await;
        for result in results {
            result.map_err(failure)?;
        }
        failed.map_or(Ok(()), |error| Err(failure(error)))
    }

    async fn list(&self, range: &IdRange) -> StoreResult<Page> {
        let mut request = AllDocsRequest {
            start: Some(range.start.clone()),
            end: Some(range.end.clone()),
            inclusive_end: false,
            limit: Some(range.limit),
            include_docs: range.bodies,
            ..AllDocsRequest::default()
        };
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let batch = self.documents.all_docs(&request).await.map_err(failure)?;
            for row in batch.rows {
                match row.entry {
                    AllDocsEntry::Live { rev, doc } => {
                        let body = doc.map(|doc| body(&doc.body)).transpose()?;
                        rows.push(Row { id: row.id, rev: rev.to_string(), body });
                    }
                    AllDocsEntry::Damaged { error } => return Err(failure(error)),
                    AllDocsEntry::Deleted { .. } | AllDocsEntry::Missing => {}
                }
            }
            // A batch may be empty without being the last.
            match batch.next {
                Some(next) if rows.is_empty() => request = next,
                next => return Ok(page(range, rows, next.is_some())),
            }
        }
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        let since = match since {
            None => Since::Seq(Seq::ZERO),
            Some(seq) => Since::Seq(seq.parse().map_err(failure)?),
        };
        let request = ChangesRequest { since, limit: Some(limit), ..ChangesRequest::default() };
        let batch = self.documents.changes(&request).await.map_err(failure)?;
        // A batch that ended at the limit may have more rows after it.
        let more = batch.more || batch.rows.len() == limit;
        let rows = batch.rows.into_iter().map(|row| Change { id: row.id, deleted: row.deleted }).collect();
        Ok(Changes { rows, last_seq: batch.last_seq.to_string(), more })
    }

    async fn figures(&self) -> StoreResult<Figures> {
        let info = self.documents.info().await.map_err(failure)?;
        Ok(Figures {
            documents: info.doc_count,
            deleted: info.doc_del_count,
            document_bytes: info.sizes.external,
            file_bytes: None,
        })
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        Ok(bytes <= self.documents.max_document_size())
    }
}

/// The page of these rows, and the rest of the range after them.
pub(super) fn page(range: &IdRange, rows: Vec<Row>, more: bool) -> Page {
    let is_full = rows.len() >= range.limit;
    // The next possible id in byte order.
    let next = rows.last().filter(|_| more || is_full).map(|row| format!("{}\0", row.id));
    let rest = next.map(|start| IdRange { start, ..range.clone() });
    Page { rows, rest }
}

fn leaf(document: Document) -> StoreResult<Leaf> {
    let rev = document.rev.to_string();
    let ancestors = document.revisions.into_iter().flat_map(|history| {
        let position = history.position;
        let known = history.ids.into_iter().enumerate().skip(1);
        known.map(move |(back, hash)| format!("{}-{hash}", position.saturating_sub(back as u64)))
    });
    Ok(Leaf { rev, deleted: document.deleted, body: body(&document.body)?, ancestors: ancestors.collect() })
}

fn body(text: &JsonText) -> StoreResult<Body> {
    let nonsense = |sentence: String| StoreError::new(StoreErrorKind::Nonsense, sentence);
    match text.to_serde(MAX_DEPTH) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(_) => Err(nonsense("a document is no object".into())),
        Err(error) => Err(nonsense(error.to_string())),
    }
}

fn text(body: Body) -> StoreResult<JsonText> {
    JsonText::from_serde(&Value::Object(body))
        .map_err(|error| StoreError::new(StoreErrorKind::Refused, error.to_string()))
}

fn history(rev: &str, ancestors: &[String]) -> StoreResult<RevHistory> {
    let parse = |rev: &str| {
        RevId::parse(rev).map_err(|error| StoreError::new(StoreErrorKind::Refused, format!("{rev}: {error}")))
    };
    let leaf = parse(rev)?;
    let position = leaf.position();
    let mut ids: Vec<RevHash> = vec![leaf.into_hash()];
    for ancestor in ancestors {
        ids.push(parse(ancestor)?.into_hash());
    }
    Ok(RevHistory { position, ids })
}

fn refusal(error: model::Error) -> Refusal {
    match error.kind() {
        ErrorKind::Conflict => Refusal::Conflict,
        ErrorKind::DocumentTooLarge(_) => Refusal::TooLarge,
        _ if is_transient(&error) => Refusal::Unknown(error.to_string()),
        _ => Refusal::Other(error.to_string()),
    }
}

/// Whether the store failed in a transient way.
fn is_transient(error: &model::Error) -> bool {
    matches!(error.kind(), ErrorKind::Store(_)) && error.status() == 503
}

/// Whether it failed in a transient way and certainly did nothing.
fn is_undone(error: &model::Error) -> bool {
    matches!(error.kind(), ErrorKind::Store(store) if store.is_retryable_not_committed())
}

fn failure(error: model::Error) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::NotFound(NotFound::Database) => StoreErrorKind::NoDatabase,
        ErrorKind::Corrupt(_) => StoreErrorKind::Nonsense,
        _ if is_transient(&error) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Refused,
    };
    StoreError::new(kind, error.to_string())
}
