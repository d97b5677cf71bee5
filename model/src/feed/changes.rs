//! The changes feed: each document once, at the sequence of its last change (RFC 003, "Access Patterns").
//!
//! One call reads one batch in one transaction, and the caller continues after its last sequence. So a feed of any
//! length takes bounded memory, loses no row and keeps the order. A document that changes meanwhile moves to the end
//! of the feed and is read again there.
//!
//! `style=all_docs` reads `revisions` only for rows that name more than one branch.
//!
//! This file finds the rows of a batch; [`complete`](crate::feed::complete) adds leaves and documents to them.

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};

use crate::admin::info::read_last;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::feed::change::{Change, ChangesBatch, ChangesRequest, Since, Style};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, Leaf};
use crate::read::batch::BODIES_AT_ONCE;
use crate::read::winner::TreePart;
use crate::rows::change_row::ChangeRow;
use crate::rows::id_set::IdSet;
use crate::rows::stats::Stats;

/// Maximum number of rows in a batch.
const ROWS_AT_ONCE: usize = 2_000;

/// Maximum number of ids that are looked up one by one. For more ids the feed is read and filtered (CouchDB's
/// `changes_doc_ids_optimization_threshold`).
const IDS_LOOKED_UP: usize = 100;

impl ChangesRequest {
    /// Whether the leaves of a row's document are requested and more than the winner.
    pub(crate) fn wants_leaves(&self, row: &ChangeRow) -> bool {
        let wants_them = match self.style {
            Style::MainOnly => false,
            Style::AllDocs => true,
            // Without a live winner there are none.
            Style::Live => row.winner.not_deleted,
        };
        wants_them && row.branches > 1
    }
}

impl ChangeRow {
    /// The row for the answer, without other leaves and without the document.
    pub(crate) fn into_change(self, seq: Seq) -> Change {
        let Leaf { not_deleted, rev } = self.winner;
        Change { seq, number: None, id: self.id, revs: vec![rev], deleted: !not_deleted, doc: None, error: None }
    }
}

/// A row of the feed before revisions and documents are added, or the document and the error of a damaged one.
pub(crate) type ScannedRow = (Seq, std::result::Result<ChangeRow, (String, Error)>);

/// Rows of the feed before revisions and documents are added.
pub(crate) struct Scan {
    pub(crate) rows: Vec<ScannedRow>,
    /// The last sequence that was read, including rows that were filtered out.
    pub(crate) reached: Option<Seq>,
    pub(crate) more: bool,
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
            // Issued with the other reads unless it depends on them.
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
        let winners: Vec<_> = ids.iter().map(|id| (id, TreePart::Winner.read(transaction, self.keys(), id))).collect();
        let mut rows = Vec::new();
        for (id, winner) in winners {
            let Some(winner) = winner.await?.into_iter().next() else { continue };
            let winner_info = winner.winner_info()?;
            let asked_for = if request.descending {
                request.before.is_none_or(|seq| winner_info.seq < seq)
            } else {
                winner_info.seq > since
            };
            if asked_for {
                let change = ChangeRow { id: id.to_owned(), winner: winner.leaf, branches: winner_info.branches };
                rows.push((winner_info.seq, Ok(change)));
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
}

/// The error for a change whose document or revision is unknown. A feed that continued after it would lose the change
/// silently.
pub(crate) fn unreadable(seq: Seq) -> Error {
    Error::corrupt(format!("the change at {seq} cannot be read"))
}
