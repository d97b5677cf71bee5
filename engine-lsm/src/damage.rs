//! Where tables are damaged, and how to go on without the damaged blocks.
//!
//! ```text
//!   blocks of a table   │ a b c │ ..... │ g h i │     rows after c and before g cannot be read
//! ```
//!
//! A block with a wrong checksum says nothing about its rows, but its neighbours tell between which keys they are. The
//! error of a read names that range. Rows of other tables in the range count as unreadable too: the block may hide
//! them.
//!
//! A store never goes on as if such rows were absent. Only [`give_up`](crate::give_up()) writes tables without their
//! damaged blocks, when a person asks for it.

use std::ops::Bound;

use bytes::Bytes;
use kv_api::keys::key_after;
use kv_api::{Direction, Error, error};
use lsm_tree::Slice;

use crate::error::is_damage;
use crate::keys;
use crate::tables::{BoxedRows, Member, Tables, overlapping};

/// A range of stored keys whose rows cannot be read.
pub(crate) type Range = (Bytes, Bytes);

/// How far to look for damage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Up to the first row that can be read.
    FirstRow,
    All,
}

/// The damaged places of a table between two stored keys, in a direction. Empty if a second read meets no damage.
pub(crate) fn places(
    member: &Member,
    begin: &[u8],
    end: &[u8],
    direction: Direction,
    reach: Reach,
) -> impl Iterator<Item = Range> + use<> {
    let from = Bytes::copy_from_slice(begin.max(member.first()));
    let to = Bytes::copy_from_slice(end).min(key_after(member.last()));
    let bounds = (Bound::Included(Slice::from(&*from)), Bound::Excluded(Slice::from(&*to)));
    let mut rows: Option<BoxedRows> = (from < to).then(|| match direction {
        Direction::Forward => Box::new(member.table.range(bounds)) as BoxedRows,
        Direction::Reverse => Box::new(member.table.range(bounds).rev()),
    });
    let between = move |near: Option<Slice>, far: Option<Slice>| {
        let after = |key: Option<Slice>| key.map_or(from.clone(), |key| key_after(&key));
        let before = |key: Option<Slice>| key.map_or(to.clone(), |key| Bytes::copy_from_slice(&key));
        match direction {
            Direction::Forward => (after(near), before(far)),
            Direction::Reverse => (after(far), before(near)),
        }
    };
    // After a damaged block the next one is read. Where the index is damaged, there is none.
    let mut most_failures = member.table.metadata.data_block_count;
    let mut near = None;
    let places = std::iter::from_fn(move || {
        let mut is_damaged = false;
        loop {
            match rows.as_mut()?.next() {
                Some(Ok(row)) => {
                    let before = near.replace(row.key.user_key.clone());
                    if is_damaged {
                        return Some(between(before, near.clone()));
                    }
                    if reach == Reach::FirstRow {
                        return None;
                    }
                }
                Some(Err(failure)) if is_damage(&failure) && most_failures > 0 => {
                    most_failures -= 1;
                    is_damaged = true;
                }
                _ => {
                    rows = None;
                    return is_damaged.then(|| between(near.take(), None));
                }
            }
        }
    });
    // A read may touch a block without rows between the keys.
    places.filter(|(from, to)| from < to)
}

/// Adds the damaged place to the error of a read. `begin` and `end` are stored keys and bound what is not read yet. A
/// run whose next row can be read has not failed.
pub(crate) fn located(failure: Error, tables: &Tables, begin: &[u8], end: &[u8], direction: Direction) -> Error {
    if failure.code() != error::FILE_CORRUPT {
        return failure;
    }
    let places = tables.levels().iter().flatten().filter_map(|run| {
        let mut members = overlapping(run, begin, end).iter().filter(|member| member.first() < end);
        let next = match direction {
            Direction::Forward => members.next(),
            Direction::Reverse => members.next_back(),
        };
        places(next?, begin, end, direction, Reach::FirstRow).next()
    });
    let first = match direction {
        Direction::Forward => places.min(),
        Direction::Reverse => places.max_by(|one, other| one.1.cmp(&other.1)),
    };
    match first.map(ours) {
        Some((begin, end)) => failure.with_damage(begin, end),
        None => failure,
    }
}

pub(crate) fn ours((begin, end): Range) -> Range {
    (Bytes::copy_from_slice(keys::ours(&begin)), Bytes::copy_from_slice(keys::ours(&end)))
}
