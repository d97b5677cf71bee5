//! The changes feed: each document once, at the sequence of its last change (RFC 003, "Access Patterns").
//!
//! One call reads one batch, in one transaction, and the caller goes on after the last sequence: a feed
//! of any length takes bounded memory, no row is lost and none is out of order. A document that changes
//! meanwhile moves behind what was read, and is met again there.
//!
//! `style=all_docs` asks `revisions` only where a row says that there is more than one branch.

use std::collections::HashSet;

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};

use crate::all_docs::{BODIES_AT_ONCE, BODY_BYTES};
use crate::document::{Document, GetOptions};
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::info::{Stats, read_last};
use crate::keys::{self, DatabaseKey, Leaf};
use crate::read::{Tree, add_meta, body_of, body_or_empty};
use crate::revid::RevId;
use crate::row::Reader;
use crate::seq::Seq;
use crate::write::SEQ_FORMAT;

/// The most rows of one batch.
const ROWS_AT_ONCE: usize = 2_000;

/// Up to this many ids are looked up one by one; for more the feed is filtered (CouchDB's
/// `changes_doc_ids_optimization_threshold`).
const IDS_LOOKED_UP: usize = 100;

/// Where a feed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Since {
    /// After this sequence.
    Seq(Seq),
    /// After the last sequence at the time of the request.
    Now,
}

impl Default for Since {
    fn default() -> Self {
        Since::Seq(Seq::ZERO)
    }
}

impl std::str::FromStr for Since {
    type Err = Error;

    /// Reads `now` or a sequence.
    fn from_str(text: &str) -> Result<Self> {
        if text == "now" { Ok(Since::Now) } else { text.parse().map(Since::Seq) }
    }
}

/// Which revisions a row names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// The winner.
    #[default]
    MainOnly,
    /// All leaves.
    AllDocs,
}

/// What to read of the feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesRequest {
    /// Where to begin. Not heeded with `descending`, as in CouchDB.
    pub since: Since,
    /// With `descending`: only what is before this sequence; how a descending feed goes on.
    pub before: Option<Seq>,
    /// From the newest to the oldest.
    pub descending: bool,
    /// At most this many rows.
    pub limit: Option<usize>,
    /// Which revisions.
    pub style: Style,
    /// With the documents at their winners, deleted ones included.
    pub include_docs: bool,
    /// With the documents' live losing leaves.
    pub conflicts: bool,
    /// Only these documents.
    pub doc_ids: Option<Vec<String>>,
}

/// A row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The sequence of the document's last change.
    pub seq: Seq,
    /// The document.
    pub id: String,
    /// The winner first, then the other leaves if asked for.
    pub revs: Vec<RevId>,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// The document, if asked for.
    pub doc: Option<Box<Document>>,
}

/// A batch of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesBatch {
    /// The rows. A batch may be empty and not the last.
    pub rows: Vec<Change>,
    /// Everything up to this has been read: go on after it (before it, with `descending`).
    pub last_seq: Seq,
    /// Whether there is more to read now.
    pub more: bool,
    /// How many rows remain, where that costs nothing to know.
    pub pending: Option<u64>,
}

/// A row of `changes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeRow {
    pub(crate) id: String,
    pub(crate) winner: Leaf,
    pub(crate) branches: u64,
}

impl ChangeRow {
    pub(crate) fn read(value: &[u8]) -> Result<ChangeRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            SEQ_FORMAT => {}
            other => return Err(Error::corrupt(format!("a change in unknown format {other}"))),
        }
        let id = reader.str()?.into_owned();
        let rev = keys::read_rev(&mut reader)?;
        let branches = reader.int()?;
        let not_deleted = reader.bool()?;
        reader.end()?;
        Ok(ChangeRow { id, winner: Leaf { not_deleted, rev }, branches })
    }
}

/// What was found of the feed before revisions and documents are added.
struct Scan {
    rows: Vec<(Seq, ChangeRow)>,
    /// The last sequence looked at, filtered rows included.
    reached: Option<Seq>,
    more: bool,
}

impl<D: Database> Documents<D> {
    /// A batch of the changes feed.
    ///
    /// # Errors
    /// 404 where the database is gone.
    pub async fn changes(&self, request: &ChangesRequest) -> Result<ChangesBatch> {
        let keys = self.keys();
        let (last_key, stats_key) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        let from_the_beginning = !request.descending && request.since == Since::default() && request.doc_ids.is_none();
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&last_key, Read::Snapshot);
            let stats = from_the_beginning.then(|| transaction.get(&stats_key, Read::Snapshot));
            // Issued with the others where it needs nothing of them.
            let first = match (&request.doc_ids, request.since) {
                (None, Since::Seq(since)) => {
                    Some(transaction.get_range(&self.feed_range(request, since), Read::Snapshot))
                }
                _ => None,
            };
            async move {
                instance.await?;
                let last = read_last(last.await?.as_deref())?;
                let since = match request.since {
                    Since::Seq(since) => since,
                    Since::Now => last,
                };
                let scan = match (&request.doc_ids, first) {
                    (_, Some(first)) => self.scan(request, first.await?, None)?,
                    (Some(ids), _) if ids.len() <= IDS_LOOKED_UP => {
                        self.look_up(&transaction, request, since, ids).await?
                    }
                    (ids, None) => {
                        let range = self.feed_range(request, since);
                        let wanted = ids.as_ref().map(|ids| ids.iter().map(String::as_str).collect());
                        self.scan(request, transaction.get_range(&range, Read::Snapshot).await?, wanted.as_ref())?
                    }
                };
                let batch = self.fill(&transaction, request, scan).await?;
                let mut answer = batch.answer(request, since, last);
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

    fn scan(
        &self,
        request: &ChangesRequest,
        batch: kv_api::RangeBatch,
        wanted: Option<&HashSet<&str>>,
    ) -> Result<Scan> {
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut scan = Scan { rows: Vec::with_capacity(batch.rows.len().min(limit)), reached: None, more: batch.more };
        for row in &batch.rows {
            if scan.rows.len() == limit {
                scan.more = true;
                break;
            }
            let seq = self.keys().read_change(&row.key)?;
            let change = ChangeRow::read(&row.value)?;
            scan.reached = Some(seq);
            if wanted.is_none_or(|wanted| wanted.contains(change.id.as_str())) {
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
        ids: &[String],
    ) -> Result<Scan> {
        let ids: HashSet<&str> = ids.iter().map(String::as_str).collect();
        let winners: Vec<_> = ids.into_iter().map(|id| (id, Tree::Winner.read(transaction, self.keys(), id))).collect();
        let mut rows = Vec::new();
        for (id, winner) in winners {
            let Some(winner) = winner.await?.into_iter().next() else { continue };
            let crown = winner.crown()?;
            let asked_for =
                if request.descending { request.before.is_none_or(|seq| crown.seq < seq) } else { crown.seq > since };
            if asked_for {
                rows.push((crown.seq, ChangeRow { id: id.to_owned(), winner: winner.leaf, branches: crown.branches }));
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

    /// Adds revisions and documents to as many rows as a batch holds.
    async fn fill(&self, transaction: &D::Transaction, request: &ChangesRequest, scan: Scan) -> Result<Filled> {
        let mut filled = Filled { rows: Vec::with_capacity(scan.rows.len()), reached: scan.reached, more: scan.more };
        let mut bytes = 0;
        for some in scan.rows.chunks(BODIES_AT_ONCE) {
            let full = bytes >= BODY_BYTES;
            let read = if full { Ok(0) } else { self.fill_some(transaction, request, some, &mut filled.rows).await };
            match read {
                Ok(read) if !full => bytes += read,
                Err(error) if !error.is_retryable() || filled.rows.is_empty() => return Err(error),
                // Full, or the read version grew too old: what was read so far is as good as ever.
                Ok(_) | Err(_) => {
                    filled.reached = filled.rows.last().map(|change| change.seq);
                    filled.more = true;
                    break;
                }
            }
        }
        Ok(filled)
    }

    async fn fill_some(
        &self,
        transaction: &D::Transaction,
        request: &ChangesRequest,
        rows: &[(Seq, ChangeRow)],
        changes: &mut Vec<Change>,
    ) -> Result<usize> {
        let keys = self.keys();
        let options = GetOptions { conflicts: request.conflicts, ..GetOptions::default() };
        let reads: Vec<_> = rows
            .iter()
            .map(|(seq, row)| {
                let leaves = request.style == Style::AllDocs && row.branches > 1;
                let conflicts = request.include_docs && request.conflicts && row.branches > 1;
                let tree = (leaves || conflicts).then(|| Tree::Whole.read(transaction, keys, &row.id));
                let body = request.include_docs.then(|| body_of(transaction, keys, &row.id, &row.winner));
                (*seq, row, tree, body)
            })
            .collect();
        let (mut bytes, mut some) = (0, Vec::with_capacity(rows.len()));
        for (seq, row, tree, body) in reads {
            let tree = match tree {
                Some(tree) => Some(tree.await?),
                None => None,
            };
            let doc = match body {
                Some(body) => {
                    let body = body_or_empty(&row.id, &row.winner, body.await?)?;
                    bytes += body.len();
                    let rev = row.winner.rev.clone();
                    let mut document = Document::new(row.id.clone(), rev, !row.winner.not_deleted, body);
                    if let Some(tree) = &tree {
                        add_meta(&mut document, tree, &options)?;
                    }
                    Some(Box::new(document))
                }
                None => None,
            };
            let revs = match tree.filter(|_| request.style == Style::AllDocs) {
                Some(tree) => tree.into_iter().map(|branch| branch.leaf.rev).collect(),
                None => vec![row.winner.rev.clone()],
            };
            some.push(Change { seq, id: row.id.clone(), revs, deleted: !row.winner.not_deleted, doc });
        }
        changes.append(&mut some);
        Ok(bytes)
    }
}

struct Filled {
    rows: Vec<Change>,
    reached: Option<Seq>,
    more: bool,
}

impl Filled {
    fn answer(self, request: &ChangesRequest, since: Seq, last: Seq) -> ChangesBatch {
        let last_seq = match (request.descending, self.more) {
            // Nothing but what was filtered stands between the last row read and the last sequence.
            (false, false) => since.max(last),
            (false, true) => self.reached.unwrap_or(since),
            (true, _) => self.reached.or(request.before).unwrap_or(last),
        };
        let pending = (!self.more).then_some(0);
        ChangesBatch { rows: self.rows, last_seq, more: self.more, pending }
    }
}
