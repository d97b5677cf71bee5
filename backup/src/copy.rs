//! Copies a database: all documents that changed since a sequence, as they are at one version.
//!
//! ```text
//!  local documents ─► pass over the feed ─► pass over the changes since then ─► … ─► the rest, settings, purges
//!  ├─────────────────── each read at its own version ───────────────────────────┤   └ all at one version ┘
//! ```
//!
//! A pass has each document once: it ends at the sequence that was the last one when it began. A document that changes
//! after it was read comes again in a later pass. The rest of the feed is read at one version, so the result is the
//! database at that version. Local documents come first: a replication's checkpoint must not promise documents that are
//! missing from the copy.
//!
//! The feed does not show purged documents. So the documents of all purges since the start are read again at the last
//! version.

use std::pin::pin;

use futures_util::{StreamExt, stream};
use kv_api::{Database, Pinned};
use model::{
    AllDocsRequest, Attachment, BulkGet, ChangesRequest, Documents, Layer, LayerOptions, OpenRev, PurgeInfo, Seq,
};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::manifest::{self, PurgeRecord, Recent, Settings};
use crate::pack::ObjectId;
use crate::place::in_parallel;
use crate::record::{self, Leaf, Record};
use crate::trust::{recent, trusted};
use crate::writer::{SegmentWriter, Writer};

/// Size of the parts of large contents.
const PART: usize = 1 << 20;

/// Number of rows of the feed in a page.
const PAGE: usize = 2_000;

/// Maximum size of the ids that are read from the feed and sorted before their documents are read: the feed has them in
/// any order, and documents with neighbouring ids lie together in a store.
const SORTED: usize = 16 << 20;

/// Bytes that an id takes in memory beside its letters.
const BYTES_OF_ID: usize = 32;

/// Number of documents that are read together.
const TOGETHER: usize = 200;

/// Maximum number of threads that read documents, beside the one that packs them.
const MOST_READERS: usize = 2;

/// Maximum number of documents read at one version.
const MOST_AT_ONCE: usize = 300;

/// A copy fails after this many passes in a row that leave no fewer documents than before.
const PASSES_IN_VAIN: u32 = 4;

/// Number of attempts to read the rest at one version.
const ATTEMPTS: u32 = 8;

/// Number of purges in an object.
const PURGES: usize = 2_000;

/// Maximum number of times that a document is read again because it changed while its attachments were read.
const AGAIN: u32 = 5;

/// Called with the name of a database and the number of its copied documents.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(&str, u64) + Send);

/// Where a copy begins.
pub(crate) struct Since {
    pub(crate) seq: Seq,
    pub(crate) purge_seq: u64,
}

/// The result of a copy.
pub(crate) struct Copied {
    pub(crate) database: manifest::Database,
    /// Whether it continues an earlier run.
    pub(crate) is_incremental: bool,
    /// Whether an earlier run has another history of this database.
    pub(crate) is_other: bool,
}

/// A copy in progress.
struct Copy<'a, D> {
    writer: &'a mut Writer,
    documents: Documents<D>,
    progress: Progress<'a>,
    /// Number of threads that read documents.
    readers: usize,
    copied: u64,
    incarnation: u8,
    segments: Vec<ObjectId>,
    damaged: Vec<String>,
}

/// Copies a database. `base` is its state in an earlier run.
pub(crate) async fn copy<D: Database>(
    writer: &mut Writer,
    layer: &Layer<D>,
    options: &LayerOptions,
    name: &str,
    base: Option<&manifest::Database>,
    progress: Progress<'_>,
) -> Result<Copied> {
    let documents = layer.database(name).await?;
    let info = documents.info().await?;
    let locals = copy_locals(writer, &documents).await?;
    let instance = model::hex(&info.instance_id);
    let mut since = None;
    let mut is_other = false;
    if let Some(base) = base {
        since = trusted(&documents, &info, base).await?.map(|seq| (seq, base));
        is_other = since.is_none() && base.instance == instance && base.incarnation == info.incarnation;
    }
    let mut copy = Copy {
        writer,
        documents,
        progress,
        readers: options.threads.clamp(1, MOST_READERS),
        copied: 0,
        incarnation: info.incarnation,
        segments: Vec::new(),
        damaged: Vec::new(),
    };
    let mut last = None;
    if let Some((seq, base)) = since {
        copy.segments = base.segments.clone();
        copy.damaged = base.damaged.clone();
        last = copy.run(layer, options, &Since { seq, purge_seq: base.purge_seq }).await?;
    }
    let is_incremental = last.is_some();
    if last.is_none() {
        (copy.segments, copy.damaged) = (Vec::new(), Vec::new());
        last = copy.run(layer, options, &Since { seq: Seq::ZERO, purge_seq: info.purge_seq }).await?;
    }
    let forgotten = || Error::refused(format!("{name}: the database no longer remembers all purges; back up again"));
    let last = last.ok_or_else(forgotten)?;
    let Copy { segments, mut damaged, .. } = copy;
    damaged.sort();
    damaged.dedup();
    let Last { info, purges, last_purge, recent, security, settings } = last;
    let database = manifest::Database {
        name: name.to_owned(),
        instance,
        incarnation: info.incarnation,
        seq: info.update_seq.seq.to_string(),
        purge_seq: info.purge_seq,
        documents: info.doc_count + info.doc_del_count,
        segments,
        locals,
        purges,
        security,
        settings,
        damaged,
        recent,
        last_purge,
        not_renewed: None,
    };
    Ok(Copied { database, is_incremental, is_other })
}

/// Everything but documents that is read at the last version.
struct Last {
    info: model::DatabaseInfo,
    purges: Vec<ObjectId>,
    last_purge: Option<String>,
    recent: Vec<Recent>,
    security: String,
    settings: Settings,
}

async fn copy_locals<D: Database>(writer: &mut Writer, documents: &Documents<D>) -> Result<Vec<ObjectId>> {
    let mut segment = SegmentWriter::default();
    let mut next = Some(AllDocsRequest { include_docs: true, ..AllDocsRequest::default() });
    while let Some(request) = next {
        let batch = documents.local_docs(&request).await?;
        for row in &batch.rows {
            if let Some(record) = record::of_local(row)? {
                segment.add(writer, &record).await?;
            }
        }
        next = batch.next;
    }
    segment.finish_blocks(writer).await
}

impl<D: Database> Copy<'_, D> {
    /// Copies all changes after `since`. `None` if the database no longer remembers the purges since then.
    async fn run(&mut self, layer: &Layer<D>, options: &LayerOptions, since: &Since) -> Result<Option<Last>> {
        let (mut reached, mut fewest, mut in_vain, mut attempts) = (since.seq, u64::MAX, 0, 0);
        loop {
            let until = self.documents.last_seq().await?;
            if reached < until {
                let count = self.pass(reached, until).await?;
                reached = until;
                if count > MOST_AT_ONCE as u64 {
                    in_vain = if count < fewest { 0 } else { in_vain + 1 };
                    fewest = fewest.min(count);
                    if in_vain >= PASSES_IN_VAIN {
                        return Err(self.too_fast(count));
                    }
                    continue;
                }
            }
            let pinned = Pinned::new(layer.engine().clone()).await?;
            let at = Layer::open(pinned, options.clone()).await?.database(self.documents.name()).await?;
            // What an attempt repairs or finds damaged counts only if all of it does.
            let damaged = self.damaged.clone();
            match self.rest(&at, reached, since).await {
                Ok(Rest::All(last)) => return Ok(Some(*last)),
                Ok(Rest::Forgotten) => return Ok(None),
                Ok(Rest::TooMuch) => {}
                // Reading the rest took longer than the version lives.
                Err(Error::Model(error)) if is_too_old(&error) => {}
                Err(error) => return Err(error),
            }
            self.damaged = damaged;
            attempts += 1;
            if attempts >= ATTEMPTS {
                return Err(self.too_fast(MOST_AT_ONCE as u64));
            }
        }
    }

    fn too_fast(&self, left: u64) -> Error {
        Error::refused(format!(
            "{} changes faster than it is copied: about {left} documents change during each pass. Nothing was written; \
             try again when less is written",
            self.documents.name()
        ))
    }

    /// Copies the documents whose last change lies after `since`, up to `until`. Returns their number.
    async fn pass(&mut self, since: Seq, until: Seq) -> Result<u64> {
        let mut segment = SegmentWriter::default();
        let mut request = ChangesRequest { since: since.into(), limit: Some(PAGE), ..ChangesRequest::default() };
        let (documents, mut ids, mut bytes) = (self.documents.clone(), Vec::new(), 0);
        loop {
            let page = self.documents.changes(&request).await?;
            let is_last = !page.more && page.rows.len() < PAGE || page.last_seq >= until;
            ids.extend(page.rows.into_iter().filter(|row| row.seq <= until).map(|row| {
                bytes += row.id.len() + BYTES_OF_ID;
                row.id
            }));
            if is_last || bytes >= SORTED {
                let mut some = std::mem::take(&mut ids);
                some.sort_unstable();
                bytes = 0;
                self.copy_documents(&documents, some, &mut segment).await?;
            }
            if is_last {
                break;
            }
            request.since = page.last_seq.into();
        }
        let count = segment.documents();
        self.segments.extend(segment.finish(self.writer).await?);
        Ok(count)
    }

    /// Reads the rest of the feed at the version of `at`.
    async fn rest<P: Database>(&mut self, at: &Documents<P>, reached: Seq, since: &Since) -> Result<Rest> {
        let info = at.info().await?;
        if info.instance_id != self.documents.instance_id() || info.incarnation != self.incarnation {
            // Another database has the name now.
            return Err(model::Error::from(model::ErrorKind::NotFound(model::NotFound::Database)).into());
        }
        let mut ids = Vec::new();
        if reached < info.update_seq.seq {
            let limit = Some(MOST_AT_ONCE + 1);
            let mut request = ChangesRequest { since: reached.into(), limit, ..ChangesRequest::default() };
            loop {
                let page = at.changes(&request).await?;
                ids.extend(page.rows.into_iter().map(|row| row.id));
                if ids.len() > MOST_AT_ONCE {
                    return Ok(Rest::TooMuch);
                }
                if !page.more {
                    break;
                }
                request.since = page.last_seq.into();
            }
        }
        // Documents that could not be read may have been repaired. More of them than can be read at one version stay
        // listed as damaged.
        ids.extend(self.damaged.iter().take(MOST_AT_ONCE).cloned());
        let mut purges = Vec::new();
        loop {
            let after = purges.last().map_or(0, |purge: &PurgeInfo| purge.seq);
            let page = at.purged_infos(after).await?;
            if page.is_empty() {
                break;
            }
            purges.extend(page);
        }
        let new: Vec<&PurgeInfo> = purges.iter().filter(|purge| purge.seq > since.purge_seq).collect();
        if info.purge_seq - since.purge_seq.min(info.purge_seq) != new.len() as u64 {
            return Ok(Rest::Forgotten);
        }
        ids.extend(new.into_iter().map(|purge| purge.id.clone()));
        ids.sort();
        ids.dedup();
        let mut segment = SegmentWriter::default();
        self.copy_documents(at, ids, &mut segment).await?;
        let segment = segment.finish(self.writer).await?;
        let security = at.security().await?.as_str().to_owned();
        let settings = Settings::of(&info, at.purged_infos_limit().await?, at.deleted_document_ttl().await?);
        self.segments.extend(segment);
        let mut lists = Vec::new();
        for some in purges.chunks(PURGES) {
            let list: Vec<PurgeRecord> = some.iter().map(purge_record).collect();
            let list = serde_json::to_vec(&list).map_err(|error| Error::refused(error.to_string()))?;
            lists.push(self.writer.add(&list).await?);
        }
        let last_purge = purges.last().map(|purge| model::hex(&purge.uuid));
        let recent = recent(at).await?;
        Ok(Rest::All(Box::new(Last { info, purges: lists, last_purge, recent, security, settings })))
    }

    async fn copy_documents<P: Database>(
        &mut self,
        documents: &Documents<P>,
        ids: Vec<String>,
        segment: &mut SegmentWriter,
    ) -> Result<()> {
        let mut ids = ids.into_iter().map(|id| BulkGet { id, rev: None });
        let parts = std::iter::from_fn(|| {
            let part: Vec<BulkGet> = ids.by_ref().take(TOGETHER).collect();
            (!part.is_empty()).then_some(part)
        });
        let readers = self.readers;
        let begin = |part: Vec<BulkGet>| {
            let documents = documents.clone();
            in_parallel(readers, async move { documents.get_stored(&part).await.map(|found| (part, found)) })
        };
        let mut reading = pin!(stream::iter(parts).map(begin).buffered(readers));
        while let Some(outcome) = reading.next().await {
            let (part, mut found) = outcome?;
            let mut rest = &part[..];
            loop {
                if found.is_empty() {
                    return Err(Error::refused(format!(
                        "{:?} was requested, but the database did not return it",
                        rest[0].id
                    )));
                }
                rest = &rest[found.len()..];
                for (id, leaves) in found {
                    self.copy_document(documents, id, leaves, segment).await?;
                }
                if rest.is_empty() {
                    break;
                }
                // As many documents as fit in a batch were read.
                found = documents.get_stored(rest).await?;
            }
        }
        Ok(())
    }

    async fn copy_document<P: Database>(
        &mut self,
        documents: &Documents<P>,
        id: String,
        mut leaves: model::Result<Vec<OpenRev>>,
        segment: &mut SegmentWriter,
    ) -> Result<()> {
        let mut again = 0;
        let leaves = loop {
            let found = match leaves {
                Ok(found) => found,
                Err(error) if is_damage(&error) => {
                    self.damaged.push(id);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let found: Vec<model::Document> = found.into_iter().filter_map(leaf).collect();
            let mut failed = None;
            for attachment in found.iter().flat_map(|document| &document.attachments) {
                if let Err(error) = self.copy_content(documents, attachment).await? {
                    failed = Some(error);
                    break;
                }
            }
            let Some(error) = failed else { break found };
            if !is_damage(&error) {
                return Err(error.into());
            }
            let revs = |found: &[model::Document]| found.iter().map(|found| found.rev.clone()).collect::<Vec<_>>();
            let before = revs(&found);
            // The document may have changed, and the contents of its old leaves may be gone.
            let request = BulkGet { id: id.clone(), rev: None };
            leaves = documents.get_stored(&[request]).await?.pop().map_or(Ok(Vec::new()), |(_, leaves)| leaves);
            again += 1;
            let is_unchanged = leaves
                .as_ref()
                .is_ok_and(|leaves| revs(&leaves.iter().cloned().filter_map(leaf).collect::<Vec<_>>()) == before);
            if is_unchanged || again > AGAIN {
                self.damaged.push(id);
                return Ok(());
            }
        };
        let leaves = leaves.into_iter().map(Leaf::of).collect::<Result<_>>()?;
        self.damaged.retain(|damaged| *damaged != id);
        segment.add(self.writer, &Record { id, leaves }).await?;
        self.copied += 1;
        (self.progress)(self.documents.name(), self.copied);
        Ok(())
    }

    /// Copies the content of an attachment, unless the repository has it. The inner error is the database's.
    async fn copy_content<P: Database>(
        &mut self,
        documents: &Documents<P>,
        attachment: &Attachment,
    ) -> Result<model::Result<()>> {
        let id = ObjectId(*attachment.sha256());
        if self.writer.has(id) {
            return Ok(Ok(()));
        }
        let mut reader = documents.attachment_reader(attachment).stored();
        let (mut hash, mut held, mut parts) = (Sha256::new(), Vec::new(), Vec::new());
        loop {
            let piece = match reader.next().await {
                Ok(piece) => piece,
                Err(error) => return Ok(Err(error)),
            };
            let Some(piece) = piece else { break };
            hash.update(&piece);
            held.extend_from_slice(&piece);
            while held.len() > PART {
                let rest = held.split_off(PART);
                parts.push(self.writer.add_content(&held).await?);
                held = rest;
            }
        }
        if ObjectId(hash.finalize().into()) != id {
            return Ok(Err(model::ErrorKind::Corrupt("an attachment has other bytes".into()).into()));
        }
        let last = self.writer.add_content(&held).await?;
        if !parts.is_empty() {
            parts.push(last);
            self.writer.add_parts(id, parts);
        }
        Ok(Ok(()))
    }
}

/// The result of reading the rest.
enum Rest {
    All(Box<Last>),
    /// More documents are left than are read at one version.
    TooMuch,
    /// The database no longer remembers all purges.
    Forgotten,
}

fn leaf(found: OpenRev) -> Option<model::Document> {
    match found {
        OpenRev::Found(document) => Some(document),
        OpenRev::Missing(_) => None,
    }
}

fn is_too_old(error: &model::Error) -> bool {
    matches!(error.kind(), model::ErrorKind::Store(store) if store.code() == kv_api::error::TRANSACTION_TOO_OLD)
}

/// Whether the error is about unreadable or missing rows, and not about the whole store.
fn is_damage(error: &model::Error) -> bool {
    use model::{ErrorKind, NotFound};
    match error.kind() {
        ErrorKind::Corrupt(_) | ErrorKind::UnknownFormat(_) => true,
        ErrorKind::NotFound(what) => !matches!(what, NotFound::Database),
        ErrorKind::Store(store) => store.damage().is_some(),
        _ => false,
    }
}

fn purge_record(purge: &PurgeInfo) -> PurgeRecord {
    let texts = |revs: &[model::RevId]| revs.iter().map(ToString::to_string).collect();
    PurgeRecord {
        seq: purge.seq,
        uuid: model::hex(&purge.uuid),
        id: purge.id.clone(),
        revs: texts(&purge.revs),
        purged: texts(&purge.purged),
    }
}
