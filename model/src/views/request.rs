//! Requests for rows of a view, and their results.

use std::cmp::Ordering;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use json::{JsonArray, JsonRef, JsonText, JsonWriter};

use super::left_out::LeftOut;
use crate::error::Error;
use crate::feed::seq::Seq;
use crate::read::document::Document;

/// The rows to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRequest {
    /// The partition whose rows are read. Required for a view of a partitioned group, and not allowed for others.
    pub partition: Option<String>,
    /// These keys, in this order, instead of a range; with `descending` from the last one, except for groups. Each key
    /// is both `start` and `end` of a range of its own, so `start_id`, `end_id` and `inclusive_end` apply to it.
    pub keys: Option<JsonArray>,
    /// The first key; with `descending` the highest.
    pub start: Option<JsonText>,
    /// The first document among those with the key `start`.
    pub start_id: Option<String>,
    /// The last key; with `descending` the lowest.
    pub end: Option<JsonText>,
    /// The last document among those with the key `end`.
    pub end_id: Option<String>,
    /// Whether the rows at the end itself are read.
    pub inclusive_end: bool,
    /// In descending order.
    pub descending: bool,
    /// Number of rows to skip first.
    pub skip: u64,
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Maximum number of rows in a page, if it is less than the built-in one. Only groups whose keys are longer than
    /// [`MAX_KEY`](super::MAX_KEY) and start with the same bytes stay together.
    pub at_once: Option<usize>,
    /// Include the documents, or those that the values name by `_id`.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
    /// Where to continue, from [`ViewPage::next`]; `None` in a first request.
    pub resume: Option<Resume>,
}

impl Default for ViewRequest {
    fn default() -> Self {
        ViewRequest {
            partition: None,
            keys: None,
            start: None,
            start_id: None,
            end: None,
            end_id: None,
            inclusive_end: true,
            descending: false,
            skip: 0,
            limit: None,
            at_once: None,
            include_docs: false,
            conflicts: false,
            resume: None,
        }
    }
}

impl ViewRequest {
    /// Number of ranges to read: one, or one for each key.
    pub(super) fn ranges(&self) -> usize {
        self.keys.as_ref().map_or(1, JsonArray::len)
    }

    /// The key of the range with this number; `None` without keys. `backwards`: the last one is the first.
    pub(super) fn key_of(&self, range: usize, backwards: bool) -> Option<JsonText> {
        let keys = self.keys.as_ref()?;
        keys.get_text(if backwards { keys.len().checked_sub(range + 1)? } else { range })
    }
}

/// How rows are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// All rows together.
    #[default]
    None,
    /// By the first elements of keys that are arrays; other keys are groups of their own.
    Level(u64),
    /// By keys.
    Exact,
}

/// The place where a query continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The number of the requested key.
    pub(super) key: usize,
    /// The last row.
    pub(super) after: Option<Position>,
    /// In a query of groups, the place where the next group starts or, descending, before which it ends.
    pub(super) bound: Option<Vec<u8>>,
}

impl Resume {
    /// The place as JSON, for a client that continues later.
    pub fn write(&self) -> JsonText {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("key").u64(self.key as u64);
        if let Some(Position { key, id, emit }) = &self.after {
            json.name("after").begin_array().str(&URL_SAFE_NO_PAD.encode(key)).str(id).u64(*emit).end_array();
        }
        if let Some(bound) = &self.bound {
            json.name("bound").str(&URL_SAFE_NO_PAD.encode(bound));
        }
        json.end_object();
        // The writer's output is normalised.
        JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
    }

    /// Reads the output of [`write`](Self::write); `None` for anything else.
    pub fn read(json: JsonRef<'_>) -> Option<Resume> {
        let bytes = |text: JsonRef<'_>| URL_SAFE_NO_PAD.decode(text.as_str()?.as_bytes()).ok();
        let key = usize::try_from(json.get("key")?.as_u64()?).ok()?;
        let after = match json.get("after") {
            None => None,
            Some(after) => {
                let mut parts = after.elements();
                let (key, id, emit) = (bytes(parts.next()?)?, parts.next()?.as_str()?.into_owned(), parts.next()?);
                Some(Position { key, id, emit: emit.as_u64()? })
            }
        };
        let bound = json.get("bound").map(|bound| bytes(bound).ok_or(())).transpose().ok()?;
        Some(Resume { key, after, bound })
    }
}

/// A row's position in the order of its view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// The bytes of the whole key.
    pub(super) key: Vec<u8>,
    pub(super) id: String,
    pub(super) emit: u64,
}

impl Position {
    /// How a row compares with another one in the order of a query. Rows of one document with one key stay ascending.
    pub(super) fn compare(&self, other: &Position, descending: bool) -> Ordering {
        let order = (&self.key, &self.id).cmp(&(&other.key, &other.id));
        let order = if descending { order.reverse() } else { order };
        order.then(self.emit.cmp(&other.emit))
    }
}

/// A row of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewRow {
    /// The document that emitted it.
    pub id: String,
    /// The key.
    pub key: JsonText,
    /// The value.
    pub value: JsonText,
    /// The document, if requested; `None` inside if it does not exist.
    pub doc: Option<Option<Box<Document>>>,
    /// The error of a document that cannot be read.
    pub error: Option<Error>,
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewPage {
    /// Number of rows of the view.
    pub total_rows: u64,
    /// Number of rows of the view before the first one of this page.
    pub offset: u64,
    /// The sequence up to which the view is built.
    pub seq: Seq,
    /// The rows. A page that is not the last may be empty.
    pub rows: Vec<ViewRow>,
    /// The documents left out of the view.
    pub left_out: LeftOut,
    /// The request for the rest; `None` after the last page.
    pub next: Option<ViewRequest>,
}
