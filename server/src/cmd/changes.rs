//! `couch-layer changes`: prints the changes feed of a database, one row per line.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use peer::{FeedRequest, Peer};

use super::source::{IfNoDatabase, SourceArgs};
use crate::cmd::Failure;

/// Number of rows that one request reads.
const ROWS: usize = 1_000;

/// How long one request waits for changes. A server that disappeared silently is noticed soon after.
const WAIT: Duration = Duration::from_secs(30);

/// Print the changes of a database, one JSON row per line
#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Start after this sequence; `now` means the last one
    #[arg(long, value_name = "SEQ", default_value = "0")]
    since: String,
    /// Wait for further changes
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Changes {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let peer = source.peer();
        let mut request = FeedRequest { since: Some(self.since), limit: ROWS, ..FeedRequest::default() };
        loop {
            let page = peer.changes(&request).await?;
            let mut lines = Vec::new();
            for row in page.rows {
                row.write_json(&mut lines);
                lines.push(b'\n');
            }
            let mut out = io::stdout().lock();
            match out.write_all(&lines).and_then(|()| out.flush()) {
                // The reader closed the pipe: it has read enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                printed => printed?,
            }
            if !page.more && !self.follow {
                return Ok(());
            }
            request.since = Some(page.last_seq);
            request.wait = (!page.more).then_some(WAIT);
        }
    }
}
