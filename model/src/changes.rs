//! The changes feed: each document once, at the sequence of its last change (RFC 003, "Access Patterns").
//!
//! One call reads one batch in one transaction, and the caller continues after its last sequence. So a feed of any
//! length takes bounded memory, loses no row and keeps the order. A document that changes meanwhile moves to the end
//! of the feed and is read again there.
//!
//! `style=all_docs` reads `revisions` only for rows that say that there is more than one branch.
//!
//! A document with damaged rows has a row with an error ([`Change::error`]), and the feed continues after it. If the
//! row of the feed itself is damaged, the revision comes from the winner's row. If that cannot be read either, the feed
//! stops with an error: without a revision, no client would fetch the document.

use std::future::{Future, Ready};

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};

use crate::batch::{BODIES_AT_ONCE, Batch};
use crate::branch::Branch;
use crate::change_row::ChangeRow;
use crate::document::{Body, Document, GetOptions};
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::id_set::IdSet;
use crate::info::read_last;
use crate::keys::{DatabaseKey, Leaf};
use crate::read::{Tree, add_meta, body_of, body_or_empty};
use crate::revid::RevId;
use crate::seq::{NumberedSeq, Seq};
use crate::stats::Stats;
use json::JsonWriter;

/// Maximum number of rows in a batch.
const ROWS_AT_ONCE: usize = 2_000;

/// Maximum number of ids that are looked up one by one. For more ids the feed is read and filtered (CouchDB's
/// `changes_doc_ids_optimization_threshold`).
const IDS_LOOKED_UP: usize = 100;

/// Where a feed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Since {
    /// After this sequence. If it lies ahead, it comes from another store, or from a time before this one was restored
    /// from a backup. Then the feed begins at its beginning.
    Seq(Seq),
    /// After the last sequence at the time of the request.
    Now,
}

impl Default for Since {
    fn default() -> Self {
        Since::Seq(Seq::ZERO)
    }
}

impl From<Seq> for Since {
    fn from(seq: Seq) -> Self {
        Since::Seq(seq)
    }
}

impl std::str::FromStr for Since {
    type Err = Error;

    /// Reads `now` or a sequence.
    fn from_str(text: &str) -> Result<Self> {
        if text == "now" { Ok(Since::Now) } else { text.parse().map(Since::Seq) }
    }
}

/// The revisions that a row names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// The winner.
    #[default]
    MainOnly,
    /// All leaves.
    AllDocs,
    /// All live leaves; the winner if it is a tombstone.
    Live,
}

/// The part of the feed to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesRequest {
    /// Where to begin. Ignored with `descending`, as in CouchDB.
    pub since: Since,
    /// With `descending`: only rows before this sequence. A descending feed continues by it.
    pub before: Option<Seq>,
    /// In descending order of sequences.
    pub descending: bool,
    /// Maximum number of rows.
    pub limit: Option<usize>,
    /// The revisions in a row.
    pub style: Style,
    /// Include the documents at their winners, also deleted ones.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
    /// Include the deleted losing leaves in the documents.
    pub deleted_conflicts: bool,
    /// Only these documents.
    pub doc_ids: Option<IdSet>,
    /// Number the sequences, as clients see them.
    pub numbered: bool,
}

impl ChangesRequest {
    /// Whether the leaves of a row's document are requested and more than the winner.
    fn wants_leaves(&self, row: &ChangeRow) -> bool {
        let wants_them = match self.style {
            Style::MainOnly => false,
            Style::AllDocs => true,
            // Without a live winner there are none.
            Style::Live => row.winner.not_deleted,
        };
        wants_them && row.branches > 1
    }
}

/// A row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The sequence of the document's last change.
    pub seq: Seq,
    /// The [number](crate::NumberedSeq) of the sequence, if requested.
    pub number: Option<u64>,
    /// The document.
    pub id: String,
    /// The winner first, then the other leaves if requested.
    pub revs: Vec<RevId>,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// The document, if requested.
    pub doc: Option<Box<Document>>,
    /// The reason why the document, its other leaves or the row itself cannot be read. Such a row has no document, and
    /// no leaf but the winner unless only the row is damaged.
    pub error: Option<Error>,
}

impl Change {
    /// The sequence as clients see it, with its number if that was requested.
    pub fn shown_seq(&self) -> String {
        match self.number {
            Some(number) => NumberedSeq { number, seq: self.seq }.to_string(),
            None => self.seq.to_string(),
        }
    }

    /// Appends the row as CouchDB writes it.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut json = JsonWriter::new(out);
        json.begin_object().name("seq").str(&self.shown_seq()).name("id").str(&self.id);
        json.name("changes").begin_array();
        for rev in &self.revs {
            rev.write_json(json.begin_object().name("rev"));
            json.end_object();
        }
        json.end_array();
        if self.deleted {
            json.name("deleted").bool(true);
        }
        if let Some(error) = &self.error {
            json.name("error").str(error.error()).name("reason").str(&error.reason());
        }
        if let Some(document) = &self.doc {
            json.name("doc");
            document.write_json(out);
        }
        out.push(b'}');
    }
}

/// A batch of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesBatch {
    /// The rows. A batch that is not the last may be empty.
    pub rows: Vec<Change>,
    /// The last sequence that was read: continue after it, or before it with `descending`.
    pub last_seq: Seq,
    /// The [number](crate::NumberedSeq) of `last_seq`, if requested.
    pub last_number: Option<u64>,
    /// Whether there is more to read now.
    pub more: bool,
    /// Number of rows that remain, if it is known at no cost.
    pub pending: Option<u64>,
}

impl ChangeRow {
    /// The row for the answer, without other leaves and without the document.
    fn into_change(self, seq: Seq) -> Change {
        let Leaf { not_deleted, rev } = self.winner;
        Change { seq, number: None, id: self.id, revs: vec![rev], deleted: !not_deleted, doc: None, error: None }
    }
}

/// A row of the feed before revisions and documents are added, or the document and the error of a damaged one.
type ScannedRow = (Seq, std::result::Result<ChangeRow, (String, Error)>);

/// Rows of the feed before revisions and documents are added.
struct Scan {
    rows: Vec<ScannedRow>,
    /// The last sequence that was read, including rows that were filtered out.
    reached: Option<Seq>,
    more: bool,
}

impl<D: Database> Documents<D> {
    /// A batch of the changes feed.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn changes(&self, request: &ChangesRequest) -> Result<ChangesBatch> {
        let keys = self.keys();
        let (last_key, stats_key) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        let from_the_beginning = !request.descending && request.since == Since::default() && request.doc_ids.is_none();
        self.read_batch(BODIES_AT_ONCE, |transaction, at_once| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&last_key, Read::Snapshot);
            let version = transaction.get_read_version();
            let stats = from_the_beginning.then(|| transaction.get(&stats_key, Read::Snapshot));
            // Issued with the other reads if it does not depend on them.
            let first = match (&request.doc_ids, request.since) {
                (None, Since::Seq(since)) => {
                    Some(transaction.get_range(&self.feed_range(request, since), Read::Snapshot))
                }
                _ => None,
            };
            async move {
                let instance = instance.await?;
                let last = read_last(last.await?.as_deref())?;
                let version = version.await?;
                self.check_last(&instance, last, version)?;
                let is_ahead = |since: Seq| !request.descending && since.is_after(instance.incarnation, version);
                let (since, first) = match request.since {
                    Since::Seq(since) if is_ahead(since) => (Seq::ZERO, None),
                    Since::Seq(since) => (since, first),
                    Since::Now => (last, None),
                };
                let scan = match (&request.doc_ids, first) {
                    (_, Some(first)) => self.scan(request, first.await?, None)?,
                    (ids, None) => {
                        let few = ids.as_ref().filter(|ids| ids.len() <= IDS_LOOKED_UP);
                        let found = match few {
                            // A damaged document cannot be looked up: the feed has its row.
                            Some(few) => alone(self.look_up(&transaction, request, since, few).await)?.ok(),
                            None => None,
                        };
                        match found {
                            Some(found) => found,
                            None => {
                                let range = self.feed_range(request, since);
                                let batch = transaction.get_range(&range, Read::Snapshot).await?;
                                self.scan(request, batch, ids.as_ref())?
                            }
                        }
                    }
                };
                let batch = self.fill(&transaction, request, scan, at_once).await?;
                let mut answer = batch.answer(request, since, last);
                if request.numbered {
                    self.number_batch(&transaction, &mut answer).await?;
                }
                if let Some(stats) = stats {
                    let stats = Stats::read(stats.await?.as_deref())?;
                    let total = u64::try_from(stats.doc_count + stats.doc_del_count).unwrap_or(0);
                    answer.pending = Some(total.saturating_sub(answer.rows.len() as u64));
                }
                Ok(answer)
            }
        })
        .await
    }

    /// Numbers the sequences of a batch.
    async fn number_batch(&self, transaction: &D::Transaction, batch: &mut ChangesBatch) -> Result<()> {
        let seqs: Vec<Seq> = batch.rows.iter().map(|change| change.seq).chain([batch.last_seq]).collect();
        let mut numbers = self.number(transaction, &seqs).await?.into_iter().map(|seq| seq.number);
        for change in &mut batch.rows {
            change.number = numbers.next();
        }
        batch.last_number = numbers.next();
        Ok(())
    }

    fn feed_range(&self, request: &ChangesRequest, since: Seq) -> RangeRequest {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Changes);
        let rows = match &request.doc_ids {
            None => request.limit.unwrap_or(usize::MAX).clamp(1, ROWS_AT_ONCE),
            Some(_) => ROWS_AT_ONCE,
        };
        let range = if request.descending {
            let end = request.before.map_or(beyond, |seq| keys.key(DatabaseKey::Change(seq)));
            RangeRequest::keys(first, end).reverse()
        } else {
            let begin = KeySelector::first_greater_than(keys.key(DatabaseKey::Change(since)));
            RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond))
        };
        range.limit(rows)
    }

    fn scan(&self, request: &ChangesRequest, batch: kv_api::RangeBatch, wanted: Option<&IdSet>) -> Result<Scan> {
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut scan = Scan { rows: Vec::with_capacity(batch.rows.len().min(limit)), reached: None, more: batch.more };
        for row in &batch.rows {
            if scan.rows.len() == limit {
                scan.more = true;
                break;
            }
            let seq = self.keys().read_change(&row.key)?;
            let change = match ChangeRow::read(&row.value) {
                Ok(change) => Ok(change),
                Err(error) => match ChangeRow::read_id(&row.value) {
                    Ok(id) => Err((id, error)),
                    Err(_) => return Err(unreadable(seq)),
                },
            };
            scan.reached = Some(seq);
            let id = change.as_ref().map_or_else(|(id, _)| id, |change| &change.id);
            if wanted.is_none_or(|wanted| wanted.contains(id.as_str())) {
                scan.rows.push((seq, change));
            }
        }
        Ok(scan)
    }

    async fn look_up(
        &self,
        transaction: &D::Transaction,
        request: &ChangesRequest,
        since: Seq,
        ids: &IdSet,
    ) -> Result<Scan> {
        let winners: Vec<_> = ids.iter().map(|id| (id, Tree::Winner.read(transaction, self.keys(), id))).collect();
        let mut rows = Vec::new();
        for (id, winner) in winners {
            let Some(winner) = winner.await?.into_iter().next() else { continue };
            let crown = winner.crown()?;
            let asked_for =
                if request.descending { request.before.is_none_or(|seq| crown.seq < seq) } else { crown.seq > since };
            if asked_for {
                let change = ChangeRow { id: id.to_owned(), winner: winner.leaf, branches: crown.branches };
                rows.push((crown.seq, Ok(change)));
            }
        }
        rows.sort_by_key(|(seq, _)| *seq);
        if request.descending {
            rows.reverse();
        }
        let limit = request.limit.unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok(Scan { reached: rows.last().map(|(seq, _)| *seq), rows, more })
    }

    /// Adds revisions and documents to as many rows as a batch holds, for `at_once` of them at the same time.
    async fn fill(
        &self,
        transaction: &D::Transaction,
        request: &ChangesRequest,
        scan: Scan,
        at_once: usize,
    ) -> Result<Filled> {
        let keys = self.keys();
        let mut filled = Filled { rows: Vec::with_capacity(scan.rows.len()), reached: scan.reached, more: scan.more };
        let (total, mut batch) = (scan.rows.len(), Batch::of(scan.rows.len()));
        let mut rows = scan.rows.into_iter().peekable();
        let is_whole =
            |row: &ScannedRow| row.1.as_ref().is_ok_and(|row| !request.include_docs && !request.wants_leaves(row));
        'batch: while filled.rows.len() < total {
            // Most rows are complete, and need none of the futures below.
            while let Some((seq, Ok(row))) = rows.next_if(is_whole) {
                filled.rows.push(row.into_change(seq));
                batch.add(0);
            }
            let reads: Vec<_> = rows
                .by_ref()
                .take(at_once)
                .map(|(seq, row)| {
                    let row = row.map_err(|(id, error)| (Tree::Winner.read(transaction, keys, &id), id, error));
                    let row = row.map(|row| {
                        let leaves = request.wants_leaves(&row);
                        let losing = request.conflicts || request.deleted_conflicts;
                        let conflicts = request.include_docs && losing && row.branches > 1;
                        let tree = (leaves || conflicts).then(|| Tree::Whole.read(transaction, keys, &row.id));
                        let body = request.include_docs.then(|| body_of(transaction, keys, &row.id, &row.winner));
                        (row, tree, body)
                    });
                    (seq, row)
                })
                .collect();
            for (seq, row) in reads {
                let read = match row {
                    _ if batch.is_full() => break 'batch,
                    Ok((row, tree, body)) => change(seq, row, tree, body, request).await,
                    Err((winner, id, error)) => {
                        let row = row_of_winner(seq, id, winner.await)?;
                        let tree = request.wants_leaves(&row).then(|| Tree::Whole.read(transaction, keys, &row.id));
                        let error = error.of_document(&row.id);
                        let (change, bytes) = change(seq, row, tree, None::<Ready<_>>, request).await?;
                        Ok((Change { error: Some(error), ..change }, bytes))
                    }
                };
                match read {
                    Ok((change, bytes)) => {
                        filled.rows.push(change);
                        batch.add(bytes);
                    }
                    // The read version grew too old. The rows read before that are valid.
                    Err(error) if error.is_retryable() && !filled.rows.is_empty() => break 'batch,
                    Err(error) => return Err(error),
                }
            }
        }
        if filled.rows.len() < total {
            filled.reached = filled.rows.last().map(|change| change.seq);
            filled.more = true;
        }
        Ok(filled)
    }
}

/// The error for a change whose document or revision is unknown. A feed that continued after it would lose the change
/// silently.
fn unreadable(seq: Seq) -> Error {
    Error::corrupt(format!("the change at {seq} cannot be read"))
}

/// The content of a damaged row, from the winner of its document, if the winner has this sequence.
fn row_of_winner(seq: Seq, id: String, winner: Result<Vec<Branch>>) -> Result<ChangeRow> {
    let winner = alone(winner)?.ok().and_then(|branches| branches.into_iter().next());
    match winner {
        Some(Branch { leaf, crown: Some(crown), .. }) if crown.seq == seq => {
            Ok(ChangeRow { id, winner: leaf, branches: crown.branches })
        }
        _ => Err(unreadable(seq)),
    }
}

/// A row with its leaves and its document as requested, and the number of bytes that were read for them.
async fn change(
    seq: Seq,
    row: ChangeRow,
    tree: Option<impl Future<Output = Result<Vec<Branch>>>>,
    body: Option<impl Future<Output = Result<Option<Body>>>>,
    request: &ChangesRequest,
) -> Result<(Change, usize)> {
    let ChangeRow { id, winner, .. } = row;
    let mut bytes = 0;
    let read = async {
        let tree = match tree {
            Some(tree) => Some(tree.await?),
            None => None,
        };
        bytes += tree.iter().flatten().map(Branch::row_bytes).sum::<usize>();
        let mut document = None;
        if let Some(body) = body {
            let body = body_or_empty(&winner, body.await?)?;
            bytes += body.bytes_read();
            let mut found = Document::new(id.clone(), winner.rev.clone(), !winner.not_deleted, body);
            if let Some(tree) = &tree {
                let (conflicts, deleted_conflicts) = (request.conflicts, request.deleted_conflicts);
                let options = GetOptions { conflicts, deleted_conflicts, ..GetOptions::default() };
                add_meta(&mut found, tree, &options)?;
            }
            document = Some(Box::new(found));
        }
        Ok((tree.filter(|_| request.style != Style::MainOnly), document))
    };
    let (tree, doc, error) = match alone(read.await)? {
        Ok((tree, doc)) => (tree, doc, None),
        Err(error) => (None, None, Some(error.of_document(&id))),
    };
    let deleted = !winner.not_deleted;
    let revs = match tree {
        Some(tree) => {
            let wanted = |branch: &Branch| request.style == Style::AllDocs || branch.leaf.not_deleted;
            tree.into_iter().filter(wanted).map(|branch| branch.leaf.rev).collect()
        }
        None => vec![winner.rev],
    };
    Ok((Change { seq, number: None, id, revs, deleted, doc, error }, bytes))
}

struct Filled {
    rows: Vec<Change>,
    reached: Option<Seq>,
    more: bool,
}

impl Filled {
    fn answer(self, request: &ChangesRequest, since: Seq, last: Seq) -> ChangesBatch {
        if request.limit == Some(0) {
            // No rows were requested and none were read. The feed counts as complete.
            let last_seq = if request.descending { request.before.unwrap_or(last) } else { since };
            return ChangesBatch { rows: Vec::new(), last_seq, last_number: None, more: false, pending: None };
        }
        let last_seq = match (request.descending, self.more) {
            // Between the last row read and the last sequence there are only rows that were filtered out.
            (false, false) => since.max(last),
            (false, true) => self.reached.unwrap_or(since),
            (true, _) => self.reached.or(request.before).unwrap_or(last),
        };
        let pending = (!self.more).then_some(0);
        ChangesBatch { rows: self.rows, last_seq, last_number: None, more: self.more, pending }
    }
}
