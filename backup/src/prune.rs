//! Removes old runs, then the packs that no run needs.
//!
//! A run may be written meanwhile. The order of steps protects its packs:
//!
//! ```text
//!  backup      mark │ find earlier runs │ name them in the mark │ packs … │ run │ mark removed
//!  pruning     list packs │ marks │ runs │ marks │ new runs │ remove old runs │ remove listed packs that no run needs
//! ```
//!
//! A run's mark exists before its first pack. So a listed pack is protected by the mark, or by the run if it is
//! complete by now; otherwise the run has failed. The earlier run that a backup continues was the newest one of its
//! database when the backup looked, and the mark existed before that. If the pruning knows a newer run, it looked for
//! marks after that: it finds the mark, or the complete run, which needs the same packs. The newest run of each
//! database is never removed, so a later backup finds the packs that it needs.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::{Error, Result};
use crate::manifest::{Manifest, Pack};
use crate::repository::{PACKS, RUNNING, RUNS, Repository, name_of};
use crate::writer::{ABANDONED_MS, Mark};

/// The result of a pruning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The runs.
    pub runs: Vec<String>,
    /// Number of packs.
    pub packs: usize,
    /// Bytes of the packs.
    pub bytes: u64,
    /// Number of runs that are being written. The packs that they need stay.
    pub running: usize,
}

/// The contents of all marks.
#[derive(Default)]
struct Marks {
    /// The runs that are being written.
    running: HashSet<String>,
    /// The runs that they continue.
    bases: HashSet<String>,
    /// Whether one of them still looks for the runs to continue.
    looks: bool,
}

impl Repository {
    /// Removes runs that began more than `keep_ms` ago, and packs that no run needs. The newest run of each database
    /// stays. Backups may run meanwhile.
    ///
    /// # Errors
    /// Those of the place; [`Error::Damaged`] if a run cannot be read: then its packs are unknown, and nothing is
    /// removed.
    pub async fn prune(&self, keep_ms: u64) -> Result<Pruned> {
        let now = self.environment.now_ms();
        let listed = self.list(PACKS).await?;
        let mut marks = self.marks(now).await?;
        let mut manifests: BTreeMap<String, Manifest> = BTreeMap::new();
        for _ in 0..2 {
            for run in self.runs().await? {
                if let Entry::Vacant(place) = manifests.entry(run) {
                    let manifest = self.manifest(place.key()).await?;
                    place.insert(manifest);
                }
            }
            let later = self.marks(now).await?;
            marks.running.extend(later.running);
            marks.bases.extend(later.bases);
            marks.looks |= later.looks;
        }
        let Marks { running, mut bases, looks } = marks;
        if looks {
            // It is unknown which packs that run will need.
            return Ok(Pruned { running: running.len(), ..Pruned::default() });
        }
        let mut newest: HashMap<(&str, &str), &str> = HashMap::new();
        for (run, manifest) in &manifests {
            for database in &manifest.databases {
                newest.insert((&manifest.identity, &database.name), run);
            }
        }
        bases.extend(newest.values().map(|run| (*run).to_owned()));
        bases.extend(manifests.last_key_value().map(|(run, _)| run.clone()));
        let is_old =
            |run: &str, manifest: &Manifest| now.saturating_sub(manifest.began_ms) > keep_ms && !bases.contains(run);
        let mut pruned = Pruned { running: running.len(), ..Pruned::default() };
        let mut needed: HashSet<String> = HashSet::new();
        for (run, manifest) in &manifests {
            if is_old(run, manifest) {
                pruned.runs.push(run.clone());
            } else {
                needed.extend(manifest.packs.iter().map(Pack::path));
            }
        }
        for run in &pruned.runs {
            self.delete(&format!("{RUNS}/{run}")).await?;
        }
        for pack in listed {
            let run = pack.path.split('/').nth(1).unwrap_or_default();
            if !needed.contains(&pack.path) && !running.contains(run) {
                self.delete(&pack.path).await?;
                pruned.packs += 1;
                pruned.bytes += pack.bytes;
            }
        }
        let tidied = self.place.tidy().await;
        tidied.map_err(|cause| Error::Io { file: "tmp".to_owned(), cause })?;
        Ok(pruned)
    }

    /// Reads the marks. Removes those of ended processes.
    async fn marks(&self, now: u64) -> Result<Marks> {
        let mut marks = Marks::default();
        let mut named: HashMap<String, bool> = HashMap::new();
        let mut abandoned = Vec::new();
        for file in self.list(RUNNING).await? {
            let run = name_of(&file.path).split('.').next().unwrap_or_default().to_owned();
            let mark = match self.place.read(&file.path).await {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(Error::Io { file: file.path, cause }),
                Ok(mark) => mark,
            };
            // An unreadable mark may be of a run that is being written.
            let plain = self.key.open(&file.path, &mark)?;
            let mark: Mark =
                serde_json::from_slice(&plain).map_err(|error| Error::damaged(&file.path, error.to_string()))?;
            if now.saturating_sub(mark.ms) > ABANDONED_MS {
                abandoned.push((run, file.path));
            } else {
                // An older mark of the run may be from before it knew its bases.
                *named.entry(run).or_default() |= mark.bases.is_some();
                marks.bases.extend(mark.bases.into_iter().flatten());
            }
        }
        // A run that cannot delete leaves its earlier marks behind.
        for (run, path) in abandoned {
            if !named.contains_key(&run) {
                self.delete(&path).await?;
            }
        }
        marks.looks = named.values().any(|named| !named);
        marks.running.extend(named.into_keys());
        Ok(marks)
    }
}
