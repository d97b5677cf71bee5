//! Completes the rows of the changes feed with leaves and documents.
//!
//! A document with damaged rows has a row with an error ([`Change::error`]), and the feed continues after it. If the
//! row of the feed itself is damaged, the revision comes from the winner's row. If that cannot be read either, the feed
//! stops with an error: without a revision, no client would fetch the document.

use std::future::{Future, Ready};

use futures_util::future::Either;
use kv_api::{Database, Transaction};

use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::feed::change::{Change, ChangesBatch, ChangesRequest, Style};
use crate::feed::changes::{Scan, ScannedRow, unreadable};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKeys;
use crate::read::batch::Batch;
use crate::read::document::{Body, Document, GetOptions};
use crate::read::winner::{TreePart, add_meta, body_of, body_or_empty};
use crate::rows::branch::Branch;
use crate::rows::change_row::ChangeRow;

impl ChangesRequest {
    /// Whether a row needs no further reads.
    fn has_all_of(&self, row: &ScannedRow) -> bool {
        row.1.as_ref().is_ok_and(|row| !self.include_docs && !self.wants_leaves(row))
    }
}

impl<D: Database> Documents<D> {
    /// Adds revisions and documents to as many rows as a batch holds, for `at_once` of them at the same time.
    pub(crate) async fn fill(
        &self,
        transaction: &D::Transaction,
        request: &ChangesRequest,
        scan: Scan,
        at_once: usize,
    ) -> Result<Filled> {
        let total = scan.rows.len();
        let rows = Vec::with_capacity(total);
        let mut filled = Filled { rows, batch: Batch::of(total), reached: scan.reached, more: scan.more };
        let mut rows = scan.rows.into_iter().peekable();
        let mut has_room = true;
        while has_room && filled.rows.len() < total {
            // Most rows are complete, and need none of the futures below.
            while let Some((seq, Ok(row))) = rows.next_if(|row| request.has_all_of(row)) {
                filled.add(row.into_change(seq), 0);
            }
            let reads: Vec<_> =
                rows.by_ref().take(at_once).map(|row| complete(transaction, self.keys(), request, row)).collect();
            has_room = filled.take(reads).await?;
        }
        if filled.rows.len() < total {
            filled.reached = filled.rows.last().map(|change| change.seq);
            filled.more = true;
        }
        Ok(filled)
    }
}

/// Starts the reads of a row at once. Returns the row, and the number of bytes that were read for it.
fn complete<'r, T: Transaction>(
    transaction: &'r T,
    keys: &'r DatabaseKeys,
    request: &'r ChangesRequest,
    (seq, row): ScannedRow,
) -> impl Future<Output = Result<(Change, usize)>> + use<'r, T> {
    match row {
        Ok(row) => {
            let leaves = request.wants_leaves(&row);
            let losing = request.conflicts || request.deleted_conflicts;
            let conflicts = request.include_docs && losing && row.branches > 1;
            let tree = (leaves || conflicts).then(|| TreePart::Whole.read(transaction, keys, &row.id));
            let body = request.include_docs.then(|| body_of(transaction, keys, &row.id, &row.winner));
            Either::Left(change(seq, row, tree, body, request))
        }
        Err((id, error)) => {
            let winner = TreePart::Winner.read(transaction, keys, &id);
            Either::Right(async move {
                let row = row_of_winner(seq, id, winner.await)?;
                let tree = request.wants_leaves(&row).then(|| TreePart::Whole.read(transaction, keys, &row.id));
                let error = error.of_document(&row.id);
                let (change, bytes) = change(seq, row, tree, None::<Ready<_>>, request).await?;
                Ok((Change { error: Some(error), ..change }, bytes))
            })
        }
    }
}

/// The content of a damaged row, from the winner of its document, if the winner has this sequence.
fn row_of_winner(seq: Seq, id: String, winner: Result<Vec<Branch>>) -> Result<ChangeRow> {
    let winner = alone(winner)?.ok().and_then(|branches| branches.into_iter().next());
    match winner {
        Some(Branch { leaf, winner_info: Some(winner_info), .. }) if winner_info.seq == seq => {
            Ok(ChangeRow { id, winner: leaf, branches: winner_info.branches })
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

/// A batch of the feed while it is filled.
pub(crate) struct Filled {
    rows: Vec<Change>,
    batch: Batch,
    reached: Option<Seq>,
    more: bool,
}

impl Filled {
    fn add(&mut self, change: Change, bytes: usize) {
        self.rows.push(change);
        self.batch.add(bytes);
    }

    /// Adds rows whose reads were started, in order. Returns whether all of them fit.
    async fn take(&mut self, reads: Vec<impl Future<Output = Result<(Change, usize)>>>) -> Result<bool> {
        for read in reads {
            if self.batch.is_full() {
                return Ok(false);
            }
            match read.await {
                Ok((change, bytes)) => self.add(change, bytes),
                // The read version became too old. The rows read before are valid.
                Err(error) if error.is_retryable() && !self.rows.is_empty() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn answer(self, request: &ChangesRequest, since: Seq, last: Seq) -> ChangesBatch {
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
