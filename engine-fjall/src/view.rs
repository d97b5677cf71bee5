//! A snapshot of the store, and rows of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use disk::clears::uncovered;
use disk::panics::caught;
use fjall::{Keyspace, Readable, Slice, Snapshot};
use kv_api::{Direction, Result};
use occ::store::View;
use occ::{KeyRange, RangeSet};

use crate::error::failed;
use crate::keys;

/// Values up to this many bytes are copied, larger ones shared with fjall's cache.
const COPY_UP_TO: usize = 512;

/// Backwards, a range of up to so many rows is read forwards and turned round: stepping back, fjall searches
/// its rows in memory from the top, each time.
const FEW: usize = 32;

/// A snapshot of a [`FjallStore`](crate::FjallStore).
#[derive(Clone)]
pub struct FjallView(Arc<Seen>);

struct Seen {
    snapshot: Snapshot,
    rows: Keyspace,
    /// Rows in these are absent.
    cleared: Arc<RangeSet>,
}

impl FjallView {
    pub(crate) fn new(snapshot: Snapshot, rows: Keyspace, cleared: Arc<RangeSet>) -> Self {
        FjallView(Arc::new(Seen { snapshot, rows, cleared }))
    }

    fn rows(&self, begin: &[u8], end: &[u8]) -> fjall::Iter {
        self.0.snapshot.range(&self.0.rows, keys::stored(begin)..keys::stored(end))
    }
}

impl std::fmt::Debug for FjallView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallView").field("snapshot", &self.0.snapshot.seqno()).finish_non_exhaustive()
    }
}

impl View for FjallView {
    type Range<'a> = FjallRange<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if self.0.cleared.contains(key) {
            return Ok(None);
        }
        caught("fjall", || {
            let value = self.0.snapshot.get(&self.0.rows, keys::stored(key)).map_err(failed)?;
            Ok(value.map(to_bytes))
        })
    }

    fn range(&self, begin: &[u8], end: &[u8], direction: Direction) -> FjallRange<'_> {
        let parts = uncovered(&self.0.cleared, begin, end).into();
        FjallRange { view: self, direction, parts, rows: None, few: Vec::new() }
    }
}

fn to_bytes(value: Slice) -> Bytes {
    if value.len() <= COPY_UP_TO { Bytes::copy_from_slice(&value) } else { Bytes::from_owner(value) }
}

/// Rows of a [`FjallView`].
pub struct FjallRange<'a> {
    view: &'a FjallView,
    direction: Direction,
    /// Parts of the range that nothing pending covers, and that have not been begun.
    parts: VecDeque<KeyRange>,
    /// Of the part under way.
    rows: Option<fjall::Iter>,
    /// All rows of the part under way, when they are few and to be read backwards.
    few: Vec<(Bytes, Bytes)>,
}

impl std::fmt::Debug for FjallRange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallRange").field("direction", &self.direction).finish_non_exhaustive()
    }
}

fn row(row: fjall::Guard) -> Result<(Bytes, Bytes)> {
    let (key, value) = row.into_inner().map_err(failed)?;
    Ok((Bytes::copy_from_slice(keys::ours(&key)), to_bytes(value)))
}

impl FjallRange<'_> {
    /// The next row of the part under way, or of the next one that has any.
    fn read(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            if let Some(row) = self.few.pop() {
                return Ok(Some(row));
            }
            if let Some(rows) = &mut self.rows {
                let next = match self.direction {
                    Direction::Forward => rows.next(),
                    Direction::Reverse => rows.next_back(),
                };
                if let Some(next) = next {
                    return row(next).map(Some);
                }
                self.rows = None;
            }
            let part = match self.direction {
                Direction::Forward => self.parts.pop_front(),
                Direction::Reverse => self.parts.pop_back(),
            };
            let Some(part) = part else { return Ok(None) };
            let mut rows = self.view.rows(&part.begin, &part.end);
            if self.direction == Direction::Reverse {
                self.few = rows.by_ref().take(FEW).map(row).collect::<Result<_>>()?;
                if self.few.len() < FEW {
                    continue;
                }
                self.few.clear();
                rows = self.view.rows(&part.begin, &part.end);
            }
            self.rows = Some(rows);
        }
    }
}

impl Iterator for FjallRange<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = caught("fjall", || self.read());
        if row.is_err() {
            self.parts.clear();
            self.few.clear();
            self.rows = None;
        }
        row.transpose()
    }
}
