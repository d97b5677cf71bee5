//! What redb keeps over kills, damage and a full disk.

use std::path::Path;

use conformance::durability::{DiskHarness, Point, Reached};
use disk::synced::Synced;
use engine_redb::{RedbDatabase, RedbOptions};
use kv_api::Result;

struct RedbDisk;

fn options() -> RedbOptions {
    RedbOptions::new().cache_bytes(256 << 10)
}

impl DiskHarness for RedbDisk {
    type Database = RedbDatabase;

    fn engine(&self) -> String {
        "engine-redb".into()
    }

    fn open(&self, folder: &Path) -> Result<RedbDatabase> {
        RedbDatabase::open(folder, options())
    }

    fn open_as_shipped(&self, folder: &Path) -> Result<RedbDatabase> {
        RedbDatabase::open(folder, RedbOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<RedbDatabase>> {
        let options = options().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(RedbDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "data.redb"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

conformance::durability!(RedbDisk);
