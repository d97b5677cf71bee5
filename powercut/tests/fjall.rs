//! fjall, which has its own log.

use std::path::Path;

use engine_fjall::{FjallDatabase, FjallOptions};
use kv_api::Result;

struct Fjall;

impl powercut::Engine for Fjall {
    type Database = FjallDatabase;
    const NAME: &'static str = "fjall";

    fn open(folder: &Path) -> Result<FjallDatabase> {
        FjallDatabase::open(folder, FjallOptions::new().cache_bytes(256 << 10))
    }

    fn close(database: &FjallDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Fjall);
