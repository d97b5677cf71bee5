//! What transactions read, wrote and were answered, and whether one order explains it all.
//!
//! Commit versions are that order. Played one after another by their versionstamps, all committed transactions
//! must read what they read. And each answer must be true: a transaction that is answered "committed" is on the
//! disk already, and one that is answered "not committed" never is.

use bytes::Bytes;
use kv_api::{Database, Read, Transaction, Versionstamp, error};
use shuttle::future::block_on;

use super::Db;
use super::store::{Disk, Failure, Map};
use crate::faults::Fault;
use crate::sync::{Arc, Mutex, lock};
use crate::{ManualClock, OccBuilder};

/// A transaction that has committed.
#[derive(Debug)]
struct Deed {
    stamp: Versionstamp,
    reads: Vec<(&'static str, Option<Bytes>)>,
    writes: Vec<(&'static str, Bytes)>,
}

/// A database on a [`Disk`], and what was done with it. Clones are the same.
#[derive(Clone)]
pub(super) struct World {
    pub(super) db: Db,
    pub(super) disk: Disk,
    pub(super) clock: ManualClock,
    deeds: Arc<Mutex<Vec<Deed>>>,
    /// Values of transactions that were answered "not committed".
    undone: Arc<Mutex<Vec<Bytes>>>,
}

impl World {
    pub(super) fn new(failure: Failure, fault: Option<Fault>) -> Self {
        let (disk, clock) = (Disk::new(failure), ManualClock::new());
        clock.advance(std::time::Duration::from_secs(100));
        let builder = OccBuilder::new().clock(clock.clone()).seed(1);
        let builder = fault.into_iter().fold(builder, OccBuilder::fault);
        let db = builder.open(disk.clone()).unwrap();
        World { db, disk, clock, deeds: Arc::default(), undone: Arc::default() }
    }

    pub(super) fn sound() -> Self {
        World::new(Failure::Nothing, None)
    }

    /// Reads keys, sets keys to `name`, and commits. Returns 0 or the error's code.
    pub(super) fn edit(&self, name: &'static str, reads: &[&'static str], writes: &[&'static str]) -> i32 {
        match self.db.begin() {
            Ok(tx) => self.edit_in(&tx, name, reads, writes),
            Err(error) => error.code(),
        }
    }

    /// The same in a transaction that has begun.
    pub(super) fn edit_in(
        &self,
        tx: &impl Transaction,
        name: &'static str,
        reads: &[&'static str],
        writes: &[&'static str],
    ) -> i32 {
        let mut seen = Vec::new();
        for key in reads {
            match block_on(tx.get(key.as_bytes(), Read::Serializable)) {
                Ok(value) => seen.push((*key, value)),
                Err(error) => return error.code(),
            }
        }
        let value = Bytes::from_static(name.as_bytes());
        for key in writes {
            tx.set(key.as_bytes(), &value);
        }
        let stamp = tx.get_versionstamp();
        let outcome = block_on(tx.commit());
        let stamp = block_on(stamp);
        let code = outcome.as_ref().map_or_else(|error| error.code(), |()| 0);
        if code != error::TRANSACTION_CANCELLED {
            assert_eq!(stamp.as_ref().map_or_else(|error| error.code(), |_| 0), code, "the stamp and the commit");
        }
        match outcome {
            Ok(()) => {
                let (stamp, version) = (stamp.unwrap(), tx.get_committed_version().unwrap());
                assert_eq!(stamp.version() as i64, version);
                assert!(self.disk.is_synced(version), "{name} was acknowledged before it was synced");
                let writes = writes.iter().map(|key| (*key, value.clone())).collect();
                lock(&self.deeds).push(Deed { stamp, reads: seen, writes });
                // A transaction that begins after the answer sees the commit.
                if let Ok(later) = self.db.begin()
                    && let Ok(read_at) = block_on(later.get_read_version())
                {
                    assert!(read_at >= version, "a read version behind an answer");
                }
            }
            // The answer came before the outcome was known.
            Err(error) if error.is_maybe_committed() || error.code() == error::TRANSACTION_CANCELLED => {}
            Err(_) => lock(&self.undone).push(value),
        }
        code
    }

    pub(super) fn committed(&self) -> usize {
        lock(&self.deeds).len()
    }

    /// Fails unless one order explains everything and every answer was true. `lost`: the disk may hold commits
    /// whose outcome was unknown.
    pub(super) fn check(&self, lost: bool) {
        self.disk.check();
        let mut deeds = lock(&self.deeds);
        deeds.sort_by_key(|deed| deed.stamp);
        assert!(deeds.windows(2).all(|two| two[0].stamp < two[1].stamp), "two commits have one stamp");
        let mut rows = Map::new();
        for deed in deeds.iter() {
            for (key, value) in &deed.reads {
                assert_eq!(rows.get(key.as_bytes()), value.as_ref(), "{deed:?} read {key} out of order");
            }
            rows.extend(deed.writes.iter().map(|(key, value)| (Bytes::from(*key), value.clone())));
        }
        if !lost {
            assert_eq!(self.disk.synced(), rows, "the disk holds something else");
        }
        for value in lock(&self.undone).iter() {
            assert!(!self.disk.ever_held(value), "{value:?} was told not to be committed");
        }
    }
}
