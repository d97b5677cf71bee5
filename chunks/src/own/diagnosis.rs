//! The result of an examination.

use std::collections::{BTreeMap, BTreeSet};

use super::census::{Amount, Census};
use crate::livesync::Milestone;
use crate::store::Figures;

/// How far the database went on without a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Number of documents that changed since the device last connected, its own changes included.
    pub documents: u64,
    /// Whether there are more, which were not counted.
    pub more: bool,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Figures of the database.
    pub database: Figures,
    /// Files and chunks.
    pub census: Census,
    /// The milestone; `None` if there is none, and an error if it cannot be read, with the reason.
    pub milestone: std::result::Result<Option<Milestone>, String>,
    /// How far the devices are behind, by their ids: of those whose sequence this database can have had, the fifty that
    /// connected last.
    pub behind: BTreeMap<String, Behind>,
    /// The ids of the devices of which it is unknown what they have seen.
    pub silent: BTreeSet<String>,
    /// The time of the diagnosis, in milliseconds since 1970.
    pub now_ms: u64,
    /// Whether a passphrase was given.
    pub unlocked: bool,
}

impl Diagnosis {
    /// Chunks that no file names; `None` if that is unknown, since lists could not be read, or revisions that a
    /// conflict needs were not kept.
    pub fn unreferenced(&self) -> Option<Amount> {
        self.census.is_known().then_some(self.census.unreferenced)
    }
}
