//! Finds the leaves of a page of the feed that the target lacks, and copies them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{StreamExt, TryStreamExt};
use model::limits::DESIGN_PREFIX;
use model::{BulkGet, RevId, RevsDiff, WriteMode};
use parking_lot::Mutex;
use peer::{ByteStream, Change, Error, ErrorKind, Held, MOST_TEXT, Peer, ReadOptions, Result, Retry, Revision, cut};

use crate::progress::{Failed, Figures};

/// Approximate maximum size of the documents in a group, and of those in memory at once.
const GROUP_BYTES: usize = 2 << 20;
/// Maximum number of leaves in a group.
const GROUP: usize = 500;
/// Assumed size of a document before any was read.
const FIRST_BYTES: usize = 64 << 10;
/// A target's status if it lacks an attachment that was assumed to be there.
const MISSING_STUB: u16 = 412;

/// Copies leaves from one peer to another.
pub(crate) struct Transfer {
    source: Arc<dyn Peer>,
    target: Arc<dyn Peer>,
    retry: Retry,
    /// Average size of a document in the last group.
    usual_bytes: AtomicUsize,
    /// True until the feed's end is reached, if the target had no documents at the start: then it lacks everything.
    /// `_revs_diff` would cost it a fifth of its work. Revisions that somebody else writes meanwhile are sent again,
    /// and change nothing there. A document that changes meanwhile is sent again too, with its attachments.
    lacks_all: AtomicBool,
}

/// The work done in a step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) figures: Figures,
    pub(crate) bytes: u64,
    pub(crate) failed: Vec<Failed>,
}

/// A missing leaf, and the revisions that the target has of its document.
pub(crate) struct Missing {
    wanted: BulkGet,
    known: Arc<Vec<RevId>>,
}

impl Step {
    fn fail(&mut self, id: &str, rev: &str, reason: impl Into<String>) {
        self.figures.doc_write_failures += 1;
        let shown = |text: &str| cut(text, MOST_TEXT).into_owned();
        self.failed.push(Failed { id: shown(id), rev: shown(rev), reason: shown(&reason.into()) });
    }

    fn wrote(&mut self, bytes: u64) {
        self.figures.docs_written += 1;
        self.bytes += bytes;
    }
}

impl Transfer {
    pub(crate) fn new(source: Arc<dyn Peer>, target: Arc<dyn Peer>, retry: Retry, lacks_all: bool) -> Self {
        // Both peers have responded before.
        retry.answered();
        let (usual_bytes, lacks_all) = (AtomicUsize::new(FIRST_BYTES), AtomicBool::new(lacks_all));
        Transfer { source, target, retry, usual_bytes, lacks_all }
    }

    /// The leaves of these rows that the target lacks, in groups. `more`: whether the feed goes on after them.
    pub(crate) async fn missing(&self, rows: &[Change], more: bool) -> Result<(Step, Vec<Vec<Missing>>)> {
        let lacks_all = self.lacks_all.fetch_and(more, Ordering::Relaxed);
        let mut step = Step::default();
        let mut asked = Vec::with_capacity(rows.len());
        for row in rows {
            let mut revs = Vec::with_capacity(row.revs.len());
            for rev in &row.revs {
                step.figures.missing_checked += 1;
                match RevId::parse(rev) {
                    Ok(rev) => revs.push(rev),
                    Err(error) => step.fail(&row.id, rev, error.to_string()),
                }
            }
            if !revs.is_empty() {
                asked.push((row.id.clone(), revs));
            }
        }
        if asked.is_empty() {
            return Ok((step, Vec::new()));
        }
        let mut missing = Vec::new();
        let lacking = match lacks_all {
            true => asked
                .into_iter()
                .map(|(id, missing)| RevsDiff { id, missing, possible_ancestors: Vec::new() })
                .collect(),
            false => self.target.revs_diff(asked).await?,
        };
        for RevsDiff { id, missing: revs, possible_ancestors } in lacking {
            step.figures.missing_found += revs.len() as u64;
            if !id.starts_with(DESIGN_PREFIX) {
                step.figures.bulk_get_attempts += revs.len() as u64;
            }
            let known = Arc::new(possible_ancestors);
            let one = |rev| Missing { wanted: BulkGet { id: id.clone(), rev: Some(rev) }, known: known.clone() };
            missing.extend(revs.into_iter().map(one));
        }
        let usual = self.usual_bytes.load(Ordering::Relaxed).max(1);
        let size = (GROUP_BYTES / usual).clamp(1, GROUP);
        let mut groups: Vec<Vec<Missing>> = Vec::new();
        for one in missing {
            match groups.last_mut() {
                // Leaves of one document stay together, since the same leaf may be found twice.
                Some(group)
                    if group.len() < size
                        || group.len() < 4 * size
                            && group.last().is_some_and(|last| last.wanted.id == one.wanted.id) =>
                {
                    group.push(one);
                }
                _ => groups.push(vec![one]),
            }
        }
        Ok((step, groups))
    }

    /// Copies these leaves.
    pub(crate) async fn group(&self, group: Vec<Missing>) -> Result<Step> {
        let (mut step, mut seen, mut rest) = (Step::default(), HashSet::new(), &group[..]);
        while !rest.is_empty() {
            let copied = self.first(rest, &mut seen, &mut step).await?;
            rest = &rest[copied..];
        }
        Ok(step)
    }

    /// Copies as many of the first leaves as are read at once. Returns their number.
    async fn first(&self, group: &[Missing], seen: &mut HashSet<(String, RevId)>, step: &mut Step) -> Result<usize> {
        let wanted: Vec<BulkGet> = group.iter().map(|missing| missing.wanted.clone()).collect();
        // The size of a group follows from earlier documents; these may be larger.
        let options = ReadOptions { ancestors: true, latest: true, most_bytes: Some(GROUP_BYTES) };
        let read = self.source.read(&wanted, options).await?;
        let copied = read.len().min(group.len());
        if copied == 0 {
            return Err(Error::new(ErrorKind::Refused, "the source's answer has no documents"));
        }
        let (mut together, mut bytes, mut leaves) = (Vec::new(), 0, 0);
        for (missing, found) in group.iter().zip(read) {
            let found = match found {
                Err(error) if error.is_transient() => self.read_one(&missing.wanted, options).await?,
                found => found,
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    let rev = missing.wanted.rev.as_ref().map(ToString::to_string).unwrap_or_default();
                    step.fail(&missing.wanted.id, &rev, error.to_string());
                    continue;
                }
            };
            let is_design = missing.wanted.id.starts_with(DESIGN_PREFIX);
            if !is_design && !found.is_empty() && found.iter().all(|revision| revision.attachments.is_empty()) {
                step.figures.bulk_get_docs += 1;
            }
            for revision in found {
                // A leaf that was replaced meanwhile is answered by its replacement, which may be there already.
                if !seen.insert((revision.id.clone(), revision.rev.clone())) {
                    continue;
                }
                step.figures.docs_read += 1;
                bytes += revision.bytes();
                leaves += 1;
                if revision.attachments.is_empty() {
                    together.push(revision);
                } else {
                    self.with_attachments(&revision, &missing.known, step).await?;
                }
            }
        }
        if let Some(usual) = bytes.checked_div(leaves) {
            self.usual_bytes.store(usual.max(1), Ordering::Relaxed);
        }
        // Their memory stays reserved until they are written.
        let _held: Vec<Held> = together.iter().map(|revision| revision.held.clone()).collect();
        let sizes: Vec<u64> = together.iter().map(|revision| revision.body.len() as u64).collect();
        let edits: Vec<model::Edit> = together.into_iter().map(Revision::into_edit).collect();
        let names: Vec<(String, String)> = edits
            .iter()
            .map(|edit| (edit.id.clone(), edit.rev.as_ref().map(ToString::to_string).unwrap_or_default()))
            .collect();
        if edits.is_empty() {
            return Ok(copied);
        }
        let outcomes = self.target.write(edits, WriteMode::Replicated).await?;
        for ((outcome, (id, rev)), bytes) in outcomes.into_iter().zip(names).zip(sizes) {
            match outcome {
                Ok(_) => step.wrote(bytes),
                Err(error) if ends_replication(&error) => return Err(error),
                Err(error) => step.fail(&id, &rev, error.to_string()),
            }
        }
        Ok(copied)
    }

    /// Reads an unreadable document again. If that fails too, it is the document's failure, unless the source says that
    /// it is busy.
    async fn read_one(&self, wanted: &BulkGet, options: ReadOptions) -> Result<Result<Vec<Revision>>> {
        let wanted = std::slice::from_ref(wanted);
        let read = self.retry.ask(|| async {
            let found = self.source.read(wanted, options).await?.pop();
            found.unwrap_or_else(|| Ok(Vec::new()))
        });
        match read.await {
            Err(error) if error.is_transient() && !is_of_document(&error) => Err(error),
            found => Ok(found),
        }
    }

    /// Copies a leaf with attachments. Attachments that are not newer than a revision at the target are not sent.
    async fn with_attachments(&self, revision: &Revision, known: &[RevId], step: &mut Step) -> Result<()> {
        let newest = newest_known(revision, known);
        let mut sent = self.put(revision, newest).await;
        if newest > 0 && matches!(&sent, Ok(Err(error)) if error.status() == Some(MISSING_STUB)) {
            // The leaf with these attachments was replaced at the target.
            sent = self.put(revision, 0).await;
        }
        match sent? {
            Ok(bytes) => step.wrote(bytes + revision.body.len() as u64),
            Err(error) if ends_replication(&error) => return Err(error),
            Err(error) => {
                // A leaf that was replaced lost its attachments; the feed has its replacement.
                let wanted = BulkGet { id: revision.id.clone(), rev: Some(revision.rev.clone()) };
                let there = self.source.read(&[wanted], ReadOptions::default()).await?.pop();
                if matches!(there, Some(Ok(leaves)) if !leaves.is_empty()) {
                    step.fail(&revision.id, &revision.rev.to_string(), error.to_string());
                }
            }
        }
        Ok(())
    }

    /// Sends a leaf with its attachments that are newer than this position. Returns their size. The outer error means
    /// that a peer is unavailable.
    async fn put(&self, revision: &Revision, newer_than: u64) -> Result<Result<u64>> {
        let sent = self.retry.ask(|| async {
            let failure: Arc<Mutex<Option<Error>>> = Arc::default();
            let mut bytes = 0;
            let contents = revision.attachments.iter().map(|attachment| {
                (attachment.revpos > newer_than || newer_than == 0).then(|| {
                    bytes += attachment.encoded_length;
                    watched(self.source.attachment(&revision.id, &revision.rev, attachment), failure.clone())
                })
            });
            let contents: Vec<Option<ByteStream>> = contents.collect();
            let outcome = self.target.put(revision, contents).await;
            // If the source stops sending, the target only sees a body that ends early. The failure is the source's.
            let of_source = failure.lock().take();
            match (of_source, outcome) {
                (_, Ok(())) => Ok(bytes),
                (Some(error), _) if error.kind() == ErrorKind::NoDatabase => {
                    Err(Error::new(ErrorKind::Refused, error.to_string()))
                }
                (Some(error), _) | (None, Err(error)) => Err(error),
            }
        });
        match sent.await {
            Err(error) if error.is_transient() && !is_of_document(&error) => Err(error),
            sent => Ok(sent),
        }
    }
}

/// The bytes of an attachment. Records a failure to read them.
fn watched(bytes: ByteStream, failure: Arc<Mutex<Option<Error>>>) -> ByteStream {
    let keep = move |error: &Error| {
        *failure.lock() = Some(error.clone());
    };
    bytes.inspect_err(keep).boxed()
}

/// Whether a failure of one document is a failure of the whole replication.
fn ends_replication(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NoDatabase => true,
        ErrorKind::Unavailable => !is_of_document(error),
        _ => false,
    }
}

/// Whether a failure of every attempt belongs to the document. It does if it is a 500: a validation function throws, or
/// the document is damaged. A busy server has another status, and an unreachable one has none.
fn is_of_document(error: &Error) -> bool {
    error.status() == Some(500)
}

/// Position of a leaf's newest ancestor that the target has; 0 if it has none.
fn newest_known(revision: &Revision, known: &[RevId]) -> u64 {
    let Some(history) = &revision.history else { return 0 };
    let known: HashMap<u64, Vec<&RevId>> = known.iter().fold(HashMap::new(), |mut known, rev| {
        known.entry(rev.position()).or_default().push(rev);
        known
    });
    let positions = (1..=history.position).rev().zip(&history.ids);
    let has = |(position, hash): &(u64, &model::RevHash)| {
        known.get(position).is_some_and(|revs| revs.iter().any(|rev| rev.hash() == *hash))
    };
    positions.into_iter().find(has).map_or(0, |(position, _)| position)
}
