//! An edit brings the documents that it names back out of the trash, in its own transaction.
//!
//! ```text
//!  a file is edited ─► the ids in its `children` ─► rows of the trash, with conflict ranges
//!                                                     none        nothing
//!                                                     condemned   the row is cleared: a collection must begin anew
//!                                                     in trash    a new revision over the tombstone, from the trash
//! ```
//!
//! So a document that was [collected](super::collect) and that a live leaf names is always there. The new revision
//! replicates like any other. A database in which no collection ever began reads nothing here: its instance row, which
//! every edit reads, says so.
//!
//! An edit that names more than fits into its transaction first revives what it names in transactions of their own, and
//! is then repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;
use json::{JsonKind, JsonText};
use kv_api::error::NOT_COMMITTED;
use kv_api::{Database, Read, Transaction, TransactionExt};

use super::apply::Writer;
use super::attempt::{Attempt, Decisions};
use super::draft::{Draft, DraftMemory, Turn};
use super::interactive::{self, FirstDecision};
use super::plan::Plan;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::indexes::{Source, Touched};
use crate::keys::{DatabaseKey, DatabaseKeys, Subspace};
use crate::rows::blob;
use crate::rows::body::StoredBody;
use crate::rows::instance::Instance;
use crate::rows::trash_row::TrashRow;
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::Outcome;

/// Maximum number of ids that are looked up one by one. For more, all rows of the trash are read: each look-up takes a
/// conflict range.
const ONE_BY_ONE: usize = 2_000;

/// Approximate size of the bodies that one transaction revives.
const REVIVED_BYTES: usize = 2_000_000;

/// What edits change in the trash.
#[derive(Default)]
pub(super) struct Reviving {
    /// Documents that get a new revision.
    revived: Vec<Revived>,
    /// Documents whose rows in the trash are cleared.
    cleared: Vec<String>,
}

struct Revived {
    id: String,
    text: JsonText,
    plan: Plan,
    /// Its place among the bodies of the transaction.
    bodies: Range<usize>,
}

impl Reviving {
    /// The plans of the revived documents, each with its id and the places of its bodies.
    pub(super) fn plans(&self) -> impl Iterator<Item = (&str, &Plan, Range<usize>)> {
        self.revived.iter().map(|one| (one.id.as_str(), &one.plan, one.bodies.clone()))
    }

    /// The effect of the revived documents on indexes.
    pub(super) fn touched(&self) -> impl Iterator<Item = Touched<'_>> {
        self.revived.iter().map(|one| Touched {
            id: &one.id,
            had_rows: false,
            winner: one.plan.winner.as_ref().map(|leaf| (leaf, Source::Brought(&one.text, None))),
        })
    }

    /// Leaves these of the revived documents in the trash: their rows in indexes are damaged.
    pub(super) fn leave(&mut self, damaged: &[usize]) {
        let mut place = 0;
        self.revived.retain(|_| {
            place += 1;
            !damaged.contains(&(place - 1))
        });
    }

    /// Clears the rows of the trash.
    pub(super) fn clear_rows(&self, transaction: &impl Transaction, keys: &DatabaseKeys) {
        for id in self.revived.iter().map(|one| &one.id).chain(&self.cleared) {
            clear_row(transaction, keys, id);
        }
    }
}

/// Clears what the trash has of a document.
pub(super) fn clear_row(transaction: &impl Transaction, keys: &DatabaseKeys, id: &str) {
    transaction.clear(&keys.key(DatabaseKey::Trash(id)));
    blob::clear(transaction, &keys.key(DatabaseKey::TrashDoc(id)));
}

/// The ids of the documents that a document names.
fn children(body: &JsonText) -> impl Iterator<Item = String> {
    let list = body.get("children").filter(|list| list.kind() == JsonKind::Array);
    list.into_iter().flat_map(|list| list.elements()).filter_map(|id| Some(id.as_str()?.into_owned()))
}

impl<D: Database> Attempt<'_, '_, D> {
    /// Looks up what the live leaves that the plans add name. The bodies of revived documents are added to `bodies`.
    pub(super) async fn prepare_reviving(
        &self,
        decisions: &Decisions<'_>,
        bodies: &mut Vec<Arc<StoredBody>>,
    ) -> Result<Reviving> {
        let Decisions { instance, documents: decided } = decisions;
        let plans = || decided.iter().filter_map(|one| Some((one, one.plan.as_ref().ok()?.as_ref()?)));
        let mut named = BTreeSet::new();
        for (one, plan) in plans() {
            let edits = &self.drafts[one.drafts.clone()];
            for new in plan.added.iter().filter(|new| new.leaf.not_deleted) {
                named.extend(children(&edits[new.edit].edit.body));
            }
        }
        let documents = self.documents;
        let rows = documents.trash_rows(self.transaction, &named).await?;
        let (mut reviving, mut trashed) = (Reviving::default(), Vec::new());
        for (id, row) in rows {
            // The same transaction may write the document itself.
            let own = plans().find(|(one, _)| one.id == id);
            match own.map(|(_, plan)| plan.winner.as_ref().is_some_and(|leaf| leaf.not_deleted)) {
                None if row.in_trash => trashed.push(id),
                None | Some(true) => reviving.cleared.push(id),
                // Whoever deletes it now keeps it deleted, and what is in the trash stays there.
                Some(false) => {}
            }
        }
        if trashed.is_empty() {
            return Ok(reviving);
        }
        let (revived, rest) = documents.revive(self.transaction, instance, &trashed, bodies, true).await?;
        if rest > 0 {
            documents.revive_ahead(trashed).await?;
            // This transaction has read rows that were cleared now.
            return Err(kv_api::Error::new(NOT_COMMITTED).into());
        }
        reviving.cleared.extend(revived.cleared);
        reviving.revived = revived.revived;
        Ok(reviving)
    }
}

impl<D: Database> Documents<D> {
    /// The rows of these documents in the trash, with conflict ranges. Unreadable rows are left alone.
    pub(super) async fn trash_rows(
        &self,
        transaction: &D::Transaction,
        ids: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, TrashRow>> {
        let (keys, mut found) = (self.keys(), BTreeMap::new());
        if ids.len() > ONE_BY_ONE {
            let all = keys.range(DatabaseKey::All(Subspace::Trash));
            let mut batches = Box::pin(transaction.stream(all, Read::Serializable));
            while let Some(batch) = batches.next().await.transpose()? {
                for row in batch {
                    if let Ok(id) = keys.read_trash(&row.key)
                        && ids.contains(&id)
                        && let Ok(row) = TrashRow::read(&row.value)
                    {
                        found.insert(id, row);
                    }
                }
            }
            return Ok(found);
        }
        let get = |id: &String| transaction.get(&keys.key(DatabaseKey::Trash(id)), Read::Serializable);
        let reads: Vec<_> = ids.iter().map(|id| (id, get(id))).collect();
        for (id, read) in reads {
            if let Some(Ok(row)) = read.await?.map(|row| TrashRow::read(&row)) {
                found.insert(id.clone(), row);
            }
        }
        Ok(found)
    }

    /// Makes plans for documents in the trash, until their bodies are too many for a transaction. `beside` is whether
    /// it writes something else: a large body then is one too many by itself. Returns how many documents were left over.
    /// One whose rows are damaged stays in the trash.
    async fn revive(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        ids: &[String],
        bodies: &mut Vec<Arc<StoredBody>>,
        beside: bool,
    ) -> Result<(Reviving, usize)> {
        let (keys, place) = (self.keys(), self.body_context());
        let (mut reviving, mut bytes, mut memory) = (Reviving::default(), 0, DraftMemory::default());
        for (at, id) in ids.iter().enumerate() {
            let rows = transaction.get_all(blob::range(&keys.key(DatabaseKey::TrashDoc(id))), Read::Snapshot).await;
            let read = rows.map_err(Error::from).and_then(|rows| blob::read(&rows));
            let Ok(Some((_, text))) = alone(read)? else { continue };
            if bytes + text.len() > REVIVED_BYTES && (beside || bytes > 0) {
                return Ok((reviving, ids.len() - at));
            }
            let edit = Edit::new(id.clone(), text.clone());
            let turn = Turn { turn: 0, edit: &edit };
            let draft = Draft::new(turn, WriteMode::Interactive, place, instance.format, &mut memory);
            let first = interactive::begin(transaction, keys, &draft);
            let decided = alone(interactive::decide(keys, instance, &draft, first).await)?;
            match decided {
                Ok(FirstDecision::Decided(Ok(plan))) => {
                    bytes += text.len();
                    let begin = bodies.len();
                    for new in &plan.added {
                        bodies.extend(draft.rows(&new.leaf, place, instance.format)?);
                    }
                    let bodies = begin..bodies.len();
                    reviving.revived.push(Revived { id: id.clone(), text, plan, bodies });
                }
                // Somebody wrote it again meanwhile.
                Ok(FirstDecision::Decided(Err(error))) if error == Error::conflict() => {
                    reviving.cleared.push(id.clone());
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok((reviving, 0))
    }

    /// Revives documents in transactions of their own. Until a file names them they are unreferenced, which is no harm.
    async fn revive_ahead(&self, mut ids: Vec<String>) -> Result<()> {
        while !ids.is_empty() {
            let some = ids.as_slice();
            let run = |transaction: D::Transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable).await?;
                let named = some.iter().cloned().collect();
                let rows = self.trash_rows(&transaction, &named).await?;
                let trashed: Vec<String> =
                    some.iter().filter(|id| rows.get(*id).is_some_and(|row| row.in_trash)).cloned().collect();
                let mut bodies = Vec::new();
                let (mut reviving, rest) = self.revive(&transaction, &instance, &trashed, &mut bodies, false).await?;
                let mut indexing = None;
                if !instance.indexes.kept.is_empty() {
                    let touched: Vec<Touched<'_>> = reviving.touched().collect();
                    let mut changes = self.index_changes(&transaction, &instance, &touched, false).await?;
                    drop(touched);
                    let damaged: Vec<usize> =
                        std::mem::take(&mut changes.refused).into_iter().map(|(at, _)| at).collect();
                    reviving.leave(&damaged);
                    indexing = Some(changes);
                }
                let count = reviving.plans().count();
                let edit_count = self.count_edits(&transaction, count).await?;
                let mut writer = Writer::new(&transaction, self.keys(), &instance, count, bodies);
                for (place, (id, plan, bodies)) in reviving.plans().enumerate() {
                    writer.apply(place, id, plan, bodies, Vec::new());
                }
                let written = writer.finish();
                reviving.clear_rows(&transaction, self.keys());
                if let Some(edit_count) = edit_count {
                    edit_count.write(&transaction, self.keys(), instance.incarnation);
                }
                if let Some(indexing) = indexing.filter(|_| written > 0) {
                    indexing.write(&transaction);
                }
                let is_unchanged = written == 0 && reviving.cleared.is_empty();
                Ok(if is_unchanged { Outcome::ReadOnly(rest) } else { Outcome::Write(rest) })
            };
            let rest = self.shared.guard.run(run).await?;
            // Those left over are the last ones.
            ids.drain(..ids.len() - rest);
        }
        Ok(())
    }
}
