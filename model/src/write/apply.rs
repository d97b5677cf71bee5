//! A plan becomes writes.
//!
//! For one edit, in the common case of one branch:
//!
//! ```text
//!  revisions   clear the row extended         set the new winner's, with the pending versionstamp
//!  docs        clear the body extended        set the new body's rows
//!  changes     clear the document's old row   set the new one, its key with the pending versionstamp
//!  all_docs    set the winner, or clear it
//! ```
//!
//! and once for a transaction: `last`, with the versionstamp of its last edit, and the counters.
//!
//! Only rows of `revisions` take write conflict ranges: every edit of a document reads and writes its
//! winner's row, and nobody decides a write by any of the others.

use kv_api::{MutationType, Transaction};

use crate::body::StoredBody;
use crate::branch::{Branch, PendingCrown};
use crate::info::Stats;
use crate::instance::Instance;
use crate::keys::{self, DatabaseKey, DatabaseKeys, Leaf};
use crate::row::STAMP_LEN;
use crate::tuple;
use crate::txids::Unguarded;

use super::plan::{Plan, Winner};

/// The format of a row of `changes` (RFC 003's `SeqFormat`).
pub(crate) const SEQ_FORMAT: u64 = 1;

/// Writes the plans of one transaction.
pub(super) struct Writer<'a, T> {
    transaction: &'a T,
    keys: &'a DatabaseKeys,
    instance: &'a Instance,
    /// Reused for every row.
    key: Vec<u8>,
    value: Vec<u8>,
    stats: Stats,
    /// Edits written so far; the place of the next one in the transaction.
    edits: u16,
}

impl<'a, T: Transaction> Writer<'a, T> {
    pub(super) fn new(transaction: &'a T, keys: &'a DatabaseKeys, instance: &'a Instance) -> Self {
        Writer {
            transaction,
            keys,
            instance,
            key: Vec::with_capacity(128),
            value: Vec::with_capacity(256),
            stats: Stats::default(),
            edits: 0,
        }
    }

    /// Writes one edit.
    pub(super) fn apply(&mut self, id: &str, plan: &Plan, body: Option<&StoredBody>) {
        let edit = self.edits;
        self.edits += 1;
        for branch in &plan.removed {
            self.remove(id, branch);
        }
        if let Some(body) = body {
            self.transaction.set_rows_unguarded(body.shared_rows());
        }
        let crown = PendingCrown { incarnation: self.instance.incarnation, edit, branches: plan.branches };
        self.set_branches(id, plan, crown);
        self.set_change(id, plan, edit);
        self.set_all_docs(id, plan);
        self.count(plan);
    }

    fn remove(&mut self, id: &str, branch: &Branch) {
        self.keys.write(&mut self.key, DatabaseKey::Revision(id, &branch.leaf));
        self.transaction.clear(&self.key);
        if branch.size > 0 {
            self.keys.write(&mut self.key, DatabaseKey::Doc(id, &branch.leaf));
            self.value.clear();
            self.value.extend_from_slice(&self.key);
            self.value.push(keys::BEYOND);
            self.transaction.clear_range_unguarded(&self.key, &self.value);
        }
    }

    fn set_branches(&mut self, id: &str, plan: &Plan, crown: PendingCrown) {
        for branch in &plan.lengthened {
            self.keys.write(&mut self.key, DatabaseKey::Revision(id, &branch.leaf));
            Branch::write(&mut self.value, branch.size, &branch.ancestors);
            self.transaction.set(&self.key, &self.value);
        }
        let new = &plan.new;
        self.keys.write(&mut self.key, DatabaseKey::Revision(id, &new.leaf));
        match plan.winner {
            Winner::New => {
                Branch::write_winner(&mut self.value, crown, new.size, &new.ancestors);
                self.transaction.atomic_op(MutationType::SetVersionstampedValue, &self.key, &self.value);
            }
            Winner::Other => {
                Branch::write(&mut self.value, new.size, &new.ancestors);
                self.transaction.set(&self.key, &self.value);
            }
        }
        let Some(other) = &plan.other else { return };
        self.keys.write(&mut self.key, DatabaseKey::Revision(id, &other.leaf));
        match plan.winner {
            Winner::New => {
                Branch::write(&mut self.value, other.size, &other.ancestors);
                self.transaction.set(&self.key, &self.value);
            }
            Winner::Other => {
                Branch::write_winner(&mut self.value, crown, other.size, &other.ancestors);
                self.transaction.atomic_op(MutationType::SetVersionstampedValue, &self.key, &self.value);
            }
        }
    }

    fn set_change(&mut self, id: &str, plan: &Plan, edit: u16) {
        if let Some((_, crown)) = &plan.before {
            self.keys.write(&mut self.key, DatabaseKey::Change(crown.seq));
            self.transaction.clear_unguarded(&self.key);
        }
        let winner = plan.winning_leaf();
        self.value.clear();
        write_change(&mut self.value, id, winner, plan.branches);
        self.keys.write(&mut self.key, DatabaseKey::PendingChange { incarnation: self.instance.incarnation, edit });
        let stamp_at = (self.key.len() - STAMP_LEN) as u32;
        self.key.extend_from_slice(&stamp_at.to_le_bytes());
        self.transaction.atomic_op_unguarded(MutationType::SetVersionstampedKey, &self.key, &self.value);
    }

    fn set_all_docs(&mut self, id: &str, plan: &Plan) {
        let (before, after) = (plan.before.as_ref().map(|(leaf, _)| leaf), plan.winning_leaf());
        if before == Some(after) {
            return;
        }
        self.keys.write(&mut self.key, DatabaseKey::AllDoc(id));
        if after.not_deleted {
            self.value.clear();
            tuple::append_u64(&mut self.value, after.rev.position());
            tuple::append_bytes(&mut self.value, after.rev.hash().as_bytes());
            self.transaction.set_unguarded(&self.key, &self.value);
        } else if before.is_some_and(|leaf| leaf.not_deleted) {
            self.transaction.clear_unguarded(&self.key);
        }
    }

    fn count(&mut self, plan: &Plan) {
        let mut count = |leaf: &Leaf, by: i64| {
            if leaf.not_deleted {
                self.stats.doc_count += by;
            } else {
                self.stats.doc_del_count += by;
            }
        };
        if let Some((before, _)) = &plan.before {
            count(before, -1);
        }
        count(plan.winning_leaf(), 1);
        self.stats.external += plan.new.size as i64;
        for branch in &plan.removed {
            self.stats.external -= branch.size as i64;
        }
    }

    /// Writes what stands once in a transaction; how many edits were written.
    pub(super) fn finish(mut self) -> u16 {
        let Some(last_edit) = self.edits.checked_sub(1) else { return 0 };
        self.keys.write(&mut self.key, DatabaseKey::Last);
        self.value.clear();
        self.value.push(self.instance.incarnation);
        self.value.extend_from_slice(&keys::pending_stamp(last_edit));
        self.value.extend_from_slice(&1u32.to_le_bytes());
        self.transaction.atomic_op_unguarded(MutationType::SetVersionstampedValue, &self.key, &self.value);
        self.keys.write(&mut self.key, DatabaseKey::Stats);
        self.stats.add(self.transaction, &self.key);
        self.edits
    }
}

/// Appends a row of `changes`: `(SeqFormat, DocID, RevPosition, RevHash, BranchCount, NotDeleted)`.
fn write_change(out: &mut Vec<u8>, id: &str, winner: &Leaf, branches: u64) {
    tuple::append_u64(out, SEQ_FORMAT);
    tuple::append_str(out, id);
    tuple::append_u64(out, winner.rev.position());
    tuple::append_bytes(out, winner.rev.hash().as_bytes());
    tuple::append_u64(out, branches);
    tuple::append_bool(out, winner.not_deleted);
}
