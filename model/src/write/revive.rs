//! An edit brings the documents that it names back out of the trash, in its own transaction.
//!
//! ```text
//!  a file is edited ─► the ids in its `children` ─► rows of the trash
//!                                                     none        nothing
//!                                                     condemned   the row is cleared: a collection must begin anew
//!                                                     in trash    a new revision over the tombstone, from the trash
//!                   └► a list that cannot be read ─► the instance row: the collection that runs ends
//! ```
//!
//! So a document that was [collected](super::collect) and that a live leaf names is always there. The new revision
//! replicates like any other. A database in which no collection ever began reads nothing here: its instance row, which
//! every edit reads, says so.
//!
//! Rows that exist get conflict ranges. Others need none: a collection deletes only what an earlier one condemned, and
//! its beginning writes the instance row. So an edit that may have missed a row cannot commit.
//!
//! An edit that names more than fits into its transaction first revives what it names in transactions of their own, and
//! is then repeated. What cannot be revived, since its rows are damaged, stays in the trash. Its row then says that it
//! was named in vain, and the edit goes on without it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use json::{JsonKind, JsonText};
use kv_api::error::{NOT_COMMITTED, TRANSACTION_TOO_LARGE};
use kv_api::keys::key_after;
use kv_api::{ConflictRange, Database, KeyValue, Read, RetryError, Transaction, TransactionExt};

use super::apply::Writer;
use super::attempt::{Attempt, Decisions, TARGET_BYTES};
use super::draft::{Draft, DraftMemory, Turn};
use super::group;
use super::interactive;
use super::is_too_much;
use super::plan::{Decided, Plan};
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::indexes::{Source, Touched};
use crate::keys::{DatabaseKey, DatabaseKeys, Subspace};
use crate::rows::blob;
use crate::rows::body::StoredBody;
use crate::rows::branch::branches;
use crate::rows::instance::Instance;
use crate::rows::trash_row::{TrashRow, Trashed};
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::Outcome;

/// Number of rows that are looked up at a time.
const LOOKED_UP: usize = 1_000;

/// Maximum number of rows that an edit's own transaction clears. Each takes some 300 bytes with its conflict ranges.
const CLEARED: usize = 2_000;

/// Maximum number of documents that one transaction revives, and approximate size of their rows.
const REVIVED: usize = 300;
const REVIVED_BYTES: u64 = 2_000_000;

/// Approximate bytes of the rows of a revived document besides its body, with conflict ranges.
const ROWS_BYTES: u64 = 1_000;

/// How LiveSync begins the ciphertext that stands for a path and a list.
const SEALED: &str = "/\\:";
/// How the ids of its files with obfuscated paths begin, after the kind of the file.
const OBFUSCATED: &str = "f:";
const KINDS: [&str; 3] = ["i:", "ix:", "ps:"];

/// What edits change in the trash.
#[derive(Default)]
pub(super) struct Reviving {
    /// Documents that get a new revision.
    revived: Vec<Revived>,
    /// Documents whose rows in the trash are cleared: condemned ones, and ones that live again.
    cleared: Vec<String>,
    /// Documents in the trash that an edit of the same transaction writes, with the place of its plan.
    written: Vec<(usize, Named)>,
    /// Documents that cannot be revived.
    in_vain: Vec<Named>,
    /// Whether the instance row changed: a list could not be read, so the collection that runs must end.
    pub(super) ends_collection: bool,
}

/// A document in the trash that an edit names: its row, with what only such a row has.
struct Named {
    id: String,
    since_ms: u64,
    collection: u64,
    trashed: Trashed,
}

struct Revived {
    named: Named,
    text: JsonText,
    plan: Plan,
    /// Its place among the bodies of the transaction.
    bodies: Range<usize>,
}

impl Reviving {
    /// The plans of the revived documents, each with its id and the places of its bodies.
    pub(super) fn plans(&self) -> impl Iterator<Item = (&str, &Plan, Range<usize>)> {
        self.revived.iter().map(|one| (one.named.id.as_str(), &one.plan, one.bodies.clone()))
    }

    /// The effect of the revived documents on indexes.
    pub(super) fn touched(&self) -> impl Iterator<Item = Touched<'_>> {
        self.revived.iter().map(|one| Touched {
            id: &one.named.id,
            had_rows: false,
            winner: one.plan.winner.as_ref().map(|leaf| (leaf, Source::Brought(&one.text, None))),
        })
    }

    /// Leaves these of the revived documents in the trash: their rows in indexes are damaged.
    pub(super) fn leave(&mut self, damaged: &[(usize, Error)]) {
        for (place, one) in std::mem::take(&mut self.revived).into_iter().enumerate() {
            match damaged.iter().find(|(at, _)| *at == place) {
                Some((_, error)) => self.fail(one.named, error),
                None => self.revived.push(one),
            }
        }
    }

    /// Leaves a document in the trash.
    fn fail(&mut self, named: Named, error: &Error) {
        tracing::warn!(id = named.id, %error, "a document that an edit names stays in the trash: it cannot be revived");
        self.in_vain.push(named);
    }

    /// Writes the rows of the trash. What an edit of the transaction should have written stays there if it was refused.
    pub(super) fn write_rows(&self, transaction: &impl Transaction, keys: &DatabaseKeys, decided: &[Decided<'_>]) {
        for id in self.revived.iter().map(|one| &one.named.id).chain(&self.cleared) {
            clear_row(transaction, keys, id);
        }
        for (place, named) in &self.written {
            if decided[*place].plan.is_ok() {
                clear_row(transaction, keys, &named.id);
            }
        }
        self.in_vain.iter().for_each(|named| named.mark(transaction, keys));
    }
}

impl Named {
    /// `None` if the document is only condemned.
    fn of(id: String, row: TrashRow) -> Option<Named> {
        let TrashRow { since_ms, collection, trashed } = row;
        Some(Named { id, since_ms, collection, trashed: trashed? })
    }

    /// Notes that the document was named in vain.
    fn mark(&self, transaction: &impl Transaction, keys: &DatabaseKeys) {
        if !self.trashed.in_vain {
            let trashed = Some(Trashed { in_vain: true, ..self.trashed.clone() });
            let row = TrashRow { since_ms: self.since_ms, collection: self.collection, trashed };
            transaction.set(keys.key(DatabaseKey::Trash(&self.id)), row.write());
        }
    }
}

/// Clears what the trash has of a document.
pub(super) fn clear_row(transaction: &impl Transaction, keys: &DatabaseKeys, id: &str) {
    transaction.clear(&keys.key(DatabaseKey::Trash(id)));
    blob::clear(transaction, &keys.key(DatabaseKey::TrashDoc(id)));
}

/// Whether a transaction with so many documents need not be tried again as it is.
pub(super) fn is_hopeless(error: &kv_api::Error, documents: usize) -> bool {
    if documents > 1 { is_too_much(error) } else { error.code() == TRANSACTION_TOO_LARGE }
}

/// Adds the ids of the documents that a document names. Returns whether these are all, as far as can be known: files
/// whose paths LiveSync obfuscates have their lists in ciphertext.
fn add_named(id: &str, body: &JsonText, named: &mut BTreeSet<String>) -> bool {
    let text = |name: &str| body.get(name).and_then(|text| text.as_str());
    let path = text("path");
    let mut are_all = !path.as_ref().is_some_and(|path| path.starts_with(SEALED));
    let Some(list) = body.get("children") else {
        return are_all && !text("type").is_some_and(|kind| matches!(&*kind, "plain" | "newnote"));
    };
    if list.kind() != JsonKind::Array {
        return false;
    }
    let mut is_empty = true;
    for one in list.elements() {
        is_empty = false;
        match one.as_str() {
            Some(one) => drop(named.insert(one.into_owned())),
            None => are_all = false,
        }
    }
    let id = KINDS.iter().find_map(|kind| id.strip_prefix(kind)).unwrap_or(id);
    let is_clear = || path.is_some_and(|path| !path.is_empty() && !path.starts_with('%'));
    are_all && (!is_empty || !id.starts_with(OBFUSCATED) || is_clear())
}

impl<D: Database> Attempt<'_, '_, D> {
    /// Looks up what the live leaves that the plans add name. The bodies of revived documents are added to `bodies`.
    pub(super) async fn prepare_reviving(
        &self,
        decisions: &mut Decisions<'_>,
        bodies: &mut Vec<Arc<StoredBody>>,
    ) -> Result<Reviving> {
        let Decisions { instance, documents: decided } = decisions;
        let (mut named, mut own, mut are_all) = (BTreeSet::new(), HashMap::new(), true);
        for (place, one) in decided.iter().enumerate() {
            let Ok(Some(plan)) = &one.plan else { continue };
            let edits = &self.drafts[one.drafts.clone()];
            for new in plan.added.iter().filter(|new| new.leaf.not_deleted) {
                are_all &= add_named(one.id, &edits[new.edit].edit.body, &mut named);
            }
            if plan.brings_back {
                named.insert(one.id.to_owned());
            }
            own.insert(one.id, (place, plan.winner.as_ref().is_some_and(|leaf| leaf.not_deleted)));
        }
        let mut reviving = Reviving::default();
        let (documents, keys) = (self.documents, self.documents.keys());
        // The number of a collection is even.
        if !are_all && instance.collections.is_multiple_of(2) {
            instance.collections += 1;
            reviving.ends_collection = true;
            // Once for each collection, since further edits do not come here.
            let rows = keys.range(DatabaseKey::All(Subspace::Trash)).limit(1);
            // A trash that cannot be read stops no edit.
            let first = alone(self.transaction.get_range(&rows, Read::Snapshot).await.map_err(Error::from))?;
            if !first.is_ok_and(|first| first.rows.is_empty()) {
                tracing::warn!(
                    database = documents.name(),
                    "a document was written whose list of others cannot be read: it may need text that is in the trash"
                );
            }
        }
        let named: Vec<String> = named.into_iter().collect();
        let rows = documents.trash_rows(self.transaction, &named).await?;
        if rows.len() > CLEARED && documents.revive_ahead(rows.keys().cloned().collect()).await? {
            return Err(changed_meanwhile());
        }
        let mut trashed = Vec::new();
        for (id, row) in rows {
            match row {
                Ok(TrashRow { trashed: None, .. }) => reviving.cleared.push(id),
                Ok(row) => {
                    let Some(named) = Named::of(id, row) else { continue };
                    // The same transaction may write the document itself.
                    match own.get(named.id.as_str()) {
                        None => trashed.push(named),
                        Some((place, true)) => reviving.written.push((*place, named)),
                        // Whoever deletes it now keeps it deleted, and what is in the trash stays there.
                        Some((_, false)) => {}
                    }
                }
                Err(error) => tracing::warn!(id, %error, "a row of the trash that an edit names cannot be read"),
            }
        }
        let left = documents.revive(self.transaction, instance, trashed, bodies, true, &mut reviving).await?;
        if !left.is_empty() {
            if documents.revive_ahead(left.iter().map(|named| named.id.clone()).collect()).await? {
                return Err(changed_meanwhile());
            }
            // None of them could be revived.
            reviving.in_vain.extend(left);
        }
        Ok(reviving)
    }
}

/// The transaction has read rows that another one of the same edit changed.
fn changed_meanwhile() -> Error {
    kv_api::Error::new(NOT_COMMITTED).into()
}

impl<D: Database> Documents<D> {
    /// The rows of these documents in the trash, or why they cannot be read. Rows that exist get conflict ranges.
    pub(super) async fn trash_rows(
        &self,
        transaction: &D::Transaction,
        ids: &[String],
    ) -> Result<BTreeMap<String, Result<TrashRow>>> {
        let mut found = BTreeMap::new();
        for some in ids.chunks(LOOKED_UP) {
            let get = |id: &String| {
                let key = self.keys().key(DatabaseKey::Trash(id));
                let read = transaction.get(&key, Read::Snapshot);
                (key, read)
            };
            let reads: Vec<_> = some.iter().map(|id| (id, get(id))).collect();
            for (id, (key, read)) in reads {
                let row = match alone(read.await.map_err(Error::from))? {
                    Ok(None) => continue,
                    Ok(Some(row)) => TrashRow::read(&row),
                    Err(damage) => Err(damage),
                };
                transaction.add_conflict_range(&key, &key_after(&key), ConflictRange::Read);
                found.insert(id.clone(), row);
            }
        }
        Ok(found)
    }

    /// Makes plans for documents in the trash, until they are too many for a transaction. `beside` is whether it writes
    /// something else: a large body then is one too many by itself. Returns those that are left over, the last ones.
    async fn revive(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        trashed: Vec<Named>,
        bodies: &mut Vec<Arc<StoredBody>>,
        beside: bool,
        reviving: &mut Reviving,
    ) -> Result<Vec<Named>> {
        let keys = self.keys();
        let cost = |named: &Named| named.trashed.bytes.saturating_add(ROWS_BYTES);
        let (mut trashed, mut taken, mut bytes) = (trashed.into_iter().peekable(), Vec::new(), 0_u64);
        while taken.len() < REVIVED
            && let Some(named) = trashed
                .next_if(|named| bytes.saturating_add(cost(named)) <= REVIVED_BYTES || !beside && taken.is_empty())
        {
            bytes = bytes.saturating_add(cost(&named));
            taken.push(named);
        }
        let read = |named: Named| {
            let body = transaction.get_all(blob::range(&keys.key(DatabaseKey::TrashDoc(&named.id))), Read::Snapshot);
            let known = keys.range(DatabaseKey::RevisionsOf(&named.id)).target_bytes(TARGET_BYTES);
            let known = transaction.get_all(known, Read::Serializable);
            (named, body, known)
        };
        let reads: Vec<_> = taken.into_iter().map(read).collect();
        let (mut memory, mut bytes, mut left) = (DraftMemory::default(), 0, Vec::new());
        for (named, body, known) in reads {
            if !left.is_empty() {
                left.push(named);
                continue;
            }
            let rows = match (body.await, known.await) {
                (Ok(body), Ok(known)) => Ok((body, known)),
                (Err(error), _) | (_, Err(error)) => Err(Error::from(error)),
            };
            let revived =
                rows.and_then(|(body, known)| self.plan_revival(instance, &named, &body, &known, &mut memory));
            match revived {
                Ok((text, plan, rows, cost)) => {
                    // A body may have many rows.
                    if bytes + cost > REVIVED_BYTES && (beside || bytes > 0) {
                        left.push(named);
                        continue;
                    }
                    bytes += cost;
                    let begin = bodies.len();
                    bodies.extend(rows);
                    let bodies = begin..bodies.len();
                    reviving.revived.push(Revived { named, text, plan, bodies });
                }
                // Somebody wrote it again meanwhile.
                Err(error) if error == Error::conflict() => reviving.cleared.push(named.id),
                Err(error) if error.is_damage() || error.is_of_edit() => reviving.fail(named, &error),
                Err(error) => return Err(error),
            }
        }
        left.extend(trashed);
        Ok(left)
    }

    /// The new revision of a document in the trash: its text, its plan, the rows of its body, and approximately the bytes
    /// of all its rows. A conflict if it lives.
    fn plan_revival(
        &self,
        instance: &Instance,
        named: &Named,
        body: &[KeyValue],
        known: &[KeyValue],
        memory: &mut DraftMemory,
    ) -> Result<(JsonText, Plan, Vec<Arc<StoredBody>>, u64)> {
        let Some((_, text)) = blob::read(body)? else { return Err(Error::corrupt("its body is not in the trash")) };
        let tombstone = &named.trashed.tombstone;
        let edit = Edit::new(named.id.clone(), text.clone()).over(tombstone.clone());
        let place = self.body_context();
        let draft = Draft::new(Turn { turn: 0, edit: &edit }, WriteMode::Interactive, place, instance.format, memory);
        let plan = interactive::revive(instance, &draft, tombstone, branches(self.keys(), &named.id, known)?)?;
        let mut rows = Vec::new();
        for new in &plan.added {
            rows.extend(draft.rows(&new.leaf, place, instance.format)?);
        }
        let cost = group::estimate(&edit, instance.revs_limit as usize, instance.format);
        Ok((text, plan, rows, cost as u64))
    }

    /// Revives documents in transactions of their own. Until a file names them they are unreferenced, which is no harm.
    /// Returns whether any row of the trash changed.
    async fn revive_ahead(&self, ids: Vec<String>) -> Result<bool> {
        let (mut rest, mut at_once, mut is_changed, mut too_large) = (ids.as_slice(), REVIVED, false, Vec::new());
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(at_once)];
            let hopeless = |error: &kv_api::Error| is_hopeless(error, some.len());
            let run = |transaction: D::Transaction| async move { self.revive_some(&transaction, some).await };
            match self.shared.guard.run_unless(hopeless, run).await {
                Ok((taken, changes)) => {
                    is_changed |= changes;
                    (rest, at_once) = (&rest[taken.clamp(1, some.len())..], REVIVED);
                }
                Err(error) if !error.kv_error().is_some_and(|error| is_hopeless(error, some.len())) => {
                    return Err(error);
                }
                Err(_) if some.len() > 1 => at_once = some.len() / 2,
                Err(error) => {
                    too_large.push((some[0].clone(), error));
                    (rest, at_once) = (&rest[1..], REVIVED);
                }
            }
        }
        for (id, error) in too_large {
            let (id, error) = (&[id], &error);
            let run = |transaction: D::Transaction| async move {
                self.instance(&transaction, Read::Serializable).await?;
                let mut reviving = Reviving::default();
                for (id, row) in self.trash_rows(&transaction, id).await? {
                    row.ok().and_then(|row| Named::of(id, row)).into_iter().for_each(|one| reviving.fail(one, error));
                }
                let is_changed = reviving.in_vain.iter().any(|named| !named.trashed.in_vain);
                reviving.write_rows(&transaction, self.keys(), &[]);
                Ok(if is_changed { Outcome::Write(true) } else { Outcome::ReadOnly(false) })
            };
            is_changed |= self.shared.guard.run(run).await?;
        }
        Ok(is_changed)
    }

    /// Revives the first of these documents. Returns how many were looked at, and whether any row changed.
    async fn revive_some(&self, transaction: &D::Transaction, ids: &[String]) -> Result<Outcome<(usize, bool)>> {
        let instance = self.instance(transaction, Read::Serializable).await?;
        let (mut reviving, mut trashed) = (Reviving::default(), Vec::new());
        for (id, row) in self.trash_rows(transaction, ids).await? {
            match row {
                Ok(TrashRow { trashed: None, .. }) => reviving.cleared.push(id),
                Ok(row) => trashed.extend(Named::of(id, row)),
                // The edit says so.
                Err(_) => {}
            }
        }
        // In the order in which they were asked for, so that those left over are the last ones.
        let places: HashMap<&str, usize> = ids.iter().enumerate().map(|(place, id)| (id.as_str(), place)).collect();
        let place = |named: &Named| places.get(named.id.as_str()).copied().unwrap_or_default();
        trashed.sort_by_key(place);
        let mut bodies = Vec::new();
        let left = self.revive(transaction, &instance, trashed, &mut bodies, false, &mut reviving).await?;
        let taken = left.first().map_or(ids.len(), place);
        let mut indexing = None;
        if !instance.indexes.kept.is_empty() {
            let touched: Vec<Touched<'_>> = reviving.touched().collect();
            let mut changes = self.index_changes(transaction, &instance, &touched, false).await?;
            drop(touched);
            reviving.leave(&std::mem::take(&mut changes.refused));
            indexing = Some(changes);
        }
        let count = reviving.plans().count();
        let edit_count = self.count_edits(transaction, count).await?;
        let mut writer = Writer::new(transaction, self.keys(), &instance, count, bodies);
        for (place, (id, plan, bodies)) in reviving.plans().enumerate() {
            writer.apply(place, id, plan, bodies, Vec::new());
        }
        let written = writer.finish();
        reviving.write_rows(transaction, self.keys(), &[]);
        if let Some(edit_count) = edit_count {
            edit_count.write(transaction, self.keys(), instance.incarnation);
        }
        if let Some(indexing) = indexing.filter(|_| written > 0) {
            indexing.write(transaction);
        }
        let is_marked = reviving.in_vain.iter().any(|named| !named.trashed.in_vain);
        let is_changed = written > 0 || is_marked || !reviving.cleared.is_empty();
        Ok(if is_changed { Outcome::Write((taken, true)) } else { Outcome::ReadOnly((taken, false)) })
    }
}
