//! The room on a disk that ordinary commits leave to commits that shrink the data.
//!
//! ```text
//!   free bytes   │ flushes │ compactions │ what is in memory │ ordinary commits │
//!                └ a quarter ┴ the rest of what is kept
//! ```
//!
//! A deletion writes before its space comes back: a record of the log, a table of tombstones, and the tables that a
//! compaction merges. On a disk without a free byte all of them would always fail.

use std::path::Path;

use kv_api::error::STORAGE_QUOTA_EXCEEDED;
use kv_api::{Error, Figure, Result};
use rustix::fs::statvfs;

/// 1/`PART` of the disk is kept, up to [`MOST`].
const PART: u64 = 8;

/// Maximum number of bytes that are kept.
const MOST: u64 = 512 << 20;

/// The kept bytes have room for this many tables: the largest compaction of `engine-lsm` and a few flushes.
const TABLES: u64 = 32;

/// Minimum size of a table. A disk of less than a dozen megabytes has no room for compactions.
const LEAST_TABLE: u64 = 64 << 10;

/// Compactions leave 1/`FLUSHES_PART` of the kept bytes to flushes.
const FLUSHES_PART: u64 = 4;

/// Free bytes of a folder's disk, and how many are kept. `None` if the system does not tell: then writes fail when the
/// disk is full.
fn free_and_kept(folder: &Path) -> Option<(u64, u64)> {
    let disk = statvfs(folder).ok()?;
    let total = disk.f_blocks.saturating_mul(disk.f_frsize);
    (total > 0).then(|| (disk.f_bavail.saturating_mul(disk.f_frsize), (total / PART).min(MOST)))
}

/// The free and the kept bytes of a folder's disk.
pub(crate) fn figures(folder: &Path) -> Vec<Figure> {
    let Some((free, kept)) = free_and_kept(folder) else { return Vec::new() };
    vec![
        Figure::gauge("couch_layer_disk_free_bytes", "free bytes of the store's disk", free as f64),
        Figure::gauge("couch_layer_disk_kept_bytes", "bytes of them that are kept for deletions", kept as f64),
    ]
}

/// 1225 if, after `bytes` more, fewer than the kept bytes would be free on a folder's disk.
pub(crate) fn check(folder: &Path, bytes: u64) -> Result<()> {
    let Some((free, kept)) = free_and_kept(folder).filter(|(free, kept)| *free < kept.saturating_add(bytes)) else {
        return Ok(());
    };
    let what = format!(
        "the disk is full: {} MB are free, of which {} MB are kept for deletions; delete something, or make room",
        free >> 20,
        kept >> 20
    );
    Err(Error::new(STORAGE_QUOTA_EXCEEDED).with_context(what))
}

/// Size of a flush and of a table in a folder: up to `most`, and small enough for compactions to fit in the kept bytes.
pub fn table_bytes(folder: &Path, most: u64) -> u64 {
    free_and_kept(folder).map_or(most, |(_, kept)| (kept / TABLES).clamp(LEAST_TABLE.min(most), most))
}

/// Whether a folder's disk is so full that ordinary commits are refused, or soon will be.
pub fn is_low(folder: &Path) -> bool {
    free_and_kept(folder).is_some_and(|(free, kept)| free < kept + kept / 2)
}

/// Bytes that a compaction in a folder may write.
pub fn of_compactions(folder: &Path) -> u64 {
    free_and_kept(folder).map_or(u64::MAX, |(free, kept)| free.saturating_sub(kept / FLUSHES_PART))
}

/// Whether a compaction in a folder must end, so that flushes have room.
pub fn is_short(folder: &Path) -> bool {
    free_and_kept(folder).is_some_and(|(free, kept)| free < kept / FLUSHES_PART)
}
