//! Snapshots, and the rows of one: parts of the tree, corrected by before-images.
//!
//! ```text
//!   tree      a b   d e f │ g …        a part is read from the tree, then
//!   images      b c   e   │            the images of the keys that it spans:
//!   rows      a b c d   f              the old b, the removed c, without the new e
//! ```

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use disk::clears::uncovered;
use kv_api::{Direction, Result};
use occ::KeyRange;
use occ::store::Snapshot;
use sled::IVec;

use crate::error::caught;
use crate::images::AtEpoch;

/// Size of the first part. Small, since many reads want few rows; each next part is twice as large.
const FIRST_PIECE: usize = 16;
const LARGEST_PIECE: usize = 512;

/// Values up to this size are copied. Larger ones share memory with sled's cache.
const COPY_UP_TO: usize = 256;

/// A snapshot of a [`SledStore`](crate::SledStore).
#[derive(Clone)]
pub struct SledSnapshot {
    tree: sled::Db,
    at_epoch: Arc<AtEpoch>,
}

impl SledSnapshot {
    pub(crate) fn new(tree: sled::Db, at_epoch: Arc<AtEpoch>) -> Self {
        SledSnapshot { tree, at_epoch }
    }

    fn at_epoch(&self) -> &AtEpoch {
        &self.at_epoch
    }

    fn tree(&self, range: &KeyRange) -> sled::Iter {
        self.tree.range::<&[u8], _>(range.begin.as_ref()..range.end.as_ref())
    }
}

impl Snapshot for SledSnapshot {
    type Range<'a> = SledRange<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if self.at_epoch.cleared().contains(key) {
            return Ok(None);
        }
        // The tree first, then the images: see `images`.
        let now = caught("reading", || self.tree.get(key))?;
        let then = if self.at_epoch.is_behind() { self.at_epoch.image(key) } else { None };
        Ok(then.unwrap_or(now).map(to_bytes))
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> SledRange<'a> {
        SledRange::new(self, begin, end, direction)
    }
}

impl std::fmt::Debug for SledSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SledSnapshot").field("at_epoch", &self.at_epoch).finish_non_exhaustive()
    }
}

/// Rows of a [`SledSnapshot`].
pub struct SledRange<'a> {
    snapshot: &'a SledSnapshot,
    direction: Direction,
    /// Parts of the range outside pending intervals that have not been started.
    parts: VecDeque<KeyRange>,
    tree: Option<sled::Iter>,
    /// The rest of the part in progress.
    begin: Bound<Bytes>,
    end: Bound<Bytes>,
    piece: usize,
    ready: VecDeque<(Bytes, Bytes)>,
}

impl<'a> SledRange<'a> {
    pub(crate) fn new(snapshot: &'a SledSnapshot, begin: &[u8], end: &[u8], direction: Direction) -> Self {
        SledRange {
            snapshot,
            direction,
            parts: uncovered(snapshot.at_epoch().cleared(), begin, end).into(),
            tree: None,
            begin: Bound::Unbounded,
            end: Bound::Unbounded,
            piece: FIRST_PIECE,
            ready: VecDeque::new(),
        }
    }

    /// Starts the next part. Returns `false` if no part is left.
    fn next_part(&mut self) -> bool {
        let part = match self.direction {
            Direction::Forward => self.parts.pop_front(),
            Direction::Reverse => self.parts.pop_back(),
        };
        let Some(part) = part else { return false };
        self.tree = Some(self.snapshot.tree(&part));
        (self.begin, self.end) = (Bound::Included(part.begin), Bound::Excluded(part.end));
        true
    }

    fn read_piece(&mut self) -> Result<()> {
        let mut rows: VecDeque<(Bytes, Bytes)> = VecDeque::with_capacity(self.piece);
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let mut done = false;
        caught("reading", || {
            while rows.len() < self.piece {
                let row = match self.direction {
                    Direction::Forward => tree.next(),
                    Direction::Reverse => tree.next_back(),
                };
                match row {
                    Some(row) => {
                        let (key, value) = row?;
                        rows.push_back((to_bytes(key), to_bytes(value)));
                    }
                    None => {
                        done = true;
                        break;
                    }
                }
            }
            Ok(())
        })?;
        // The end of the part that was read: its last row, or the end of the range.
        let (begin, end) = match (self.direction, rows.back().filter(|_| !done)) {
            (_, None) => (self.begin.clone(), self.end.clone()),
            (Direction::Forward, Some((last, _))) => {
                let end = Bound::Included(last.clone());
                (std::mem::replace(&mut self.begin, Bound::Excluded(last.clone())), end)
            }
            (Direction::Reverse, Some((last, _))) => {
                let begin = Bound::Included(last.clone());
                (begin, std::mem::replace(&mut self.end, Bound::Excluded(last.clone())))
            }
        };
        if self.snapshot.at_epoch().is_behind() && !is_empty(&begin, &end) {
            rows = self.put_right(rows, begin, end);
        }
        self.piece = (self.piece * 2).min(LARGEST_PIECE);
        self.ready = rows;
        if done {
            self.tree = None;
        }
        Ok(())
    }

    fn put_right(
        &self,
        mut rows: VecDeque<(Bytes, Bytes)>,
        begin: Bound<Bytes>,
        end: Bound<Bytes>,
    ) -> VecDeque<(Bytes, Bytes)> {
        if self.direction == Direction::Reverse {
            rows.make_contiguous().reverse();
        }
        let mut right = VecDeque::with_capacity(rows.len());
        let bounds = (begin.as_ref().map(|key| key.as_ref()), end.as_ref().map(|key| key.as_ref()));
        self.snapshot.at_epoch().each_image(bounds, |key, image| {
            while rows.front().is_some_and(|(row, _)| row < key) {
                right.extend(rows.pop_front());
            }
            if rows.front().is_some_and(|(row, _)| row == key) {
                rows.pop_front();
            }
            if let Some(value) = image {
                right.push_back((key.clone(), to_bytes(value.clone())));
            }
        });
        right.extend(rows);
        if self.direction == Direction::Reverse {
            right.make_contiguous().reverse();
        }
        right
    }
}

/// Whether no key lies between the bounds. sled panics for such bounds.
fn is_empty(begin: &Bound<Bytes>, end: &Bound<Bytes>) -> bool {
    match (begin, end) {
        (Bound::Included(begin), Bound::Included(end)) => begin > end,
        (Bound::Included(begin) | Bound::Excluded(begin), Bound::Included(end) | Bound::Excluded(end)) => begin >= end,
        _ => false,
    }
}

impl Iterator for SledRange<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.ready.pop_front() {
                return Some(Ok(row));
            }
            if self.tree.is_none() && !self.next_part() {
                return None;
            }
            if let Err(error) = self.read_piece() {
                self.tree = None;
                self.parts.clear();
                return Some(Err(error));
            }
        }
    }
}

impl std::fmt::Debug for SledRange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SledRange").field("begin", &self.begin).field("end", &self.end).finish_non_exhaustive()
    }
}

pub(crate) fn to_bytes(value: IVec) -> Bytes {
    if value.len() <= COPY_UP_TO { Bytes::copy_from_slice(&value) } else { Bytes::from_owner(value) }
}
