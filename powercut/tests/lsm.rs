//! The tree of tables behind the log.

use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use kv_api::Result;

struct Lsm;

impl powercut::Engine for Lsm {
    type Database = LsmDatabase;
    const NAME: &'static str = "lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Lsm);
powercut::log_before_store!(Lsm);
