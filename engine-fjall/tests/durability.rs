//! What fjall keeps over kills, damage and a full disk.

use std::path::Path;

use conformance::durability::{DiskHarness, Point, Reached};
use disk::synced::Synced;
use engine_fjall::{FjallDatabase, FjallOptions};
use kv_api::Result;

struct FjallDisk;

/// So small that rows become tables, and tables are merged, while processes are killed and the disk fills up.
fn options() -> FjallOptions {
    FjallOptions::new().cache_bytes(512 << 10)
}

impl DiskHarness for FjallDisk {
    type Database = FjallDatabase;

    fn engine(&self) -> String {
        "engine-fjall".into()
    }

    fn open(&self, folder: &Path) -> Result<FjallDatabase> {
        FjallDatabase::open(folder, options())
    }

    fn open_as_shipped(&self, folder: &Path) -> Result<FjallDatabase> {
        FjallDatabase::open(folder, FjallOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<FjallDatabase>> {
        let options = options().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(FjallDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "data"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

conformance::durability!(FjallDisk);
