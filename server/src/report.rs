//! The result of a database's check, for the command and for the server.

use model::JsonWriter;

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) documents: u64,
    pub(crate) revisions: u64,
    pub(crate) changes: u64,
    /// Number of inconsistencies.
    pub(crate) problem_count: u64,
    /// Number of inconsistencies that are unreadable rows.
    pub(crate) unreadable: u64,
    /// A sentence for each of the first inconsistencies.
    pub(crate) problems: Vec<String>,
    /// Number of view groups that were compared with their functions.
    pub(crate) view_groups: u64,
    /// A sentence for each view group that was not compared.
    pub(crate) views_left_out: Vec<String>,
    /// A sentence for each view group in which documents lack rows because of an error.
    pub(crate) views_incomplete: Vec<String>,
    /// Whether the database changed meanwhile, so that its counts could not be compared.
    pub(crate) changed_meanwhile: bool,
}

impl From<model::CheckReport> for Checked {
    fn from(report: model::CheckReport) -> Self {
        Checked {
            documents: report.documents,
            revisions: report.revisions,
            changes: report.changes,
            problem_count: report.problem_count,
            unreadable: report.unreadable,
            problems: report.problems.iter().map(ToString::to_string).collect(),
            changed_meanwhile: report.changed_meanwhile,
            view_groups: 0,
            views_left_out: Vec::new(),
            views_incomplete: Vec::new(),
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
        writer.name("changes").u64(self.changes).name("changed_meanwhile").bool(self.changed_meanwhile);
        writer.name("problem_count").u64(self.problem_count).name("problems").begin_array();
        for problem in &self.problems {
            writer.str(problem);
        }
        writer.end_array().name("view_groups").u64(self.view_groups).name("views_left_out").begin_array();
        for sentence in &self.views_left_out {
            writer.str(sentence);
        }
        writer.end_array().name("views_incomplete").begin_array();
        for sentence in &self.views_incomplete {
            writer.str(sentence);
        }
        writer.end_array().end_object();
        report
    }

    /// For a person.
    pub(crate) fn to_text(&self, name: &str) -> String {
        let Checked { documents, revisions, changes, problem_count, problems, .. } = self;
        let mut text = format!("{name}: {documents} documents, {revisions} leaf revisions, {changes} rows in changes");
        match self.view_groups {
            0 => {}
            1 => text.push_str(", the views of a design document"),
            several => text.push_str(&format!(", the views of {several} design documents")),
        }
        text.push_str(match (problem_count, self.changed_meanwhile) {
            (0, false) if !self.views_left_out.is_empty() => "\nwhat was compared agrees",
            (0, false) => "\neverything agrees",
            (0, true) => "\neverything agrees except for the counts: the database changed while it was checked",
            _ => "",
        });
        for problem in problems {
            text.push_str("\n  ");
            text.push_str(problem);
        }
        let unlisted = problem_count.saturating_sub(problems.len() as u64);
        if unlisted > 0 {
            text.push_str(&format!("\n  and {unlisted} more"));
        }
        for sentence in self.views_left_out.iter().chain(&self.views_incomplete) {
            text.push('\n');
            text.push_str(sentence);
        }
        text
    }
}
