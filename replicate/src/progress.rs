//! The progress and the result of a replication.

use model::{JsonRef, JsonText, JsonWriter};

/// Counts of work done. The names are those in CouchDB's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of revisions in the rows of the feed.
    pub missing_checked: u64,
    /// Number of these that the target lacks. An empty target lacks all, and is not asked.
    pub missing_found: u64,
    /// Number of leaves read from the source.
    pub docs_read: u64,
    /// Number of leaves that the target accepted.
    pub docs_written: u64,
    /// Number of leaves that could not be read, or that the target refused.
    pub doc_write_failures: u64,
    /// Number of leaves that were requested by `_bulk_get`. As in CouchDB, leaves of design documents are not counted.
    pub bulk_get_attempts: u64,
    /// Number of these that were complete in the answer: those without attachments.
    pub bulk_get_docs: u64,
}

impl Figures {
    /// Saturates: a peer's record may have any numbers.
    pub(crate) fn add(&mut self, other: Figures) {
        for (number, other) in [
            (&mut self.missing_checked, other.missing_checked),
            (&mut self.missing_found, other.missing_found),
            (&mut self.docs_read, other.docs_read),
            (&mut self.docs_written, other.docs_written),
            (&mut self.doc_write_failures, other.doc_write_failures),
            (&mut self.bulk_get_docs, other.bulk_get_docs),
            (&mut self.bulk_get_attempts, other.bulk_get_attempts),
        ] {
            *number = number.saturating_add(other);
        }
    }

    /// The figures in a session of a record. Older records lack some.
    pub(crate) fn read(session: JsonRef<'_>) -> Figures {
        let number = |name: &str| session.get(name).and_then(JsonRef::as_u64).unwrap_or_default();
        Figures {
            missing_checked: number("missing_checked"),
            missing_found: number("missing_found"),
            docs_read: number("docs_read"),
            docs_written: number("docs_written"),
            doc_write_failures: number("doc_write_failures"),
            bulk_get_docs: number("bulk_get_docs"),
            bulk_get_attempts: number("bulk_get_attempts"),
        }
    }

    pub(crate) fn write(&self, json: &mut JsonWriter<'_>) {
        json.name("missing_checked").u64(self.missing_checked);
        json.name("missing_found").u64(self.missing_found);
        json.name("docs_read").u64(self.docs_read);
        json.name("docs_written").u64(self.docs_written);
        json.name("doc_write_failures").u64(self.doc_write_failures);
        json.name("bulk_get_docs").u64(self.bulk_get_docs).name("bulk_get_attempts").u64(self.bulk_get_attempts);
    }
}

/// A leaf that was not replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The document.
    pub id: String,
    /// The leaf.
    pub rev: String,
    /// The reason.
    pub reason: String,
}

/// The progress of a replication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The work done since it began.
    pub figures: Figures,
    /// The work of all sessions, including this one, as in its record.
    pub of_all_sessions: Figures,
    /// Size of the bodies and attachments that were written.
    pub bytes: u64,
    /// The sequence up to which everything was replicated.
    pub through_seq: String,
    /// The sequence of the last checkpoint.
    pub checkpointed_seq: String,
    /// Number of changes left, if the source reports it.
    pub pending: Option<u64>,
    /// Leaves that failed since the last report.
    pub failed: Vec<Failed>,
}

/// The result of a replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The work done.
    pub figures: Figures,
    /// Whether nothing changed since the last checkpoint.
    pub no_changes: bool,
    /// The record of the replication, as in the checkpoint; an object.
    pub record: JsonText,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_record_do_not_overflow() {
        let session = JsonText::parse(br#"{"docs_read":18446744073709551615,"docs_written":7}"#).unwrap();
        let mut figures = Figures::read(session.root());
        figures.add(Figures { docs_read: 2, docs_written: 3, ..Figures::default() });
        assert_eq!(figures, Figures { docs_read: u64::MAX, docs_written: 10, ..Figures::default() });
    }
}
