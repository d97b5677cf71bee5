//! Looks at a vault as a physician would: what takes the space, what is missing, and who has not been here for long.

use std::collections::{BTreeMap, BTreeSet};

use super::census::CensusOptions;
use super::diagnosis::{Behind, Diagnosis};
use crate::ChunkStore;
use crate::error::Result;
use crate::livesync::{Device, MILESTONE, Milestone};

/// Number of changes that are counted for a device.
const MOST_BEHIND: u64 = 10_000;
/// Number of devices, those that connected last, whose changes are counted.
const MOST_DEVICES: usize = 50;
/// Rows of the feed read at a time.
const ROWS: usize = 1_000;

impl ChunkStore {
    /// Reads the milestone; `None` if there is none.
    ///
    /// # Errors
    /// The store's failures. What is wrong with the milestone is the inner error.
    pub(crate) async fn milestone(&self) -> Result<std::result::Result<Option<Milestone>, String>> {
        Ok(self.store.local(MILESTONE).await?.map(|body| Milestone::read(&body)).transpose())
    }

    /// Examines a vault. Changes nothing. `progress` gets the number of documents done.
    ///
    /// Memory: [`CensusOptions::most_ids`], and some megabytes of documents.
    ///
    /// # Errors
    /// The store's failures. What cannot be read is in the diagnosis.
    pub async fn doctor(&self, options: CensusOptions, progress: impl FnMut(u64) + Send) -> Result<Diagnosis> {
        let milestone = self.milestone().await?;
        let census = self.census(options, progress).await?;
        let (mut behind, mut silent) = (BTreeMap::new(), BTreeSet::new());
        if let Ok(Some(milestone)) = &milestone {
            silent = self.silent(&milestone.devices).await?;
            let mut devices: Vec<&Device> =
                milestone.devices.iter().filter(|device| !silent.contains(&device.id)).collect();
            devices.sort_by_key(|device| std::cmp::Reverse(device.last_connected_ms));
            for device in devices.into_iter().take(MOST_DEVICES) {
                if let Some(since) = device.progress.clone() {
                    behind.insert(device.id.clone(), self.behind(since).await?);
                }
            }
        }
        let database = self.store.figures().await?;
        let now_ms = self.environment.now_ms();
        Ok(Diagnosis { database, census, milestone, behind, silent, now_ms, unlocked: self.key.is_some() })
    }

    /// The ids of the devices of which it is unknown what they have seen: they have left no sequence, or one that this
    /// database cannot have had.
    pub(super) async fn silent(&self, devices: &[Device]) -> Result<BTreeSet<String>> {
        let mut silent = BTreeSet::new();
        for device in devices {
            let is_known = match &device.progress {
                Some(progress) => self.store.had(progress).await?,
                None => false,
            };
            if !is_known {
                silent.insert(device.id.clone());
            }
        }
        Ok(silent)
    }

    /// Counts what changed since a sequence.
    async fn behind(&self, mut since: String) -> Result<Behind> {
        let mut behind = Behind::default();
        loop {
            let changes = self.store.changes(Some(&since), ROWS).await?;
            behind.documents += changes.rows.len() as u64;
            behind.more = changes.more && behind.documents >= MOST_BEHIND;
            if !changes.more || behind.more {
                return Ok(behind);
            }
            since = changes.last_seq;
        }
    }
}
