//! `couch-layer chunks settings`: the settings that all clients of a vault share.

use std::time::Duration;

use chunks::vault::Vault;
use chunks::{ChunkStore, Settings};
use clap::Args;
use serde_json::json;

use crate::cmd::Failure;
use crate::cmd::progress::{self, Unit};
use crate::cmd::source::{IfNoDatabase, SourceArgs};
use crate::units;

/// Show the settings that all clients of a vault share, or change them.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The grace period: how long a chunk without references is kept: 7d, 36h. At least an hour. A client may be
    /// offline for half of it
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Option<Duration>,
    /// The largest data document, in bytes; at least 64000, at most the server's limit
    #[arg(long, value_name = "BYTES", value_parser = read_size)]
    data_doc_size_limit: Option<usize>,
    /// Number of hexadecimal digits of a prefix, 0 to 4. It grows with the vault, and never shrinks
    #[arg(long, value_name = "DIGITS")]
    chunk_prefix_length: Option<u8>,
    /// Expected number of chunks, so that prefixes are long enough from the beginning
    #[arg(long, value_name = "COUNT")]
    chunks: Option<u64>,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Show {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let chunks = ChunkStore::new(source.document_store());
        if let (Some(count), None) = (self.chunks, self.chunk_prefix_length) {
            chunks.prepare(count).await?;
        }
        let found = chunks.settings().await?;
        let before = found.unwrap_or_default();
        let grace = self.grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let after = Settings {
            chunk_prefix_length: self.chunk_prefix_length.unwrap_or(before.chunk_prefix_length),
            data_doc_size_limit: self.data_doc_size_limit.unwrap_or(before.data_doc_size_limit),
            grace_ms: grace.unwrap_or(before.grace_ms),
        };
        let is_asked = grace.is_some() || self.data_doc_size_limit.is_some() || self.chunk_prefix_length.is_some();
        let settings = if is_asked && found != Some(after) {
            chunks.configure(after, self.count(&chunks).await?).await?;
            chunks.settings().await?
        } else {
            found
        };
        progress::print(&self.report(settings))?;
        Ok(())
    }

    /// Expected number of chunks, from which the prefix length follows.
    async fn count(&self, chunks: &ChunkStore) -> Result<u64, Failure> {
        match (self.chunks, self.chunk_prefix_length) {
            (Some(count), _) => Ok(count),
            (None, None) => Ok(0),
            (None, Some(_)) => {
                let bar = progress::counter(Unit::Documents);
                bar.set_message("counting chunks, documents:");
                let stats = Vault::new(chunks.clone()).stats(|done| bar.set_position(done)).await;
                bar.finish_and_clear();
                let stats = stats?;
                Ok(stats.stored_chunks + stats.own_documents)
            }
        }
    }

    fn report(&self, settings: Option<Settings>) -> String {
        let Some(settings) = settings else {
            return match self.json {
                true => json!(null).to_string(),
                false => format!("{} has no settings yet: the first chunk creates them", self.database),
            };
        };
        let Settings { chunk_prefix_length, data_doc_size_limit, grace_ms } = settings;
        if self.json {
            return json!({
                "chunk_prefix_length": chunk_prefix_length, "data_doc_size_limit": data_doc_size_limit,
                "grace_ms": grace_ms,
            })
            .to_string();
        }
        let grace = humantime::format_duration(Duration::from_millis(grace_ms));
        format!(
            "chunk_prefix_length  {chunk_prefix_length}\ndata_doc_size_limit  {data_doc_size_limit} bytes\n\
             grace                {grace}"
        )
    }
}

fn read_size(text: &str) -> Result<usize, String> {
    usize::try_from(units::bytes(text)?).map_err(|error| error.to_string())
}
