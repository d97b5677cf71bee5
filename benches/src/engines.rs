//! The measured engines: each as a database, and as the raw store below it.

use std::path::Path;

#[cfg(any(feature = "lsm", feature = "sled"))]
use disk::DiskStore;
use kv_api::{Database, Durability};
use occ::store::Store;

/// The event that an acknowledged write waits for. Processor work is compared without syncs on both sides; acknowledged
/// writes with syncs on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncing {
    /// The sync to the disk, the engine's default.
    Synced,
    /// Nothing: the operating system or the process may lose the write.
    Unsynced,
}

/// Size of an engine's page cache, in bytes: the default.
#[cfg(any(feature = "lsm", feature = "sled"))]
const CACHE: u64 = disk::DEFAULT_CACHE_BYTES;

/// An engine that can be opened in a new folder.
pub trait Engine {
    /// Name in tables, URLs and features.
    const NAME: &'static str;
    /// Database of the engine.
    type Database: Database;
    /// Store below the database.
    type Store: Store;

    /// Opens the database.
    fn database(folder: &Path, syncing: Syncing) -> Self::Database;

    /// Opens the store alone.
    fn store(folder: &Path, syncing: Syncing) -> Self::Store;

    /// Durability of an acknowledged write.
    fn durability(syncing: Syncing) -> Durability;
}

/// `engine-mem`: a persistent sorted map.
pub struct Mem;

impl Engine for Mem {
    const NAME: &'static str = "mem";
    type Database = engine_mem::MemDatabase;
    type Store = engine_mem::MemStore;

    fn database(_: &Path, _: Syncing) -> Self::Database {
        engine_mem::MemDatabase::new()
    }

    fn store(_: &Path, _: Syncing) -> Self::Store {
        engine_mem::MemStore::default()
    }

    fn durability(_: Syncing) -> Durability {
        Durability::Process
    }
}

/// `engine-lsm`.
#[cfg(feature = "lsm")]
pub struct Lsm;

#[cfg(feature = "lsm")]
impl Engine for Lsm {
    const NAME: &'static str = "lsm";
    type Database = engine_lsm::LsmDatabase;
    type Store = engine_lsm::LsmStore;

    fn database(folder: &Path, syncing: Syncing) -> Self::Database {
        let options = engine_lsm::LsmOptions::new().durability(Self::durability(syncing));
        engine_lsm::LsmDatabase::open(folder, options).expect("a fresh folder")
    }

    fn store(folder: &Path, syncing: Syncing) -> Self::Store {
        engine_lsm::LsmStore::open(folder, CACHE, Self::durability(syncing)).expect("a fresh folder")
    }

    fn durability(syncing: Syncing) -> Durability {
        match syncing {
            Syncing::Synced => Durability::Disk,
            Syncing::Unsynced => Durability::Process,
        }
    }
}

/// `engine-sled`.
#[cfg(feature = "sled")]
pub struct Sled;

#[cfg(feature = "sled")]
impl Engine for Sled {
    const NAME: &'static str = "sled";
    type Database = engine_sled::SledDatabase;
    type Store = engine_sled::SledStore;

    fn database(folder: &Path, syncing: Syncing) -> Self::Database {
        let options = engine_sled::SledOptions::new().durability(Self::durability(syncing));
        engine_sled::SledDatabase::open(folder, options).expect("a fresh folder")
    }

    fn store(folder: &Path, syncing: Syncing) -> Self::Store {
        engine_sled::SledStore::open(folder, CACHE, Self::durability(syncing)).expect("a fresh folder")
    }

    fn durability(syncing: Syncing) -> Durability {
        match syncing {
            Syncing::Synced => Durability::Disk,
            Syncing::Unsynced => Durability::OperatingSystem,
        }
    }
}
