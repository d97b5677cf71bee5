//! `couch-layer check`: proves that the parts of a database agree.

use clap::Args;
use model::JsonWriter;

use super::progress::{self, Unit};
use super::source::{Checked, IfNoDatabase, SourceArgs, failure};
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
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let progress = progress::counter(Unit::Documents);
        progress.set_message(format!("checking {}, documents:", self.database));
        let checked = source.check(|documents| progress.set_position(documents)).await;
        progress.finish_and_clear();
        let checked = checked?;
        let name = &self.database;
        progress::print(&if self.json { as_json(name, &checked) } else { as_text(name, &checked) })?;
        match checked.problems.len() {
            0 => Ok(()),
            1 => Err(failure(format!("a problem was found in {}", self.database))),
            several => Err(failure(format!("{several} problems were found in {}", self.database))),
        }
    }
}

fn as_text(name: &str, checked: &Checked) -> String {
    let Checked { documents, revisions, changes, problems } = checked;
    let mut text = format!("{name}: {documents} documents, {revisions} leaf revisions, {changes} rows in changes");
    if problems.is_empty() {
        text.push_str("\neverything agrees");
    }
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(problem);
    }
    text
}

/// The report as the server's `_couch_layer/check` has it too.
pub(crate) fn as_json(name: &str, checked: &Checked) -> String {
    let mut report = Vec::new();
    let mut writer = JsonWriter::new(&mut report);
    writer.begin_object().name("db_name").str(name);
    writer.name("documents").u64(checked.documents).name("revisions").u64(checked.revisions);
    writer.name("changes").u64(checked.changes).name("problems").begin_array();
    for problem in &checked.problems {
        writer.str(problem);
    }
    writer.end_array().end_object();
    String::from_utf8_lossy(&report).into_owned()
}
