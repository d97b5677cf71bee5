//! `couch-layer chunks repair`: copies missing chunks from databases that have them.

use std::collections::BTreeMap;

use chunks::{ChunkStore, Error, Verified};
use clap::Args;
use percent_encoding::percent_decode_str;

use super::report::{SHOWN, bytes, unread_files};
use crate::cmd::progress::{self, Unit};
use crate::cmd::source::{IfNoDatabase, Remote, Source, SourceArgs};
use crate::cmd::vault_args::VaultArgs;
use crate::cmd::{Failure, failure};
use crate::engine::EngineUrl;

/// Copy missing chunks that files refer to from other databases.
///
/// A client that was offline for longer than the grace period can bring files whose chunks have been collected. Its own
/// database still has them if it has not fetched their removal yet. A copy of the database works as well.
#[derive(Debug, Args)]
pub(super) struct Repair {
    /// A database that may have them: http://HOST:PORT/DB, or the name of a database beside this one (with
    /// --from-engine: in that store). Can be given several times; the databases are read one after the other
    #[arg(long, value_name = "SOURCE", required = true)]
    from: Vec<String>,
    /// The store of the databases named by --from, if it differs
    #[arg(long, value_name = "URL")]
    from_engine: Option<EngineUrl>,
    #[command(flatten)]
    vault: VaultArgs,
}

impl Repair {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let (source, chunks) = self.vault.open(IfNoDatabase::Fail).await?;
        let mut sources = Vec::new();
        let trust = &self.vault.trust()?;
        for from in &self.from {
            let other = if from.starts_with("http://") || from.starts_with("https://") {
                let (server, name) = from
                    .rsplit_once('/')
                    .filter(|(server, _)| !server.ends_with('/'))
                    .ok_or_else(|| failure(format!("{from} does not name a database: write http://HOST:PORT/DB")))?;
                let name = percent_decode_str(name).decode_utf8()?;
                Source::from(Remote::open(&server.parse()?, &name, IfNoDatabase::Fail, trust).await?).document_store()
            } else if let Some(engine) = &self.from_engine {
                SourceArgs::in_store(engine).open(from, IfNoDatabase::Fail).await?.document_store()
            } else {
                source.sibling(from).await?.document_store()
            };
            sources.push((from, ChunkStore::new(other)));
        }

        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("checking {}, chunks:", self.vault.database));
        let verified = chunks.verify(|done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let Verified { missing, unread, .. } = verified?;
        let mut report = match missing.len() {
            0 => format!("nothing is missing in {}", self.vault.database),
            count => format!("{count} chunks are missing in {}", self.vault.database),
        };
        let left = bring(&chunks, &sources, &missing, &mut report).await?;
        for chunk in left.iter().take(SHOWN) {
            let files = missing.get(chunk).map(|files| files.join(", ")).unwrap_or_default();
            report += &format!("\n  {chunk} is in none of them, for {files}");
        }
        for line in unread.iter().take(SHOWN) {
            report += &format!("\n  {line}");
        }
        progress::print(&report)?;
        match left.len() {
            0 if !unread.is_empty() => Err(failure(unread_files(unread.len()))),
            0 => Ok(()),
            left => Err(failure(format!("{left} chunks are still missing"))),
        }
    }
}

/// Copies missing chunks from each source in turn. Returns those that no source has.
async fn bring(
    chunks: &ChunkStore,
    sources: &[(&String, ChunkStore)],
    missing: &BTreeMap<String, Vec<String>>,
    report: &mut String,
) -> Result<Vec<String>, Error> {
    let mut left: Vec<String> = missing.keys().cloned().collect();
    for (name, source) in sources {
        if left.is_empty() {
            break;
        }
        let before = left.len();
        let (receipt, still) = chunks.repair(&left, source).await?;
        left = still;
        *report += &format!("\n{} came from {name} ({})", before - left.len(), bytes(receipt.chunk_bytes));
    }
    Ok(left)
}
