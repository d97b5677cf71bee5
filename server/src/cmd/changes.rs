//! `couch-layer changes`: the feed of a database, a row a line.

use std::io::{self, Write};

use clap::Args;

use super::source::{IfNoDatabase, SourceArgs};
use crate::cli::Failure;

/// Print the changes of a database, a row of JSON a line
#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Begin after this sequence; now is the last one
    #[arg(long, value_name = "SEQ", default_value = "0")]
    since: String,
    /// Wait for more when all is printed
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Changes {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let mut since = self.since;
        let mut at_end = false;
        loop {
            let rows = if at_end { source.next_changes(&since).await? } else { source.changes(&since).await? };
            let mut lines = Vec::new();
            for row in rows.rows {
                lines.extend_from_slice(&row);
                lines.push(b'\n');
            }
            let mut out = io::stdout().lock();
            match out.write_all(&lines).and_then(|()| out.flush()) {
                // Whoever read it has read enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                printed => printed?,
            }
            since = rows.last_seq;
            at_end = !rows.more;
            if at_end && !self.follow {
                return Ok(());
            }
        }
    }
}
