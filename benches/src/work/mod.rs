//! The kinds of work that are measured in process, each with two sides: the engine through our layers, and a
//! comparison.
//!
//! A side prepares a new folder, does the work once, and returns its rate. Preparation is not counted. Both sides
//! move the same rows, from the same seeds.

pub mod documents;
pub mod kv;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Does the work once, at this scale (1.0 is the usual amount). Returns units a second.
pub type Side = Box<dyn Fn(f64) -> Result<f64>>;

/// One kind of work on one engine.
pub struct Work {
    /// The table it belongs to.
    pub group: Group,
    /// Name of the work.
    pub name: String,
    /// Name of the engine.
    pub engine: &'static str,
    /// Layout of bodies, where it matters.
    pub format: Option<&'static str>,
    /// Unit of the rate.
    pub unit: &'static str,
    /// Our side.
    pub ours: Side,
    /// Name and side of the comparison.
    pub baseline: Option<(&'static str, Side)>,
}

/// Tables of a report, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Transactions of keys and values, not synced.
    KeysAndValues,
    /// Synced commits, from many threads.
    Synced,
    /// Documents through the model, not synced.
    Documents,
}

impl Group {
    /// The heading of its table.
    pub fn title(self) -> &'static str {
        match self {
            Group::KeysAndValues => "Keys and values",
            Group::Synced => "Synced commits",
            Group::Documents => "Documents",
        }
    }

    /// Meaning of its figures.
    pub fn explanation(self) -> &'static str {
        match self {
            Group::KeysAndValues => {
                "Transactions on one thread, nothing synced, beside the raw store doing the same rows. Keys of 16 \
                 bytes, values of 100, among 50,000 others."
            }
            Group::Synced => "Commits of one row, each acknowledged once the disk has it.",
            Group::Documents => {
                "Documents of about 200 bytes and eleven leaves, on one thread, nothing synced, beside the raw store \
                 doing the same rows in the same batches."
            }
        }
    }
}

/// A new folder, which is removed with the value.
pub fn folder() -> Result<TempDir> {
    tempfile::Builder::new().prefix("couch-layer-bench").tempdir().context("a temporary folder")
}

/// The number at a scale: at least one.
pub(crate) fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale) as usize).max(1)
}

/// Units a second.
pub fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// A line of a process's status file, in bytes, if the system has such files.
pub fn memory(status: &str, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(status).ok()?;
    let line = status.lines().find_map(|found| found.strip_prefix(line))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Bytes of the files in a folder and those below it.
pub fn disk(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).context("the data folder")? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { disk(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{Engine, Mem};

    fn both_sides_work<E: Engine + 'static>() {
        for work in kv::works::<E>().into_iter().chain(documents::works::<E>()) {
            let sides = [Some(&work.ours), work.baseline.as_ref().map(|(_, side)| side)];
            for side in sides.into_iter().flatten() {
                let rate = side(0.001).unwrap_or_else(|error| panic!("{} on {}: {error:#}", work.name, work.engine));
                assert!(rate.is_finite() && rate > 0.0, "{} on {}: {rate}", work.name, work.engine);
            }
        }
    }

    #[test]
    fn every_work_can_be_done_in_memory() {
        both_sides_work::<Mem>();
    }

    #[cfg(feature = "lsm")]
    #[test]
    fn every_work_can_be_done_on_lsm() {
        both_sides_work::<crate::engines::Lsm>();
    }

    #[cfg(feature = "sled")]
    #[test]
    fn every_work_can_be_done_on_sled() {
        both_sides_work::<crate::engines::Sled>();
    }
}
