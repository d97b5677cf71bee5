//! The read-your-writes view: the transaction's writes over a snapshot of the store.
//!
//! A scan merges two sorted streams: the store's rows outside of cleared ranges, and the stacks of the write map. It
//! fails with 1036 if it has to pass a pending versionstamp. It reads only as far as asked, so a read that its limit
//! ends earlier does not fail.
//!
//! Source: FoundationDB's `fdbclient/RYWIterator.cpp` and `ReadYourWrites.actor.cpp`.

use std::iter::Peekable;

use bytes::Bytes;
use kv_api::keys::key_after;
use kv_api::{Direction, Error, KeySelector, KeyValue, RangeBatch, Result, error};

use super::write_map::{Known, Stack, Unreadable, WriteMap};
use crate::key_map;
use crate::store::Snapshot;
use crate::sync::Arc;

impl From<Unreadable> for Error {
    fn from(_: Unreadable) -> Self {
        Error::new(error::ACCESSED_UNREADABLE)
    }
}

/// Limits of a range read. The read ends with the row that reaches one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Bytes of keys and values.
    pub(crate) bytes: usize,
}

impl Most {
    /// Takes rows until one of the limits is reached.
    fn take(self, rows: impl Iterator<Item = Result<(Bytes, Bytes)>>) -> Result<RangeBatch> {
        /// Initial capacity, enough for the rows of most documents.
        const FEW: usize = 16;
        let mut taken = RangeBatch::default();
        let mut bytes = 0;
        for row in rows {
            let (key, value) = match row {
                // The next batch begins with the error, and the reader can continue after the damage.
                Err(error) if error.damage().is_some() && !taken.rows.is_empty() => {
                    taken.more = true;
                    break;
                }
                row => row?,
            };
            if taken.rows.is_empty() {
                taken.rows.reserve(self.rows.min(FEW));
            }
            bytes += key.len() + value.len();
            taken.rows.push(KeyValue { key, value });
            taken.more = taken.rows.len() >= self.rows || bytes >= self.bytes;
            if taken.more {
                break;
            }
        }
        Ok(taken)
    }
}

/// A snapshot, and the transaction's writes if the reader sees them.
#[derive(Debug)]
pub(crate) struct Overlay<'a, V> {
    pub(crate) snapshot: Arc<V>,
    pub(crate) writes: Option<&'a WriteMap>,
    pub(crate) bypass_unreadable: bool,
}

/// The result of a selector.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) key: Bytes,
    /// The end of the keyspace that the selector ran past.
    pub(crate) off: Option<Edge>,
}

/// An end of the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    Begin,
    End,
}

impl<'a, V: Snapshot> Overlay<'a, V> {
    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(writes) = self.writes else { return self.snapshot.get(key) };
        match writes.known(key, self.bypass_unreadable)? {
            Known::Unmodified => self.snapshot.get(key),
            Known::Independent(stack) => Ok(stack.and_then(|stack| stack.value_over(None, writes.value_limit()))),
            Known::Dependent(stack) => Ok(stack.value_over(self.snapshot.get(key)?, writes.value_limit())),
        }
    }

    /// The transaction's writes, if there are any and the reader sees them.
    fn some_writes(&self) -> Option<&'a WriteMap> {
        self.writes.filter(|writes| !writes.has_no_writes())
    }

    /// The rows from `begin` up to, not including, `end`, up to the limits of `most`.
    pub(crate) fn read(&self, begin: &[u8], end: &[u8], direction: Direction, most: Most) -> Result<RangeBatch> {
        match self.some_writes() {
            None if begin < end => most.take(self.snapshot.range(begin, end, direction)),
            _ => most.take(self.scan(begin, end, direction)),
        }
    }

    /// The rows from `begin` up to, not including, `end`.
    pub(crate) fn scan(&self, begin: &[u8], end: &[u8], direction: Direction) -> Scan<'_, V> {
        let is_empty = begin >= end;
        let writes = self.some_writes().filter(|_| !is_empty);
        // The bounds are used only where writes may be unreadable.
        let bound = |key| if writes.is_some() { Bytes::copy_from_slice(key) } else { Bytes::new() };
        Scan {
            base: (!is_empty).then(|| self.snapshot.range(begin, end, direction).peekable()),
            ops: writes.map(|writes| Ops { range: writes.stacks_in(begin, end), direction }.peekable()),
            snapshot: &self.snapshot,
            writes,
            checks_unreadable: !self.bypass_unreadable && self.writes.is_some_and(WriteMap::any_unreadable),
            direction,
            begin: bound(begin),
            end: bound(end),
        }
    }

    /// The key that a selector names: the empty key before the first, `max_key` after the last.
    pub(crate) fn resolve(&self, selector: &KeySelector, max_key: &[u8]) -> Result<Resolved> {
        let selector = selector.clone().without_or_equal();
        let anchor = selector.key.as_ref().min(max_key);
        let (steps, direction, edge) = if selector.offset > 0 {
            (i64::from(selector.offset) - 1, Direction::Forward, Edge::End)
        } else {
            (-i64::from(selector.offset), Direction::Reverse, Edge::Begin)
        };
        let mut rows = match direction {
            Direction::Forward => self.scan(anchor, max_key, direction),
            Direction::Reverse => self.scan(b"", anchor, direction),
        };
        let mut steps = steps;
        while let Some(row) = rows.next().transpose()? {
            if steps == 0 {
                return Ok(Resolved { key: row.0, off: None });
            }
            steps -= 1;
        }
        let key = if edge == Edge::End { Bytes::copy_from_slice(max_key) } else { Bytes::new() };
        Ok(Resolved { key, off: Some(edge) })
    }
}

/// The stacks of a range, in either direction.
struct Ops<'a> {
    range: key_map::Range<'a, Stack>,
    direction: Direction,
}

impl<'a> Iterator for Ops<'a> {
    type Item = (&'a Bytes, &'a Stack);

    fn next(&mut self) -> Option<Self::Item> {
        match self.direction {
            Direction::Forward => self.range.next(),
            Direction::Reverse => self.range.next_back(),
        }
    }
}

/// Rows of an [`Overlay`]. Ends after an error.
pub(crate) struct Scan<'a, V: Snapshot> {
    base: Option<Peekable<V::Range<'a>>>,
    ops: Option<Peekable<Ops<'a>>>,
    snapshot: &'a V,
    writes: Option<&'a WriteMap>,
    checks_unreadable: bool,
    direction: Direction,
    /// The range. If unreadable keys are checked: its part that is not scanned yet.
    begin: Bytes,
    end: Bytes,
}

impl<'a, V: Snapshot> Scan<'a, V> {
    /// Moves the store's rows to the next one that this transaction has not cleared.
    fn skip_cleared(&mut self, writes: &WriteMap) -> Result<()> {
        /// Number of cleared rows that are stepped over before a seek is cheaper.
        const STEPS: usize = 16;
        let mut steps = 0;
        while let Some(base) = &mut self.base {
            let key = match base.peek() {
                Some(Ok((key, _))) => key,
                Some(Err(error)) => return Err(error.clone()),
                None => break,
            };
            let Some((begin, end)) = writes.cleared_around(key) else { break };
            steps += 1;
            if steps < STEPS {
                base.next();
                continue;
            }
            steps = 0;
            let (from, until) = match self.direction {
                Direction::Forward => (end.max(&self.begin), &self.end),
                Direction::Reverse => (&self.begin, begin.min(&self.end)),
            };
            self.base = (from < until).then(|| self.snapshot.range(from, until, self.direction).peekable());
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let Some(writes) = self.writes else {
            return self.base.as_mut().and_then(Iterator::next).transpose();
        };
        loop {
            self.skip_cleared(writes)?;
            let base_key = match self.base.as_mut().and_then(Peekable::peek) {
                Some(Ok((key, _))) => Some(key),
                _ => None,
            };
            let op_key = self.ops.as_mut().and_then(Peekable::peek).map(|(key, _)| *key);
            let order = match (base_key, op_key) {
                (None, None) => None,
                (Some(_), None) => Some(std::cmp::Ordering::Less),
                (None, Some(_)) => Some(std::cmp::Ordering::Greater),
                (Some(base), Some(op)) => Some(match self.direction {
                    Direction::Forward => base.cmp(op),
                    Direction::Reverse => op.cmp(base),
                }),
            };
            let Some(order) = order else {
                self.look_at_rest(writes)?;
                return Ok(None);
            };
            let key = if order.is_gt() { op_key } else { base_key }.cloned().unwrap_or_default();
            self.look_at(writes, &key)?;
            let base = if order.is_le() { self.base.as_mut().and_then(Iterator::next).transpose()? } else { None };
            if order.is_lt() {
                return Ok(base);
            }
            let base = base.map(|(_, value)| value);
            let value = match self.ops.as_mut().and_then(Iterator::next) {
                Some((_, stack)) => stack.value_over(base, writes.value_limit()),
                None => base,
            };
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Moves the scan past `key`: 1036 if a pending versionstamp hides a key up to it.
    fn look_at(&mut self, writes: &WriteMap, key: &Bytes) -> Result<()> {
        if !self.checks_unreadable {
            return Ok(());
        }
        let after = key_after(key);
        let hidden = match self.direction {
            Direction::Forward => writes.hides(&self.begin, &after),
            Direction::Reverse => writes.hides(key, &self.end),
        };
        if hidden {
            return Err(Unreadable.into());
        }
        match self.direction {
            Direction::Forward => self.begin = after,
            Direction::Reverse => self.end = key.clone(),
        }
        Ok(())
    }

    fn look_at_rest(&mut self, writes: &WriteMap) -> Result<()> {
        if self.checks_unreadable && writes.hides(&self.begin, &self.end) {
            return Err(Unreadable.into());
        }
        Ok(())
    }
}

impl<V: Snapshot> Iterator for Scan<'_, V> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            (self.base, self.ops, self.writes) = (None, None, None);
        }
        step.transpose()
    }
}
