//! `couch-layer conflicts`: lists the documents of a database that have conflicts.

use clap::Args;
use model::{BulkGet, RevId};
use peer::{FeedRequest, Peer, ReadOptions};

use super::progress;
use super::source::{IfNoDatabase, SourceArgs};
use crate::cmd::Failure;

/// Number of rows of the feed that one request reads.
const ROWS: usize = 1_000;

/// Number of documents whose leaves one request reads.
const DOCUMENTS: usize = 20;

/// List the documents with more than one live leaf: the id, the winner, the other live leaves
#[derive(Debug, Args)]
pub(crate) struct Conflicts {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    #[command(flatten)]
    source: SourceArgs,
}

impl Conflicts {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let peer = source.peer();
        let mut request = FeedRequest { limit: ROWS, all_leaves: true, ..FeedRequest::default() };
        loop {
            let page = peer.changes(&request).await?;
            // A document with one leaf has no conflict, and one whose winner is a tombstone has no live leaf.
            let several = page.rows.iter().filter(|row| row.revs.len() > 1 && !row.deleted);
            let ids: Vec<String> = several.map(|row| row.id.clone()).collect();
            for ids in ids.chunks(DOCUMENTS) {
                let all = |id: &String| BulkGet { id: id.clone(), rev: None };
                let wanted: Vec<BulkGet> = ids.iter().map(all).collect();
                for (id, leaves) in ids.iter().zip(peer.read(&wanted, ReadOptions::default()).await?) {
                    let mut live: Vec<RevId> =
                        leaves?.into_iter().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev).collect();
                    live.sort_unstable_by(|one, other| other.cmp(one));
                    if live.len() > 1 {
                        let revs: Vec<String> = live.iter().map(RevId::to_string).collect();
                        progress::print(&format!("{id}\t{}", revs.join("\t")))?;
                    }
                }
            }
            if !page.more {
                return Ok(());
            }
            request.since = Some(page.last_seq);
        }
    }
}
