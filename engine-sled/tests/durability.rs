//! What sled keeps over kills, damage and a full disk.

use std::path::Path;

use conformance::durability::{DiskHarness, Point, Reached};
use disk::synced::Synced;
use engine_sled::{SledDatabase, SledOptions};
use kv_api::Result;

struct SledDisk;

fn options() -> SledOptions {
    SledOptions::new().cache_bytes(8 << 20)
}

impl DiskHarness for SledDisk {
    type Database = SledDatabase;

    fn engine(&self) -> String {
        "engine-sled".into()
    }

    fn open(&self, folder: &Path) -> Result<SledDatabase> {
        SledDatabase::open(folder, options())
    }

    fn open_as_shipped(&self, folder: &Path) -> Result<SledDatabase> {
        SledDatabase::open(folder, SledOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<SledDatabase>> {
        let options = options().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(SledDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "data"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

conformance::durability!(SledDisk);
