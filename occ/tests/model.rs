//! Random interleaved transactions, compared with a model that keeps every version as a whole map.
//!
//! The model applies each write at once to a copy of the transaction's snapshot, so read-your-writes is a plain lookup.
//! It keeps the ranges that each transaction read and wrote, so it knows exactly which commits must fail.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kv_api::keys::key_after;
use kv_api::{ConflictRange, Database, Direction, KeySelector, MutationType, RangeRequest, Read, Transaction};
use support::*;

type Tx = <Db as Database>::Transaction;
type Range = (Bytes, Bytes);

struct Random(occ::Random);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0.next() % below
    }

    fn key(&mut self) -> Bytes {
        let mut key = vec![b'a' + self.below(6) as u8];
        for _ in 0..self.below(3) {
            key.push(b'a' + self.below(3) as u8);
        }
        key.into()
    }

    fn range(&mut self) -> Range {
        let (one, two) = (self.key(), self.key());
        (one.clone().min(two.clone()), one.max(two))
    }

    fn selector(&mut self) -> KeySelector {
        KeySelector { key: self.key(), or_equal: self.below(2) == 0, offset: self.below(7) as i32 - 3 }
    }
}

/// A transaction, implemented naively.
struct Model {
    snapshot: Map,
    read_version: i64,
    pending: BTreeSet<Bytes>,
    /// Ranges whose content depends on this transaction alone.
    own: Vec<Range>,
    reads: Vec<Range>,
    writes: Vec<Range>,
    ops: Vec<Write>,
    /// A read failed, so the commit must fail too.
    failed: bool,
}

#[derive(Clone, Debug)]
enum Write {
    Set(Bytes, Bytes),
    Clear(Range),
    Atomic(MutationType, Bytes, Bytes),
}

fn point(key: &Bytes) -> Range {
    (key.clone(), key_after(key))
}

fn covers(range: &Range, key: &Bytes) -> bool {
    range.0 <= *key && *key < range.1
}

/// `range` without `hole`.
fn without(range: Range, hole: &Range) -> Vec<Range> {
    let (begin, end) = range;
    if hole.1 <= begin || end <= hole.0 {
        return vec![(begin, end)];
    }
    let parts = [(begin.clone(), hole.0.clone()), (hole.1.clone(), end)];
    parts.into_iter().filter(|(begin, end)| begin < end).collect()
}

fn apply(map: &mut Map, write: &Write) {
    match write {
        Write::Set(key, value) => drop(map.insert(key.clone(), value.clone())),
        Write::Clear(range) => map.retain(|key, _| !covers(range, key)),
        Write::Atomic(operation, key, operand) => {
            match occ::atomic::apply(*operation, map.get(key), operand, 100_000) {
                Some(value) => drop(map.insert(key.clone(), value)),
                None => drop(map.remove(key)),
            }
        }
    }
}

impl Model {
    fn read(&mut self, begin: Bytes, end: Bytes) {
        if begin >= end {
            return;
        }
        let mut parts = vec![(begin, end)];
        for own in &self.own {
            parts = parts.into_iter().flat_map(|part| without(part, own)).collect();
        }
        self.reads.extend(parts);
    }

    fn write(&mut self, write: Write) {
        let (range, decides) = match &write {
            Write::Set(key, _) => (point(key), true),
            Write::Clear(range) => (range.clone(), true),
            Write::Atomic(_, key, _) => (point(key), false),
        };
        if decides {
            self.own.push(range.clone());
        }
        if matches!(write, Write::Clear(_)) {
            self.pending.retain(|key| !covers(&range, key));
        }
        self.writes.push(range);
        apply(&mut self.snapshot, &write);
        self.ops.push(write);
    }

    /// The key that a selector names, found by counting.
    fn resolve(&self, selector: &KeySelector) -> (Bytes, bool) {
        let keys: Vec<&Bytes> = self.snapshot.keys().collect();
        let at = keys.partition_point(|key| **key < selector.key || (selector.or_equal && **key == selector.key));
        let at = at as i64 - 1 + i64::from(selector.offset);
        if at < 0 {
            (Bytes::new(), false)
        } else if at >= keys.len() as i64 {
            (Bytes::from_static(b"\xff"), false)
        } else {
            (keys[at as usize].clone(), true)
        }
    }
}

struct World {
    db: Db,
    versions: BTreeMap<i64, Map>,
    commits: Vec<(i64, Vec<Range>)>,
    open: Vec<(Tx, Option<Model>)>,
    random: Random,
    conflicts: usize,
}

impl World {
    fn step(&mut self, context: &str) {
        let World { db, versions, commits, open, random, conflicts } = self;
        if open.len() < 5 {
            open.push((db.begin().unwrap(), None));
        }
        let at = random.below(open.len() as u64) as usize;
        let (tx, model) = &mut open[at];
        let model = model.get_or_insert_with(|| {
            let read_version = block_on(tx.get_read_version()).unwrap();
            let snapshot = versions.range(..=read_version).next_back().map(|(_, map)| map.clone()).unwrap_or_default();
            let (pending, own, reads) = (BTreeSet::new(), Vec::new(), Vec::new());
            Model { snapshot, read_version, pending, own, reads, writes: Vec::new(), ops: Vec::new(), failed: false }
        });
        let read = if random.below(4) == 0 { Read::Snapshot } else { Read::Serializable };
        match random.below(100) {
            0..20 => {
                let key = random.key();
                let found = block_on(tx.get(&key, read));
                if model.pending.contains(&key) {
                    model.failed = true;
                    return assert_eq!(found.unwrap_err().code(), 1036, "{context}");
                }
                assert_eq!(found.unwrap(), model.snapshot.get(&key).cloned(), "{context}: {key:?}");
                if read == Read::Serializable {
                    model.read(key.clone(), key_after(&key));
                }
            }
            20..30 => {
                let selector = random.selector();
                if !model.pending.is_empty() {
                    return;
                }
                let (key, _) = model.resolve(&selector);
                assert_eq!(block_on(tx.get_key(&selector, read)).unwrap(), key, "{context}: {selector:?}");
                if read == Read::Serializable {
                    let anchor = if selector.or_equal { key_after(&selector.key) } else { selector.key.clone() };
                    if selector.offset <= 0 { model.read(key, anchor) } else { model.read(anchor, key_after(&key)) }
                }
            }
            30..45 => {
                let (begin, end) = random.range();
                let mut request = RangeRequest::keys(begin.clone(), end.clone()).limit(random.below(6) as usize);
                if random.below(2) == 0 {
                    request = request.reverse();
                }
                if model.pending.iter().any(|key| covers(&(begin.clone(), end.clone()), key)) {
                    return;
                }
                let found = block_on(tx.get_range(&request, read)).unwrap();
                let mut expected: Vec<_> = model
                    .snapshot
                    .range(begin.clone()..end.clone())
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                if request.direction == Direction::Reverse {
                    expected.reverse();
                }
                let more = request.limit > 0 && expected.len() >= request.limit;
                if more {
                    expected.truncate(request.limit);
                }
                let rows: Vec<_> = found.rows.into_iter().map(|row| (row.key, row.value)).collect();
                assert_eq!((&rows, found.more), (&expected, more), "{context}: {request:?}");
                if read == Read::Serializable {
                    match (rows.last(), request.direction) {
                        (Some((last, _)), Direction::Forward) if more => model.read(begin, key_after(last)),
                        (Some((last, _)), Direction::Reverse) if more => model.read(last.clone(), end),
                        _ => model.read(begin, end),
                    }
                }
            }
            45..52 => {
                // A range between any two selectors. Its conflicts are not modelled, so the transaction must
                // not read afterwards.
                let request = RangeRequest::selectors(random.selector(), random.selector());
                if !model.pending.is_empty() {
                    return;
                }
                // "The first key at or after" bounds a range by the key itself.
                let bound = |selector: &KeySelector| match (selector.or_equal, selector.offset) {
                    (false, 1) => selector.key.clone(),
                    (true, 1) => key_after(&selector.key),
                    _ => model.resolve(selector).0,
                };
                let (begin, end) = (bound(&request.begin), bound(&request.end));
                let expected: Vec<Bytes> = if begin < end {
                    model.snapshot.range(begin..end).map(|(key, _)| key.clone()).collect()
                } else {
                    Vec::new()
                };
                let found = block_on(tx.get_range(&request, Read::Snapshot)).unwrap();
                let found: Vec<Bytes> = found.rows.into_iter().map(|row| row.key).collect();
                assert_eq!(found, expected, "{context}: {request:?}");
            }
            52..66 => {
                let (key, value) = (random.key(), Bytes::from(format!("{}", random.below(1000))));
                tx.set(&key, &value);
                model.write(Write::Set(key, value));
            }
            66..73 => {
                let key = random.key();
                tx.clear(&key);
                model.write(Write::Clear(point(&key)));
            }
            73..77 => {
                let range = random.range();
                tx.clear_range(&range.0, &range.1);
                if range.0 < range.1 {
                    model.write(Write::Clear(range));
                }
            }
            77..87 => {
                use MutationType::*;
                let operation = [Add, BitAnd, BitOr, BitXor, AppendIfFits, Max, Min, ByteMin, ByteMax, CompareAndClear]
                    [random.below(10) as usize];
                let (key, length) = (random.key(), random.below(4));
                let operand: Bytes = (0..length).map(|_| b'0' + random.below(4) as u8).collect();
                if model.pending.contains(&key) {
                    return;
                }
                tx.atomic_op(operation, &key, &operand);
                model.write(Write::Atomic(operation, key, operand));
            }
            87..89 => {
                let key = random.key();
                let operand = [[0; 10].as_slice(), &0u32.to_le_bytes()].concat();
                tx.atomic_op(MutationType::SetVersionstampedValue, &key, &operand);
                model.own.push(point(&key));
                model.writes.push(point(&key));
                model.ops.push(Write::Atomic(MutationType::SetVersionstampedValue, key.clone(), Bytes::new()));
                model.pending.insert(key);
            }
            89..91 => {
                let (begin, end) = random.range();
                let side = if random.below(2) == 0 { ConflictRange::Read } else { ConflictRange::Write };
                tx.add_conflict_range(&begin, &end, side);
                if begin < end {
                    if side == ConflictRange::Read { model.read(begin, end) } else { model.writes.push((begin, end)) }
                }
            }
            _ => {
                let (tx, model) = open.swap_remove(at);
                let Some(model) = model else { return };
                let changed = commits.iter().filter(|(version, _)| *version > model.read_version).any(|(_, writes)| {
                    writes.iter().any(|write| model.reads.iter().any(|read| read.0 < write.1 && write.0 < read.1))
                });
                if model.failed {
                    return assert_eq!(commit(&tx), 1036, "{context}");
                }
                let expected = if changed && !model.writes.is_empty() { 1020 } else { 0 };
                assert_eq!(commit(&tx), expected, "{context}: reads {:?}, writes {:?}", model.reads, model.writes);
                if expected == 1020 {
                    *conflicts += 1;
                    return;
                }
                let version = tx.get_committed_version().unwrap();
                assert_eq!(version == -1, model.writes.is_empty(), "{context}");
                if version == -1 {
                    return;
                }
                let mut map = versions.last_key_value().map(|(_, map)| map.clone()).unwrap_or_default();
                for write in &model.ops {
                    if let Write::Atomic(MutationType::SetVersionstampedValue, key, _) = write {
                        let stamp = kv_api::Versionstamp::new(version as u64, 0);
                        map.insert(key.clone(), Bytes::copy_from_slice(stamp.as_bytes()));
                    } else {
                        apply(&mut map, write);
                    }
                }
                versions.insert(version, map.clone());
                commits.push((version, model.writes));
                let all = block_on(db.begin().unwrap().get_range(&RangeRequest::keys("", "\u{7f}"), Read::Snapshot));
                let all: Map = all.unwrap().rows.into_iter().map(|row| (row.key, row.value)).collect();
                assert_eq!(all, map, "{context}: after {:?}", model.ops);
            }
        }
    }
}

#[test]
fn agrees_with_the_model() {
    for seed in 0..60 {
        let (db, clock, _) = open();
        let random = Random(occ::Random::new(seed));
        let mut world =
            World { db, versions: BTreeMap::new(), commits: Vec::new(), open: Vec::new(), random, conflicts: 0 };
        for step in 0..1500 {
            world.step(&format!("seed {seed}, step {step}"));
            if step % 10 == 0 {
                clock.advance(Duration::from_micros(50));
            }
        }
        assert!(world.conflicts > 5 && world.commits.len() > 20, "seed {seed} tests nothing");
    }
}
