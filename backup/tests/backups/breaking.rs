//! A place that breaks at one of its operations: its process is killed, or its disk fills up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use backup::{Place, Stored};
use bytes::Bytes;
use rand::RngExt;
use rand::rngs::StdRng;

/// What happens at the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed before it: it and all later ones fail.
    KilledBefore,
    /// The process is killed after it.
    KilledAfter,
    /// The process is killed while a file is written: a part of it is left under the name of a draft.
    KilledWithin,
    /// From now on no file of more than so many bytes can be created.
    Full(usize),
    /// It fails, and later ones do not.
    Once,
    /// A bug, planted: the file is not created, and the caller hears that it was. Only for packs, runs and segments.
    Lost,
}

impl Fault {
    /// A kill or a full disk, or seldom an error that passes.
    pub(crate) fn random(random: &mut StdRng) -> Fault {
        match random.random_range(0..12) {
            0..2 => Fault::KilledBefore,
            2..4 => Fault::KilledAfter,
            4..5 => Fault::KilledWithin,
            5..8 => Fault::Full(0),
            8..11 => Fault::Full(random.random_range(100..3_000)),
            _ => Fault::Once,
        }
    }
}

/// More operations than any work has.
pub(crate) const NEVER: i64 = i64::MAX;

/// Number of faults that happened.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) kills: AtomicU64,
    pub(crate) full: AtomicU64,
}

impl Faults {
    pub(crate) fn number(&self) -> u64 {
        self.kills.load(Ordering::SeqCst) + self.full.load(Ordering::SeqCst)
    }

    /// Runs rounds, each with its seed, until so many faults have happened: `KILLS`, or a few.
    pub(crate) async fn rounds(&self, few: u64, mut round: impl AsyncFnMut(u64, u64)) {
        let first = crate::ships::seed();
        let wanted = std::env::var("KILLS").map_or(few, |kills| kills.parse().unwrap());
        for number in 0.. {
            if self.number() >= wanted {
                break;
            }
            let seed = first.wrapping_add(number);
            println!("round {number}: BACKUP_SEED={seed} KILLS=1");
            round(seed, wanted).await;
        }
        let (kills, full) = (self.kills.load(Ordering::SeqCst), self.full.load(Ordering::SeqCst));
        println!("{kills} kills, {full} full disks");
    }

    fn count(&self, fault: Fault) {
        match fault {
            Fault::KilledBefore | Fault::KilledAfter | Fault::KilledWithin => self.kills.fetch_add(1, Ordering::SeqCst),
            Fault::Full(_) => self.full.fetch_add(1, Ordering::SeqCst),
            Fault::Once | Fault::Lost => 0,
        };
    }
}

/// A place with a fault.
#[derive(Debug)]
pub(crate) struct Breaking {
    place: Arc<dyn Place>,
    /// The folder of the place.
    root: PathBuf,
    /// Number of operations before the fault.
    left: AtomicI64,
    fault: Fault,
    has_happened: AtomicBool,
    faults: Arc<Faults>,
}

impl Breaking {
    /// `left`: number of operations before the fault; no fault with a large one.
    pub(crate) fn new(place: Arc<dyn Place>, root: &Path, fault: Fault, left: i64, faults: &Arc<Faults>) -> Arc<Self> {
        let (root, left, faults) = (root.to_owned(), AtomicI64::new(left), faults.clone());
        Arc::new(Breaking { place, root, left, fault, has_happened: AtomicBool::new(false), faults })
    }

    /// Whether the fault has happened.
    pub(crate) fn has_happened(&self) -> bool {
        self.has_happened.load(Ordering::SeqCst)
    }

    /// Whether the process was killed.
    pub(crate) fn is_killed(&self) -> bool {
        self.has_happened() && matches!(self.fault, Fault::KilledBefore | Fault::KilledAfter | Fault::KilledWithin)
    }

    /// Counts an operation. Returns whether the fault happens at it.
    fn is_due(&self) -> bool {
        self.left.fetch_sub(1, Ordering::SeqCst) <= 0 && !self.has_happened()
    }

    fn happens(&self) {
        if !self.has_happened.swap(true, Ordering::SeqCst) {
            self.faults.count(self.fault);
        }
    }

    /// Reads and deletions need no room.
    async fn without_room<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        if self.is_killed() {
            return Err(killed());
        }
        if !self.is_due() {
            return work.await;
        }
        match self.fault {
            Fault::Full(_) | Fault::Lost => work.await,
            Fault::KilledAfter => {
                let done = work.await;
                self.happens();
                done.and(Err(killed()))
            }
            _ => {
                self.happens();
                Err(killed())
            }
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("killed, or broken")
}

#[async_trait]
impl Place for Breaking {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        if self.is_killed() {
            return Err(killed());
        }
        let is_due = self.is_due();
        match self.fault {
            Fault::Full(most) if is_due || self.has_happened() => {
                if content.len() <= most {
                    return self.place.create(path, content).await;
                }
                self.happens();
                Err(io::ErrorKind::StorageFull.into())
            }
            _ if !is_due => self.place.create(path, content).await,
            Fault::Lost if !["packs/", "runs/", "ship/log/"].iter().any(|folder| path.starts_with(folder)) => {
                self.place.create(path, content).await
            }
            Fault::Lost => {
                self.happens();
                Ok(())
            }
            Fault::KilledAfter => {
                let created = self.place.create(path, content).await;
                self.happens();
                created.and(Err(killed()))
            }
            Fault::KilledWithin => {
                self.happens();
                let drafts = self.root.join("tmp");
                std::fs::create_dir_all(&drafts)?;
                let draft = drafts.join(path.replace('/', "-"));
                std::fs::write(draft, &content[..content.len() / 2])?;
                Err(killed())
            }
            Fault::KilledBefore | Fault::Once | Fault::Full(_) => {
                self.happens();
                Err(killed())
            }
        }
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.without_room(self.place.read(path)).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.without_room(self.place.read_part(path, at, bytes)).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.without_room(self.place.list(path)).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.without_room(self.place.delete(path)).await
    }
}
