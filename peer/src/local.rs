//! A peer that is a database in this process.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use kv_api::Database;
use mango::Selector;
use model::{
    AllDocsEntry, AllDocsRequest, AttachmentEdit, AttachmentSource, BulkGet, ChangesBatch, Documents, Edit, Encoding,
    ErrorKind as Model, Follows, GetOptions, JsonText, NotFound, OpenRev, Purge, RevId, RevsDiff, Seq, Since, Style,
    WriteMode, Writing,
};

use crate::environment::TimedEnvironment;
use crate::error::{Error, Result};
use crate::http::Held;
use crate::pace::Pace;
use crate::types::{
    Attachment, Change, Changes, Docs, FeedRequest, Filter, IdRange, Info, ListedDocument, ListingPage, LocalDocument,
    ReadOptions, Revision, is_enough,
};
use crate::{ByteStream, Peer};

/// Maximum size of the documents in one transaction, except a single larger document: a tenth of what a transaction may
/// affect.
const BYTES_AT_ONCE: usize = 1 << 20;
/// A transaction that takes longer was too large. A tenth of the lifetime of a read version.
const SLOW: Duration = Duration::from_millis(500);
/// Approximate maximum size of attachments in a page of a listing.
const LOADED_AT_ONCE: u64 = 64_000_000;
/// Maximum size of small attachments that a write holds in memory. Further ones are stored at once.
const HELD_AT_ONCE: u64 = 2_000_000;

/// A database in this process, on any engine.
#[derive(Clone)]
pub struct Local<D> {
    documents: Documents<D>,
    reading: Arc<Pace>,
    writing: Arc<Pace>,
}

impl<D: Database> Local<D> {
    /// The peer of this database.
    pub fn new(documents: Documents<D>) -> Self {
        let (reading, writing) = (Arc::new(Pace::new(100, 2_000, SLOW)), Arc::new(Pace::new(100, 1_000, SLOW)));
        Local { documents, reading, writing }
    }

    /// Reads the contents of as many attachments as memory allows. If some are left out, returns the number of
    /// documents at the front with all their contents.
    async fn load_attachments(&self, rows: &mut [model::AllDocsRow]) -> Result<Option<usize>> {
        let mut bytes = 0;
        for (at, row) in rows.iter_mut().enumerate() {
            if bytes > LOADED_AT_ONCE {
                return Ok(Some(at));
            }
            if let AllDocsEntry::Live { doc: Some(document), .. } = &mut row.entry {
                match self.documents.load_all_attachments(document).await {
                    Ok(()) => bytes += document.attachments.iter().map(|attachment| attachment.length).sum::<u64>(),
                    Err(error) if *error.kind() == Model::NotFound(NotFound::Deleted) => {
                        row.entry = AllDocsEntry::Deleted { rev: document.rev.clone() };
                    }
                    Err(error) if error.is_damage() => row.entry = AllDocsEntry::Damaged { error },
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(None)
    }

    /// The rows of a batch that pass the filter.
    async fn passing(&self, batch: ChangesBatch, selector: Option<&Selector>) -> Result<Vec<Change>> {
        let mut rows = Vec::with_capacity(batch.rows.len());
        for mut change in batch.rows {
            let passes = match selector {
                // An unreadable document may match.
                Some(selector) if change.error.is_none() => self.select(selector, &mut change).await?,
                _ => true,
            };
            if passes {
                rows.push(Change {
                    seq: change.seq.to_string(),
                    id: change.id,
                    revs: change.revs.iter().map(ToString::to_string).collect(),
                    deleted: change.deleted,
                    error: change.error.map(|error| (error.error().to_owned(), error.reason().into_owned())),
                });
            }
        }
        Ok(rows)
    }

    /// Whether a row passes. If it has several leaves, only the matching ones stay.
    async fn select(&self, selector: &Selector, change: &mut model::Change) -> Result<bool> {
        if change.revs.len() == 1 {
            return Ok(change.doc.as_ref().is_some_and(|document| matches(selector, document)));
        }
        let leaf = |rev: &RevId| BulkGet { id: change.id.clone(), rev: Some(rev.clone()) };
        let wanted = change.revs.iter().map(leaf).collect();
        let mut matching = Vec::new();
        for (_, found) in self.documents.get_many(wanted, &GetOptions::default()).await? {
            for leaf in found? {
                if let OpenRev::Found(document) = leaf
                    && matches(selector, &document)
                {
                    matching.push(document.rev);
                }
            }
        }
        change.revs.retain(|rev| matching.contains(rev));
        Ok(!change.revs.is_empty())
    }

    /// The bytes of a leaf's attachment as stored.
    async fn open(self, id: String, rev: RevId, name: String) -> Result<ByteStream> {
        let options = GetOptions { rev: Some(rev), ..GetOptions::default() };
        let document = self.documents.get(&id, &options).await?;
        let attachment = document.attachments.iter().find(|attachment| attachment.name == name);
        let gone = || model::Error::new(Model::NotFound(NotFound::Attachment));
        let reader = self.documents.attachment_reader(attachment.ok_or_else(gone)?).stored();
        let pieces = stream::try_unfold(reader, |mut reader| async move {
            let piece = reader.next().await?;
            Ok(piece.map(|piece| (piece, reader)))
        });
        Ok(pieces.boxed())
    }
}

impl<D> fmt::Debug for Local<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.documents.fmt(f)
    }
}

#[async_trait]
impl<D: Database> Peer for Local<D> {
    async fn info(&self) -> Result<Info> {
        let info = self.documents.info().await?;
        Ok(Info {
            documents: info.doc_count,
            deleted: info.doc_del_count,
            update_seq: info.update_seq.seq.to_string(),
            external_bytes: Some(info.sizes.external),
            file_bytes: None,
            is_compacting: info.is_compacting,
        })
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        let selector = match &request.filter {
            Filter::Selector(text) => Some(Selector::parse(text).map_err(|error| Error::refused(error.to_string()))?),
            Filter::Function { .. } => return Err(Error::refused("functions of design documents are not run here")),
            Filter::None | Filter::DocIds(_) => None,
        };
        let since = match request.since.as_deref() {
            None => Since::Seq(Seq::ZERO),
            Some(since) => since.parse().map_err(|_| no_sequence(since))?,
        };
        let mut asked = model::ChangesRequest {
            since,
            limit: Some(request.limit),
            style: if request.all_leaves { Style::AllDocs } else { Style::MainOnly },
            include_docs: selector.is_some(),
            doc_ids: match &request.filter {
                Filter::DocIds(ids) => Some(ids.iter().collect()),
                _ => None,
            },
            ..model::ChangesRequest::default()
        };
        let mut timeout = request.wait.map(|wait| model::SystemEnvironment.sleep(wait));
        loop {
            let batch = self.documents.changes(&asked).await?;
            let (last_seq, pending) = (batch.last_seq, batch.pending);
            // A batch that ends at the limit has `more == false`, although more rows can follow.
            let more = batch.more || batch.rows.len() == request.limit;
            let rows = self.passing(batch, selector.as_ref()).await?;
            let answer = || Changes { rows, last_seq: last_seq.to_string(), more, pending };
            let Some(limit) = timeout.take() else { return Ok(answer()) };
            if more {
                // There is more to read, even if no row passed.
                return Ok(answer());
            }
            let answer = answer();
            if !answer.rows.is_empty() {
                return Ok(answer);
            }
            let mut watcher = self.documents.watch_changes(last_seq);
            let changed = std::pin::pin!(watcher.changed());
            match select(changed, limit).await {
                Either::Left((changed, limit)) => {
                    changed?;
                    timeout = Some(limit);
                }
                Either::Right(_) => return Ok(answer),
            }
            asked.since = Since::Seq(last_seq);
        }
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        let mut request = AllDocsRequest {
            start: Some(range.start.clone()),
            end: range.end.clone(),
            inclusive_end: false,
            limit: Some(range.limit),
            include_docs: range.docs != Docs::Revs,
            ..AllDocsRequest::default()
        };
        loop {
            let mut batch = self.documents.all_docs(&request).await?;
            let mut is_full = batch.rows.len() == range.limit;
            if range.docs == Docs::WithAttachments
                && let Some(many) = self.load_attachments(&mut batch.rows).await?
            {
                batch.rows.truncate(many);
                is_full = true;
            }
            let reached = batch.rows.last().map(|row| row.id.clone());
            // After a row about several documents, the listing goes on after all of them.
            let next_start =
                batch.next.as_ref().filter(|next| next.inclusive_start).and_then(|next| next.start.clone());
            let mut rows: Vec<ListedDocument> = Vec::with_capacity(batch.rows.len());
            let mut damaged = Vec::new();
            for row in batch.rows {
                match row.entry {
                    AllDocsEntry::Live { rev, doc } => {
                        let doc = doc.map(|document| document.to_text());
                        rows.push(ListedDocument { id: row.id, rev, doc });
                    }
                    AllDocsEntry::Damaged { error } if range.skips_damaged => {
                        damaged.push((row.id, error.reason().into_owned()));
                    }
                    AllDocsEntry::Damaged { error } => return Err(error.into()),
                    // Deleted while its attachments were read.
                    AllDocsEntry::Deleted { .. } | AllDocsEntry::Missing => {}
                }
            }
            // A batch may be empty and not be the last one.
            match batch.next {
                Some(next) if reached.is_none() => request = next,
                next => {
                    let page = range.page(rows, reached.filter(|_| is_full || next.is_some()));
                    let rest = match (page.rest, next_start) {
                        (Some(rest), Some(start)) if start > rest.start => Some(IdRange { start, ..rest }),
                        (rest, _) => rest,
                    };
                    return Ok(ListingPage { damaged, rest, ..page });
                }
            }
        }
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        let mut revs = Vec::with_capacity(ids.len());
        while revs.len() < ids.len() {
            let some: Vec<String> = ids[revs.len()..].iter().take(self.reading.at_once()).cloned().collect();
            let count = some.len();
            let request = AllDocsRequest { keys: Some(some.into()), ..AllDocsRequest::default() };
            let began = Instant::now();
            match self.documents.all_docs(&request).await {
                // The model does not split a listing of ids by itself.
                Err(error) if count > 1 && is_undone(&error) => self.reading.failed(count),
                Err(error) => return Err(error.into()),
                Ok(batch) if batch.rows.is_empty() => return Err(Error::nonsense("a listing of keys without rows")),
                Ok(batch) => {
                    self.reading.took(count, began.elapsed());
                    for row in batch.rows {
                        revs.push(match row.entry {
                            AllDocsEntry::Damaged { error } => return Err(error.into()),
                            AllDocsEntry::Live { rev, .. } => Some(rev),
                            _ => None,
                        });
                    }
                }
            }
        }
        Ok(revs)
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        let most_bytes = options.most_bytes;
        let options = GetOptions { revs: options.ancestors, latest: options.latest, ..GetOptions::default() };
        let mut all = Vec::with_capacity(wanted.len());
        while all.len() < wanted.len() && !is_enough(&all, most_bytes) {
            let rest = &wanted[all.len()..];
            let began = Instant::now();
            let found = self.documents.get_some(&rest[..rest.len().min(self.reading.at_once())], &options).await?;
            self.reading.took(found.len(), began.elapsed());
            for (_, opened) in found {
                let leaf = |one| match one {
                    OpenRev::Found(document) => Some(revision(document)),
                    OpenRev::Missing(_) => None,
                };
                let opened = opened.map(|opened| opened.into_iter().filter_map(leaf).collect());
                all.push(opened.map_err(Error::from));
            }
        }
        Ok(all)
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        let opening = self.clone().open(id.to_owned(), rev.clone(), attachment.name.clone());
        stream::once(opening).try_flatten().boxed()
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        Ok(self.documents.revs_diff(wanted).await?)
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        let mut results: Vec<Result<RevId>> = Vec::with_capacity(edits.len());
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
                    results.extend(some.into_iter().map(|result| result.map_err(Error::from)));
                }
                Err(error) => {
                    let failure = Error::from(error);
                    if results.is_empty() || !failure.is_transient() {
                        return Err(failure);
                    }
                    // The edits after the failure were not tried. Reading the documents shows that.
                    results.resize(edits.len(), Err(failure));
                }
            }
        }
        Ok(results)
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        // Before the bytes arrive.
        self.documents.authorize(Writing::Announced(&revision.id)).await?;
        let mut edit = Revision { attachments: Vec::new(), ..revision.clone() }.into_edit();
        let mut held = 0;
        for (attachment, content) in revision.attachments.iter().zip(contents) {
            let mut made = AttachmentEdit {
                name: attachment.name.clone(),
                content_type: attachment.content_type.clone(),
                revpos: Some(attachment.revpos),
                source: AttachmentSource::Stub,
            };
            if let Some(mut bytes) = content {
                made.source = AttachmentSource::Follows(follows(attachment));
                let mut upload = self.documents.upload_part(&made)?;
                while let Some(piece) = bytes.try_next().await? {
                    upload.write(&piece).await?;
                }
                let mut content = upload.finish().await?;
                held += content.encoded_length();
                if held > HELD_AT_ONCE {
                    content = self.documents.staged(&content).await?;
                }
                made.source = AttachmentSource::Content(content);
            }
            edit.attachments.push(made);
        }
        for result in self.documents.write(vec![edit], WriteMode::Replicated).await? {
            result?;
        }
        Ok(())
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        let went = self.documents.purge(purges).await?;
        Ok(went.into_iter().map(|went| went.map_err(Error::from)).collect())
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        match self.documents.get_local(id).await {
            Ok(found) => Ok(Some(LocalDocument { rev: format!("0-{}", found.rev), body: found.body })),
            Err(error) if matches!(error.kind(), Model::NotFound(NotFound::Missing)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        let number = |rev: &str| rev.strip_prefix("0-").and_then(|number| number.parse::<u64>().ok());
        let known = match rev {
            None => None,
            Some(rev) => Some(number(rev).ok_or_else(|| Error::refused(format!("{rev} is not a local revision")))?),
        };
        Ok(format!("0-{}", self.documents.put_local(id, known, body.clone()).await?))
    }

    /// Nothing to do: the engine makes every write durable before acknowledging it.
    async fn commit(&self) -> Result<String> {
        self.documents.last_seq().await?;
        Ok("0".to_owned())
    }
}

/// As in a feed of CouchDB, a document on which an expression takes too many steps does not match.
fn matches(selector: &Selector, document: &model::Document) -> bool {
    selector.matches(document.to_text().root()).unwrap_or(false)
}

fn revision(document: model::Document) -> Revision {
    let attachment = |found: model::Attachment| Attachment {
        name: found.name,
        content_type: found.content_type,
        revpos: found.revpos,
        length: found.length,
        encoding: found.encoding,
        encoded_length: found.encoded_length,
    };
    Revision {
        id: document.id,
        rev: document.rev,
        deleted: document.deleted,
        body: document.body,
        history: document.revisions,
        attachments: document.attachments.into_iter().map(attachment).collect(),
        held: Held::default(),
    }
}

/// The expected properties of an attachment's bytes.
fn follows(attachment: &Attachment) -> Follows {
    let length = match attachment.encoding {
        Encoding::Identity => attachment.length,
        Encoding::Gzip => attachment.encoded_length,
    };
    Follows { length, encoding: attachment.encoding, unpacked: attachment.length, digest: None }
}

fn no_sequence(text: &str) -> Error {
    Error::refused(format!("\"{text}\" is not a sequence: use 0, now, or the seq of a row")).with_status(400)
}

/// Whether the store failed temporarily and certainly wrote nothing.
fn is_undone(error: &model::Error) -> bool {
    matches!(error.kind(), Model::Store(store) if store.is_retryable_not_committed())
}
