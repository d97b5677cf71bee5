//! A disk for schedules. It distinguishes what it has applied from what it has synced, and fails on request.
//!
//! Each call has several steps between which other threads may run. A wrong call is recorded, and [`Disk::check`]
//! reports it at the end: a commit would catch a panic.

use std::collections::BTreeMap;

use bytes::Bytes;
use kv_api::{Direction, Durability, Error, Result, error};

use crate::store::{ApplyError, Batch, MapSnapshot, Snapshot, Store};
use crate::sync::{Arc, Mutex, MutexGuard, Weak, lock, thread};

pub(super) type Map = BTreeMap<Bytes, Bytes>;

/// What goes wrong. A number is the call of its kind, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Nothing,
    /// The batch is refused and certainly not applied.
    Refused(usize),
    /// Applying fails with an unknown outcome: the batch was applied, or not.
    Lost {
        apply: usize,
        applied: bool,
    },
    Sync(usize),
    /// Every read of this key fails.
    Get(&'static [u8]),
}

#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Contents>);

#[derive(Debug)]
struct Contents {
    failure: Failure,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    /// The rows after each batch, with its version.
    applied: Vec<(i64, Arc<Map>)>,
    /// Number of durable batches.
    synced: usize,
    snapshots: Vec<Weak<Seen>>,
    applies: usize,
    syncs: usize,
    closes: usize,
    /// Number of batches that the committer thread applied.
    carried: usize,
    applying: bool,
    wrong: Option<&'static str>,
}

impl Files {
    fn head(&self) -> Arc<Map> {
        self.applied.last().map(|(_, map)| map.clone()).unwrap_or_default()
    }

    fn must(&mut self, right: bool, wrong: &'static str) {
        if !right {
            self.wrong.get_or_insert(wrong);
        }
    }
}

impl Disk {
    pub(super) fn new(failure: Failure) -> Self {
        Disk(Arc::new(Contents { failure, files: Mutex::default() }))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        lock(&self.0.files)
    }

    /// Whether a batch of this version, and all before it, would survive a crash now.
    pub(super) fn is_synced(&self, version: i64) -> bool {
        let files = self.files();
        files.applied[..files.synced].iter().any(|(of, _)| *of == version)
    }

    /// Version of the first batch that a crash would take back.
    pub(super) fn first_at_risk(&self) -> Option<i64> {
        let files = self.files();
        files.applied.get(files.synced).map(|(version, _)| *version)
    }

    /// What a crash now would leave, without the system's keys.
    pub(super) fn synced(&self) -> Map {
        let files = self.files();
        let rows = files.synced.checked_sub(1).map(|last| files.applied[last].1.clone()).unwrap_or_default();
        rows.iter().filter(|(key, _)| key[0] != 0xff).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Whether any batch wrote this value.
    pub(super) fn ever_held(&self, value: &[u8]) -> bool {
        self.files().applied.iter().any(|(_, map)| map.values().any(|held| held == value))
    }

    pub(super) fn batches(&self) -> usize {
        self.files().applied.len()
    }

    pub(super) fn carried(&self) -> usize {
        self.files().carried
    }

    pub(super) fn closes(&self) -> usize {
        self.files().closes
    }

    /// Number of snapshots that are still held.
    pub(super) fn living_snapshots(&self) -> usize {
        self.files().snapshots.iter().filter(|snapshot| snapshot.strong_count() > 0).count()
    }

    /// Fails if the store was ever called in a wrong way.
    pub(super) fn check(&self) {
        assert_eq!(self.files().wrong, None);
    }
}

impl Store for Disk {
    type Snapshot = DiskSnapshot;

    fn snapshot(&self) -> Result<DiskSnapshot> {
        let mut files = self.files();
        let seen = Arc::new(Seen { rows: MapSnapshot(files.head()), failure: self.0.failure });
        files.snapshots.push(Arc::downgrade(&seen));
        Ok(DiskSnapshot(seen))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let failure = || Error::new(error::IO_ERROR).with_context("told to fail");
        let mut files = self.files();
        files.applies += 1;
        let call = files.applies;
        let alone = !std::mem::replace(&mut files.applying, true);
        let (open, last) = (files.closes == 0, files.applied.last().map_or(0, |(version, _)| *version));
        files.must(alone, "two batches were applied at a time");
        files.must(open, "a batch was applied after the close");
        files.must(batch.version() > last, "a batch came out of order");
        files.carried += usize::from(thread::current().name() == Some("occ-committer"));
        drop(files);
        if self.0.failure == Failure::Refused(call) {
            self.files().applying = false;
            return Err(ApplyError::NothingApplied(failure()));
        }
        let mut files = self.files();
        let lost = matches!(self.0.failure, Failure::Lost { apply, .. } if apply == call);
        if !(lost && self.0.failure == Failure::Lost { apply: call, applied: false }) {
            let mut map = Map::clone(&files.head());
            let version = batch.version();
            batch.apply_to(&mut map);
            files.applied.push((version, Arc::new(map)));
        }
        files.applying = false;
        if lost { Err(ApplyError::Unknown(failure())) } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        let (call, reached) = {
            let mut files = self.files();
            files.syncs += 1;
            (files.syncs, files.applied.len())
        };
        // Other threads run here, during the sync.
        let mut files = self.files();
        if self.0.failure == Failure::Sync(call) {
            return Err(Error::new(error::IO_ERROR).with_context("told to fail"));
        }
        files.synced = files.synced.max(reached);
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }

    fn close(&self) -> Result<()> {
        self.sync()?;
        let mut files = self.files();
        files.closes += 1;
        let once = files.closes == 1;
        files.must(once, "closed twice");
        Ok(())
    }
}

#[derive(Debug)]
struct Seen {
    rows: MapSnapshot,
    failure: Failure,
}

#[derive(Clone, Debug)]
pub(super) struct DiskSnapshot(Arc<Seen>);

impl Snapshot for DiskSnapshot {
    type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.0.failure {
            Failure::Get(damaged) if damaged == key => Err(Error::new(error::IO_ERROR).with_context("told to fail")),
            _ => self.0.rows.get(key),
        }
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        self.0.rows.range(begin, end, direction)
    }
}
