//! The write map: what a transaction has written and not yet committed.
//!
//! Four layers over the whole keyspace. FoundationDB's `WriteMap.h` keeps them in one tree:
//!
//! ```text
//!   keys             a     b     c     d     e     f     g
//!   stacks                 +1          ="x"                      writes of single keys
//!   cleared                      ├───────────┤                   cleared ranges
//!   write conflicts        ├─┤   ├───────────┤                   what others must not have read
//!   unreadable                                     ├───┤         where a pending versionstamp may land
//! ```
//!
//! Each stack has flags: whether it conflicts, and whether its key is unreadable. Its conflict becomes a range only
//! when the stack is removed.
//!
//! Invariants: a stack is newer than a clear around it; a clear removes the stacks that it covers and makes the
//! range readable again. An atomic operation on a key that this transaction cleared starts from "absent" and is
//! computed at once. One on a key whose value is unknown stays in the stack until the commit.
//!
//! A versionstamped key may land anywhere in a range of keys. Earlier writes of that range move to `early`, in
//! their order, so that they reach the store before the versionstamped key does. From then on the range cannot
//! be read.
//!
//! Source: FoundationDB's `fdbclient/WriteMap.cpp` and `RYWImpl::writeRangeToNativeTransaction`.

use bytes::Bytes;
use kv_api::MutationType;

use super::size;
use crate::KeyRange;
use crate::key_map::{self, KeyMap};
use crate::key_range::RangeSet;
use crate::mutation::{Mutation, Write, atomic};

/// The writes of one key, oldest first. Nearly always there is one.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    first: Write,
    more: Vec<Write>,
    /// Whether they conflict with transactions that read the key.
    conflicts: bool,
    /// Whether any of them waits for its versionstamp, so that the key cannot be read.
    stamped: bool,
}

impl Stack {
    fn of(write: Write) -> Self {
        Stack { first: write, more: Vec::new(), conflicts: false, stamped: false }
    }

    fn writes(&self) -> impl Iterator<Item = &Write> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Whether the value depends on what the store holds.
    pub(crate) fn is_dependent(&self) -> bool {
        matches!(&self.first, Write::Atomic(operation, _) if !operation.is_versionstamped())
    }

    /// The value of the key, where the store holds `base`.
    pub(crate) fn value_over(&self, base: Option<Bytes>, value_limit: usize) -> Option<Bytes> {
        self.writes().fold(base, |value, write| match write {
            Write::Set(value) => value.clone(),
            Write::Atomic(operation, operand) => atomic::apply(*operation, value.as_ref(), operand, value_limit),
        })
    }

    /// Adds a write. Joins it with the last one if that gives the same result.
    fn push_joined(&mut self, write: Write, value_limit: usize) {
        let top = self.more.last_mut().unwrap_or(&mut self.first);
        match (&*top, &write) {
            (_, Write::Set(_)) => *top = write,
            (Write::Set(value), Write::Atomic(operation, operand)) => {
                *top = Write::Set(atomic::apply(*operation, value.as_ref(), operand, value_limit));
            }
            (Write::Atomic(last, first_operand), Write::Atomic(operation, operand))
                if last == operation && is_joinable(*operation, first_operand, operand) =>
            {
                let joined = atomic::apply(*operation, Some(first_operand), operand, value_limit);
                *top = Write::Atomic(*operation, joined.unwrap_or_default());
            }
            _ => self.more.push(write),
        }
    }

    /// Appends the writes to `mutations`.
    fn emit(self, key: Bytes, mutations: &mut Vec<Mutation>) {
        let Stack { mut first, more, conflicts, .. } = self;
        for next in more {
            let write = std::mem::replace(&mut first, next);
            mutations.push(Mutation::Key { key: key.clone(), write, conflicts });
        }
        mutations.push(Mutation::Key { key, write: first, conflicts });
    }
}

/// Whether two operations of one type can become one (`isNonAssociativeOp`). Those that pad or cut to the operand
/// can if both operands have one length.
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
    /// The transaction decides alone: by a stack, or by a clear.
    Independent(Option<&'a Stack>),
    /// The stack applies to what the store holds.
    Dependent(&'a Stack),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct WriteMap {
    stacks: KeyMap<Stack>,
    cleared: RangeSet,
    conflicts: RangeSet,
    unreadable: RangeSet,
    /// Mutations that come before all others, in order.
    early: Vec<Mutation>,
    /// Whether any stack ever waited for its versionstamp.
    any_stamped: bool,
    value_limit: usize,
}

impl WriteMap {
    pub(crate) fn new(value_limit: usize) -> Self {
        WriteMap {
            stacks: KeyMap::default(),
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

    /// Whether nothing was written and no write conflict range was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.has_no_writes() && self.conflicts.is_empty()
    }

    /// Whether all reads see what the store holds.
    pub(crate) fn has_no_writes(&self) -> bool {
        self.stacks.is_empty() && self.cleared.is_empty() && self.unreadable.is_empty() && self.early.is_empty()
    }

    /// Writes a key. `conflicts`: transactions that read the key conflict with this one.
    pub(crate) fn write(&mut self, key: Bytes, write: Write, conflicts: bool) {
        let stamped = write.is_versionstamped();
        let replaces = matches!(&write, Write::Set(_) | Write::Atomic(MutationType::SetVersionstampedValue, _));
        self.any_stamped |= stamped;
        let stack = match self.stacks.find(&key) {
            Ok(position) => {
                let stack = self.stacks.value_mut(position);
                let is_unreadable = stack.stamped || self.unreadable.contains(&key);
                if replaces && !is_unreadable {
                    stack.first = write;
                    stack.more.clear();
                } else if is_unreadable || stamped {
                    stack.more.push(write);
                } else {
                    stack.push_joined(write, self.value_limit);
                }
                stack
            }
            Err(position) if !replaces && !stamped && self.cleared.contains(&key) => {
                let stack = self.stacks.insert(position, key, Stack::of(Write::Set(None)));
                stack.push_joined(write, self.value_limit);
                stack
            }
            Err(position) => self.stacks.insert(position, key, Stack::of(write)),
        };
        stack.conflicts |= conflicts;
        stack.stamped |= stamped;
    }

    /// Clears a non-empty range.
    pub(crate) fn clear(&mut self, range: KeyRange) {
        for (key, stack) in self.stacks.take_range(&range.begin, &range.end) {
            if stack.conflicts {
                self.conflicts.insert(KeyRange::point(&key));
            }
        }
        self.unreadable.remove(&range.begin, &range.end);
        self.cleared.insert(range);
    }

    /// Makes a range unreadable: a versionstamped key may land there.
    pub(crate) fn make_unreadable(&mut self, range: KeyRange) {
        if range.is_empty() {
            return;
        }
        let (begin, end) = (&range.begin, &range.end);
        let part = |(from, until): (&Bytes, &Bytes)| KeyRange::copied(begin.max(from), end.min(until));
        let cleared: Vec<KeyRange> = self.cleared.overlapping(begin, end).map(part).collect();
        for part in cleared {
            self.cleared.remove(&part.begin, &part.end);
            self.early.push(Mutation::ClearRange(part));
        }
        for (key, stack) in self.stacks.take_range(begin, end) {
            if stack.conflicts {
                self.conflicts.insert(KeyRange::point(&key));
            }
            stack.emit(key, &mut self.early);
        }
        self.unreadable.insert(range);
    }

    /// Adds a mutation that no read sees: for transactions without read-your-writes.
    pub(crate) fn write_through(&mut self, mutation: Mutation) {
        self.early.push(mutation);
    }

    /// Adds a non-empty write conflict range.
    pub(crate) fn add_conflict(&mut self, range: KeyRange) {
        self.conflicts.insert(range);
    }

    /// What is known of `key`, or `Err` if a pending versionstamp hides it.
    pub(crate) fn known(&self, key: &[u8], bypass_unreadable: bool) -> Result<Known<'_>, Unreadable> {
        if !bypass_unreadable && self.unreadable.contains(key) {
            return Err(Unreadable);
        }
        Ok(match self.stacks.get(key) {
            Some(stack) if stack.stamped && !bypass_unreadable => return Err(Unreadable),
            Some(stack) if stack.is_dependent() => Known::Dependent(stack),
            Some(stack) => Known::Independent(Some(stack)),
            None if self.cleared.contains(key) => Known::Independent(None),
            None => Known::Unmodified,
        })
    }

    /// The stacks from `begin` up to, not including, `end`; `begin` is less than `end`.
    pub(crate) fn stacks_in(&self, begin: &[u8], end: &[u8]) -> key_map::Range<'_, Stack> {
        self.stacks.range(begin, end)
    }

    /// The cleared range around `key`.
    pub(crate) fn cleared_around(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.cleared.containing(key)
    }

    /// Whether any versionstamp is pending.
    pub(crate) fn any_unreadable(&self) -> bool {
        self.any_stamped || !self.unreadable.is_empty()
    }

    /// Whether a pending versionstamp hides any key from `begin` up to, not including, `end`.
    pub(crate) fn hides(&self, begin: &[u8], end: &[u8]) -> bool {
        let on_stamped =
            || self.any_stamped && begin < end && self.stacks_in(begin, end).any(|(_, stack)| stack.stamped);
        self.unreadable.intersects(begin, end) || on_stamped()
    }

    /// Calls `add` with the parts of `range` that a read of it depends on: all but what this transaction cleared
    /// or set (`RYWImpl::updateConflictMap`).
    pub(crate) fn each_dependent_part(&self, range: &KeyRange, mut add: impl FnMut(KeyRange)) {
        if range.is_empty() {
            return;
        }
        if self.stacks.is_empty() && self.cleared.is_empty() {
            return add(range.clone());
        }
        let mut from = range.begin.clone();
        let mut skip = |begin: &Bytes, end: Bytes| {
            if from < *begin {
                add(KeyRange { begin: from.clone(), end: begin.clone() });
            }
            if end > from {
                from = end;
            }
        };
        let mut cleared = self.cleared.overlapping(&range.begin, &range.end).peekable();
        let mut sets = self.stacks_in(&range.begin, &range.end).filter(|(_, stack)| !stack.is_dependent()).peekable();
        loop {
            let clear_is_first = match (cleared.peek(), sets.peek()) {
                (Some((begin, _)), Some((key, _))) => begin <= key,
                (clear, _) => clear.is_some(),
            };
            let next = match clear_is_first {
                true => cleared.next().map(|(begin, end)| (begin, end.clone())),
                false => sets.next().map(|(key, _)| (key, KeyRange::point(key).end)),
            };
            let Some((begin, end)) = next else { break };
            skip(begin, end);
        }
        skip(&range.end, range.end.clone());
    }

    /// Takes everything: the mutations in the order in which the store must see them, and the ranges that conflict
    /// beside their keys.
    pub(crate) fn take(&mut self) -> (Vec<Mutation>, Vec<KeyRange>) {
        let taken = std::mem::replace(self, WriteMap::new(self.value_limit));
        let mut mutations = taken.early;
        mutations.extend(taken.cleared.into_ranges().map(Mutation::ClearRange));
        mutations.reserve(taken.stacks.len());
        taken.stacks.into_entries().for_each(|(key, stack)| stack.emit(key, &mut mutations));
        (mutations, taken.conflicts.into_ranges().collect())
    }

    /// Size of everything that [`take`](Self::take) would return, counted as FoundationDB counts it: it splits a
    /// clear around the keys that were written after it.
    pub(crate) fn commit_size(&self) -> usize {
        let mut total: usize = self.early.iter().map(size::of_mutation).sum();
        let mut keys = self.stacks.iter().map(|(key, _)| key).peekable();
        for (begin, end) in self.cleared.iter() {
            while keys.next_if(|key| *key < begin).is_some() {}
            let mut from = begin.clone();
            while let Some(key) = keys.next_if(|key| *key < end) {
                if from < *key {
                    total += size::MUTATION + from.len() + key.len();
                }
                from = KeyRange::point(key).end;
            }
            if from < *end {
                total += size::MUTATION + from.len() + end.len();
            }
        }
        for (key, stack) in self.stacks.iter() {
            total += stack.writes().map(|write| size::of_write(key, write)).sum::<usize>();
        }
        let keys = self.stacks.iter().filter(|(_, stack)| stack.conflicts).map(|(key, _)| key);
        total + size::joined_conflicts(&self.conflicts, keys)
    }
}

/// A key that may hold a pending versionstamp was read: 1036.
#[derive(Debug)]
pub(crate) struct Unreadable;
