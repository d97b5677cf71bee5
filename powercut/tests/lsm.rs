//! The tree of tables behind the log.

use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use kv_api::Result;

struct Lsm;

impl powercut::Engine for Lsm {
    type Database = LsmDatabase;
    const NAME: &'static str = "lsm";
    /// Where the disk may have a newer manifest than the engine knows of.
    const MAY_STOP_WRITING: bool = true;

    fn open(folder: &Path) -> Result<LsmDatabase> {
        LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Lsm);
powercut::log_before_store!(Lsm);
