//! The write map: what a transaction has written and not yet committed.
//!
//! Four layers over the whole keyspace, of which FoundationDB's `WriteMap.h` makes one tree:
//!
//! ```text
//!   keys             a     b     c     d     e     f     g
//!   operations             +1          ="x"                      stacks of operations on single keys
//!   cleared                      ├───────────┤                   range clears
//!   write conflicts        ├─┤   ├───────────┤                   what others must not have read
//!   unreadable                                     ├───┤         where a pending versionstamp may land
//! ```
//!
//! That an operation conflicts, or makes its key unreadable, is a flag beside it, as in FoundationDB's
//! tree; its conflict becomes a range of its own only when the operation goes.
//!
//! Invariants: an operation lies over a clear that came before it; a clear removes the operations it
//! covers and makes what it covers readable again. An operation on a key that this transaction cleared
//! starts from "absent" and is settled at once; one on a key whose value is not known stays a stack
//! until the key is read, or until the commit.
//!
//! A versionstamped key may land anywhere in a range of keys. What was written there before is moved
//! to `early`, in order, so that it reaches the store before the stamped key does; from then on the
//! range cannot be read.
//!
//! Source: FoundationDB's `fdbclient/WriteMap.cpp` and `RYWImpl::writeRangeToNativeTransaction`.

use bytes::Bytes;
use kv_api::MutationType;

use super::size;
use crate::KeyRange;
use crate::commit::WriteConflicts;
use crate::key_map::{self, KeyMap};
use crate::key_range::RangeSet;
use crate::mutation::{Mutation, atomic};

/// One operation on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyOp {
    /// The key has this value; `None` for a key that turned out to be absent.
    Set(Option<Bytes>),
    /// An atomic operation with its operand.
    Atomic(MutationType, Bytes),
}

/// The operations on one key, oldest first. Nearly always there is one.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    first: KeyOp,
    more: Vec<KeyOp>,
    /// Whether they conflict with those who have read the key.
    conflicts: bool,
    /// Whether any of them waits for its versionstamp: the key cannot be read.
    stamped: bool,
}

impl Stack {
    fn of(op: KeyOp) -> Self {
        Stack { first: op, more: Vec::new(), conflicts: false, stamped: false }
    }

    fn ops(&self) -> impl Iterator<Item = &KeyOp> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Whether the value depends on what the store holds.
    pub(crate) fn is_dependent(&self) -> bool {
        matches!(&self.first, KeyOp::Atomic(operation, _) if !operation.is_versionstamped())
    }

    /// The value over `base`, which is what the store holds (and is not looked at for independent ones).
    pub(crate) fn value_over(&self, base: Option<Bytes>, value_limit: usize) -> Option<Bytes> {
        self.ops().fold(base, |value, op| match op {
            KeyOp::Set(value) => value.clone(),
            KeyOp::Atomic(operation, operand) => atomic::apply(*operation, value.as_ref(), operand, value_limit),
        })
    }

    /// Makes `op` all there is.
    fn replace(&mut self, op: KeyOp) {
        self.first = op;
        self.more.clear();
    }

    /// Adds an operation, joining it with the last one where that gives the same result.
    fn push_joined(&mut self, op: KeyOp, value_limit: usize) {
        let top = self.more.last_mut().unwrap_or(&mut self.first);
        match (&*top, &op) {
            (_, KeyOp::Set(_)) => *top = op,
            (KeyOp::Set(value), KeyOp::Atomic(operation, operand)) => {
                *top = KeyOp::Set(atomic::apply(*operation, value.as_ref(), operand, value_limit));
            }
            (KeyOp::Atomic(last, first_operand), KeyOp::Atomic(operation, operand))
                if last == operation && is_joinable(*operation, first_operand, operand) =>
            {
                let joined = atomic::apply(*operation, Some(first_operand), operand, value_limit);
                *top = KeyOp::Atomic(*operation, joined.unwrap_or_default());
            }
            _ => self.more.push(op),
        }
    }
}

/// Whether two operations of one type can become one (`isNonAssociativeOp`): for those that pad or
/// cut to the operand, only where both operands have one length.
fn is_joinable(operation: MutationType, first: &Bytes, second: &Bytes) -> bool {
    match operation {
        MutationType::BitAnd | MutationType::ByteMin | MutationType::ByteMax => true,
        // Whether the second fits depends on the value that the first was appended to.
        MutationType::AppendIfFits | MutationType::CompareAndClear => false,
        MutationType::SetVersionstampedKey | MutationType::SetVersionstampedValue => false,
        MutationType::Add | MutationType::BitOr | MutationType::BitXor | MutationType::Max | MutationType::Min => {
            first.len() == second.len()
        }
    }
}

/// What the write map knows of a key.
#[derive(Debug)]
pub(crate) enum Known<'a> {
    /// Nothing: the store decides.
    Unmodified,
    /// This transaction decides alone.
    Independent(Option<&'a Stack>),
    /// These operations over what the store holds.
    Dependent(&'a Stack),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct WriteMap {
    ops: KeyMap<Stack>,
    cleared: RangeSet,
    conflicts: RangeSet,
    unreadable: RangeSet,
    /// Mutations that come before everything else, in order.
    early: Vec<Mutation>,
    /// Whether any operation ever waited for its versionstamp.
    any_stamped: bool,
    value_limit: usize,
}

impl WriteMap {
    pub(crate) fn new(value_limit: usize) -> Self {
        WriteMap {
            ops: KeyMap::default(),
            cleared: RangeSet::default(),
            conflicts: RangeSet::default(),
            unreadable: RangeSet::default(),
            early: Vec::new(),
            any_stamped: false,
            value_limit,
        }
    }

    pub(crate) fn value_limit(&self) -> usize {
        self.value_limit
    }

    /// Whether nothing was written and no write conflict range added.
    pub(crate) fn is_empty(&self) -> bool {
        self.has_no_writes() && self.conflicts.is_empty()
    }

    /// Whether reads see what the store holds, everywhere.
    pub(crate) fn has_no_writes(&self) -> bool {
        self.ops.is_empty() && self.cleared.is_empty() && self.unreadable.is_empty() && self.early.is_empty()
    }

    pub(crate) fn reset(&mut self) {
        self.ops.clear();
        self.cleared.clear();
        self.conflicts.clear();
        self.unreadable.clear();
        self.early.clear();
        self.any_stamped = false;
    }

    /// A set or an atomic operation on `key`, which others that have read it conflict with if `conflicts`.
    pub(crate) fn mutate(&mut self, key: Bytes, op: KeyOp, conflicts: bool) {
        let stamped = matches!(&op, KeyOp::Atomic(operation, _) if operation.is_versionstamped());
        let replaces = matches!(&op, KeyOp::Set(_) | KeyOp::Atomic(MutationType::SetVersionstampedValue, _));
        self.any_stamped |= stamped;
        let stack = match self.ops.find(&key) {
            Ok(place) => {
                let stack = self.ops.value_mut(place);
                let was_unreadable = stack.stamped || !self.unreadable.is_empty() && self.unreadable.contains(&key);
                if replaces && !was_unreadable {
                    stack.replace(op);
                } else if was_unreadable || stamped {
                    stack.more.push(op);
                } else {
                    stack.push_joined(op, self.value_limit);
                }
                stack
            }
            Err(place) => {
                let was_cleared = !replaces && !stamped && self.cleared.contains(&key);
                let stack = match was_cleared {
                    true => {
                        let mut stack = Stack::of(KeyOp::Set(None));
                        stack.push_joined(op, self.value_limit);
                        stack
                    }
                    false => Stack::of(op),
                };
                self.ops.insert(place, key, stack)
            }
        };
        stack.conflicts |= conflicts;
        stack.stamped |= stamped;
    }

    /// A clear of every key of `range`, which is not empty.
    pub(crate) fn clear(&mut self, range: KeyRange) {
        if range.is_point() {
            if let Some((key, stack)) = self.ops.remove(&range.begin) {
                self.keep_conflict(&key, &stack);
            }
        } else {
            for (key, stack) in self.ops.take_range(&range.begin, &range.end) {
                self.keep_conflict(&key, &stack);
            }
        }
        if !self.unreadable.is_empty() {
            self.unreadable.remove(&range.begin, &range.end);
        }
        self.cleared.insert(range);
    }

    /// Makes the keys from `begin` up to, not including, `end` the place where a versionstamped key may land.
    pub(crate) fn make_unreadable(&mut self, (begin, end): (&[u8], &Bytes)) {
        if begin >= end {
            return;
        }
        if !self.cleared.is_empty() {
            let part = |(from, until): (&Bytes, &Bytes)| KeyRange::copied(begin.max(from), end.min(until));
            let cleared: Vec<KeyRange> = self.cleared.overlapping(begin, end).map(part).collect();
            for part in cleared {
                self.cleared.remove(&part.begin, &part.end);
                self.early.push(Mutation::ClearRange(part));
            }
        }
        if self.ops.may_hold_any(begin, end) {
            for (key, stack) in self.ops.take_range(begin, end) {
                self.keep_conflict(&key, &stack);
                emit(&mut self.early, key, stack);
            }
        }
        self.unreadable.grow(begin, end);
    }

    /// Remembers the conflict of operations that go.
    fn keep_conflict(&mut self, key: &Bytes, stack: &Stack) {
        if stack.conflicts {
            self.conflicts.insert(KeyRange::point(key));
        }
    }

    /// A mutation as it is, unseen by any read: for transactions without read-your-writes.
    pub(crate) fn write_through(&mut self, mutation: Mutation) {
        self.early.push(mutation);
    }

    /// Adds a write conflict range, which is not empty.
    pub(crate) fn add_conflict(&mut self, range: KeyRange) {
        self.conflicts.insert(range);
    }

    /// What is known of `key`, or `Err` where a pending versionstamp hides it.
    pub(crate) fn known(&self, key: &[u8], bypass_unreadable: bool) -> Result<Known<'_>, Unreadable> {
        if !bypass_unreadable && !self.unreadable.is_empty() && self.unreadable.contains(key) {
            return Err(Unreadable);
        }
        Ok(match self.ops.get(key) {
            Some(stack) if stack.stamped && !bypass_unreadable => return Err(Unreadable),
            Some(stack) if stack.is_dependent() => Known::Dependent(stack),
            Some(stack) => Known::Independent(Some(stack)),
            None if self.cleared.contains(key) => Known::Independent(None),
            None => Known::Unmodified,
        })
    }

    /// The operations on keys from `begin` up to, not including, `end`.
    pub(crate) fn ops_in(&self, begin: &[u8], end: &[u8]) -> key_map::Range<'_, Stack> {
        self.ops.range(begin, end)
    }

    /// The cleared range that holds `key`.
    pub(crate) fn cleared_around(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        if self.cleared.is_empty() { None } else { self.cleared.containing(key) }
    }

    /// Whether any versionstamp is pending.
    pub(crate) fn any_unreadable(&self) -> bool {
        self.any_stamped || !self.unreadable.is_empty()
    }

    /// Whether a pending versionstamp hides any key from `begin` up to, not including, `end`.
    pub(crate) fn hides(&self, begin: &[u8], end: &[u8]) -> bool {
        let in_unreadable = !self.unreadable.is_empty() && self.unreadable.intersects(begin, end);
        let on_stamped = || self.any_stamped && begin < end && self.ops_in(begin, end).any(|(_, stack)| stack.stamped);
        in_unreadable || on_stamped()
    }

    /// Calls `add` with the parts of `range` that a read of it depends on: all but what this
    /// transaction cleared or set by itself (`RYWImpl::updateConflictMap`).
    pub(crate) fn each_dependent_part(&self, range: &KeyRange, mut add: impl FnMut(KeyRange)) {
        if self.ops.is_empty() && self.cleared.is_empty() {
            if !range.is_empty() {
                add(range.clone());
            }
            return;
        }
        if range.is_empty() {
            return;
        }
        let mut from = range.begin.clone();
        let mut emit = |begin: &mut Bytes, end: &Bytes, next: Bytes| {
            if *begin < *end {
                add(KeyRange { begin: begin.clone(), end: end.clone() });
            }
            if next > *begin {
                *begin = next;
            }
        };
        let mut cleared = self.cleared.overlapping(&range.begin, &range.end).peekable();
        let mut sets = self.ops_in(&range.begin, &range.end).filter(|(_, stack)| !stack.is_dependent()).peekable();
        loop {
            let clear_first = match (cleared.peek(), sets.peek()) {
                (None, None) => break,
                (Some((begin, _)), Some((key, _))) => begin <= key,
                (clear, _) => clear.is_some(),
            };
            if clear_first {
                if let Some((begin, end)) = cleared.next() {
                    emit(&mut from, begin, end.clone());
                }
            } else if let Some((key, _)) = sets.next()
                && *key >= from
            {
                emit(&mut from, key, KeyRange::point(key).end);
            }
        }
        if from < range.end {
            add(KeyRange { begin: from, end: range.end.clone() });
        }
    }

    /// Everything, in the order in which the store must see it: what came early, the clears, then the
    /// operations key by key; and the write conflicts.
    pub(crate) fn take(&mut self) -> (Vec<Mutation>, WriteConflicts) {
        let mut mutations = std::mem::take(&mut self.early);
        let count = self.ops.len();
        mutations.reserve(count);
        mutations.extend(std::mem::take(&mut self.cleared).into_ranges().map(Mutation::ClearRange));
        let ranges = std::mem::take(&mut self.conflicts).into_ranges().collect();
        let mut conflicts = WriteConflicts { ranges, keys: Vec::with_capacity(count) };
        for entries in std::mem::take(&mut self.ops).into_chunks() {
            for (key, stack) in entries {
                if stack.conflicts {
                    conflicts.keys.push(key.clone());
                }
                emit(&mut mutations, key, stack);
            }
        }
        self.reset();
        (mutations, conflicts)
    }

    /// The bytes of everything that [`take`](Self::take) would give, as FoundationDB counts them. It
    /// splits a clear around the keys that were written after it, and so does the count.
    pub(crate) fn commit_size(&self) -> usize {
        let mut total: usize = self.early.iter().map(Mutation::size).sum();
        let mut keys = self.ops.iter().map(|(key, _)| key).peekable();
        for (begin, end) in self.cleared.iter() {
            while keys.next_if(|key| *key < begin).is_some() {}
            let mut from = None;
            while let Some(key) = keys.next_if(|key| *key < end) {
                let before: &Bytes = from.as_ref().unwrap_or(begin);
                if before < key {
                    total += size::MUTATION + before.len() + key.len();
                }
                from = Some(KeyRange::point(key).end);
            }
            let before = from.as_ref().unwrap_or(begin);
            if before < end {
                total += size::MUTATION + before.len() + end.len();
            }
        }
        for (key, stack) in self.ops.iter() {
            for op in stack.ops() {
                total += size::MUTATION + key.len();
                total += match op {
                    KeyOp::Set(Some(value)) | KeyOp::Atomic(_, value) => value.len(),
                    KeyOp::Set(None) => key.len() + 1,
                };
            }
        }
        let keys = self.ops.iter().filter(|(_, stack)| stack.conflicts).map(|(key, _)| key);
        total + size::joined_conflicts(&self.conflicts, keys)
    }
}

/// A key that may hold a pending versionstamp was read: 1036.
#[derive(Debug)]
pub(crate) struct Unreadable;

fn emit(mutations: &mut Vec<Mutation>, key: Bytes, stack: Stack) {
    let mutation = |key: Bytes, op| match op {
        KeyOp::Set(Some(value)) => Mutation::Set { key, value },
        KeyOp::Set(None) => Mutation::ClearRange(KeyRange::point(&key)),
        KeyOp::Atomic(operation, operand) => Mutation::Atomic { operation, key, operand },
    };
    if stack.more.is_empty() {
        return mutations.push(mutation(key, stack.first));
    }
    mutations.extend(std::iter::once(stack.first).chain(stack.more).map(|op| mutation(key.clone(), op)));
}
