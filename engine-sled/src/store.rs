//! The store: a sled tree with snapshots, and a sync that reaches the disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::DiskStore;
use disk::clears::{decode, encode, uncovered};
use disk::folder::{io_error, sync_folder};
use disk::panics::{Panicked, silently};
use kv_api::{Durability, Error, Result, error};
use occ::store::{ApplyError, Batch, Store};
use occ::{KeyRange, RangeSet};
use parking_lot::{Condvar, Mutex};
use sled::IVec;

use crate::blobs::Blobs;
use crate::clears::{BULK, Clears, RECORD_KEY, STEP};
use crate::error::{caught, sled_error};
use crate::images::{Image, Images};
use crate::purge::{Purger, Step};
use crate::range::{SledSnapshot, to_bytes};

/// sled's threads may hold its lock for a moment after a database was closed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A sled tree in a folder of its own.
#[derive(Debug)]
pub struct SledStore {
    /// The first field, so that it ends before the others.
    purger: Purger,
    shared: Arc<SharedTree>,
    disk: Option<Disk>,
    path: String,
}

/// State shared by the committer and the purge.
#[derive(Debug)]
struct SharedTree {
    tree: sled::Db,
    images: Arc<Images>,
    /// Held by a commit while it changes the tree.
    clears: Mutex<Clears>,
    /// Signalled when a purge step has ended.
    purged: Condvar,
    /// Number of rows above which a clear becomes pending.
    bulk: usize,
}

/// The pending intervals after a batch, and whether a clear has added to them.
struct NewPending {
    pending: RangeSet,
    grew: bool,
}

/// The rows of one purge step.
struct Stretch {
    /// Part of a pending interval.
    range: KeyRange,
    rows: Vec<IVec>,
    /// As in [`Clears`].
    since: u64,
}

/// The effects of a batch: for each key the value before and after.
type Effects = BTreeMap<Bytes, (Image, Option<Bytes>)>;

/// The state that a sync needs in addition to sled's own flush.
#[derive(Debug)]
struct Disk {
    log: File,
    blobs: Mutex<Blobs>,
}

impl DiskStore for SledStore {
    const ENGINE: &'static str = "sled";
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::OperatingSystem];

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        Self::open_with_bulk(folder, cache_bytes, durability, BULK)
    }
}

impl SledStore {
    fn open_with_bulk(folder: &Path, cache_bytes: u64, durability: Durability, bulk: usize) -> Result<Self> {
        let data = folder.join("data");
        let failed = |doing: &str, cause: &std::io::Error| io_error(format!("{doing} {}", folder.display()), cause);
        if !data.try_exists().map_err(|cause| failed("cannot look at the data in", &cause))? {
            create_tree(folder, &data, cache_bytes)?;
        }
        remove_unfinished(&data).map_err(|cause| failed("cannot clean up", &cause))?;
        let tree = open_tree(&data, cache_bytes)?;
        let disk = match durability {
            Durability::Disk => {
                let disk = Disk::open(&data).map_err(|cause| failed("cannot open sled's files in", &cause))?;
                disk.sync_all(&data).map_err(|cause| failed("cannot sync the files of", &cause))?;
                Some(disk)
            }
            _ => None,
        };
        let record = caught("reading", || tree.get(RECORD_KEY))?;
        let pending = record.map_or_else(|| Ok(RangeSet::default()), |record| decode(&record))?;
        let clears = Mutex::new(Clears { pending: Arc::new(pending), since: 0, purging: None });
        let store = SledStore {
            purger: Purger::new("sled-purge"),
            shared: Arc::new(SharedTree { tree, images: Arc::default(), clears, purged: Condvar::new(), bulk }),
            disk,
            path: folder.display().to_string(),
        };
        store.purge_if_pending();
        Ok(store)
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} {}", self.path)
    }

    fn purge_if_pending(&self) {
        if !self.shared.clears.lock().pending.is_empty() {
            let shared = self.shared.clone();
            self.purger.wake(move || shared.purge_step());
        }
    }
}

impl SharedTree {
    /// The effects of the batch, and the pending intervals after it.
    fn effects_of(&self, batch: Batch, draft: &mut NewPending) -> sled::Result<Effects> {
        let (clears, rows) = batch.into_parts();
        let mut effects = Effects::new();
        for (begin, end) in clears.iter() {
            self.effects_of_clear(KeyRange { begin: begin.clone(), end: end.clone() }, &mut effects, draft)?;
        }
        for (key, after) in rows {
            if draft.pending.contains(&key) {
                // In a pending interval: absent already, or set again.
                if after.is_none() {
                    continue;
                }
                let point = KeyRange::point(&key);
                draft.pending.remove(&point.begin, &point.end);
            }
            match effects.entry(key) {
                Entry::Occupied(mut known) => known.get_mut().1 = after,
                Entry::Vacant(new) => {
                    let before = self.tree.get(new.key())?;
                    new.insert((before, after));
                }
            }
        }
        effects.retain(|_, (before, after)| before.as_deref() != after.as_deref());
        Ok(effects)
    }

    fn effects_of_clear(&self, range: KeyRange, effects: &mut Effects, draft: &mut NewPending) -> sled::Result<()> {
        let mut rows = Vec::new();
        for part in uncovered(&draft.pending, &range.begin, &range.end) {
            for row in self.tree.range::<&[u8], _>(part.begin.as_ref()..part.end.as_ref()) {
                if rows.len() == self.bulk {
                    // Rows above this number are removed later.
                    draft.pending.insert(range);
                    draft.grew = true;
                    return Ok(());
                }
                rows.push(row?);
            }
        }
        effects.extend(rows.into_iter().map(|(key, before)| (to_bytes(key), (Some(before), None))));
        Ok(())
    }

    /// Removes some rows of a pending clear.
    fn purge_step(&self) -> Step {
        match self.choose() {
            Ok(stretch) => self.purge(stretch, |_| {}),
            Err(step) => step,
        }
    }

    /// The first rows of the first interval, as many as one step removes; or the result of the step without them.
    fn choose(&self) -> Result<Stretch, Step> {
        let (pending, since) = {
            let clears = self.clears.lock();
            (clears.pending.clone(), clears.since)
        };
        if self.images.oldest_seen() < since {
            return Err(Step::TooEarly);
        }
        let Some((begin, end)) = pending.iter().next() else { return Err(Step::Idle) };
        let rows = self.tree.range::<&[u8], _>(begin.as_ref()..end.as_ref()).keys().take(STEP);
        let rows: Vec<IVec> = caught("purging", || rows.collect()).map_err(|_| Step::Failed)?;
        let last = rows.last().filter(|_| rows.len() == STEP).map(|last| KeyRange::point(last).end);
        let range = KeyRange { begin: begin.clone(), end: last.unwrap_or_else(|| end.clone()) };
        Ok(Stretch { range, rows, since })
    }

    /// Removes the chosen rows. Tests pass `amid`: it is called while commits to these rows wait, before each row
    /// and at the end, with the number of removed rows.
    fn purge(&self, Stretch { range, rows, since }: Stretch, mut amid: impl FnMut(usize)) -> Step {
        {
            let mut clears = self.clears.lock();
            // A key that was set there meanwhile is no longer pending. Or it is pending again, by a later clear
            // whose rows may still be needed.
            if clears.since != since || !uncovered(&clears.pending, &range.begin, &range.end).is_empty() {
                return Step::Removed;
            }
            clears.purging = Some(range.clone());
        }
        // One by one: a sled batch would delay every commit for its whole duration.
        let removed = caught("purging", || {
            for (gone, key) in rows.iter().enumerate() {
                amid(gone);
                self.tree.remove(key)?;
            }
            amid(rows.len());
            Ok(())
        });
        let mut clears = self.clears.lock();
        clears.purging = None;
        self.purged.notify_all();
        let mut left = RangeSet::clone(&clears.pending);
        left.remove(&range.begin, &range.end);
        let recorded = removed.and_then(|()| {
            let mut changes = sled::Batch::default();
            record(&mut changes, &left);
            caught("purging", || self.tree.apply_batch(changes))
        });
        match recorded {
            Ok(()) => {
                clears.pending = Arc::new(left);
                Step::Removed
            }
            Err(_) => Step::Failed,
        }
    }
}

/// Adds the record of the pending intervals to the batch that changes them.
fn record(changes: &mut sled::Batch, pending: &RangeSet) {
    if pending.is_empty() { changes.remove(RECORD_KEY) } else { changes.insert(RECORD_KEY, encode(pending)) }
}

impl Disk {
    fn open(data: &Path) -> std::io::Result<Disk> {
        Ok(Disk { log: File::open(data.join("db"))?, blobs: Mutex::new(Blobs::new(data.join("blobs"))) })
    }

    /// Makes all files durable, with their names: sled syncs neither its settings nor its folders.
    fn sync_all(&self, data: &Path) -> std::io::Result<()> {
        File::open(data.join("conf"))?.sync_all()?;
        self.log.sync_all()?;
        self.blobs.lock().sync()?;
        sync_folder(&data.join("blobs"))?;
        sync_folder(data)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.blobs.lock().sync()?;
        self.log.sync_data()
    }
}

/// Creates a tree. It gets its name when its files are durable. sled writes its settings in place, and would always
/// refuse settings that a kill or a loss of power cut off.
fn create_tree(folder: &Path, data: &Path, cache_bytes: u64) -> Result<()> {
    let new = folder.join("data.new");
    let failed = |cause: std::io::Error| io_error(format!("cannot create the data in {}", folder.display()), &cause);
    if new.exists() {
        fs::remove_dir_all(&new).map_err(failed)?;
    }
    drop(open_tree(&new, cache_bytes)?);
    let name = || {
        Disk::open(&new)?.sync_all(&new)?;
        fs::rename(&new, data)?;
        sync_folder(folder)
    };
    name().map_err(failed)
}

/// Removes snapshots of sled's page table that a kill or a loss of power cut off. sled syncs and renames a complete
/// snapshot, but also reads one without its final name, and would always refuse it. Without it, sled begins with the
/// previous snapshot and reads more of its log.
fn remove_unfinished(data: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name();
        let is_unfinished = |name: &str| name.starts_with("snap.") && name.ends_with(".generating");
        if name.to_str().is_some_and(is_unfinished) {
            fs::remove_file(data.join(name))?;
        }
    }
    Ok(())
}

fn open_tree(data: &Path, cache_bytes: u64) -> Result<sled::Db> {
    let started = Instant::now();
    loop {
        // No periodic flushes by sled: this engine decides when to sync.
        let config = sled::Config::new().path(data).cache_capacity(cache_bytes).flush_every_ms(None);
        let cause = match silently("sled", || config.open()) {
            Ok(Ok(tree)) => return Ok(tree),
            Ok(Err(cause)) => cause,
            Err(Panicked) => {
                return Err(Error::new(error::FILE_CORRUPT).with_context(format!(
                    "sled cannot read the files in {}: they are damaged; restore the folder from a backup",
                    data.display()
                )));
            }
        };
        // This process owns the folder, so sled's lock is about to be released.
        let locked = matches!(&cause, sled::Error::Io(cause) if cause.to_string().contains("could not acquire lock"));
        if !locked || started.elapsed() > LOCK_TIMEOUT {
            return Err(sled_error(&format!("cannot open the data in {}", data.display()), &cause));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Store for SledStore {
    type Snapshot = SledSnapshot;

    fn snapshot(&self) -> Result<SledSnapshot> {
        let shared = &self.shared;
        let cleared = shared.clears.lock().pending.clone();
        Ok(SledSnapshot::new(shared.tree.clone(), Arc::new(shared.images.newest(cleared))))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let shared = &self.shared;
        let mut clears = shared.clears.lock();
        while clears.in_the_way(&batch) {
            shared.purged.wait(&mut clears);
        }
        let mut draft = NewPending { pending: RangeSet::clone(&clears.pending), grew: false };
        let effects = caught(&self.doing("cannot read"), || shared.effects_of(batch, &mut draft))
            .map_err(ApplyError::NothingApplied)?;
        let mut changes = sled::Batch::default();
        let mut images = Vec::with_capacity(effects.len());
        for (key, (before, after)) in effects {
            match after {
                Some(value) => changes.insert(key.as_ref(), value.as_ref()),
                None => changes.remove(key.as_ref()),
            }
            images.push((key, before));
        }
        let NewPending { pending, grew } = draft;
        let clears_change = grew || !pending.iter().eq(clears.pending.iter());
        if clears_change {
            record(&mut changes, &pending);
        }
        shared.images.publish(images);
        caught(&self.doing("cannot write to"), || shared.tree.apply_batch(changes)).map_err(ApplyError::Unknown)?;
        if clears_change {
            let since = if grew { shared.images.epoch() } else { clears.since };
            (clears.pending, clears.since) = (Arc::new(pending), since);
        }
        drop(clears);
        if clears_change {
            self.purge_if_pending();
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        caught(&self.doing("cannot write to"), || self.shared.tree.flush())?;
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.sync().map_err(|cause| io_error(self.doing("cannot sync the files of"), &cause))
    }

    fn durability(&self) -> Durability {
        if self.disk.is_some() { Durability::Disk } else { Durability::OperatingSystem }
    }

    fn close(&self) -> Result<()> {
        self.purger.stop();
        self.sync()
    }
}

#[cfg(test)]
mod tests;
