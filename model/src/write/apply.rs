//! Writes a plan.
//!
//! For one document, in the common case of one branch:
//!
//! ```text
//!  revisions   clear the extended row         set the new winner's row, with the pending versionstamp
//!  docs        clear the extended body        set the new body's rows, and those of its attachments
//!  changes     clear the document's old row   set the new one, its key with the pending versionstamp
//!  all_docs    set the winner, or clear it
//! ```
//!
//! and once in a transaction: `last`, with the versionstamp of its last document, and the counters.
//!
//! Clears go to the transaction at once. Rows of one document are encoded into one buffer, and all rows are written
//! at the end in key order, in which a transaction accepts them fastest. So every clear comes before every set.
//! That is right within a document, and different documents have different keys.
//!
//! Only rows of `revisions` take write conflict ranges: every edit of a document reads and writes its winner's row, and
//! writes depend on no other row.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{MutationType, Transaction, TransactionOption};

use crate::keys::{self, DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::ancestors::Ancestors;
use crate::rows::body::StoredBody;
use crate::rows::branch::{Branch, PendingWinner};
use crate::rows::change_row::ChangeRow;
use crate::rows::instance::Instance;
use crate::rows::row::STAMP_LEN;
use crate::rows::stats::Stats;
use crate::rows::tuple;
use crate::write::policy::ConflictPolicy;
use crate::write::unguarded::Unguarded;

use super::plan::Plan;

/// Writes the plans of one transaction.
pub(super) struct Writer<'a, T> {
    transaction: &'a T,
    keys: &'a DatabaseKeys,
    instance: &'a Instance,
    /// Buffer for keys of clears.
    begin: Vec<u8>,
    end: Vec<u8>,
    /// Bodies of all added leaves; those of one document are adjacent, in the order of the leaves.
    bodies: Vec<Arc<StoredBody>>,
    /// Rows of `revisions`; those of one document are adjacent.
    revisions: Vec<Encoded>,
    /// Rows of documents, by their places, which are in the order of their ids.
    written: Vec<Option<Written>>,
    /// Rows of `changes` with their buffers. They sort in the order in which documents are numbered.
    changes: Vec<(Bytes, Encoded)>,
    /// Number of plans written.
    plans: usize,
    stats: Stats,
}

/// Rows of one document, without its row of `changes`.
struct Written {
    /// Buffer with the rows.
    memory: Bytes,
    /// The rows of `revisions`, in [`Writer::revisions`]: the added leaves and the branches that change.
    revisions: Range<usize>,
    /// The bodies of the added leaves, in [`Writer::bodies`].
    bodies: Range<usize>,
    /// The lists of their attachments.
    lists: Vec<(Bytes, Bytes)>,
    all_docs: Option<Encoded>,
}

impl<'a, T: Transaction> Writer<'a, T> {
    /// A writer for at most this many documents, with these bodies.
    pub(super) fn new(
        transaction: &'a T,
        keys: &'a DatabaseKeys,
        instance: &'a Instance,
        documents: usize,
        bodies: Vec<Arc<StoredBody>>,
    ) -> Self {
        Writer {
            transaction,
            keys,
            instance,
            begin: Vec::new(),
            end: Vec::new(),
            bodies,
            revisions: Vec::with_capacity(documents),
            written: (0..documents).map(|_| None).collect(),
            changes: Vec::with_capacity(documents),
            plans: 0,
            stats: Stats::default(),
        }
    }

    /// Writes the plan of the document at this place. Documents are numbered in the order of the calls. `bodies`
    /// are those of the added leaves that have one, in order; `lists` are the rows of their attachments.
    pub(super) fn apply(
        &mut self,
        place: usize,
        id: &str,
        plan: &Plan,
        bodies: Range<usize>,
        lists: Vec<(Bytes, Bytes)>,
    ) {
        for branch in &plan.removed {
            self.remove(id, branch);
        }
        if let Some((_, winner_info)) = &plan.before {
            self.keys.write(&mut self.begin, DatabaseKey::Change(winner_info.seq));
            self.transaction.clear_unguarded(&self.begin);
        }
        if self.instance.collections > 0 && plan.ends_deletion() {
            self.keys.write(&mut self.begin, DatabaseKey::Ended(id));
            self.transaction.clear_unguarded(&self.begin);
        }

        self.stats.edits += 1;
        // A transaction has far fewer documents than sixteen bits can count.
        let edit = self.plans as u16;
        self.plans += 1;
        let winner_info = PendingWinner { incarnation: self.instance.incarnation, edit, branches: plan.branches };
        let mut rows = EncodedRows::for_plan(self.keys, id, plan);
        let winner_info_of = |leaf: &Leaf| (plan.winner.as_ref() == Some(leaf)).then_some(winner_info);
        let added = plan.added.iter().map(|new| (&new.leaf, new.size, &new.ancestors, new.attachments));
        let changed =
            plan.changed.iter().map(|branch| (&branch.leaf, branch.size, &branch.ancestors, branch.attachments));
        let first = self.revisions.len();
        let policy = self.instance.policy;
        let encode = |(leaf, size, ancestors, attachments)| {
            rows.branch(policy, leaf, size, ancestors, attachments, winner_info_of(leaf))
        };
        self.revisions.extend(added.chain(changed).map(encode));
        let change = plan.winner.as_ref().map(|winner| rows.change(winner_info, winner));
        let all_docs = self.all_docs(&mut rows, id, plan);

        let memory = Bytes::from(rows.memory);
        self.changes.extend(change.map(|row| (memory.clone(), row)));
        if let Some(written) = self.written.get_mut(place) {
            *written = Some(Written { memory, revisions: first..self.revisions.len(), bodies, lists, all_docs });
        }
        self.count(plan);
    }

    fn remove(&mut self, id: &str, branch: &Branch) {
        self.keys.write(&mut self.begin, DatabaseKey::Revision(id, &branch.leaf));
        self.transaction.clear(&self.begin);
        if branch.size > 0 {
            self.keys.write(&mut self.begin, DatabaseKey::Doc(id, &branch.leaf));
            self.end.clear();
            self.end.extend_from_slice(&self.begin);
            self.end.push(keys::BEYOND);
            self.transaction.clear_range_unguarded(&self.begin, &self.end);
        }
    }

    fn all_docs(&mut self, rows: &mut EncodedRows<'_>, id: &str, plan: &Plan) -> Option<Encoded> {
        let (before, after) = (plan.before.as_ref().map(|(leaf, _)| leaf), plan.winner.as_ref());
        if before == after {
            return None;
        }
        if let Some(live) = after.filter(|leaf| leaf.not_deleted) {
            return Some(rows.all_docs(live));
        }
        if before.is_some_and(|leaf| leaf.not_deleted) {
            self.keys.write(&mut self.begin, DatabaseKey::AllDoc(id));
            self.transaction.clear_unguarded(&self.begin);
        }
        None
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
        if let Some(winner) = &plan.winner {
            count(winner, 1);
        }
        self.stats.external += plan.added.iter().map(|new| new.size as i64).sum::<i64>();
        self.stats.external -= plan.removed.iter().map(|branch| branch.size as i64).sum::<i64>();
    }

    /// Writes the rows, including those that a transaction writes once. Returns the number of documents.
    pub(super) fn finish(self) -> usize {
        if self.plans == 0 {
            return 0;
        }
        let transaction = self.transaction;
        self.write_once(self.plans as u16 - 1);
        let written = || self.written.iter().flatten();
        for document in written() {
            for row in &self.revisions[document.revisions.clone()] {
                row.write(transaction, &document.memory);
            }
        }
        for (memory, row) in &self.changes {
            row.write_unguarded(transaction, memory);
        }
        for document in written() {
            for body in &self.bodies[document.bodies.clone()] {
                body.shared_rows().for_each(|(key, value)| transaction.set_unguarded(key, value));
            }
            for (key, value) in &document.lists {
                transaction.set_unguarded(key.clone(), value.clone());
            }
        }
        for document in written() {
            if let Some(row) = &document.all_docs {
                row.write_unguarded(transaction, &document.memory);
            }
        }
        self.plans
    }

    fn write_once(&self, last: u16) {
        let mut rows = EncodedRows::new(self.keys, "", 128);
        let incarnation = self.instance.incarnation;
        let last = rows.row(DatabaseKey::Last, Some(MutationType::SetVersionstampedValue), |value| {
            value.push(incarnation);
            value.extend_from_slice(&keys::pending_stamp(last));
            value.extend_from_slice(&1u32.to_le_bytes());
        });
        let stats = (self.stats != Stats::default()).then(|| {
            let operand = self.stats.operand();
            rows.row(DatabaseKey::Stats, Some(MutationType::Add), |value| value.extend_from_slice(&operand))
        });
        let memory = Bytes::from(rows.memory);
        for row in [last].iter().chain(&stats) {
            row.write_unguarded(self.transaction, &memory);
        }
    }
}

/// Rows of one document while they are encoded.
struct EncodedRows<'a> {
    keys: &'a DatabaseKeys,
    id: &'a str,
    memory: Vec<u8>,
}

/// Position of a row in the buffer: its key, followed by its value, or the operand of the atomic operation.
struct Encoded {
    operation: Option<MutationType>,
    key: usize,
    value: usize,
    end: usize,
}

impl Encoded {
    fn write(&self, transaction: &impl Transaction, memory: &Bytes) {
        let (key, value) = (memory.slice(self.key..self.value), memory.slice(self.value..self.end));
        match self.operation {
            None => transaction.set(key, value),
            Some(operation) => transaction.atomic_op(operation, key, value),
        }
    }

    /// The same without a write conflict range.
    fn write_unguarded(&self, transaction: &impl Transaction, memory: &Bytes) {
        transaction.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        self.write(transaction, memory);
    }
}

impl<'a> EncodedRows<'a> {
    fn new(keys: &'a DatabaseKeys, id: &'a str, room: usize) -> Self {
        EncodedRows { keys, id, memory: Vec::with_capacity(room) }
    }

    /// Has room for the rows of a plan: exactly enough in the common case of one branch and a short history.
    fn for_plan(keys: &'a DatabaseKeys, id: &'a str, plan: &Plan) -> Self {
        const REVISION: usize = 58;
        const CHANGE_AND_ALL_DOCS: usize = 80;
        let name = keys.prefix().len() + id.len();
        let added = plan.added.iter().map(|new| &new.ancestors);
        let ancestors = added.chain(plan.changed.iter().map(|branch| &branch.ancestors));
        let revisions: usize = ancestors.map(|ancestors| REVISION + name + ancestors.len()).sum();
        Self::new(keys, id, revisions + CHANGE_AND_ALL_DOCS + 2 * name)
    }

    fn row(
        &mut self,
        key: DatabaseKey<'_>,
        operation: Option<MutationType>,
        value: impl FnOnce(&mut Vec<u8>),
    ) -> Encoded {
        let begin = self.memory.len();
        self.keys.append(&mut self.memory, key);
        if operation == Some(MutationType::SetVersionstampedKey) {
            let stamp_at = (self.memory.len() - begin - STAMP_LEN) as u32;
            self.memory.extend_from_slice(&stamp_at.to_le_bytes());
        }
        let value_at = self.memory.len();
        value(&mut self.memory);
        Encoded { operation, key: begin, value: value_at, end: self.memory.len() }
    }

    /// The row of a branch, the winner's if there is a [`PendingWinner`].
    fn branch(
        &mut self,
        policy: ConflictPolicy,
        leaf: &Leaf,
        size: u64,
        ancestors: &Ancestors,
        attachments: bool,
        winner_info: Option<PendingWinner>,
    ) -> Encoded {
        let operation = winner_info.map(|_| MutationType::SetVersionstampedValue);
        self.row(DatabaseKey::Revision(self.id, leaf), operation, |value| match winner_info {
            Some(winner_info) => Branch::append_winner(value, policy, winner_info, size, ancestors, attachments),
            None => Branch::append(value, policy, size, ancestors, attachments),
        })
    }

    /// The row of `changes`.
    fn change(&mut self, winner_info: PendingWinner, winner: &Leaf) -> Encoded {
        let (id, PendingWinner { incarnation, edit, branches }) = (self.id, winner_info);
        let key = DatabaseKey::PendingChange { incarnation, edit };
        self.row(key, Some(MutationType::SetVersionstampedKey), |value| {
            ChangeRow::append(value, id, winner, branches);
        })
    }

    /// The row of `all_docs`.
    fn all_docs(&mut self, winner: &Leaf) -> Encoded {
        self.row(DatabaseKey::AllDoc(self.id), None, |value| {
            tuple::append_u64(value, winner.rev.position());
            tuple::append_bytes(value, winner.rev.hash().as_bytes());
        })
    }
}
