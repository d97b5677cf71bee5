//! The report of a check.

use std::fmt;

use crate::error::Error;
use crate::feed::seq::Seq;
use crate::rows::stats::Stats;

/// Maximum number of rows of `revisions` or `changes` in a page.
pub(super) const PAGE_ROWS: usize = 100;

/// Maximum number of problems listed. More are only counted.
pub(crate) const PROBLEMS_LISTED: usize = 1_000;

/// A problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The document that has it, if any.
    pub document: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.document {
            Some(id) => write!(f, "{id:?}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Number of documents walked, including deleted ones.
    pub documents: u64,
    /// Number of branches walked.
    pub revisions: u64,
    /// Number of rows of `changes` walked.
    pub changes: u64,
    /// Number of contents of attachments walked, each counted once.
    pub contents: u64,
    /// Number of remembered purges walked.
    pub purges: u64,
    /// The first problems.
    pub problems: Vec<Problem>,
    /// Number of problems.
    pub problem_count: u64,
    /// Number of problems that are unreadable rows, since the store's files are damaged. Then the counters, the last
    /// sequence and the number of changes were not compared.
    pub unreadable: u64,
    /// Number of leaves that are ancestors on another branch of their document. This is not a problem: an edit made a
    /// revision that already existed as the oldest one of a branch without its parent. The next replicated edit of the
    /// document joins the two branches.
    pub unjoined: u64,
    /// Whether the database changed during the check. Then the counters, the last sequence and the number of changes
    /// were not compared.
    pub changed_meanwhile: bool,
}

impl CheckReport {
    /// Whether the check found no problems.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    /// Adds the problems of another check.
    pub(crate) fn append(&mut self, other: CheckReport) {
        self.problem_count += other.problem_count;
        self.unreadable += other.unreadable;
        self.problems.extend(other.problems);
        self.problems.truncate(PROBLEMS_LISTED);
    }

    /// Adds rows that the store cannot read.
    pub(crate) fn add_unreadable(&mut self, document: Option<&str>, what: String, error: &Error) {
        self.unreadable += 1;
        self.add(document, format!("{what}: {}", error.reason()));
    }

    pub(crate) fn add(&mut self, document: Option<&str>, what: impl Into<String>) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED {
            self.problems.push(Problem { document: document.map(str::to_owned), what: what.into() });
        }
    }
}

/// Totals of a walk.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) stats: Stats,
    pub(super) last: Seq,
}
