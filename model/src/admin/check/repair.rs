//! Repairs a damaged database.
//!
//! Readable rows decide. A document with a problem is written again from its readable rows, with a new sequence.
//! Unreadable rows are moved, byte for byte, and never removed:
//!
//! ```text
//!  a live leaf     its body can be read       it is kept; without ancestors if its row cannot be read
//!                  its body cannot be read    its rows are moved: a replication restores the revision
//!  a tombstone                                it is kept; a body that cannot be read is moved
//!  a body without a leaf, or a listing or a change without a winner      moved
//!  an unreadable change of a document that was not repaired              moved, and written again from the winner
//!
//!  (4 to 7, …)  ──►  (24 to 27, …)            revisions, changes, docs, all_docs: the same keys and values
//!                    (28 to 31, …) and so on                 if another value was moved from the same key before
//! ```
//!
//! Rows of indexes are written again from the documents, and removed if they do not belong to a document. View groups
//! whose rows are inconsistent are removed, and rebuilt by the next query.
//!
//! A document with rows in an unknown format is not repaired. Neither is a document that does not fit in a transaction.
//! If a document was not repaired, a change whose document is unknown is kept: it may belong to that document. The
//! counters are corrected last, if there were no writes meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use kv_api::keys::key_after;
use kv_api::{Database, KeyValue, MutationType, Read, Transaction, TransactionExt};

use super::attachments::BadAttachment;
use super::report::{CheckReport, PAGE_ROWS, Sums};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::feed::seq::Seq;
use crate::indexes::{Source, Touched};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::limits::{DESIGN_END, DESIGN_PREFIX};
use crate::read::all_docs::{AllDocsRequest, read_winner};
use crate::read::winner::decode;
use crate::rows::branch::Branch;
use crate::rows::change_row::ChangeRow;
use crate::rows::stats::Stats;
use crate::write::policy::ConflictPolicy;
use crate::write::txids::Outcome;
use crate::write::write_kept;

/// The repair of a document, or of a row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The document, if it is known.
    pub document: Option<String>,
    /// Number of rows that were moved, or the reason why nothing was done.
    pub outcome: Result<u64>,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Number of documents written again, and of changes moved.
    pub repaired: u64,
    /// Number of documents and changes that were not repaired.
    pub left: u64,
    /// Number of rows moved.
    pub moved: u64,
    /// The result of a check after the repair.
    pub after: CheckReport,
}

impl RepairReport {
    fn note(&mut self, repair: &Repair) {
        match repair.outcome {
            Ok(moved) => {
                self.repaired += 1;
                self.moved += moved;
            }
            Err(_) => self.left += 1,
        }
    }
}

/// The rows of a document, divided.
#[derive(Default)]
struct Sorted {
    kept: Vec<Branch>,
    moved: Vec<KeyValue>,
}

impl<D: Database> Documents<D> {
    /// Repairs what [`check`](Self::check) reports, as far as possible. Calls `progress` for each document and row that
    /// was repaired or not.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors. Each document is repaired in its own transaction. After an
    /// interruption, start the repair again.
    pub async fn repair(&self, progress: impl FnMut(&Repair)) -> Result<RepairReport> {
        self.repair_with(false, progress).await
    }

    /// The same, after the store gave up rows that it could not read. Contents of attachments without an owner are
    /// kept: the lost rows may have been their owners.
    ///
    /// # Errors
    /// As [`repair`](Self::repair).
    pub async fn repair_after_loss(&self, progress: impl FnMut(&Repair)) -> Result<RepairReport> {
        self.repair_with(true, progress).await
    }

    async fn repair_with(&self, is_after_loss: bool, mut progress: impl FnMut(&Repair)) -> Result<RepairReport> {
        let mut report = RepairReport::default();
        let mut after: Option<String> = None;
        loop {
            let page = self.read_batch(PAGE_ROWS, |transaction, rows| self.page(transaction, after.as_deref(), rows));
            let page = page.await?;
            for (id, document) in self.documents_in(&page, &mut CheckReport::default()) {
                // Before the document itself: the repair of the document may move the rows that this one needs.
                let bad: Vec<&BadAttachment> = page.attachments.iter().filter(|bad| bad.id == id).collect();
                for bad in bad {
                    let repair =
                        Repair { document: Some(id.clone()), outcome: settled(self.repair_attachment(bad).await)? };
                    report.note(&repair);
                    progress(&repair);
                }
                let (mut own, change) = (CheckReport::default(), page.changes.get(&id).and_then(Option::as_ref));
                document.check(&id, page.policy, change.map(AsRef::as_ref), &mut own, &mut Sums::default());
                if !own.is_sound() {
                    let repair = Repair { outcome: settled(self.repair_document(&id).await)?, document: Some(id) };
                    report.note(&repair);
                    progress(&repair);
                }
            }
            let indexed: BTreeSet<String> = page.indexed.into_iter().map(|bad| bad.id).collect();
            for id in indexed {
                self.note_indexed(id, &mut report, &mut progress).await?;
            }
            after = page.upto;
            if after.is_none() {
                break;
            }
        }
        let some_left = report.left > 0;
        self.repair_changes(some_left, &mut report, &mut progress).await?;
        if !is_after_loss {
            self.repair_contents(&mut report, &mut progress).await?;
        }
        self.repair_indexes(&mut report, &mut progress).await?;
        self.repair_views(&mut report, &mut progress).await?;
        self.repair_totals().await?;
        report.after = self.check(|_| ()).await?;
        Ok(report)
    }

    async fn note_indexed(
        &self,
        id: String,
        report: &mut RepairReport,
        progress: &mut impl FnMut(&Repair),
    ) -> Result<()> {
        let outcome = settled(self.repair_indexed(&id).await)?;
        let repair = Repair { document: Some(id), outcome };
        report.note(&repair);
        progress(&repair);
        Ok(())
    }

    /// Corrects the definitions of indexes and the list of design documents that validate, from the design documents.
    /// Removes rows without an index or a document: all their data are in the documents.
    async fn repair_indexes(&self, report: &mut RepairReport, progress: &mut impl FnMut(&Repair)) -> Result<()> {
        let (instance, ..) = self.totals().await?;
        let unlisted = self.check_validation(&instance, &mut CheckReport::default()).await?;
        let wrong = self.check_definitions(&mut CheckReport::default()).await?;
        let mut designs: BTreeSet<String> = wrong.iter().flatten().cloned().chain(unlisted).collect();
        if wrong.iter().any(Option::is_none) {
            // The design document of an unreadable definition is unknown, so all are tried.
            designs.extend(self.design_ids().await?);
        }
        for id in designs {
            self.note_indexed(id, report, progress).await?;
        }
        for key in self.stray_index_rows(&mut CheckReport::default()).await? {
            let repair = Repair { document: None, outcome: settled(self.remove_stray(&key).await)? };
            report.note(&repair);
            progress(&repair);
        }
        Ok(())
    }

    /// Removes view groups whose rows cannot be read or are inconsistent, and rows without a group. All their data are
    /// in the documents. A group with rows of a later version is kept. If the head of one group cannot be read, all
    /// groups are kept. If the group of one row cannot be read, all rows without a group are kept.
    async fn repair_views(&self, report: &mut RepairReport, progress: &mut impl FnMut(&Repair)) -> Result<()> {
        let Ok(groups) = settled(self.view_groups().await)? else { return Ok(()) };
        for group in groups {
            let wrong = settled(self.wrong_view_rows(&group.signature).await)?;
            if wrong.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            let outcome = match wrong.map_or_else(unless_unknown, |_| Ok(())) {
                Ok(()) => settled(self.remove_view_group(&group.signature).await)?.map(|_| 0),
                Err(unknown) => Err(unknown),
            };
            let repair = Repair { document: Some(group.name), outcome };
            report.note(&repair);
            progress(&repair);
        }
        let mut outcomes = Vec::new();
        match settled(self.headless_view_groups().await)? {
            Err(error) => outcomes.push(Err(error)),
            Ok(numbers) => {
                for number in numbers {
                    outcomes.push(settled(self.remove_headless_view_group(number).await)?.map(|()| 0));
                }
            }
        }
        for outcome in outcomes {
            let repair = Repair { document: None, outcome };
            report.note(&repair);
            progress(&repair);
        }
        Ok(())
    }

    /// The ids of all live design documents.
    pub(super) async fn design_ids(&self) -> Result<Vec<String>> {
        let (start, end) = (Some(DESIGN_PREFIX.to_owned()), Some(DESIGN_END.to_owned()));
        let mut next = Some(AllDocsRequest { start, end, ..AllDocsRequest::default() });
        let mut ids = Vec::new();
        while let Some(request) = next {
            let batch = self.all_docs(&request).await?;
            ids.extend(batch.rows.into_iter().map(|row| row.id));
            next = batch.next;
        }
        Ok(ids)
    }

    /// Removes contents, references and parts without an owner, if every document could be read: a list of attachments
    /// that was kept or moved may name them.
    async fn repair_contents(&self, report: &mut RepairReport, progress: &mut impl FnMut(&Repair)) -> Result<()> {
        let unowned = self.check_contents(&mut CheckReport::default()).await?;
        if unowned.references.is_empty() && unowned.contents.is_empty() && unowned.parts.is_empty() {
            return Ok(());
        }
        let outcome = if report.left > 0 {
            Err(Error::corrupt("contents without references may belong to a document that was left"))
        } else {
            settled(self.remove_unowned(&unowned).await)?.map(|_| 0)
        };
        let repair = Repair { document: None, outcome };
        report.note(&repair);
        progress(&repair);
        Ok(())
    }

    /// Writes a document again from its readable rows. Returns the number of other rows, which were moved.
    async fn repair_document(&self, id: &str) -> Result<u64> {
        let keys = self.keys();
        let listed_key = keys.key(DatabaseKey::AllDoc(id));
        let listed_key = listed_key.as_slice();
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable);
                let revisions = transaction.get_all(keys.range(DatabaseKey::RevisionsOf(id)), Read::Serializable);
                let docs = transaction.get_all(keys.range(DatabaseKey::DocsOf(id)), Read::Serializable);
                let listed = transaction.get(listed_key, Read::Serializable);
                let instance = instance.await?;
                let revisions = revisions.await?;
                self.refuse_unknown_changes(&transaction, &revisions).await?;
                let Sorted { kept, mut moved } = sort_out(keys, id, revisions, docs.await?)?;
                if instance.policy == ConflictPolicy::LastWriteWins && kept.len() > 1 {
                    let what =
                        "it has several leaves, though the last write wins: a greater revision replaces them all";
                    return Err(Error::corrupt(what));
                }
                if let Some(value) = listed.await?
                    && read_winner(&value).is_err()
                {
                    moved.push(KeyValue { key: listed_key.to_vec().into(), value });
                }
                let winner = kept.iter().map(|branch| &branch.leaf).max().filter(|leaf| leaf.not_deleted);
                let touched = Touched { id, had_rows: true, winner: winner.map(|leaf| (leaf, Source::Stored)) };
                let mut indexing = self.index_changes(&transaction, &instance, &[touched], true).await?;
                if let Some((_, error)) = indexing.refused.pop() {
                    return Err(error);
                }
                let (begin, end) = keys.bounds(DatabaseKey::RevisionsOf(id));
                transaction.clear_range(&begin, &end);
                transaction.clear(listed_key);
                move_away(&transaction, keys, &moved).await?;
                if kept.is_empty() {
                    // The feed does not show that the document is gone.
                    self.rebuild_all_views(&transaction).await?;
                }
                write_kept(&transaction, keys, &instance, id, kept);
                indexing.write(&transaction);
                Ok(Outcome::Write(moved.len() as u64))
            })
            .await
    }

    /// Refuses a document whose change was written by a later version.
    async fn refuse_unknown_changes(&self, transaction: &D::Transaction, revisions: &[KeyValue]) -> Result<()> {
        let keys = self.keys();
        for row in revisions {
            let branch = keys.read_revision(&row.key).and_then(|(_, leaf)| Branch::read(leaf, &row.value));
            let Some(winner_info) = branch.ok().and_then(|branch| branch.winner_info) else { continue };
            let change = transaction.get(&keys.key(DatabaseKey::Change(winner_info.seq)), Read::Serializable).await?;
            if let Some(Err(error)) = change.map(|change| ChangeRow::read(&change)) {
                unless_unknown(error)?;
            }
        }
        Ok(())
    }

    /// Moves the rows of the feed that have no winner. `some_left` tells whether documents were left as they are.
    async fn repair_changes(
        &self,
        some_left: bool,
        report: &mut RepairReport,
        progress: &mut impl FnMut(&Repair),
    ) -> Result<()> {
        let mut next = None;
        loop {
            let (batch, winners) = self.changes_page(&next).await?;
            for (row, winner) in batch.rows.iter().zip(winners) {
                let seq = self.keys().read_change(&row.key).ok();
                let winner_info = winner.ok().flatten().and_then(|winner| winner.winner_info);
                let id = ChangeRow::read_id(&row.value).ok();
                if ChangeRow::read(&row.value).is_ok()
                    && seq.is_some()
                    && winner_info.map(|winner_info| winner_info.seq) == seq
                {
                    continue;
                }
                let outcome = settled(self.repair_change(row, seq, id.as_deref(), some_left).await)?;
                let repair = Repair { document: id, outcome };
                report.note(&repair);
                progress(&repair);
            }
            next = batch.rows.last().map(|row| key_after(&row.key));
            if !batch.more || next.is_none() {
                return Ok(());
            }
        }
    }

    /// Moves a row of the feed, unless it is proved to be its document's row, or its document cannot be read. The row
    /// of a document that was not repaired is written again at the same key: otherwise the feed would never show the
    /// document.
    async fn repair_change(&self, row: &KeyValue, seq: Option<Seq>, id: Option<&str>, some_left: bool) -> Result<u64> {
        let keys = self.keys();
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable);
                let found = transaction.get(&row.key, Read::Serializable);
                let last = id.map(|id| keys.range(DatabaseKey::RevisionsOf(id)).reverse().limit(1));
                let last = last.map(|last| transaction.get_range(&last, Read::Serializable));
                instance.await?;
                let Some(value) = found.await? else { return Ok(Outcome::ReadOnly(0)) };
                let unreadable = match ChangeRow::read(&value) {
                    Ok(_) => false,
                    Err(error) => unless_unknown(error).map(|()| true)?,
                };
                let (mut anew, mut superseded) = (None, false);
                if let (Some(id), Some(last)) = (id, last)
                    && let Some(winner) = last.await?.rows.first()
                {
                    let (_, leaf) = keys.read_revision(&winner.key)?;
                    let winner = Branch::read(leaf, &winner.value)?;
                    let winner_info = winner.winner_info()?;
                    if Some(winner_info.seq) == seq {
                        if !unreadable {
                            return Ok(Outcome::ReadOnly(0));
                        }
                        anew =
                            Some(ChangeRow { id: id.to_owned(), winner: winner.leaf, branches: winner_info.branches });
                    }
                    superseded = Some(winner_info.seq) != seq;
                }
                if some_left && anew.is_none() && !superseded {
                    let why = "this change may be the only one of a document that was left";
                    return Err(Error::corrupt(why));
                }
                move_away(&transaction, keys, &[KeyValue { key: row.key.clone(), value }]).await?;
                if let Some(change) = anew {
                    transaction.set(&row.key, change.row());
                }
                Ok(Outcome::Write(1))
            })
            .await
    }

    /// Corrects the counters and the last sequence from a walk, if there are no writes meanwhile.
    async fn repair_totals(&self) -> Result<()> {
        let walked = self.walk(|_| ()).await?;
        let missing = Stats {
            doc_count: walked.sums.stats.doc_count.wrapping_sub(walked.stats.doc_count),
            doc_del_count: walked.sums.stats.doc_del_count.wrapping_sub(walked.stats.doc_del_count),
            external: walked.sums.stats.external.wrapping_sub(walked.stats.external),
            edits: 0,
        };
        let (behind, differs) = (walked.last < walked.sums.last, missing != Stats::default());
        if walked.report.changed_meanwhile || !(behind || differs) {
            return Ok(());
        }
        let (stats_key, last_key) = (self.keys().key(DatabaseKey::Stats), self.keys().key(DatabaseKey::Last));
        let (stats_key, last_key, last) = (stats_key.as_slice(), last_key.as_slice(), walked.sums.last);
        self.shared
            .guard
            .run(|transaction| async move {
                self.instance(&transaction, Read::Serializable).await?;
                // Both operations are correct even with concurrent writes: differences add up, and the greater sequence
                // stays.
                transaction.atomic_op(MutationType::Add, stats_key, &missing.operand());
                transaction.atomic_op(MutationType::ByteMax, last_key, last.as_bytes());
                Ok(Outcome::Write(()))
            })
            .await
    }
}

/// Separates errors of one document, which cannot be repaired, from errors of the store.
fn settled<T>(outcome: Result<T>) -> Result<Result<T>> {
    use kv_api::error::{KEY_TOO_LARGE, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD};
    match outcome {
        Err(error) => match error.kind() {
            ErrorKind::Store(store)
                if [KEY_TOO_LARGE, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD].contains(&store.code()) =>
            {
                Ok(Err(error))
            }
            _ => alone(Err(error)),
        },
        done => Ok(done),
    }
}

/// Damage must be repaired. Rows of a later version are not damage.
fn unless_unknown(error: Error) -> Result<()> {
    if matches!(error.kind(), ErrorKind::UnknownFormat(_)) { Err(error) } else { Ok(()) }
}

/// Moves rows. If another row was moved from the same key before, the next free place is used.
async fn move_away<T: Transaction>(transaction: &T, keys: &DatabaseKeys, rows: &[KeyValue]) -> Result<()> {
    for row in rows {
        let mut earlier = 0;
        loop {
            let to = keys.moved(&row.key, earlier);
            let to = to.ok_or_else(|| Error::corrupt("too many rows were moved from one key"))?;
            match transaction.get(&to, Read::Serializable).await? {
                Some(there) if there != row.value => earlier += 1,
                _ => {
                    transaction.set(&to, &row.value);
                    break;
                }
            }
        }
        transaction.clear(&row.key);
    }
    Ok(())
}

/// Divides the rows of a document into branches to keep and rows to move.
fn sort_out(keys: &DatabaseKeys, id: &str, revisions: Vec<KeyValue>, docs: Vec<KeyValue>) -> Result<Sorted> {
    let mut sorted = Sorted::default();
    let mut bodies: BTreeMap<Leaf, Vec<KeyValue>> = BTreeMap::new();
    for row in docs {
        match keys.read_doc(&row.key) {
            Ok((_, leaf, _)) => bodies.entry(leaf).or_default().push(row),
            Err(_) => sorted.moved.push(row),
        }
    }
    for row in revisions {
        let Ok((_, leaf)) = keys.read_revision(&row.key) else {
            sorted.moved.push(row);
            continue;
        };
        let rows = bodies.remove(&leaf).unwrap_or_default();
        let body = (!rows.is_empty()).then(|| decode(&keys.key(DatabaseKey::Doc(id, &leaf)), &rows));
        let mut attachments = false;
        let size = match body {
            Some(Ok(body)) => {
                attachments = !body.attachments.is_empty();
                Some(body.text.len() as u64)
            }
            Some(Err(error)) => {
                unless_unknown(error)?;
                sorted.moved.extend(rows);
                (!leaf.not_deleted).then_some(0)
            }
            None => (!leaf.not_deleted).then_some(0),
        };
        let branch = match readable(leaf.clone(), &row) {
            Ok(branch) => Some(branch),
            Err(error) => unless_unknown(error).map(|()| None)?,
        };
        match (branch, size) {
            (Some(branch), Some(size)) => sorted.kept.push(Branch { size, attachments, ..branch }),
            (None, Some(size)) => {
                sorted.kept.push(Branch { attachments, ..Branch::bare(leaf, size) });
                sorted.moved.push(row);
            }
            (_, None) => sorted.moved.push(row),
        }
    }
    sorted.moved.extend(bodies.into_values().flatten());
    Ok(sorted)
}

/// The branch in a row, if the whole row can be read.
fn readable(leaf: Leaf, row: &KeyValue) -> Result<Branch> {
    let branch = Branch::read(leaf, &row.value)?;
    if branch.ancestors.to_vec()?.len() as u64 >= branch.leaf.rev.position() {
        return Err(Error::corrupt("more ancestors than positions"));
    }
    Ok(branch)
}
