//! Checks that a database's rows agree with each other.
//!
//! ```text
//!  one page, one transaction                       what is checked for each document in it
//!  revisions  ▓▓▓▓ ids a..b, whole documents       only the last branch has the sequence
//!  docs       ▓▓▓▓ all rows of the ids a..b        a body for each live leaf and each tombstone that
//!  all_docs   ▓▓▓▓ all rows of the ids a..b          stores one, and no other; each can be read
//!  changes    the row at the winner's sequence     it agrees with the winner's row
//! ```
//!
//! Lists of attachments are compared with contents and references, and these with the lists: see [`attachments`].
//! Winners are compared with the rows of indexes, and these with the winners: see [`indexes`]. Purges and their UUIDs
//! are compared with each other: see [`purges`]. The list of design documents that validate edits is compared with
//! them: see [`validation`].
//!
//! Pages follow each other without gaps, so rows of documents that are not in `revisions` are found too. Then the
//! changes are walked: each row must belong to its document, so each document has exactly one. At the end, the counters
//! and the last sequence are compared with the walk.
//!
//! The walk takes many short transactions. A page shows the rows as of one moment. The totals are compared only if the
//! database did not change between the first page and the last; the report tells whether it did.

mod attachments;
mod document;
mod indexes;
mod purges;
mod repair;
mod replaced;
mod report;
mod trash;
mod validation;
mod views;

use std::collections::BTreeMap;

use kv_api::keys::key_after;
use kv_api::{Database, KeySelector, KeyValue, RangeBatch, RangeRequest, Read, Transaction, TransactionExt};

use crate::admin::info::read_last;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, Subspace};
use crate::read::batch::BATCH_BYTES;
use crate::read::winner::TreePart;
use crate::rows::branch::Branch;
use crate::rows::change_row::ChangeRow;
use crate::rows::instance::{Access, Instance};
use crate::rows::stats::Stats;
use crate::write::policy::ConflictPolicy;

pub use repair::{Repair, RepairReport};
pub(crate) use report::PROBLEMS_LISTED;
pub use report::{CheckReport, Problem};

use attachments::BadAttachment;
use document::{Body, Document};
use indexes::BadIndexed;
use report::{PAGE_ROWS, Sums};

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Number of documents walked.
    pub documents: u64,
    /// Number of rows of `changes` walked.
    pub changes: u64,
    /// Number of documents in the database, according to its counters.
    pub expected: u64,
}

/// The result of a walk.
struct Walked {
    report: CheckReport,
    sums: Sums,
    /// The last sequence and the counters, as stored.
    last: Seq,
    stats: Stats,
}

/// Rows of `changes`, with the winner of each row's document.
type ChangesPage = (RangeBatch, Vec<Result<Option<Branch>>>);

/// The rows of whole documents, as of one moment.
struct CheckPage {
    policy: ConflictPolicy,
    revisions: Vec<KeyValue>,
    docs: Vec<KeyValue>,
    all_docs: Vec<KeyValue>,
    /// Each document's row of `changes` at its winner's sequence.
    changes: BTreeMap<String, Option<kv_api::Bytes>>,
    /// Attachments whose rows do not agree.
    attachments: Vec<BadAttachment>,
    /// Documents whose rows in indexes do not agree with their winners.
    indexed: Vec<BadIndexed>,
    /// The last id of the page; `None` for the last page.
    upto: Option<String>,
}

impl<D: Database> Documents<D> {
    /// Walks the database and lists the problems. Calls `progress` after every page.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors. Damage is not an error, but part of the report.
    pub async fn check(&self, progress: impl FnMut(CheckProgress)) -> Result<CheckReport> {
        let Walked { mut report, sums, last, stats } = self.walk(progress).await?;
        if !report.changed_meanwhile && report.unreadable == 0 {
            let some_moved = self.has_rows(self.keys().all_moved().limit(1)).await?;
            compare_totals(&mut report, &sums, last, stats, some_moved);
        }
        Ok(report)
    }

    async fn walk(&self, mut progress: impl FnMut(CheckProgress)) -> Result<Walked> {
        let (mut report, mut sums) = (CheckReport::default(), Sums::default());
        let (instance, last_before, stats) = self.totals().await?;
        let expected = u64::try_from(stats.doc_count.saturating_add(stats.doc_del_count)).unwrap_or(0);
        for subspace in Subspace::ALL {
            match subspace {
                // Compared with the totals.
                Subspace::Last | Subspace::Stats => {}
                Subspace::Instance => {
                    let checked = self.check_validation(&instance, &mut report).await.map(drop);
                    noted("the list of validators", checked, &mut report)?;
                }
                // No other rows depend on them.
                Subspace::Security | Subspace::Local | Subspace::Counts => {}
                Subspace::Revisions => self.walk_documents(&mut report, &mut sums, expected, &mut progress).await?,
                // Walked with the revisions, or with the contents.
                Subspace::Docs | Subspace::AllDocs | Subspace::Parts | Subspace::References => {}
                Subspace::Changes => {
                    let mut reached = None;
                    while self.check_changes(&mut reached, &mut report).await? {
                        progress(CheckProgress { documents: report.documents, changes: report.changes, expected });
                    }
                    progress(CheckProgress { documents: report.documents, changes: report.changes, expected });
                }
                Subspace::Contents => {
                    let checked = self.check_contents(&mut report).await.map(drop);
                    noted("contents of attachments", checked, &mut report)?;
                }
                Subspace::Indexes => {
                    if instance.indexes.next > 0 {
                        let checked = self.check_definitions(&mut report).await.map(drop);
                        noted("definitions of indexes", checked, &mut report)?;
                        let checked = self.stray_index_rows(&mut report).await.map(drop);
                        noted("rows of indexes", checked, &mut report)?;
                    }
                }
                // Walked with the revisions, or with the definitions.
                Subspace::IndexRows | Subspace::Indexed => {}
                Subspace::Purges => {
                    let checked = self.check_purges(&mut report).await;
                    noted("purges", checked, &mut report)?;
                }
                Subspace::Replaced => {
                    let checked = self.check_replaced(&mut report).await;
                    noted("replaced revisions", checked, &mut report)?;
                }
                // Walked with the rows of replaced revisions.
                Subspace::ReplacedDocs => {}
                Subspace::Trash => {
                    let checked = self.check_trash(&mut report).await;
                    noted("the trash", checked, &mut report)?;
                }
                // Read with the rows of the trash.
                Subspace::TrashDocs => {}
                // If it cannot be read, the periods of the trash begin anew.
                Subspace::Passed => {}
                // Such a row has only its key.
                Subspace::Ended => {}
                Subspace::Views => {
                    let checked = self.check_view_groups(&mut report).await;
                    noted("views", checked, &mut report)?;
                }
            }
        }
        let (_, last, stats) = self.totals().await?;
        report.changed_meanwhile = last != last_before;
        if self.home.access == Access::Remains {
            // When a database leaves, its last sequence becomes the start of the next incarnation.
            sums.last = Seq::beginning_of(instance.incarnation.saturating_add(1));
        } else if last == Seq::beginning_of(instance.incarnation) {
            // The same happens when its store is adopted.
            sums.last = sums.last.max(last);
        }
        Ok(Walked { report, sums, last, stats })
    }

    async fn walk_documents(
        &self,
        report: &mut CheckReport,
        sums: &mut Sums,
        expected: u64,
        progress: &mut impl FnMut(CheckProgress),
    ) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.read_batch(PAGE_ROWS, |transaction, rows| self.page(transaction, after.as_deref(), rows));
            after = match page.await {
                Ok(page) => {
                    self.check_page(&page, report, sums);
                    page.upto
                }
                Err(error) => self.past_unreadable(after.as_deref(), error, report).await?,
            };
            progress(CheckProgress { documents: report.documents, changes: 0, expected });
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Reports the first document after an id whose rows the store cannot read. Returns the id after which the walk
    /// continues.
    async fn past_unreadable(
        &self,
        after: Option<&str>,
        error: Error,
        report: &mut CheckReport,
    ) -> Result<Option<String>> {
        let Some((_, end)) = error.unreadable() else { return Err(error) };
        let first = self.after(DatabaseKey::All(Subspace::Revisions), DatabaseKey::RevisionsOf, after, None).limit(1);
        let first = self.read(|transaction| {
            let read = transaction.get_range(&first, Read::Snapshot);
            async move { Ok(read.await?) }
        });
        let id_at = |key: &[u8]| self.keys().read_revision_id(key).ok();
        let id = match alone(first.await)? {
            Ok(batch) => batch.rows.first().and_then(|row| id_at(&row.key)),
            // The first document that can be read again may lack rows.
            Err(_) => {
                let from = after.map_or("the start".to_owned(), |id| format!("{id:?}"));
                report.add_unreadable(None, format!("documents after {from} cannot be read"), &error);
                id_at(end).or_else(|| id_at(end.split_last()?.1))
            }
        };
        if let Some(id) = &id {
            report.add_unreadable(Some(id), "cannot be read".to_owned(), &error);
        }
        Ok(id)
    }

    async fn totals(&self) -> Result<(Instance, Seq, Stats)> {
        let (last, stats) = (self.keys().key(DatabaseKey::Last), self.keys().key(DatabaseKey::Stats));
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let (last, stats) = (transaction.get(&last, Read::Snapshot), transaction.get(&stats, Read::Snapshot));
            async move {
                let instance = instance.await?;
                Ok((instance, read_last(last.await?.as_deref())?, Stats::read(stats.await?.as_deref())?))
            }
        })
        .await
    }

    /// Reads the documents after an id: about `rows` rows of `revisions`, and at most as many bodies as a batch holds.
    async fn page(&self, transaction: D::Transaction, after: Option<&str>, rows: usize) -> Result<CheckPage> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let request =
            self.after(DatabaseKey::All(Subspace::Revisions), DatabaseKey::RevisionsOf, after, None).limit(rows);
        let mut revisions = transaction.get_range(&request, Read::Snapshot).await?;
        let instance = instance.await?;
        if let Some(fit) = self.fitting(&revisions.rows) {
            revisions.rows.truncate(fit);
            revisions.more = true;
        }
        let mut upto = None;
        if revisions.more
            && let Some(last) = revisions.rows.last()
        {
            // The last document may have branches after the page: they are read too.
            let id = keys.read_revision_id(&last.key)?;
            let (_, end) = keys.bounds(DatabaseKey::RevisionsOf(&id));
            let rest = RangeRequest::selectors(
                KeySelector::first_greater_than(last.key.clone()),
                KeySelector::first_greater_or_equal(end),
            );
            revisions.rows.extend(transaction.get_all(rest, Read::Snapshot).await?);
            upto = Some(id);
        }
        let last = upto.as_deref();
        let docs = self.after(DatabaseKey::Docs, DatabaseKey::DocsOf, after, last);
        let docs = transaction.get_all(docs, Read::Snapshot);
        let all_docs = self.after(DatabaseKey::AllDocs, DatabaseKey::AllDoc, after, last);
        let all_docs = transaction.get_all(all_docs, Read::Snapshot);
        let changes: Vec<_> = revisions
            .rows
            .iter()
            .filter_map(|row| {
                let (id, leaf) = keys.read_revision(&row.key).ok()?;
                let winner_info = Branch::read(leaf, &row.value).ok()?.winner_info?;
                Some((id, transaction.get(&keys.key(DatabaseKey::Change(winner_info.seq)), Read::Snapshot)))
            })
            .collect();
        let (docs, all_docs) = (docs.await?, all_docs.await?);
        let mut rows = BTreeMap::new();
        for (id, row) in changes {
            rows.insert(id, row.await?);
        }
        let attachments = self.bad_attachments(&transaction, &docs).await?;
        let indexed =
            self.bad_indexed(&transaction, &instance, &revisions.rows, &docs, (after, upto.as_deref())).await?;
        let policy = instance.policy;
        Ok(CheckPage { policy, revisions: revisions.rows, docs, all_docs, changes: rows, attachments, indexed, upto })
    }

    /// Number of these rows that belong to the first documents whose bodies fit in a batch; `None` for all rows.
    fn fitting(&self, rows: &[KeyValue]) -> Option<usize> {
        let (mut bytes, mut document, mut begin) = (0u64, None, 0);
        for (at, row) in rows.iter().enumerate() {
            let id = self.keys().read_revision_id(&row.key).ok();
            if id != document {
                (document, begin) = (id, at);
            }
            let branch = self.keys().read_revision(&row.key).and_then(|(_, leaf)| Branch::read(leaf, &row.value));
            bytes = bytes.saturating_add(branch.map_or(0, |branch| branch.size));
            // The first document is always walked completely, whatever its size.
            if begin > 0 && bytes > BATCH_BYTES as u64 {
                return Some(begin);
            }
        }
        None
    }

    /// The keys of a subspace after the document `after`, up to and including the document `upto`.
    fn after<'i>(
        &self,
        subspace: DatabaseKey<'_>,
        of: impl Fn(&'i str) -> DatabaseKey<'i>,
        after: Option<&'i str>,
        upto: Option<&'i str>,
    ) -> RangeRequest {
        let (first, beyond) = self.keys().bounds(subspace);
        let begin = after.map_or(first, |id| self.keys().bounds(of(id)).1);
        let end = upto.map_or(beyond, |id| self.keys().bounds(of(id)).1);
        RangeRequest::keys(begin, end)
    }

    fn check_page(&self, page: &CheckPage, report: &mut CheckReport, sums: &mut Sums) {
        for (id, document) in self.documents_in(page, report) {
            let change = page.changes.get(&id).and_then(Option::as_ref);
            document.check(&id, page.policy, change.map(AsRef::as_ref), report, sums);
        }
        for bad in &page.attachments {
            report.add(Some(&bad.id), bad.what.clone());
        }
        for bad in &page.indexed {
            report.add(Some(&bad.id), bad.what.clone());
        }
    }

    /// The rows of a page by document. Keys that cannot be read are reported.
    fn documents_in(&self, page: &CheckPage, report: &mut CheckReport) -> BTreeMap<String, Document> {
        let keys = self.keys();
        let mut documents: BTreeMap<String, Document> = BTreeMap::new();
        for row in &page.revisions {
            match keys.read_revision(&row.key) {
                Ok((id, leaf)) => {
                    let document = documents.entry(id).or_default();
                    match Branch::read(leaf, &row.value) {
                        Ok(branch) => document.branches.push(branch),
                        Err(error) => document.broken.push(format!("a branch cannot be read: {}", error.reason())),
                    }
                }
                Err(error) => report.add(None, format!("a key of revisions cannot be read: {}", error.reason())),
            }
        }
        for row in &page.docs {
            match keys.read_doc(&row.key) {
                Ok((id, leaf, prefix)) => {
                    let bodies = &mut documents.entry(id).or_default().bodies;
                    match bodies.last_mut() {
                        Some(body) if body.leaf == leaf => body.rows.push(row.clone()),
                        _ => bodies.push(Body { leaf, prefix, rows: vec![row.clone()] }),
                    }
                }
                Err(error) => report.add(None, format!("a key of docs cannot be read: {}", error.reason())),
            }
        }
        for row in &page.all_docs {
            match keys.read_all_doc(&row.key) {
                Ok(id) => documents.entry(id).or_default().listed = Some(row.value.clone()),
                Err(error) => report.add(None, format!("a key of all_docs cannot be read: {}", error.reason())),
            }
        }
        documents
    }

    /// Reads the rows of `changes` from a key on.
    async fn changes_page(&self, next: &Option<kv_api::Bytes>) -> Result<ChangesPage> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Changes);
        let begin = next.clone().unwrap_or_else(|| first.into());
        let request = RangeRequest::keys(begin, beyond).limit(PAGE_ROWS);
        self.read(|transaction| {
            let request = request.clone();
            async move {
                let instance = self.instance(&transaction, Read::Snapshot);
                let batch = transaction.get_range(&request, Read::Snapshot).await?;
                instance.await?;
                let trees: Vec<_> = batch
                    .rows
                    .iter()
                    .map(|row| {
                        let id = ChangeRow::read_id(&row.value).unwrap_or_default();
                        TreePart::Winner.read(&transaction, keys, &id)
                    })
                    .collect();
                let mut winners = Vec::with_capacity(trees.len());
                for tree in trees {
                    // The page of the document has reported a branch that cannot be read.
                    winners.push(alone(tree.await)?.map(|tree| tree.into_iter().next()));
                }
                Ok((batch, winners))
            }
        })
        .await
    }

    /// Walks a page of the changes. Returns whether there are more.
    async fn check_changes(&self, next: &mut Option<kv_api::Bytes>, report: &mut CheckReport) -> Result<bool> {
        let keys = self.keys();
        let (batch, winners) = match self.changes_page(next).await {
            Ok(page) => page,
            Err(error) => {
                let Some((_, end)) = error.unreadable() else { return Err(error) };
                report.add_unreadable(None, "changes cannot be read".to_owned(), &error);
                *next = Some(end.clone());
                return Ok(*end < keys.bounds(DatabaseKey::Changes).1);
            }
        };
        for (row, winner) in batch.rows.iter().zip(winners) {
            report.changes += 1;
            let read = keys.read_change(&row.key).and_then(|seq| Ok((seq, ChangeRow::read(&row.value)?)));
            match (read, winner) {
                (Err(error), _) => report.add(None, format!("a change cannot be read: {}", error.reason())),
                (Ok((seq, change)), Ok(winner)) => {
                    if winner.and_then(|winner| winner.winner_info).map(|winner_info| winner_info.seq) != Some(seq) {
                        report.add(Some(&change.id), format!("has a change at {seq}, which is not its sequence"));
                    }
                }
                (Ok(_), Err(_)) => {}
            }
        }
        *next = batch.rows.last().map(|row| key_after(&row.key));
        Ok(batch.more && next.is_some())
    }
}

/// Reports rows of a kind that the store cannot read. Rows after them are not walked.
fn noted(kind: &str, checked: Result<()>, report: &mut CheckReport) -> Result<()> {
    match checked {
        Err(error) if error.unreadable().is_some() => {
            report.add_unreadable(
                None,
                format!("{kind} cannot be read, and those after them were not checked"),
                &error,
            );
            Ok(())
        }
        checked => checked,
    }
}

fn compare_totals(report: &mut CheckReport, sums: &Sums, last: Seq, stats: Stats, some_moved: bool) {
    // Edits are not counted by the walk.
    let stats = Stats { edits: 0, ..stats };
    if stats != sums.stats {
        report.add(None, format!("the counters say {stats:?}, the documents {:?}", sums.stats));
    }
    // The document that changed last may have been purged since, or a repair has moved it away. The last purge is never
    // forgotten.
    let may_be_ahead = last > sums.last && (some_moved || report.purges > 0);
    if last != sums.last && !may_be_ahead {
        report.add(None, format!("the last sequence is {last}, but the greatest is {}", sums.last));
    }
    if report.changes != report.documents {
        report.add(None, format!("there are {} documents and {} changes", report.documents, report.changes));
    }
}
