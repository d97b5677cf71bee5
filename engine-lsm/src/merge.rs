//! Merges the tables of a compaction into new ones.

use std::sync::atomic::{AtomicBool, Ordering};

use kv_api::Result;
use lsm_tree::Table;

use crate::error::kv_error;
use crate::maker::{Finished, Maker};
use crate::pick::{Step, ends, most_below};
use crate::rows::Merged;
use crate::tables::{BoxedRows, Member, Run, Tables, overlapping};

/// Number of rows between two checks whether the store is closing.
const ROWS_BETWEEN_LOOKS: usize = 64;

/// Merges the tables of `step`, which are among `tables`. `None` when the store closes before it is done.
///
/// A tombstone is left out if no table below has its key between its keys.
pub(crate) fn merge(maker: &Maker, tables: &Tables, step: &Step, stopped: &AtomicBool) -> Result<Option<Finished>> {
    let failed = |failure| kv_error(&failure, "cannot compact tables");
    let mut rows = Merged::of(step.upper.iter().chain(&step.lower).map(all_rows));
    let mut new = maker.begin(step.to);
    let inputs: Run = step.inputs().cloned().collect();
    let mut below = Below::of(&tables.levels()[step.to.level + 1..], &inputs, most_below(maker.table_bytes));
    // In level 1 older runs are below the new one.
    let is_input = |member: &Member| inputs.iter().any(|input| input.number() == member.number());
    let rest = tables.filtered(|member| !is_input(member));
    let mut looked = 0;
    while let Some(row) = rows.next().map_err(failed)? {
        looked += 1;
        if looked % ROWS_BETWEEN_LOOKS == 0 && stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let key = &row.key.user_key;
        let hides = match row.is_tombstone() {
            true => match rest.row_bytes(step.to.level, key) {
                None => continue,
                // It met its row.
                Some(_) if rows.has_replaced => 0,
                Some(bytes) => bytes,
            },
            false => 0,
        };
        if below.is_much_before(key) {
            new.end_table().map_err(failed)?;
        }
        if new.write(row, hides).map_err(failed)? {
            below.passed = 0;
        }
    }
    new.finish().map(Some).map_err(failed)
}

/// All rows of a run, read past the cache.
fn all_rows(run: &Run) -> BoxedRows {
    let tables: Vec<Table> = run.iter().map(|member| member.table.clone()).collect();
    Box::new(tables.into_iter().flat_map(|table| -> BoxedRows {
        match table.scan() {
            Ok(rows) => Box::new(rows),
            Err(failure) => Box::new(std::iter::once(Err(failure))),
        }
    }))
}

/// The tables that the next compaction of the result would merge.
struct Below<'a> {
    tables: &'a [std::sync::Arc<Member>],
    /// Bytes of those before the last key, since the last table began.
    passed: u64,
    /// Maximum bytes of them that a table overlaps, roughly.
    most: u64,
}

impl<'a> Below<'a> {
    fn of(levels: &'a [Vec<Run>], inputs: &Run, most: u64) -> Self {
        let found = ends(inputs).and_then(|(first, last)| {
            let runs = levels.iter().flatten().map(|run| overlapping(run, first, last));
            runs.into_iter().find(|tables| !tables.is_empty())
        });
        Below { tables: found.unwrap_or_default(), passed: 0, most }
    }

    /// Whether a table that continues with `key` would overlap too much.
    fn is_much_before(&mut self, key: &[u8]) -> bool {
        while let Some((table, rest)) = self.tables.split_first().filter(|(table, _)| table.last() < key) {
            self.passed += table.bytes();
            self.tables = rest;
        }
        self.passed > self.most
    }
}
