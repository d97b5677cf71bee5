//! What a collection of chunks that have documents of their own would remove, and why it would not.
//!
//! Reachable are the chunks that any live leaf of any file names, hidden files, customizations and files marked as
//! deleted included, and those that a replaced revision of a file in conflict names. [`collect`](super::collect) removes
//! the others.
//!
//! Source: `docs/specs_garbage_collection.md` in obsidian-livesync, for a device; here more is kept, see `past`.

use std::collections::BTreeSet;
use std::sync::Arc;

use kv_api::Database;
use model::{ConflictPolicy, Documents, Passed, Seq};
use serde_json::{Value, json};

use super::census::{BrokenFile, Census, CensusOptions};
use super::ids::hash;
use super::json::{amount, named, text};
use super::{cut, titles};
use crate::ChunkStore;
use crate::error::{Error, Result, StoreError};
use crate::livesync::{Device, MILESTONE};
use crate::store::PeerStore;

/// Number of chunks that the JSON names.
const NAMED_CHUNKS: usize = 100;

/// What a collection would do.
#[derive(Clone, Debug)]
pub struct WouldCollect {
    /// Files and chunks. [`Census::unreferenced`] is what could be condemned, if it [is known](Census::is_known).
    pub census: Census,
    /// Why nothing could be removed now, in sentences; empty if nothing stands in the way.
    pub holds: Vec<String>,
    /// Why nothing could leave the trash now, besides those, in sentences.
    pub trash_holds: Vec<String>,
    /// The devices that would have to connect, and to send what they have, before a condemned chunk is removed.
    pub devices: Vec<Device>,
    /// The ids of those of which it is unknown what they have seen.
    pub silent: BTreeSet<String>,
}

impl ChunkStore {
    /// Tells which chunks that have documents of their own a collection would remove. Changes nothing. `progress` gets
    /// the number of documents done.
    ///
    /// # Errors
    /// [`Error::Unread`] if the list of any file cannot be read: its chunks would look unreferenced. [`Error::Setting`]
    /// if nobody can tell which devices there are, if chunks are aggregated, and, without a passphrase, if a device
    /// obfuscates paths. The store's failures.
    pub async fn would_collect(
        &self,
        options: CensusOptions,
        progress: impl FnMut(u64) + Send,
    ) -> Result<WouldCollect> {
        let milestone = match self.milestone().await? {
            Ok(Some(milestone)) => milestone,
            Ok(None) => {
                return Err(Error::Setting(format!(
                    "there is no \"{MILESTONE}\" in this database, so nobody can tell which devices use it: nothing is \
                     collected; it is a local document, which LiveSync writes when a device connects, and which neither \
                     replication nor an export carries"
                )));
            }
            Err(what) => {
                let sentence =
                    format!("\"{MILESTONE}\" {what}, so nobody can tell which devices there are: nothing is collected");
                return Err(Error::Setting(sentence));
            }
        };
        if self.has_aggregated().await? {
            let what = "there are aggregated chunks in this database, which LiveSync's devices do not read: `chunks gc` \
                        collects them";
            return Err(Error::Setting(what.into()));
        }
        let census = self.census(options, progress).await?;
        if let Some(first) = census.files.unread.first.first() {
            let first = format!("\"{}\" {}", first.path, first.what);
            return Err(Error::Unread { files: census.files.unread.count, first });
        }
        let mut holds = Vec::new();
        if milestone.obfuscated {
            let sentence = format!(
                "\"{MILESTONE}\" says that a device obfuscates paths, and encrypts the lists of chunks with them: a file that \
                 it brings would not show which removed chunks it needs"
            );
            // With the passphrase there is an answer, but nothing is removed.
            if self.key.is_none() {
                return Err(Error::Setting(sentence));
            }
            holds.push(sentence);
        }
        let mut trash_holds = Vec::new();
        let differing = milestone.differences.iter().filter(|found| found.must_match);
        let differing: Vec<&str> = differing.map(|found| found.setting.as_str()).collect();
        if !differing.is_empty() || milestone.incompatible {
            trash_holds.push(format!(
                "LiveSync may refuse to replicate on some devices, which have noted all the same that they have connected: {}",
                match milestone.incompatible {
                    true => "they have no form of chunks in common. Let each have a current plugin".into(),
                    false => format!("these settings differ: {}. Choose one value on every device", differing.join(", ")),
                }
            ));
        }
        let devices = milestone.devices;
        let silent = self.silent(&devices).await?;
        if census.files.unknown_past.count > 0 {
            holds.push(format!(
                "{} files are in conflict, and the database has not kept the revisions since their sides parted, \"{}\" \
                 among them: a merge may need any chunk, so it is unknown which chunks no file needs",
                census.files.unknown_past.count,
                census.files.unknown_past.first.first().map_or("", String::as_str)
            ));
        }
        if census.missing_chunks > 0 || census.more_missing {
            holds.push(format!(
                "{} chunks are missing that {} files need: mend this first, since a device that has them may send them",
                census.missing_chunks, census.broken.count
            ));
        }
        if census.damaged_needed > 0 {
            holds.push(format!(
                "{} chunks that files need are damaged: mend this first, since a device that has them may send them",
                census.damaged_needed
            ));
        }
        if !silent.is_empty() {
            let silent = titles(devices.iter().filter(|device| silent.contains(&device.id)));
            holds.push(format!("it is unknown what these devices have seen: {silent}"));
        }
        let shut_out: Vec<&Device> = devices.iter().filter(|device| milestone.locked && !device.accepted).collect();
        if !shut_out.is_empty() {
            holds.push(format!(
                "the vault is locked, and devices that are not accepted cannot send what they have: {}",
                titles(shut_out)
            ));
        }
        if devices.is_empty() {
            holds.push("no device has left its name".into());
        }
        if census.files.sealed > 0 {
            holds.push(format!(
                "{} lists of chunks are encrypted: a server could not see that a device brings a file which needs a \
                 removed chunk",
                census.files.sealed
            ));
        }
        let on_demand: Vec<&Device> = devices.iter().filter(|device| device.fetches_on_demand != Some(false)).collect();
        if !on_demand.is_empty() {
            trash_holds.push(format!(
                "these devices keep chunks that were deleted, or have not said that they do not: {}. Switch off \"Fetch \
                 chunks on demand\" in LiveSync on each, and let it connect",
                titles(on_demand)
            ));
        } else if milestone.joins_on_demand != Some(false) {
            // It is in no list yet.
            trash_holds.push(format!(
                "the settings that LiveSync offers to a device which joins let it fetch chunks on demand, or do not say: it \
                 would not learn what is deleted. Set \"readChunksOnline\" to false under \"PREFERRED\" in \
                 the \"tweak_values\" of \"{MILESTONE}\""
            ));
        }
        Ok(WouldCollect { census, holds, trash_holds, devices, silent })
    }
}

/// Number of revisions that a branch must remember for text to leave the trash.
const LEAST_REVS_LIMIT: u32 = 10;

/// What a collection of a vault in a database of this process would do. As [`ChunkStore::would_collect`], and with what
/// the settings of the database hold in the trash.
///
/// # Errors
/// Those of [`ChunkStore::would_collect`].
pub async fn would_collect_vault<D: Database>(
    documents: &Documents<D>,
    options: CensusOptions,
    progress: impl FnMut(u64) + Send,
) -> Result<WouldCollect> {
    let chunks = ChunkStore::new(Arc::new(PeerStore::local(documents.clone())));
    let mut found = chunks.would_collect(options, progress).await?;
    let info = documents.info().await.map_err(StoreError::from)?;
    if info.conflicts == ConflictPolicy::LastWriteWins {
        found.trash_holds.push(
            "the last write wins in this database (`conflicts=last-write-wins`), so it could not ask a device for text that \
             has left the trash"
                .into(),
        );
    }
    if info.revs_limit < LEAST_REVS_LIMIT {
        found.trash_holds.push(format!(
            "`_revs_limit` is {}: the database may forget which text it has deleted. Set it to {LEAST_REVS_LIMIT} or more",
            info.revs_limit
        ));
    }
    Ok(found)
}

impl WouldCollect {
    /// The sequence that all devices had passed when they last connected, with a digest of their ids. `None` if that is
    /// unknown, or does not show that they know of all deletions before it.
    pub(super) fn passed(&self) -> Option<Passed> {
        if !self.trash_holds.is_empty() || !self.silent.is_empty() {
            return None;
        }
        let ids: BTreeSet<&str> = self.devices.iter().map(|device| device.id.as_str()).collect();
        let clients = hash(&json!(ids).to_string());
        Some(Passed { seq: self.least()?, clients })
    }

    /// The least sequence at which a device last connected.
    fn least(&self) -> Option<Seq> {
        let progress = self.devices.iter().map(sequence).collect::<Option<Vec<Seq>>>()?;
        progress.into_iter().min()
    }

    /// Those devices that connected least recently, by their sequences.
    pub(super) fn last_to_pass(&self) -> Vec<&Device> {
        let least = self.least();
        self.devices.iter().filter(|device| sequence(device) == least).collect()
    }
}

fn sequence(device: &Device) -> Option<Seq> {
    device.progress.as_ref()?.parse().ok()
}

impl WouldCollect {
    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let Census { files, referenced, unreferenced, unreferenced_named, named_chunks, passes, .. } = &self.census;
        let Census { damaged, damaged_needed, missing_chunks, broken, more_missing, .. } = &self.census;
        let unreferenced = self.census.is_known().then(|| {
            let mut told = amount(unreferenced);
            let some = unreferenced_named.first.iter().take(NAMED_CHUNKS).map(|id| cut(id));
            told["named"] = json!(some.collect::<Vec<_>>());
            told
        });
        let broken_file =
            |file: &BrokenFile| json!({"file": file.path, "missing": file.missing, "chunks": file.chunks});
        let device = |device: &Device| {
            json!({"id": device.id, "name": text(&device.name), "progress": text(&device.progress),
                   "progress_is_known": !self.silent.contains(&device.id), "accepted": device.accepted,
                   "last_connected": device.last_connected_ms})
        };
        json!({
            "files": files.count + files.of_livesync + files.marked_deleted,
            "named_chunks": named_chunks,
            "referenced": amount(referenced),
            "unreferenced": unreferenced,
            "conflicts": files.conflicts.count,
            "conflicts_with_unknown_past": named(&files.unknown_past, |path| json!(path)),
            "missing": {"chunks": missing_chunks, "files": named(broken, broken_file), "more": more_missing},
            "damaged": named(damaged, |what| json!(what)),
            "damaged_and_needed": damaged_needed,
            "holds": self.holds,
            "trash_holds": self.trash_holds,
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
            "passes": passes,
        })
    }
}
