//! The writing half of a transaction: each write is checked, counted, and put into the write map.

use bytes::Bytes;
use kv_api::keys::SYSTEM_BEGIN;
use kv_api::{ConflictRange, Error, MutationType, Result, RowWrite, error};

use super::{KEY_SLACK, State};
use crate::KeyRange;
use crate::database::core::Core;
use crate::mutation::Mutation;
use crate::mutation::versionstamp::{StampedKey, checked_stamp_offset};
use crate::store::Store;
use crate::transaction::size;
use crate::transaction::write_map::KeyOp;

impl<S: Store> State<S> {
    fn check_write(&self, core: &Core<S>, key: &[u8], value: &[u8]) -> Result<()> {
        if key >= SYSTEM_BEGIN {
            return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
        }
        if key.len() > core.limits.key_bytes {
            return Err(Error::new(error::KEY_TOO_LARGE));
        }
        if value.len() > core.limits.value_bytes {
            return Err(Error::new(error::VALUE_TOO_LARGE));
        }
        Ok(())
    }

    /// Takes the option that the next write adds no conflict: whether this write adds one.
    fn adds_conflict(&mut self) -> bool {
        !std::mem::take(&mut self.options.next_write_no_conflict)
    }

    pub(crate) fn set(&mut self, core: &Core<S>, key: &[u8], value: &[u8]) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            state.check_write(core, key, value)?;
            state.put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value), conflict);
            Ok(())
        });
    }

    pub(crate) fn write_rows(&mut self, core: &Core<S>, rows: Vec<RowWrite>) {
        self.defer(core, |state| {
            for RowWrite { key, value, operation, guarded } in rows {
                let conflict = state.adds_conflict() && guarded;
                state.check_write(core, &key, &value)?;
                match operation {
                    None => state.put(key, value, conflict),
                    Some(operation) => state.operate(operation, key, value, conflict)?,
                }
            }
            Ok(())
        });
    }

    fn put(&mut self, key: Bytes, value: Bytes, conflict: bool) {
        self.account(&key, value.len(), conflict);
        if self.options.ryw_disabled {
            self.write_through(Mutation::Set { key, value }, conflict);
        } else {
            self.trigger_watches(|watched| *watched == key, Some(Some(&value)));
            self.writes.mutate(key, KeyOp::Set(Some(value)), conflict);
        }
    }

    pub(crate) fn atomic_op(&mut self, core: &Core<S>, operation: MutationType, key: &[u8], operand: &[u8]) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            state.check_write(core, key, operand)?;
            state.operate(operation, Bytes::copy_from_slice(key), Bytes::copy_from_slice(operand), conflict)
        });
    }

    fn operate(&mut self, operation: MutationType, key: Bytes, operand: Bytes, mut conflict: bool) -> Result<()> {
        let mut place = key;
        match operation {
            MutationType::SetVersionstampedKey => {
                checked_stamp_offset(&place)?;
                // The stamped key itself becomes a write conflict when it is known.
                conflict = false;
                if !self.options.ryw_disabled {
                    let stamped = StampedKey::new(&place, self.version.unwrap_or(0), self.max_read_key());
                    self.writes.make_unreadable(stamped.range());
                    place = stamped.waiting;
                }
            }
            MutationType::SetVersionstampedValue => {
                checked_stamp_offset(&operand)?;
            }
            _ => {}
        }
        self.account(&place, operand.len(), conflict);
        if self.options.ryw_disabled {
            self.write_through(Mutation::Atomic { operation, key: place, operand }, conflict);
        } else {
            self.trigger_watches(|watched| *watched == place, None);
            self.writes.mutate(place, KeyOp::Atomic(operation, operand), conflict);
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self, core: &Core<S>, key: &[u8]) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            if key >= SYSTEM_BEGIN {
                return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
            }
            if key.len() <= core.limits.key_bytes + KEY_SLACK {
                let point = KeyRange::point(key);
                state.approximate_size += size::of_range(&point) * (1 + usize::from(conflict));
                state.clear_checked(point, conflict);
            }
            Ok(())
        });
    }

    pub(crate) fn clear_range(&mut self, core: &Core<S>, begin: &[u8], end: &[u8]) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            let range = checked_range(core, begin, end, SYSTEM_BEGIN)?;
            state.approximate_size += size::MUTATION + begin.len() + end.len();
            state.approximate_size += if conflict { size::RANGE + begin.len() + end.len() } else { 0 };
            if !range.is_empty() {
                state.clear_checked(range, conflict);
            }
            Ok(())
        });
    }

    /// A mutation of one key, unseen by any read.
    fn write_through(&mut self, mutation: Mutation, conflict: bool) {
        if conflict {
            self.writes.add_conflict(KeyRange::point(mutation.key()));
        }
        self.writes.write_through(mutation);
    }

    fn clear_checked(&mut self, range: KeyRange, conflict: bool) {
        if self.options.ryw_disabled {
            self.writes.write_through(Mutation::ClearRange(range.clone()));
        } else {
            self.trigger_watches(|watched| range.begin <= *watched && *watched < range.end, Some(None));
            self.writes.clear(range.clone());
        }
        if conflict {
            self.writes.add_conflict(range);
        }
    }

    pub(crate) fn add_conflict_range(&mut self, core: &Core<S>, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.defer(core, |state| {
            let max_key = match side {
                ConflictRange::Read => state.max_read_key(),
                ConflictRange::Write => SYSTEM_BEGIN,
            };
            let range = checked_range(core, begin, end, max_key)?;
            if range.is_empty() {
                return Ok(());
            }
            match side {
                ConflictRange::Read => state.add_read_conflict(range),
                ConflictRange::Write => {
                    state.approximate_size += size::of_range(&range);
                    state.writes.add_conflict(range);
                }
            }
            Ok(())
        });
    }

    fn account(&mut self, key: &Bytes, value: usize, conflict: bool) {
        self.approximate_size += size::MUTATION + key.len() + value;
        self.approximate_size += if conflict { size::of_key(key) } else { 0 };
    }
}

/// A range whose ends are not above `max_key`, cut to the lengths that keys can have: 2004, 2005.
fn checked_range<S: Store>(core: &Core<S>, begin: &[u8], end: &[u8], max_key: &[u8]) -> Result<KeyRange> {
    if begin > end {
        return Err(Error::new(error::INVERTED_RANGE));
    }
    if begin > max_key || end > max_key {
        return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
    }
    let longest = core.limits.key_bytes + KEY_SLACK;
    let cut = |key: &[u8]| Bytes::copy_from_slice(&key[..key.len().min(longest + 1)]);
    Ok(KeyRange { begin: cut(begin), end: cut(end) })
}
