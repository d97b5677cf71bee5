//! What lsm keeps over kills, damage and a full disk.

use std::path::Path;

use conformance::durability::{DiskHarness, Point, Reached};
use disk::synced::Synced;
use engine_lsm::{LsmDatabase, LsmOptions};
use kv_api::Result;

struct LsmDisk;

fn options() -> LsmOptions {
    LsmOptions::new().cache_bytes(256 << 10)
}

impl DiskHarness for LsmDisk {
    type Database = LsmDatabase;

    fn engine(&self) -> String {
        "engine-lsm".into()
    }

    fn open(&self, folder: &Path) -> Result<LsmDatabase> {
        LsmDatabase::open(folder, options())
    }

    fn open_as_shipped(&self, folder: &Path) -> Result<LsmDatabase> {
        LsmDatabase::open(folder, LsmOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<LsmDatabase>> {
        let options = options().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(LsmDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "data"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

conformance::durability!(LsmDisk);
