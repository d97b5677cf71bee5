//! A batch on its way into redb's tree: in key order, and rows that lie side by side together.
//!
//! A row put in by itself costs a descent of the tree and a place made in its leaf. The rows of a document
//! come side by side: redb's cursor takes such a run down once and builds the leaf once.
//!
//! ```text
//!   batch     clear c..e,  then  a  b  d
//! ```

use std::ops::Bound;

use kv_api::{Bytes, Result};
use occ::store::Batch;
use redb::{CursorError, Table};

use crate::error::failed;
use crate::row;

/// From so many rows on, a cursor costs less than as many descents.
const RUN: usize = 4;

/// A key and its new value, or none.
type Point = (Bytes, Option<Bytes>);

type Rows<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// Does everything that a batch asks for.
pub(crate) fn write(rows: &mut Rows<'_>, batch: Batch) -> Result<()> {
    let (clears, points) = batch.into_parts();
    for (begin, end) in clears.iter() {
        rows.retain_in(begin.as_ref()..end.as_ref(), |_, _| false).map_err(failed)?;
    }
    write_points(rows, &points.collect::<Vec<_>>())
}

fn write_points(rows: &mut Rows<'_>, mut points: &[Point]) -> Result<()> {
    let mut row = Vec::new();
    while let Some(((key, value), rest)) = points.split_first() {
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
    let alike = &first.0[..first.0.len() / 2];
    points.iter().take_while(|point| point.1.is_some() && point.0.starts_with(alike)).count()
}

/// Writes rows into the gap where the first belongs; how many belonged there. None if it is there already.
fn write_run(rows: &mut Rows<'_>, points: &[Point], row: &mut Vec<u8>) -> Result<usize> {
    let Some(first) = points.first() else { return Ok(0) };
    let mut cursor = rows.lower_bound_mut(Bound::Included(first.0.as_ref())).map_err(failed)?;
    let mut written = 0;
    for (key, value) in points {
        let Some(value) = value else { break };
        row::write(row, key, value);
        match cursor.insert_before(key.as_ref(), row.as_slice()) {
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

    use occ::KeyRange;
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

        fn change(&mut self, batch: &mut Batch) {
            match self.below(12) {
                0 => {
                    let (one, other) = (self.key(), self.key());
                    if one != other {
                        batch.clear_range(KeyRange { begin: one.clone().min(other.clone()), end: one.max(other) });
                    }
                }
                1 | 2 => batch.clear(self.key()),
                3 | 4 => {
                    let (prefix, first) = (self.key(), self.below(5));
                    for n in first..first + 6 {
                        batch.set(format!("{}/{n}", prefix.escape_ascii()).into(), Bytes::new());
                    }
                }
                _ => batch.set(self.key(), vec![7; self.below(600) as usize].into()),
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
                let mut batch = Batch::new(1);
                (0..random.below(60)).for_each(|_| random.change(&mut batch));
                batch.clone().apply_to(&mut model);
                let mut transaction = database.begin_write().unwrap();
                transaction.set_durability(redb::Durability::None).unwrap();
                write(&mut transaction.open_table(ROWS).unwrap(), batch).unwrap();
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
