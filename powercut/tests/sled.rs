//! sled, which syncs files of its own.

use std::path::Path;

use engine_sled::{SledDatabase, SledOptions};
use kv_api::Result;

struct Sled;

impl powercut::Engine for Sled {
    type Database = SledDatabase;
    const NAME: &'static str = "sled";

    fn open(folder: &Path) -> Result<SledDatabase> {
        SledDatabase::open(folder, SledOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &SledDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Sled);

/// The log of a `WalStore` is the only class that sled does not have.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn each_missing_sync_is_found() {
    use powercut::faults::Missing;

    for missing in Missing::ALL.into_iter().filter(|missing| *missing != Missing::Log) {
        let found = missing.found::<Sled>(1, 3_000);
        let Some((cuts, wrong)) = found else { panic!("{missing:?} was not missed") };
        println!("without {missing:?}: cut {cuts}: {}", wrong.lines().next().unwrap_or_default());
    }
}
