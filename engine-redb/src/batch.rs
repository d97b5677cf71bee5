//! A batch on its way into redb's tree: in key order, and rows that lie side by side together.
//!
//! A row put in by itself costs a descent of the tree and a place made in its leaf. The rows of a document
//! come side by side: redb's cursor takes such a run down once and builds the leaf once.
//!
//! ```text
//!   batch     set d  set a  clear b  clear c..e  set d2  set b
//!   settled   clear c..e,  then  a  b  d2            d was cleared later, b is set last
//! ```

use std::ops::Bound;

use kv_api::Result;
use occ::KeyRange;
use occ::settle::{Point, settle};
use occ::store::Op;
use redb::{CursorError, Table};

use crate::error::failed;
use crate::row;

/// From so many rows on, a cursor costs less than as many descents.
const RUN: usize = 4;

type Rows<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// Does everything that a batch asks for, in effect in its order.
pub(crate) fn write(rows: &mut Rows<'_>, ops: Vec<Op>) -> Result<()> {
    let mut points = Vec::with_capacity(ops.len());
    let mut clears = Vec::new();
    for (place, op) in ops.into_iter().enumerate() {
        match op {
            Op::Set { key, value } => points.push(Point { key, value: Some(value), place }),
            Op::Clear { key } => points.push(Point { key, value: None, place }),
            Op::ClearRange { begin, end } => {
                rows.retain_in(begin.as_ref()..end.as_ref(), |_, _| false).map_err(failed)?;
                clears.push((place, KeyRange { begin, end }));
            }
        }
    }
    settle(&mut points, &clears);
    write_points(rows, &points)
}

fn write_points(rows: &mut Rows<'_>, mut points: &[Point]) -> Result<()> {
    let mut row = Vec::new();
    while let Some((Point { key, value, .. }, rest)) = points.split_first() {
        let run = run(points);
        let written = if run < RUN { 0 } else { write_run(rows, &points[..run], &mut row)? };
        if written > 0 {
            points = &points[written..];
            continue;
        }
        match value {
            Some(value) => {
                row::write(&mut row, key, value);
                rows.insert(key.as_ref(), row.as_slice()).map_err(failed)?;
            }
            None => {
                rows.remove(key.as_ref()).map_err(failed)?;
            }
        }
        points = rest;
    }
    Ok(())
}

/// How many rows from the first on probably lie side by side: keys that begin alike.
fn run(points: &[Point]) -> usize {
    let Some(first) = points.first() else { return 0 };
    let alike = &first.key[..first.key.len() / 2];
    points.iter().take_while(|point| point.value.is_some() && point.key.starts_with(alike)).count()
}

/// Writes rows into the gap where the first belongs; how many belonged there. None if it is there already.
fn write_run(rows: &mut Rows<'_>, points: &[Point], row: &mut Vec<u8>) -> Result<usize> {
    let Some(first) = points.first() else { return Ok(0) };
    let mut cursor = rows.lower_bound_mut(Bound::Included(first.key.as_ref())).map_err(failed)?;
    let mut written = 0;
    for point in points {
        let Some(value) = &point.value else { break };
        row::write(row, &point.key, value);
        match cursor.insert_before(point.key.as_ref(), row.as_slice()) {
            Ok(()) => written += 1,
            Err(CursorError::UnorderedKey) => break,
            Err(failure) => return Err(failed(failure)),
        }
    }
    cursor.close().map_err(failed)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kv_api::Bytes;
    use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

    use super::*;

    const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }

        /// Few beginnings and few ends, so that rows come side by side, again, and between others.
        fn key(&mut self) -> Bytes {
            format!("{}/{:02}", ["", "a", "a/long/beginning", "b"][self.below(4) as usize], self.below(40)).into()
        }

        fn op(&mut self) -> Vec<Op> {
            match self.below(12) {
                0 => {
                    let (one, other) = (self.key(), self.key());
                    if one == other {
                        return Vec::new();
                    }
                    vec![Op::ClearRange { begin: one.clone().min(other.clone()), end: one.max(other) }]
                }
                1 | 2 => vec![Op::Clear { key: self.key() }],
                3 | 4 => {
                    let (prefix, first) = (self.key(), self.below(5));
                    let set = |n| Op::Set { key: format!("{}/{n}", prefix.escape_ascii()).into(), value: Bytes::new() };
                    (first..first + 6).map(set).collect()
                }
                _ => vec![Op::Set { key: self.key(), value: vec![7; self.below(600) as usize].into() }],
            }
        }
    }

    /// Against a map that does one thing after the other.
    #[test]
    fn a_batch_does_what_its_parts_do_in_their_order() {
        for seed in 0..40 {
            let mut random = Random(seed);
            let folder = tempfile::tempdir().unwrap();
            let database = Database::create(folder.path().join("data")).unwrap();
            let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
            for _ in 0..12 {
                let count = random.below(60);
                let ops: Vec<Op> = (0..count).flat_map(|_| random.op()).collect();
                for op in ops.clone() {
                    match op {
                        Op::Set { key, value } => drop(model.insert(key, value)),
                        Op::Clear { key } => drop(model.remove(&key)),
                        Op::ClearRange { begin, end } => model.retain(|key, _| *key < begin || *key >= end),
                    }
                }
                let mut transaction = database.begin_write().unwrap();
                transaction.set_durability(redb::Durability::None).unwrap();
                write(&mut transaction.open_table(ROWS).unwrap(), ops).unwrap();
                transaction.commit().unwrap();
                let rows = database.begin_read().unwrap().open_table(ROWS).unwrap();
                let rows = rows.iter().unwrap().map(|row| {
                    let (key, row) = row.unwrap();
                    (
                        Bytes::copy_from_slice(key.value()),
                        Bytes::copy_from_slice(row::value(key.value(), row.value()).unwrap()),
                    )
                });
                assert!(rows.eq(model.clone()), "seed {seed}");
            }
        }
    }
}
