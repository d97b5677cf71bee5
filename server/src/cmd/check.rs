//! `couch-layer check`: checks that the parts of a database are consistent, and repairs them if told to. Views are
//! compared with what their functions emit, if the build has JavaScript.
//!
//! With `--repair` it first reports the problems, then repairs, then reports what is left. Blocks of files that the
//! store cannot read are given up first: their rows are lost, and their documents are repaired like all others.

use clap::Args;

use super::progress::{self, Unit, remark};
use super::source::{IfNoDatabase, Source, SourceArgs};
use crate::cmd::{Failure, failure};
use crate::engine;
use crate::report::Checked;

/// Check that revisions, documents, listings, changes, counts, indexes and views of a database agree
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Repair problems: rewrite damaged documents from what can be read of them, and move what cannot be read out of
    /// the way. Only in a store that this process opens
    #[arg(long, conflicts_with = "url")]
    repair: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Check {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = if self.repair {
            self.source.open(&self.database, IfNoDatabase::Fail).await?
        } else {
            self.source.open_or_remains(&self.database).await?
        };
        let mut source = source.in_background().await?;
        let progress = progress::counter(Unit::Documents);
        let walk = |what: &str, documents: u64| {
            progress.set_message(format!("checking {what}, documents:"));
            progress.set_position(documents);
        };
        let checked = source.check(walk).await;
        progress.finish_and_clear();
        let mut checked = checked?;
        self.print(&checked)?;
        if self.repair && checked.problem_count > 0 {
            let is_after_loss = checked.unreadable > 0;
            if is_after_loss {
                source = self.give_up(source).await?;
            }
            checked = source.repair(is_after_loss).await?;
            self.print(&checked)?;
        }
        match checked.problem_count {
            0 => Ok(()),
            1 => Err(failure(format!("a problem was found in {}", self.database))),
            several => Err(failure(format!("{several} problems were found in {}", self.database))),
        }
    }

    /// Lets the store forget the rows that it cannot read, and opens it again.
    async fn give_up(&self, source: Source) -> Result<Source, Failure> {
        let keys = source.keys();
        drop(source);
        if let Some((begin, end)) = keys {
            let places = engine::give_up(&self.source.engine()?, &begin, &end)?;
            remark(&format!("unreadable places of the store, whose rows are given up: {places}"));
        }
        self.source.open(&self.database, IfNoDatabase::Fail).await
    }

    fn print(&self, checked: &Checked) -> Result<(), Failure> {
        let name = &self.database;
        if self.json {
            progress::print(&String::from_utf8_lossy(&checked.to_json(name)))?;
        } else {
            progress::print(&checked.to_text(name))?;
        }
        Ok(())
    }
}
