//! A database in a data folder that this process opens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use chunks::store::{DocumentStore, ModelStore};
use kv_api::AnyDatabase;
use model::{
    AllDocsEntry, AllDocsRequest, AllDocsRow, Change, ChangesBatch, ChangesRequest, CreateOptions, Documents, Edit,
    ErrorKind, Layer, LayerOptions, NotFound, Seq, Since, WriteMode,
};

use super::{IfNoDatabase, NewDocument, Page, Rows, failure};
use crate::cli::Failure;
use crate::cmd::progress::remark;
use crate::engine::{self, EngineUrl, IfMissing};
use crate::report::Checked;

/// A database in a store of this process.
#[derive(Clone)]
pub(crate) struct Local {
    layer: Layer<AnyDatabase>,
    documents: Documents<AnyDatabase>,
    folder: Option<PathBuf>,
}

impl Local {
    pub(super) async fn open(
        engine: &EngineUrl,
        if_missing: IfMissing,
        options: LayerOptions,
        name: &str,
        if_none: IfNoDatabase,
    ) -> Result<Self, Failure> {
        let layer = Layer::open(engine::open(engine, if_missing)?, options).await?;
        let documents = match layer.database(name).await {
            Err(error) if error.status() == 404 && if_none == IfNoDatabase::Create => {
                layer.create_database(name, CreateOptions::default()).await?
            }
            Err(error) if error.status() == 404 => {
                return Err(failure(format!("there is no database {name} in {engine}")));
            }
            Err(error) => match error.kind() {
                ErrorKind::Moved(to) => {
                    return Err(failure(format!("{name} has moved from {engine} to {to}; name that store instead")));
                }
                _ => return Err(error.into()),
            },
            Ok(found) => found,
        };
        Ok(Local { layer, documents, folder: engine.folder().map(Path::to_owned) })
    }

    /// As [`open`](Self::open) where there must be a database, and what is left of one that moved away.
    pub(super) async fn open_or_remains(
        engine: &EngineUrl,
        options: LayerOptions,
        name: &str,
    ) -> Result<Self, Failure> {
        let layer = Layer::open(engine::open(engine, IfMissing::Fail)?, options).await?;
        let documents = match layer.database(name).await {
            Err(error) if error.status() == 404 => {
                return Err(failure(format!("there is no database {name} in {engine}")));
            }
            Err(error) => match (error.kind(), layer.remains(name).await?) {
                (ErrorKind::Moved(to), Some(remains)) => {
                    remark(&format!("{name} has moved to {to}; this is about what is left of it in {engine}"));
                    remains
                }
                _ => return Err(error.into()),
            },
            Ok(found) => found,
        };
        Ok(Local { layer, documents, folder: engine.folder().map(Path::to_owned) })
    }

    pub(super) async fn write(&self, documents: Vec<NewDocument>) -> Result<Vec<Option<String>>, Failure> {
        let mut problems = vec![None; documents.len()];
        for (has_revision, mode) in [(false, WriteMode::Interactive), (true, WriteMode::Replicated)] {
            let (mut indexes, mut edits) = (Vec::new(), Vec::new());
            for (index, document) in documents.iter().enumerate() {
                if document.has_revision != has_revision {
                    continue;
                }
                match Edit::from_json(Some(&document.id), &document.json, mode) {
                    Ok(edit) => {
                        indexes.push(index);
                        edits.push(edit);
                    }
                    Err(error) => problems[index] = Some(problem(&error)),
                }
            }
            if edits.is_empty() {
                continue;
            }
            for (index, result) in indexes.into_iter().zip(self.documents.write(edits, mode).await?) {
                problems[index] = result.err().map(|error| problem(&error));
            }
        }
        Ok(problems)
    }

    pub(super) async fn count(&self) -> Result<u64, Failure> {
        Ok(self.documents.info().await?.doc_count)
    }

    pub(super) async fn page(&self, after: Option<&str>, limit: u64) -> Result<Page, Failure> {
        let mut request = AllDocsRequest {
            start: after.map(str::to_owned),
            inclusive_start: after.is_none(),
            limit: Some(usize::try_from(limit)?),
            include_docs: true,
            ..AllDocsRequest::default()
        };
        loop {
            let mut batch = self.documents.all_docs(&request).await?;
            // A batch may be empty and not the last.
            if let (true, Some(next)) = (batch.rows.is_empty(), &batch.next) {
                request = next.clone();
                continue;
            }
            let mut is_full = batch.rows.len() as u64 == limit;
            if let Some(many) = self.load_attachments(&mut batch.rows).await? {
                batch.rows.truncate(many);
                is_full = true;
            }
            let last_id = batch.rows.last().map(|row| row.id.clone()).filter(|_| is_full || batch.next.is_some());
            let documents = batch.rows.into_iter().filter_map(|row| match row.entry {
                AllDocsEntry::Live { doc: Some(document), .. } => Some(Ok(Bytes::from(document.to_json()))),
                AllDocsEntry::Damaged { error } => Some(Err(error.into())),
                // Deleted while its attachments were read.
                AllDocsEntry::Deleted { .. } => None,
                _ => Some(Err(failure(format!("the document \"{}\" cannot be read", row.id)))),
            });
            return Ok(Page { documents: documents.collect::<Result<_, _>>()?, last_id });
        }
    }

    /// Reads the contents of attachments, as many as may be in memory; how many of the first documents have all of
    /// theirs, if these are not all.
    async fn load_attachments(&self, rows: &mut [AllDocsRow]) -> Result<Option<usize>, Failure> {
        const ENOUGH_BYTES: u64 = 64_000_000;
        let mut bytes = 0;
        for (at, row) in rows.iter_mut().enumerate() {
            if bytes > ENOUGH_BYTES {
                return Ok(Some(at));
            }
            if let AllDocsEntry::Live { doc: Some(document), .. } = &mut row.entry {
                match self.documents.load_all_attachments(document).await {
                    Ok(()) => bytes += document.attachments.iter().map(|attachment| attachment.length).sum::<u64>(),
                    Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Deleted) => {
                        row.entry = AllDocsEntry::Deleted { rev: document.rev.clone() };
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(None)
    }

    pub(super) async fn changes(&self, since: &str) -> Result<Rows, Failure> {
        let since = match since {
            "now" => Since::Now,
            seq => Since::Seq(parse_seq(seq)?),
        };
        let batch = self.documents.changes(&ChangesRequest { since, ..ChangesRequest::default() }).await?;
        Ok(rows(&batch))
    }

    pub(super) async fn next_changes(&self, since: &str) -> Result<Rows, Failure> {
        let mut watcher = self.documents.watch_changes(parse_seq(since)?);
        let mut since = since.to_owned();
        loop {
            watcher.changed().await?;
            let rows = self.changes(&since).await?;
            if !rows.rows.is_empty() {
                return Ok(rows);
            }
            since = rows.last_seq;
        }
    }

    pub(super) fn document_store(&self) -> Arc<dyn DocumentStore> {
        Arc::new(ModelStore::new(self.documents.clone()))
    }

    pub(super) async fn beside(&self, name: &str) -> Result<Self, Failure> {
        match self.layer.database(name).await {
            Err(error) if error.status() == 404 => Err(failure(format!("there is no database {name} beside it"))),
            found => Ok(Local { documents: found?, ..self.clone() }),
        }
    }

    pub(super) fn disk_bytes(&self) -> io::Result<Option<u64>> {
        self.folder.as_deref().map(folder_bytes).transpose()
    }

    pub(super) async fn check(&self, mut progress: impl FnMut(u64) + Send) -> Result<Checked, Failure> {
        Ok(self.documents.check(|at| progress(at.documents)).await?.into())
    }

    pub(super) async fn repair(&self) -> Result<Checked, Failure> {
        let repaired = self.documents.repair(|repair| {
            let what = repair.document.as_ref().map_or("a change".to_owned(), |id| format!("{id:?}"));
            remark(&match &repair.outcome {
                Ok(0) => format!("{what}: written anew"),
                Ok(1) => format!("{what}: repaired, one row moved out of the way"),
                Ok(moved) => format!("{what}: repaired, {moved} rows moved out of the way"),
                Err(error) => format!("{what}: left as it is: {}", error.reason()),
            });
        });
        let report = repaired.await?;
        remark(&format!("repaired: {}, left: {}, rows moved: {}", report.repaired, report.left, report.moved));
        Ok(report.after.into())
    }
}

/// The bytes of the files in a folder. One that goes meanwhile has none.
fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += folder_bytes(&entry.path())?,
            Ok(found) => bytes += found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn parse_seq(text: &str) -> Result<Seq, Failure> {
    text.parse().map_err(|_| failure(format!("\"{text}\" is no sequence: 0, now, or the seq of a row is")))
}

/// `error: reason`, as over HTTP.
fn problem(error: &model::Error) -> String {
    format!("{}: {}", error.error(), error.reason())
}

fn rows(batch: &ChangesBatch) -> Rows {
    let row = |change: &Change| {
        let mut row = Vec::new();
        change.write_json(&mut row);
        row.into()
    };
    Rows { rows: batch.rows.iter().map(row).collect(), last_seq: batch.last_seq.to_string(), more: batch.more }
}
