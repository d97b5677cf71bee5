//! The writing half of a transaction: each write is checked, counted, and put into the write map.

use bytes::Bytes;
use kv_api::keys::SYSTEM_BEGIN;
use kv_api::{ConflictRange, Error, MutationType, Result, error};

use super::{KEY_SLACK, TransactionState};
use crate::KeyRange;
use crate::database::core::Core;
use crate::mutation::versionstamp::{self, PendingKey};
use crate::mutation::{Mutation, Write};
use crate::store::Store;
use crate::transaction::size;

impl<S: Store> TransactionState<S> {
    fn check_write(&self, core: &Core<S>, key: &[u8], value: &[u8]) -> Result<()> {
        if key.starts_with(SYSTEM_BEGIN) {
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

    /// Whether the next write adds a conflict range. Consumes the option that switches it off.
    fn adds_conflict(&mut self) -> bool {
        !std::mem::take(&mut self.options.next_write_no_conflict)
    }

    pub(crate) fn set(&mut self, core: &Core<S>, key: Bytes, value: Bytes) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            state.check_write(core, &key, &value)?;
            state.write(key, Write::Set(Some(value)), conflict);
            Ok(())
        });
    }

    pub(crate) fn atomic_op(&mut self, core: &Core<S>, operation: MutationType, key: Bytes, operand: Bytes) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            state.check_write(core, &key, &operand)?;
            match operation {
                MutationType::SetVersionstampedKey => return state.set_stamped_key(key, operand),
                MutationType::SetVersionstampedValue => versionstamp::check_offset(&operand)?,
                _ => {}
            }
            state.write(key, Write::Atomic(operation, operand), conflict);
            Ok(())
        });
    }

    /// Sets a versionstamped key. It adds no conflict: the stamped key does, when the commit knows it.
    fn set_stamped_key(&mut self, mut key: Bytes, value: Bytes) -> Result<()> {
        versionstamp::check_offset(&key)?;
        if !self.options.ryw_disabled {
            let pending = PendingKey::new(&key, self.version.unwrap_or(0), self.max_read_key());
            self.writes.make_unreadable(pending.range);
            key = pending.least_key;
        }
        self.write(key, Write::Atomic(MutationType::SetVersionstampedKey, value), false);
        Ok(())
    }

    /// Writes a key that was checked.
    fn write(&mut self, key: Bytes, write: Write, conflict: bool) {
        self.approximate_size += size::of_write(&key, &write);
        self.approximate_size += if conflict { size::of_key(&key) } else { 0 };
        if self.options.ryw_disabled {
            if conflict {
                self.writes.add_conflict(KeyRange::point(&key));
            }
            self.writes.write_through(Mutation::Key { key, write, conflicts: false });
            return;
        }
        let value = match &write {
            Write::Set(value) => Some(value.as_ref()),
            Write::Atomic(..) => None,
        };
        self.trigger_watches(|watched| *watched == key, value);
        self.writes.write(key, write, conflict);
    }

    pub(crate) fn clear(&mut self, core: &Core<S>, key: &[u8]) {
        self.defer(core, |state| {
            let conflict = state.adds_conflict();
            if key.starts_with(SYSTEM_BEGIN) {
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

    /// Clears a range that was checked and is not empty.
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
}

/// The range between two keys, cut to the lengths that keys can have. 2005 if it is inverted, 2004 if it ends above
/// `max_key`.
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
