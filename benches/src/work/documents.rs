//! Documents through the model, beside the same rows in the same batches on the raw store.
//!
//! The rows are recorded by doing the work once on a recording store.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, bail};
use engine_mem::MemStore;
use futures_executor::block_on;
use futures_util::FutureExt;
use futures_util::future::join_all;
use kv_api::Database;
use model::{
    AllDocsEntry, AllDocsRequest, BodyFormat, ChangesRequest, CreateOptions, Documents, Edit, GetOptions, JsonText,
    Layer, LayerOptions, RevHash, RevHistory, RevId, Since, WriteMode,
};
use occ::OccDatabase;
use occ::store::{Batch, Store};

use super::{Group, Work, folder, rate, scaled};
use crate::documents::Source;
use crate::engines::{Engine, Syncing};
use crate::recording::{RawRead, Recording};

/// Number of documents that are read, at scale 1.
const STORED: usize = 10_000;

/// Number of feeds that wait for one change, at scale 1.
const FEEDS: usize = 10_000;

/// The two layouts of a document's body, by the names that databases are created with.
pub const FORMATS: [(&str, BodyFormat); 2] = [("exploded", BodyFormat::Exploded), ("packed", BodyFormat::Packed)];

/// The work of an engine.
pub fn works<E: Engine + 'static>() -> Vec<Work> {
    let mut works = Vec::new();
    for (format_name, format) in FORMATS {
        for task in Writing::ALL {
            works.push(Work {
                group: Group::Documents,
                name: task.name(),
                engine: E::NAME,
                format: Some(format_name),
                unit: "documents",
                ours: Box::new(move |scale| write::<E>(task, format, scale)),
                baseline: Some(("raw store", Box::new(move |scale| write_raw::<E>(task, format, scale)))),
            });
        }
        for task in Reading::ALL {
            works.push(Work {
                group: Group::Documents,
                name: task.name().into(),
                engine: E::NAME,
                format: Some(format_name),
                unit: "documents",
                ours: Box::new(move |scale| read::<E>(task, format, scale)),
                baseline: Some(("raw store", Box::new(move |scale| read_raw::<E>(task, format, scale)))),
            });
        }
    }
    works.push(Work {
        group: Group::Documents,
        name: "waiting feeds woken".into(),
        engine: E::NAME,
        format: None,
        unit: "feeds",
        ours: Box::new(wake::<E>),
        baseline: None,
    });
    works
}

/// A new database named `bench`.
pub fn create<D: Database>(engine: D, format: BodyFormat) -> Result<Documents<D>> {
    block_on(async {
        let layer = Layer::open(engine, LayerOptions::default()).await?;
        Ok(layer.create_database("bench", CreateOptions { format: Some(format), ..CreateOptions::default() }).await?)
    })
}

/// New documents, the same for each seed.
pub fn edits(seed: u64, count: usize) -> Result<Vec<Edit>> {
    let mut source = Source::seeded(seed);
    (0..count)
        .map(|_| {
            let id = source.id();
            Ok(Edit::new(id, body(&mut source)?))
        })
        .collect()
}

fn body(source: &mut Source) -> Result<JsonText> {
    Ok(JsonText::parse(source.document().as_bytes())?)
}

/// Writes documents a thousand at a time. Returns their revisions.
pub fn store<D: Database>(documents: &Documents<D>, edits: Vec<Edit>) -> Result<Vec<RevId>> {
    let mut revisions = Vec::with_capacity(edits.len());
    let mut edits = edits.into_iter().peekable();
    while edits.peek().is_some() {
        let group: Vec<Edit> = edits.by_ref().take(1_000).collect();
        for result in block_on(documents.write(group, WriteMode::Interactive))? {
            revisions.push(result?);
        }
    }
    Ok(revisions)
}

/// Work that writes.
#[derive(Clone, Copy)]
enum Writing {
    Insert,
    Update,
    Delete,
    Bulk(usize),
    /// A revision from elsewhere, on top of the winner.
    Replicate,
    /// A losing revision from elsewhere, in addition to the winner.
    LosingBranch,
}

/// The edits, by call.
struct Calls {
    calls: Vec<Vec<Edit>>,
    mode: WriteMode,
}

impl Writing {
    const ALL: [Writing; 7] = [
        Writing::Insert,
        Writing::Update,
        Writing::Delete,
        Writing::Bulk(100),
        Writing::Bulk(1_000),
        Writing::Replicate,
        Writing::LosingBranch,
    ];

    fn name(self) -> String {
        match self {
            Writing::Insert => "insert".into(),
            Writing::Update => "update".into(),
            Writing::Delete => "delete".into(),
            Writing::Bulk(size) => format!("bulk of {size}"),
            Writing::Replicate => "replicated update".into(),
            Writing::LosingBranch => "losing branch".into(),
        }
    }

    fn prepare<D: Database>(self, documents: &Documents<D>, scale: f64) -> Result<Calls> {
        let alone = |edits: Vec<Edit>| edits.into_iter().map(|edit| vec![edit]).collect();
        let interactive = |calls| Calls { calls, mode: WriteMode::Interactive };
        if let Writing::Insert = self {
            return Ok(interactive(alone(edits(1, scaled(2_000, scale))?)));
        }
        if let Writing::Bulk(size) = self {
            let edits = edits(1, scaled(5_000, scale).next_multiple_of(size))?;
            return Ok(interactive(edits.chunks(size).map(<[Edit]>::to_vec).collect()));
        }
        let stored = edits(1, scaled(2_000, scale))?;
        let ids: Vec<String> = stored.iter().map(|edit| edit.id.clone()).collect();
        let revisions = store(documents, stored)?;
        let mut source = Source::seeded(2);
        let mut calls = Vec::with_capacity(ids.len());
        for (id, first) in ids.into_iter().zip(revisions) {
            let edit = Edit::new(id, body(&mut source)?);
            calls.push(match self {
                Writing::Update => edit.over(first),
                Writing::Delete => Edit::new(edit.id, JsonText::parse(b"{}")?).over(first).deleting(),
                Writing::Replicate => edit.with_history(history(0xff, Some(&first))?),
                // Any hash is greater than sixteen NULs.
                Writing::LosingBranch => edit.with_history(history(0, None)?),
                Writing::Insert | Writing::Bulk(_) => bail!("prepared above"),
            });
        }
        let mode = match self {
            Writing::Replicate | Writing::LosingBranch => WriteMode::Replicated,
            _ => WriteMode::Interactive,
        };
        Ok(Calls { calls: alone(calls), mode })
    }
}

/// The history of a revision over `parent`, whose hash is this byte sixteen times.
fn history(byte: u8, parent: Option<&RevId>) -> Result<RevHistory> {
    let mut ids = vec![RevHash::from_bytes(&[byte; 16])?];
    ids.extend(parent.map(|parent| parent.hash().clone()));
    Ok(RevHistory { position: 1 + parent.map_or(0, RevId::position), ids })
}

impl Calls {
    /// Writes all documents. Returns their number.
    fn run<D: Database>(self, documents: &Documents<D>) -> Result<usize> {
        let mut written = 0;
        for call in self.calls {
            written += call.len();
            for result in block_on(documents.write(call, self.mode))? {
                result?;
            }
        }
        Ok(written)
    }
}

fn write<E: Engine>(task: Writing, format: BodyFormat, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let documents = create(E::database(folder.path(), Syncing::Unsynced), format)?;
    let calls = task.prepare(&documents, scale)?;
    let begun = Instant::now();
    let written = calls.run(&documents)?;
    Ok(rate(written, begun.elapsed()))
}

fn write_raw<E: Engine>(task: Writing, format: BodyFormat, scale: f64) -> Result<f64> {
    let (recording, log) = Recording::new(MemStore::default());
    let documents = create(OccDatabase::over(recording)?, format)?;
    let calls = task.prepare(&documents, scale)?;
    let before = log.take_batches();
    let written = calls.run(&documents)?;
    let batches = log.take_batches();
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Unsynced);
    apply(&store, before)?;
    let begun = Instant::now();
    apply(&store, batches)?;
    Ok(rate(written, begun.elapsed()))
}

fn apply<S: Store>(store: &S, batches: Vec<Batch>) -> Result<()> {
    for batch in batches {
        if let Err(error) = store.apply(batch) {
            bail!("{error:?}");
        }
    }
    Ok(())
}

/// Work that reads.
#[derive(Clone, Copy)]
enum Reading {
    Get,
    GetRevision,
    Changes,
    AllDocs,
}

impl Reading {
    const ALL: [Reading; 4] = [Reading::Get, Reading::GetRevision, Reading::Changes, Reading::AllDocs];

    fn name(self) -> &'static str {
        match self {
            Reading::Get => "read by id",
            Reading::GetRevision => "read by revision",
            Reading::Changes => "changes",
            Reading::AllDocs => "all documents with bodies",
        }
    }

    /// Reads `STORED` documents, as JSON where it reads bodies. Returns their number.
    fn run<D: Database>(self, documents: &Documents<D>, stored: &[(String, RevId)]) -> Result<usize> {
        let mut read = 0;
        match self {
            Reading::Get | Reading::GetRevision => {
                for n in 0..stored.len() {
                    // In scattered order: the stride is coprime to their number.
                    let (id, rev) = &stored[n * 7_919 % stored.len()];
                    let mut options = GetOptions::default();
                    if let Reading::GetRevision = self {
                        options.rev = Some(rev.clone());
                    }
                    let document = block_on(documents.get(id, &options))?;
                    black_box(document.to_json());
                    read += 1;
                }
            }
            Reading::Changes => {
                let mut request = ChangesRequest::default();
                loop {
                    let batch = block_on(documents.changes(&request))?;
                    read += black_box(&batch).rows.len();
                    if !batch.more {
                        break;
                    }
                    request.since = Since::Seq(batch.last_seq);
                }
            }
            Reading::AllDocs => {
                let mut next = Some(AllDocsRequest { include_docs: true, ..AllDocsRequest::default() });
                while let Some(request) = next {
                    let batch = block_on(documents.all_docs(&request))?;
                    for row in &batch.rows {
                        if let AllDocsEntry::Live { doc: Some(document), .. } = &row.entry {
                            black_box(document.to_json());
                            read += 1;
                        }
                    }
                    next = batch.next;
                }
            }
        }
        anyhow::ensure!(read == stored.len(), "{}: {read} of {}", self.name(), stored.len());
        Ok(read)
    }
}

fn stored<D: Database>(documents: &Documents<D>, scale: f64) -> Result<Vec<(String, RevId)>> {
    let edits = edits(2, scaled(STORED, scale))?;
    let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
    Ok(ids.into_iter().zip(store(documents, edits)?).collect())
}

fn read<E: Engine>(task: Reading, format: BodyFormat, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let documents = create(E::database(folder.path(), Syncing::Unsynced), format)?;
    let stored = stored(&documents, scale)?;
    let begun = Instant::now();
    let read = task.run(&documents, &stored)?;
    Ok(rate(read, begun.elapsed()))
}

fn read_raw<E: Engine>(task: Reading, format: BodyFormat, scale: f64) -> Result<f64> {
    let (recording, log) = Recording::new(MemStore::default());
    let documents = create(OccDatabase::over(recording)?, format)?;
    let ids = stored(&documents, scale)?;
    let batches = log.take_batches();
    log.take_reads();
    let read = task.run(&documents, &ids)?;
    let reads: Vec<RawRead> = log.take_reads();
    let bodies: Vec<serde_json::Value> = match task {
        Reading::Changes => Vec::new(),
        _ => edits(2, scaled(STORED, scale))?
            .iter()
            .map(|edit| serde_json::from_slice(edit.body.as_bytes()))
            .collect::<Result<_, _>>()?,
    };
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Unsynced);
    apply(&store, batches)?;
    let begun = Instant::now();
    let snapshot = store.snapshot()?;
    for read in &reads {
        black_box(read.replay(&snapshot)?);
    }
    for body in &bodies {
        black_box(serde_json::to_vec(body)?);
    }
    Ok(rate(read, begun.elapsed()))
}

/// Number of waiting feeds that one change wakes, a second.
fn wake<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let documents = create(E::database(folder.path(), Syncing::Unsynced), BodyFormat::Exploded)?;
    let feeds = scaled(FEEDS, scale);
    block_on(async {
        let seen = documents.last_seq().await?;
        let mut waiting: Vec<_> = (0..feeds)
            .map(|_| {
                let mut watcher = documents.watch_changes(seen);
                async move { watcher.changed().await }.boxed()
            })
            .collect();
        for feed in &mut waiting {
            anyhow::ensure!(feed.now_or_never().is_none(), "a feed was woken by nothing");
        }
        let begun = Instant::now();
        for edit in edits(1, 1)? {
            documents.put(edit).await?;
        }
        for seen in join_all(waiting).await {
            seen?;
        }
        Ok(rate(feeds, begun.elapsed()))
    })
}
