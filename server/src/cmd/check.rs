//! `couch-layer check`: proves that the parts of a database agree.

use clap::Args;

use super::progress::{self, Unit};
use super::source::{SourceArgs, failure};
use crate::cli::Failure;

/// Check that revisions, documents, listings, changes and counts of a database agree
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Check {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open_or_remains(&self.database).await?;
        let progress = progress::counter(Unit::Documents);
        progress.set_message(format!("checking {}, documents:", self.database));
        let checked = source.check(|documents| progress.set_position(documents)).await;
        progress.finish_and_clear();
        let checked = checked?;
        let name = &self.database;
        if self.json {
            progress::print(&String::from_utf8_lossy(&checked.to_json(name)))?;
        } else {
            progress::print(&checked.to_text(name))?;
        }
        match checked.problem_count {
            0 => Ok(()),
            1 => Err(failure(format!("a problem was found in {}", self.database))),
            several => Err(failure(format!("{several} problems were found in {}", self.database))),
        }
    }
}
