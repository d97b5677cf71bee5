//! Writes tables again without their damaged blocks, when a person asks for it.

use std::path::Path;

use bytes::Bytes;
use disk::DiskStore;
use disk::folder::Folder;
use disk::panics::caught;
use kv_api::keys::key_after;
use kv_api::{Direction, Durability, Result};
use lsm_tree::InternalValue;
use occ::store::Store;

use crate::damage::{Range, Reach, ours, places};
use crate::error::{failed_to_read, is_damage, kv_error};
use crate::keys;
use crate::maker::Place;
use crate::store::LsmStore;
use crate::tables::{LAST, Member};

/// The rows of a table that can be read.
fn readable(member: &Member) -> impl Iterator<Item = lsm_tree::Result<InternalValue>> + use<> {
    let mut most_failures = member.table.metadata.data_block_count;
    member.table.range::<std::ops::RangeFull>(..).filter(move |row| match row {
        Err(failure) if is_damage(failure) && most_failures > 0 => {
            most_failures -= 1;
            false
        }
        _ => true,
    })
}

/// Rewrites the tables in a closed folder without the unreadable blocks between two keys. Returns the ranges whose rows
/// are lost. A table that also has unreadable blocks elsewhere stays as it is, because rows outside of the range would
/// be lost.
///
/// Rows hidden by the lost ones may come back: older values of their keys, and keys that they removed.
///
/// # Errors
///
/// Those of an opening. Tables that were rewritten before an error stay rewritten.
pub fn give_up(folder: &Path, begin: &[u8], end: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
    let owned = Folder::open(folder, LsmStore::ENGINE)?;
    let store = LsmStore::open(folder, 1 << 20, Durability::Disk)?;
    store.close()?;
    let (begin, end) = (keys::stored(begin), keys::stored(end));
    let mut lost = Vec::new();
    let failed = |failure| kv_error(&failure, "cannot write a table");
    caught("a table", || {
        let shared = &store.shared;
        let tables = shared.tables();
        for (level, member) in tables
            .levels()
            .iter()
            .enumerate()
            .flat_map(|(level, runs)| runs.iter().flatten().map(move |member| (level, member)))
        {
            let damaged: Vec<Range> =
                places(member, member.first(), &key_after(member.last()), Direction::Forward, Reach::All).collect();
            if damaged.is_empty() || !damaged.iter().all(|(from, to)| **from < *end && *begin < **to) {
                continue;
            }
            // In a young level, older runs of the same keys are below the table.
            let others = tables.filtered(|other| other.number() != member.number());
            let mut new = shared.maker.begin(Place { level, base: if level == 0 { LAST } else { level } });
            for row in readable(member) {
                let row = row.map_err(failed_to_read)?;
                let below = others.row_bytes(level, &row.key.user_key).filter(|_| row.is_tombstone());
                new.write(row, below.unwrap_or(0)).map_err(failed)?;
            }
            shared.replace(member, new.finish().map_err(failed)?)?;
            lost.extend(damaged.into_iter().map(ours));
        }
        Ok(())
    })?;
    drop((store, owned));
    Ok(lost)
}
