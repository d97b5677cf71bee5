//! What a replication says of itself.

use model::{JsonText, JsonWriter};

/// What was done. The names are those of CouchDB's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Revisions that the target was asked about.
    pub missing_checked: u64,
    /// Those of them that it did not have.
    pub missing_found: u64,
    /// Leaves that were read from the source.
    pub docs_read: u64,
    /// Leaves that the target took.
    pub docs_written: u64,
    /// Leaves that could not be read, or that the target refused.
    pub doc_write_failures: u64,
}

impl Figures {
    pub(crate) fn add(&mut self, other: Figures) {
        self.missing_checked += other.missing_checked;
        self.missing_found += other.missing_found;
        self.docs_read += other.docs_read;
        self.docs_written += other.docs_written;
        self.doc_write_failures += other.doc_write_failures;
    }

    pub(crate) fn write(&self, json: &mut JsonWriter<'_>) {
        json.name("missing_checked").u64(self.missing_checked);
        json.name("missing_found").u64(self.missing_found);
        json.name("docs_read").u64(self.docs_read);
        json.name("docs_written").u64(self.docs_written);
        json.name("doc_write_failures").u64(self.doc_write_failures);
    }
}

/// A leaf that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The document.
    pub id: String,
    /// The leaf.
    pub rev: String,
    /// Why.
    pub reason: String,
}

/// How far a replication has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What was done since it began.
    pub figures: Figures,
    /// Bytes of the bodies and attachments that were written.
    pub bytes: u64,
    /// Up to where everything was taken over.
    pub through_seq: String,
    /// Changes that are left, where the source says so.
    pub pending: Option<u64>,
    /// Leaves that did not arrive since the last report.
    pub failed: Vec<Failed>,
}

/// What a replication ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was done.
    pub figures: Figures,
    /// Whether there was nothing to do since the last checkpoint.
    pub no_changes: bool,
    /// The record of the replication, as the checkpoint has it; an object.
    pub record: JsonText,
}
