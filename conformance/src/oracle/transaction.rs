//! A transaction of the oracle: a log of writes, and ranges that were read.

use kv_api::{Direction, Error, KeySelector, MutationType, RangeRequest, Read, Result, Versionstamp, error};

use super::{END, Map, Range, atomic, key_after, overlap, point, subtract};

/// A write, as it was called.
#[derive(Clone, Debug)]
enum Write {
    Set(Vec<u8>, Vec<u8>),
    Clear(Range),
    Atomic(MutationType, Vec<u8>, Vec<u8>),
    /// The key, and the operand with its offset.
    StampedValue(Vec<u8>, Vec<u8>),
    /// The key with its offset, the key that stands for it until the commit, and the value.
    StampedKey(Vec<u8>, Vec<u8>, Vec<u8>),
}

/// Writes the stamp over ten bytes, at the offset in the last four bytes.
fn stamp_into(template: &[u8], stamp: &[u8; 10]) -> Vec<u8> {
    let (body, offset) = template.split_at(template.len() - 4);
    let at = u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]) as usize;
    [&body[..at], stamp, &body[at + 10..]].concat()
}

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Whether a range read, or one of its selectors, ran into the ends of the keyspace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    begin: bool,
    end: bool,
}

/// A transaction.
#[derive(Clone, Debug, Default)]
pub struct OracleTransaction {
    /// The version it reads at, once it has one.
    pub read_version: Option<i64>,
    pub(super) read_conflicts: Vec<Range>,
    pub(super) write_conflicts: Vec<Range>,
    log: Vec<Write>,
    /// Error of every read and of the commit, after an invalid write.
    wrong: Option<Error>,
    /// Error of the commit, after a failed read.
    failed_read: Option<Error>,
    cancelled: bool,
    next_write_has_no_conflict: bool,
    snapshots_hide_own: i32,
}

impl OracleTransaction {
    // ---- what it answers before it looks ----

    /// The errors that every operation may return, if any. After a cancellation and an invalid write either is right:
    /// the documents do not say which comes first.
    pub fn refusals(&self) -> Vec<Error> {
        let cancelled = self.cancelled.then(|| Error::new(error::TRANSACTION_CANCELLED));
        self.wrong.clone().into_iter().chain(cancelled).collect()
    }

    pub(super) fn may_commit(&self) -> Result<()> {
        match self.refusals().first().or(self.failed_read.as_ref()) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn writes(&self) -> bool {
        !self.log.is_empty() || !self.write_conflicts.is_empty()
    }

    /// Records an invalid write. The first error stays.
    pub fn wrong(&mut self, code: i32) {
        self.wrong.get_or_insert(Error::new(code));
    }

    /// Records a read that failed in the store.
    pub fn failed(&mut self, error: &Error) {
        self.failed_read.get_or_insert_with(|| error.clone());
    }

    /// Cancels.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Snapshot reads hide own writes while this count of disables minus enables is positive.
    pub fn snapshots_hide_own(&mut self, by: i32) {
        self.snapshots_hide_own += by;
    }

    /// The next write adds no conflict range.
    pub fn next_write_has_no_conflict(&mut self) {
        self.next_write_has_no_conflict = true;
    }

    // ---- writes ----

    fn write(&mut self, write: Write, range: Option<Range>) {
        let has_conflict = !std::mem::take(&mut self.next_write_has_no_conflict);
        self.log.push(write);
        self.write_conflicts.extend(range.filter(|_| has_conflict));
    }

    /// Sets a key.
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        self.write(Write::Set(key.to_vec(), value.to_vec()), Some(point(key)));
    }

    /// Clears a range that is not inverted.
    pub fn clear(&mut self, begin: &[u8], end: &[u8]) {
        let range = (begin.to_vec(), end.to_vec());
        if begin == end {
            self.next_write_has_no_conflict = false;
        } else {
            self.write(Write::Clear(range.clone()), Some(range));
        }
    }

    /// An atomic operation that is not versionstamped.
    pub fn atomic(&mut self, mutation: MutationType, key: &[u8], operand: &[u8]) {
        self.write(Write::Atomic(mutation, key.to_vec(), operand.to_vec()), Some(point(key)));
    }

    /// A versionstamped value that has room for its stamp.
    pub fn stamped_value(&mut self, key: &[u8], operand: &[u8]) {
        self.write(Write::StampedValue(key.to_vec(), operand.to_vec()), Some(point(key)));
    }

    /// A versionstamped key that has room for its stamp.
    pub fn stamped_key(&mut self, template: &[u8], value: &[u8]) {
        let least = Versionstamp::new(self.read_version.unwrap_or(0).unsigned_abs(), 0);
        let stands = stamp_into(template, least.as_bytes());
        self.write(Write::StampedKey(template.to_vec(), stands, value.to_vec()), None);
    }

    /// Whether this stamped key was set before, while the read version was unknown.
    pub fn stands_elsewhere(&self, template: &[u8]) -> bool {
        let least = Versionstamp::new(self.read_version.unwrap_or(0).unsigned_abs(), 0);
        let place = stamp_into(template, least.as_bytes());
        self.log.iter().any(|write| match write {
            Write::StampedKey(before, stands, _) => before == template && *stands != place,
            _ => false,
        })
    }

    /// Adds a write conflict range by hand.
    pub fn write_conflict(&mut self, begin: &[u8], end: &[u8]) {
        if begin < end {
            self.write_conflicts.push((begin.to_vec(), end.to_vec()));
        }
    }

    /// Adds a read conflict range, of a read or by hand, without the parts that do not depend on the database.
    pub fn read_conflict(&mut self, begin: &[u8], end: &[u8]) {
        let mut ranges = vec![(begin.to_vec(), end.to_vec())];
        for known in self.known() {
            ranges = subtract(&ranges, &known);
        }
        self.read_conflicts.extend(ranges.into_iter().filter(|range| range.0 < range.1));
    }

    /// The ranges whose contents do not depend on the database: those set or cleared.
    fn known(&self) -> Vec<Range> {
        let mut known = Vec::new();
        for write in &self.log {
            match write {
                Write::Set(key, _) | Write::StampedValue(key, _) => known.push(point(key)),
                Write::Clear(range) => known.push(range.clone()),
                Write::Atomic(..) => {}
                Write::StampedKey(template, stands, _) => {
                    known = subtract(&known, &where_it_may_lie(template, stands));
                }
            }
        }
        known
    }

    /// The ranges that cannot be read before the commit.
    pub fn unreadable(&self) -> Vec<Range> {
        let mut unreadable = Vec::new();
        for write in &self.log {
            match write {
                Write::StampedValue(key, _) => unreadable.push(point(key)),
                Write::StampedKey(template, stands, _) => unreadable.push(where_it_may_lie(template, stands)),
                Write::Clear(range) => unreadable = subtract(&unreadable, range),
                Write::Set(..) | Write::Atomic(..) => {}
            }
        }
        unreadable
    }

    /// Replays the log over `map`. A commit passes its stamp. Returns the stamped keys.
    pub(super) fn apply(&self, map: &mut Map, stamp: Option<Versionstamp>) -> Vec<Vec<u8>> {
        let mut pending: Vec<(&[u8], &[u8], &[u8])> = Vec::new();
        for write in &self.log {
            match write {
                Write::Set(key, value) => {
                    map.insert(key.clone(), value.clone());
                }
                Write::Clear((begin, end)) => {
                    map.retain(|key, _| key < begin || end <= key);
                    pending.retain(|(_, stands, _)| *stands < &begin[..] || &end[..] <= *stands);
                }
                Write::Atomic(mutation, key, operand) => {
                    match atomic::apply(*mutation, map.get(key).map(Vec::as_slice), operand, 100_000) {
                        Some(value) => map.insert(key.clone(), value),
                        None => map.remove(key),
                    };
                }
                Write::StampedValue(key, operand) => {
                    let value = stamp.map_or_else(|| operand.clone(), |stamp| stamp_into(operand, stamp.as_bytes()));
                    map.insert(key.clone(), value);
                }
                Write::StampedKey(template, stands, value) => pending.push((template, stands, value)),
            }
        }
        let Some(stamp) = stamp else { return Vec::new() };
        pending
            .into_iter()
            .map(|(template, _, value)| {
                let key = stamp_into(template, stamp.as_bytes());
                map.insert(key.clone(), value.to_vec());
                key
            })
            .collect()
    }

    // ---- reads, over the map at the read version ----

    /// The database as `read` sees it.
    fn view(&self, stored: &Map, read: Read) -> Map {
        let mut view = stored.clone();
        if self.sees_own(read) {
            self.apply(&mut view, None);
        }
        view
    }

    /// Whether such a read sees own writes.
    pub fn sees_own(&self, read: Read) -> bool {
        read == Read::Serializable || self.snapshots_hide_own <= 0
    }

    /// The value of `key`. An error of this read fails the commit too.
    pub fn get(&mut self, stored: &Map, key: &[u8], read: Read) -> Result<Option<Vec<u8>>> {
        let value = self.watched(stored, key, read);
        if let Err(error) = &value {
            self.failed(error);
        }
        value
    }

    /// The value of `key` for a watch. Its error does not fail the commit.
    pub fn watched(&mut self, stored: &Map, key: &[u8], read: Read) -> Result<Option<Vec<u8>>> {
        let at = point(key);
        if self.sees_own(read) && self.unreadable().iter().any(|range| overlap(range, &at)) {
            return Err(Error::new(error::ACCESSED_UNREADABLE));
        }
        let value = self.view(stored, read).get(key).cloned();
        if read == Read::Serializable {
            self.read_conflict(&at.0, &at.1);
        }
        Ok(value)
    }

    /// The key that `selector` resolves to.
    pub fn get_key(&mut self, stored: &Map, selector: &KeySelector, read: Read) -> Vec<u8> {
        let key = place(&self.view(stored, read), selector);
        if read == Read::Serializable {
            let anchor = selector.clone().without_or_equal().key;
            if selector.offset <= 0 {
                self.read_conflict(&key, &anchor);
            } else {
                self.read_conflict(&anchor, &key_after(&key));
            }
        }
        key
    }

    /// All rows of a range, in the requested order.
    pub fn rows(&self, stored: &Map, request: &RangeRequest, read: Read) -> (Vec<Row>, Ends) {
        let view = self.view(stored, read);
        // A selector of offset 1 is used as a bound directly: no key needs to be found.
        let bound = |selector: &KeySelector| match selector.offset {
            1 => selector.clone().without_or_equal().key.to_vec(),
            _ => place(&view, selector),
        };
        let (begin, end) = (bound(&request.begin), bound(&request.end));
        let bounds = [(request.begin.offset, &begin), (request.end.offset, &end)];
        let ends = Ends {
            begin: bounds.iter().any(|(offset, bound)| *offset < 1 && bound.is_empty()),
            end: bounds.iter().any(|(offset, bound)| *offset > 1 && *bound == END),
        };
        if begin >= end {
            return (Vec::new(), ends);
        }
        let mut rows: Vec<_> = view.range(begin..end).map(|(key, value)| (key.clone(), value.clone())).collect();
        if request.direction == Direction::Reverse {
            rows.reverse();
        }
        (rows, ends)
    }

    /// Adds the conflict of a serializable range read that returned these keys.
    pub fn range_conflict(&mut self, request: &RangeRequest, returned: &[Vec<u8>], more: bool, ends: Ends) {
        let (begin, end) = (request.begin.clone().without_or_equal(), request.end.clone().without_or_equal());
        if begin.offset >= end.offset && begin.key >= end.key {
            return;
        }
        let forward = request.direction == Direction::Forward;
        let (mut from, mut to) = (begin.key.to_vec(), end.key.to_vec());
        if from >= to {
            std::mem::swap(&mut from, &mut to);
        } else if more && forward && end.offset > 0 {
            // Keys beyond the last returned row could not have changed the result.
            to = from.clone();
        } else if more && !forward && begin.offset <= 1 {
            from = to.clone();
        }
        if ends.begin && begin.offset <= 0 && (forward || !more) {
            from = Vec::new();
        }
        if ends.end && end.offset > 0 && (!forward || !more) {
            to = END.to_vec();
        }
        if let (Some(least), Some(greatest)) = (returned.iter().min(), returned.iter().max()) {
            if !forward || begin.offset <= 0 {
                from = from.min(least.clone());
            }
            if (forward || end.offset > 0) && to <= *greatest {
                to = key_after(greatest);
            }
        }
        self.read_conflict(&from, &to);
    }
}

/// The range in which a stamped key may end up, from its place before the commit.
fn where_it_may_lie(template: &[u8], stands: &[u8]) -> Range {
    let last = stamp_into(template, Versionstamp::PENDING.as_bytes());
    (stands.to_vec(), key_after(&last).min(END.to_vec()))
}

/// The key that a selector resolves to: the empty key before the first key, the end of the keyspace after the
/// last.
fn place(map: &Map, selector: &KeySelector) -> Vec<u8> {
    let is_before = |key: &&Vec<u8>| {
        key.as_slice() < &selector.key[..] || (selector.or_equal && key.as_slice() == &selector.key[..])
    };
    let index = map.keys().filter(is_before).count() as i64 - 1 + i64::from(selector.offset);
    match usize::try_from(index) {
        Err(_) => Vec::new(),
        Ok(index) => map.keys().nth(index).cloned().unwrap_or_else(|| END.to_vec()),
    }
}
