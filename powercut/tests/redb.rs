//! redb behind the log.

use std::path::Path;

use engine_redb::{RedbDatabase, RedbOptions};
use kv_api::Result;

struct Redb;

impl powercut::Engine for Redb {
    type Database = RedbDatabase;
    const NAME: &'static str = "redb";
    /// redb takes what it finds in the page cache for what is on the disk, and turns its root there.
    const DISTRUSTS_FAILED_SYNCS: bool = false;

    fn open(folder: &Path) -> Result<RedbDatabase> {
        RedbDatabase::open(folder, RedbOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &RedbDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Redb);
powercut::log_before_store!(Redb);
