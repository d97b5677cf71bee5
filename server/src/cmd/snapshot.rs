//! `couch-layer snapshot`: copies a store in a folder, in milliseconds, also while a server serves it. The work is that
//! of [`kv_api::Database::snapshot`].

use std::path::PathBuf;

use clap::Args;
use kv_api::Database;
use model::{JsonWriter, Layer, LayerOptions};
use peer::{Http, Method};

use super::progress;
use super::source::SourceArgs;
use crate::cmd::{Failure, failure};
use crate::engine::{self, IfMissing};

/// Copy a store in a folder into a new one: hard links of its tables, and the end of its log. `serve` opens the copy
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// The new folder, on the file system of the store. With --url an absolute path of the server's machine
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    store: SourceArgs,
}

impl Snapshot {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let folder = self.folder.display().to_string();
        match self.store.server() {
            Some(_) if !self.folder.is_absolute() => {
                return Err(failure(format!("{folder} must be an absolute path of the server's machine")));
            }
            Some(server) => {
                let server = Http::trusting(server.database("_couch_layer")?, &self.store.trust()?)?;
                let mut body = Vec::new();
                JsonWriter::new(&mut body).begin_object().name("to").str(&folder).end_object();
                server.ask(Method::POST, &["snapshot"], &[], Some(body)).await?;
            }
            None => {
                let engine = engine::open(&self.store.engine()?, IfMissing::Fail)?;
                // Only a store of ours is worth a copy.
                let _layer = Layer::open(engine.clone(), LayerOptions::default()).await?;
                tokio::task::spawn_blocking(move || engine.snapshot(&self.folder)).await??;
            }
        }
        Ok(progress::print(&format!("{folder}: a snapshot; `couch-layer serve --engine {folder}` takes it into use"))?)
    }
}
