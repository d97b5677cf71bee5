//! Requests to a peer, and their results.

use std::time::Duration;

use model::{Edit, Encoding, JsonText, JsonWriter, RevHistory, RevId};

use crate::error::Result;
use crate::http::Held;

/// Information about a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Number of live documents.
    pub documents: u64,
    /// Number of deleted documents.
    pub deleted: u64,
    /// The last sequence.
    pub update_seq: String,
    /// Size of the documents as compact JSON, if the peer reports it (CouchDB's `sizes.external`).
    pub external_bytes: Option<u64>,
    /// Size on disk, if the peer reports it (CouchDB's `sizes.file`).
    pub file_bytes: Option<u64>,
    /// Whether it is being compacted.
    pub is_compacting: bool,
}

/// The changes to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All of them.
    #[default]
    None,
    /// Those of these documents.
    DocIds(Vec<String>),
    /// Those of documents that match a Mango selector.
    Selector(JsonText),
    /// Those that a function of a design document accepts.
    Function {
        /// `DESIGN_DOCUMENT/FUNCTION`.
        name: String,
        /// Parameters of the request, for the function. Strings are sent without their quotes.
        params: Vec<(String, JsonText)>,
    },
}

/// The part of the feed to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedRequest {
    /// After this sequence; `None` for the beginning. `now` is the last sequence.
    pub since: Option<String>,
    /// Maximum number of rows.
    pub limit: usize,
    /// Whether rows name all leaves instead of only the winner.
    pub all_leaves: bool,
    /// The changes to return.
    pub filter: Filter,
    /// How long to wait for a row if there is none.
    pub wait: Option<Duration>,
}

/// A row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The sequence after which the feed continues.
    pub seq: String,
    /// The document.
    pub id: String,
    /// The winner first, then the other leaves if requested. As text, since some text that CouchDB accepts as a
    /// revision is invalid elsewhere.
    pub revs: Vec<String>,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// `error` and `reason`, if the document cannot be read.
    pub error: Option<(String, String)>,
}

impl Change {
    /// Appends the row as CouchDB writes it.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut json = JsonWriter::new(out);
        json.begin_object().name("seq").str(&self.seq).name("id").str(&self.id).name("changes").begin_array();
        for rev in &self.revs {
            json.begin_object().name("rev").str(rev).end_object();
        }
        json.end_array();
        if self.deleted {
            json.name("deleted").bool(true);
        }
        if let Some((error, reason)) = &self.error {
            json.name("error").str(error).name("reason").str(reason);
        }
        json.end_object();
    }
}

/// A page of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The rows, each document at its last change.
    pub rows: Vec<Change>,
    /// The sequence after which the feed continues.
    pub last_seq: String,
    /// Whether there is more now.
    pub more: bool,
    /// Number of rows after this page, if the peer reports it.
    pub pending: Option<u64>,
}

/// The content of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Docs {
    /// Their revisions.
    #[default]
    Revs,
    /// Their winners, attachments as stubs.
    Bodies,
    /// Their winners, attachments with their data.
    WithAttachments,
}

/// A range of ids, in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    /// The first id, inclusive.
    pub start: String,
    /// The last id, exclusive.
    pub end: Option<String>,
    /// Maximum number of rows in a page.
    pub limit: usize,
    /// The content of the listing.
    pub docs: Docs,
    /// Whether documents that cannot be read are [listed separately](ListingPage::damaged). Otherwise the whole listing
    /// fails, since they must not be taken for absent.
    pub skips_damaged: bool,
}

/// A live document in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDocument {
    /// Its id.
    pub id: String,
    /// Its winner.
    pub rev: RevId,
    /// The whole document, if requested.
    pub doc: Option<JsonText>,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingPage {
    /// The rows.
    pub rows: Vec<ListedDocument>,
    /// Documents that cannot be read, each with the reason.
    pub damaged: Vec<(String, String)>,
    /// The rest of the range; `None` after the last page.
    pub rest: Option<IdRange>,
}

impl IdRange {
    /// The page of these rows. If there is an id `reached`, the range continues after it.
    pub(crate) fn page(&self, rows: Vec<ListedDocument>, reached: Option<String>) -> ListingPage {
        // The next possible id in byte order.
        let rest = reached.map(|id| IdRange { start: format!("{id}\0"), ..self.clone() });
        ListingPage { rows, damaged: Vec::new(), rest }
    }
}

/// The parts of leaves to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Read their ancestors.
    pub ancestors: bool,
    /// If a revision is not a leaf any more, read the leaves that descend from it.
    pub latest: bool,
    /// Answer only the first requests, at least one, if their bodies have about this many bytes together.
    pub most_bytes: Option<usize>,
}

/// A leaf of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The document.
    pub id: String,
    /// The leaf.
    pub rev: RevId,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// The members without the special ones.
    pub body: JsonText,
    /// The leaf and its known ancestors, if requested.
    pub history: Option<RevHistory>,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
    /// The memory that it reserves among the answers of servers.
    pub held: Held,
}

/// Whether these leaves have more bytes than the caller wants.
pub(crate) fn is_enough(leaves: &[Result<Vec<Revision>>], most_bytes: Option<usize>) -> bool {
    most_bytes.is_some_and(|most| leaves.iter().flatten().flatten().map(Revision::bytes).sum::<usize>() > most)
}

impl Revision {
    /// Approximate size of the leaf and its ancestors as JSON.
    pub fn bytes(&self) -> usize {
        /// Thirty-two digits, quotes and a comma.
        const ANCESTOR: usize = 35;
        self.body.len() + self.history.as_ref().map_or(0, |history| history.ids.len() * ANCESTOR)
    }

    /// An edit that merges the leaf elsewhere, without its attachments.
    pub fn into_edit(self) -> Edit {
        let mut edit = Edit::new(self.id, self.body);
        edit.deleted = self.deleted;
        edit.rev = Some(self.rev);
        edit.history = self.history.map(std::sync::Arc::new);
        edit
    }
}

/// An attachment of a leaf, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its content type.
    pub content_type: String,
    /// Position of the revision that added or replaced it.
    pub revpos: u64,
    /// Its length in bytes, uncompressed.
    pub length: u64,
    /// The compression of the bytes that the peer sends.
    pub encoding: Encoding,
    /// Number of those bytes.
    pub encoded_length: u64,
}

/// A local document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDocument {
    /// Its revision.
    pub rev: String,
    /// The members without the special ones.
    pub body: JsonText,
}
