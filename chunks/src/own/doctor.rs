//! Looks at a vault as a physician would: what takes the space, what is missing, and who has not been here for long.

use std::collections::BTreeMap;

use super::census::CensusOptions;
use super::diagnosis::{Behind, Diagnosis};
use crate::ChunkStore;
use crate::error::{Result, StoreErrorKind};
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
        let mut behind = BTreeMap::new();
        if let Ok(Some(milestone)) = &milestone {
            let mut devices: Vec<&Device> = milestone.devices.iter().collect();
            devices.sort_by_key(|device| std::cmp::Reverse(device.last_connected_ms));
            for device in devices.into_iter().take(MOST_DEVICES) {
                if let Some(found) = self.behind(device).await? {
                    behind.insert(device.id.clone(), found);
                }
            }
        }
        let database = self.store.figures().await?;
        let now_ms = self.environment.now_ms();
        Ok(Diagnosis { database, census, milestone, behind, now_ms, unlocked: self.key.is_some() })
    }

    /// Counts what changed since a device was here; `None` if its sequence is none of this database.
    async fn behind(&self, device: &Device) -> Result<Option<Behind>> {
        let Some(mut since) = device.progress.clone() else { return Ok(None) };
        let mut behind = Behind::default();
        loop {
            let changes = match self.store.changes(Some(&since), ROWS).await {
                Err(error) if error.kind() == StoreErrorKind::Refused => return Ok(None),
                changes => changes?,
            };
            behind.documents += changes.rows.len() as u64;
            behind.more = changes.more && behind.documents >= MOST_BEHIND;
            if !changes.more || behind.more {
                return Ok(Some(behind));
            }
            since = changes.last_seq;
        }
    }
}
