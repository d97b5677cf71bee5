//! The transaction of a group of purges.
//!
//! ```text
//!  reads     the rows of the purges' UUIDs, the last purge, the number to remember  one round trip
//!            all branches of each document
//!            in a collected database, the row of each document in the trash
//!  plans     only remove the named leaves; written like the plans of edits
//!  writes    a row for each purge, and one for its UUID; clears the oldest ones beyond the limit
//! ```
//!
//! Who purges the last leaf of a document wants it gone: what the trash has of it goes too, and cannot be brought back.
//! A purge of old tombstones does not know the document, so it leaves one in the trash alone.

use std::collections::{BTreeMap, HashSet};

use kv_api::{Database, Read, Transaction, TransactionExt, TransactionOption};

use super::attempt::{Attempt, Decisions, MissingStub, TARGET_BYTES};
use super::is_too_much;
use super::plan::{Decided, Fate, Plan};
use super::revive::clear_row;
use super::verdicts::Verdicts;
use crate::admin::purge::{PurgeInfo, PurgeSettings, Unit, newest, read_seq, seq_of};
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::keys::DatabaseKey;
use crate::rows::branch::{Branch, branches};
use crate::rows::revid::RevId;
use crate::rows::trash_row::TrashRow;
use crate::rows::tuple;
use crate::write::edit::WriteMode;
use crate::write::txids::Outcome;

/// Maximum number of purges that a transaction forgets, and approximate maximum of their bytes.
const FORGOTTEN: usize = 1_000;
const FORGOTTEN_BYTES: usize = 1_000_000;

impl<D: Database> Documents<D> {
    /// Carries out purges of different documents in one transaction. Returns the leaves that each removed.
    pub(crate) async fn purge_group(&self, units: &[Unit<'_>]) -> Result<Vec<Result<Vec<RevId>>>> {
        let hopeless = |error: &kv_api::Error| units.len() > 1 && is_too_much(error);
        let run = |transaction: D::Transaction| async move {
            let keys = self.keys();
            let instance = self.instance(&transaction, Read::Serializable);
            let newest = transaction.get_range(&newest(keys), Read::Serializable);
            let settings = transaction.get(&keys.key(DatabaseKey::PurgeSettings), Read::Snapshot);
            let reads: Vec<_> = units
                .iter()
                .map(|unit| {
                    let done = transaction.get(&keys.key(DatabaseKey::PurgeOf(&unit.uuid)), Read::Serializable);
                    let range = keys.range(DatabaseKey::RevisionsOf(unit.id)).target_bytes(TARGET_BYTES);
                    (unit, done, transaction.get_all(range, Read::Serializable))
                })
                .collect();
            let instance = instance.await?;
            let (mut trash, is_collected) = (BTreeMap::new(), instance.collections > 0);
            if is_collected {
                let ids: Vec<String> = units.iter().map(|unit| unit.id.to_owned()).collect();
                trash = self.trash_rows(&transaction, &ids).await?;
            }
            let is_condemned = |row: &Result<TrashRow>| matches!(row, Ok(TrashRow { trashed: None, .. }));
            let mut results: Vec<Result<Vec<RevId>>> = Vec::with_capacity(units.len());
            let (mut decided, mut places) = (Vec::with_capacity(units.len()), Vec::with_capacity(units.len()));
            for (place, (unit, done, rows)) in reads.into_iter().enumerate() {
                if let Some(seq) = done.await? {
                    results.push(match alone(self.purged_before(&transaction, &seq).await)? {
                        Ok(before) if before.id == unit.id && before.revs == unit.revs => Ok(before.purged),
                        Ok(_) => Err(duplicate(&unit.uuid)),
                        Err(damage) => Err(damage.of_document(unit.id)),
                    });
                    continue;
                }
                let mut known = branches(keys, unit.id, &rows.await?);
                if unit.of_deleted && trash.get(unit.id).is_some_and(|row| !is_condemned(row)) {
                    known = Ok(Vec::new());
                }
                let (purged, plan) = match alone(known.and_then(|known| plan(known, unit)))? {
                    Ok((purged, plan)) => (purged, Ok(plan)),
                    Err(damage) => (Vec::new(), Err(damage.of_document(unit.id))),
                };
                results.push(Ok(purged));
                places.push(place);
                decided.push(Decided { id: unit.id, drafts: 0..0, plan });
            }
            let verdicts = Verdicts::default();
            let attempt = self.attempt(&transaction, &[], WriteMode::Interactive, &verdicts);
            let attempt = Attempt { missing_stub: MissingStub::FailsItsEdit, ..attempt };
            let prepared = attempt.prepare(Decisions { instance, documents: decided }).await?;
            let (decided, _) = attempt.apply(prepared).await?;
            for Decided { id, plan, .. } in &decided {
                if !is_collected || !matches!(plan, Ok(Some(plan)) if plan.winner.is_none()) {
                    continue;
                }
                // Nothing ended of a document that is written here after this.
                transaction.clear(&keys.key(DatabaseKey::Ended(id)));
                if trash.contains_key(*id) {
                    clear_row(&transaction, keys, id);
                }
            }
            let before = seq_of(keys, &newest.await?.rows)?;
            let mut infos = Vec::with_capacity(decided.len());
            for (place, Decided { plan, .. }) in places.into_iter().zip(decided) {
                let Unit { id, revs, uuid, .. } = &units[place];
                match (plan, &results[place]) {
                    (Ok(_), Ok(purged)) => {
                        let seq = before + 1 + infos.len() as u64;
                        let (id, revs, purged) = ((*id).to_owned(), revs.clone(), purged.clone());
                        infos.push(PurgeInfo { seq, uuid: *uuid, id, revs, purged });
                    }
                    (Err(error), _) => results[place] = Err(error),
                    (Ok(_), Err(_)) => {}
                }
            }
            let Some(last) = infos.last() else { return Ok(Outcome::ReadOnly(results)) };
            let forgotten = last.seq.saturating_sub(PurgeSettings::read(settings.await?.as_deref())?.kept.max(1));
            for info in infos.iter().filter(|info| info.seq > forgotten) {
                let mut seq = Vec::with_capacity(9);
                tuple::append_u64(&mut seq, info.seq);
                transaction.set(keys.key(DatabaseKey::PurgeOf(&info.uuid)), seq);
                transaction.set(keys.key(DatabaseKey::Purge(info.seq)), info.write());
            }
            self.forget_purges(&transaction, forgotten.min(before)).await?;
            transaction.set_option(TransactionOption::BypassStorageQuota);
            Ok(Outcome::Write(results))
        };
        self.shared.guard.run_unless(hopeless, run).await
    }

    /// The remembered purge that the row of a UUID names.
    async fn purged_before(&self, transaction: &D::Transaction, seq: &[u8]) -> Result<PurgeInfo> {
        let seq = read_seq(seq)?;
        let row = transaction.get(&self.keys().key(DatabaseKey::Purge(seq)), Read::Serializable).await?;
        let row = row.ok_or_else(|| Error::corrupt(format!("the purge {seq} has a UUID but no row")))?;
        PurgeInfo::read(seq, &row)
    }

    /// Forgets the oldest purges up to this sequence. Unreadable rows are kept.
    async fn forget_purges(&self, transaction: &D::Transaction, upto: u64) -> Result<()> {
        if upto == 0 {
            return Ok(());
        }
        let keys = self.keys();
        let oldest = keys.purges_from(0).limit(FORGOTTEN).target_bytes(FORGOTTEN_BYTES);
        // Purges are serialised, so no other transaction clears these rows.
        for row in transaction.get_range(&oldest, Read::Snapshot).await?.rows {
            let Ok(seq) = keys.read_purge(&row.key) else { continue };
            if seq > upto {
                break;
            }
            if let Ok(info) = PurgeInfo::read(seq, &row.value) {
                transaction.clear(&keys.key(DatabaseKey::PurgeOf(&info.uuid)));
                transaction.clear(&row.key);
            }
        }
        Ok(())
    }
}

/// The refusal of a purge whose UUID belongs to another one.
fn duplicate(uuid: &[u8; 16]) -> Error {
    Error::bad_request(format!("Duplicate purge info UUID: {:032x}", u128::from_be_bytes(*uuid)))
}

/// The leaves to remove, in the order of the unit, and the plan; `None` if there are none.
fn plan(known: Vec<Branch>, unit: &Unit<'_>) -> Result<(Vec<RevId>, Option<Plan>)> {
    if unit.of_deleted && known.iter().any(|branch| branch.leaf.not_deleted) {
        return Ok((Vec::new(), None));
    }
    let leaves: HashSet<&RevId> = known.iter().map(|branch| &branch.leaf.rev).collect();
    let purged: Vec<RevId> = unit.revs.iter().filter(|rev| leaves.contains(rev)).cloned().collect();
    if purged.is_empty() {
        return Ok((purged, None));
    }
    let go: HashSet<&RevId> = purged.iter().collect();
    let fate = |branch: &Branch| if go.contains(&branch.leaf.rev) { Fate::Removed } else { Fate::Stays };
    let known = known.into_iter().map(|branch| {
        let fate = fate(&branch);
        (branch, fate)
    });
    let plan = Plan::new(known.collect(), Vec::new())?;
    Ok((purged, Some(plan)))
}
