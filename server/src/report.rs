//! What a check of a database found, as the command prints it and the server answers it.

use model::JsonWriter;

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) documents: u64,
    pub(crate) revisions: u64,
    pub(crate) changes: u64,
    /// A sentence for each place where parts of the database disagree.
    pub(crate) problems: Vec<String>,
}

impl From<model::CheckReport> for Checked {
    fn from(report: model::CheckReport) -> Self {
        Checked {
            documents: report.documents,
            revisions: report.revisions,
            changes: report.changes,
            problems: report.problems.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Checked {
    /// For a program, with the database's name.
    pub(crate) fn to_json(&self, name: &str) -> Vec<u8> {
        let mut report = Vec::new();
        let mut writer = JsonWriter::new(&mut report);
        writer.begin_object().name("db_name").str(name);
        writer.name("documents").u64(self.documents).name("revisions").u64(self.revisions);
        writer.name("changes").u64(self.changes).name("problems").begin_array();
        for problem in &self.problems {
            writer.str(problem);
        }
        writer.end_array().end_object();
        report
    }

    /// For a person.
    pub(crate) fn to_text(&self, name: &str) -> String {
        let Checked { documents, revisions, changes, problems } = self;
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
}
