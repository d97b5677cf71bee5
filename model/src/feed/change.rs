//! What is asked of the changes feed, and its answers.

use crate::error::{Error, Result};
use crate::feed::seq::{NumberedSeq, Seq};
use crate::read::document::Document;
use crate::rows::id_set::IdSet;
use crate::rows::revid::RevId;
use json::JsonWriter;

/// Where a feed starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Since {
    /// After this sequence. If it lies ahead, it comes from another store, or from a time before this one was restored
    /// from a backup. Then the feed starts at its beginning.
    Seq(Seq),
    /// After the last sequence at the time of the request.
    Now,
}

impl Default for Since {
    fn default() -> Self {
        Since::Seq(Seq::ZERO)
    }
}

impl From<Seq> for Since {
    fn from(seq: Seq) -> Self {
        Since::Seq(seq)
    }
}

impl std::str::FromStr for Since {
    type Err = Error;

    /// Reads `now` or a sequence.
    fn from_str(text: &str) -> Result<Self> {
        if text == "now" { Ok(Since::Now) } else { text.parse().map(Since::Seq) }
    }
}

/// The revisions that a row names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// The winner.
    #[default]
    MainOnly,
    /// All leaves.
    AllDocs,
    /// All live leaves; the winner if it is a tombstone.
    Live,
}

/// The part of the feed to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesRequest {
    /// Where to begin. Ignored with `descending`, as in CouchDB.
    pub since: Since,
    /// With `descending`: only rows before this sequence. A descending feed continues with this.
    pub before: Option<Seq>,
    /// In descending order of sequences.
    pub descending: bool,
    /// Maximum number of rows.
    pub limit: Option<usize>,
    /// The revisions in a row.
    pub style: Style,
    /// Include the documents at their winners, also deleted ones.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
    /// Include the deleted losing leaves in the documents.
    pub deleted_conflicts: bool,
    /// Only these documents.
    pub doc_ids: Option<IdSet>,
    /// Number the sequences, as clients see them.
    pub numbered: bool,
}

/// A row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The sequence of the document's last change.
    pub seq: Seq,
    /// The [number](crate::NumberedSeq) of the sequence, if requested.
    pub number: Option<u64>,
    /// The document.
    pub id: String,
    /// The winner first, then the other leaves if requested.
    pub revs: Vec<RevId>,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// The document, if requested.
    pub doc: Option<Box<Document>>,
    /// The reason why the document, its other leaves or the row itself cannot be read. Such a row has no document, and
    /// no leaf but the winner unless only the row is damaged.
    pub error: Option<Error>,
}

impl Change {
    /// The sequence as clients see it, with its number if that was requested.
    pub fn shown_seq(&self) -> String {
        match self.number {
            Some(number) => NumberedSeq { number, seq: self.seq }.to_string(),
            None => self.seq.to_string(),
        }
    }

    /// Appends the row as CouchDB writes it.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut json = JsonWriter::new(out);
        json.begin_object().name("seq").str(&self.shown_seq()).name("id").str(&self.id);
        json.name("changes").begin_array();
        for rev in &self.revs {
            rev.write_json(json.begin_object().name("rev"));
            json.end_object();
        }
        json.end_array();
        if self.deleted {
            json.name("deleted").bool(true);
        }
        if let Some(error) = &self.error {
            json.name("error").str(error.error()).name("reason").str(&error.reason());
        }
        if let Some(document) = &self.doc {
            json.name("doc");
            document.write_json(out);
        }
        out.push(b'}');
    }
}

/// A batch of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangesBatch {
    /// The rows. A batch that is not the last may be empty.
    pub rows: Vec<Change>,
    /// The last sequence that was read: continue after it, or before it with `descending`.
    pub last_seq: Seq,
    /// The [number](crate::NumberedSeq) of `last_seq`, if requested.
    pub last_number: Option<u64>,
    /// Whether there is more to read now.
    pub more: bool,
    /// Number of rows that remain, if it is known at no cost.
    pub pending: Option<u64>,
}
