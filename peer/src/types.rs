//! What is asked of a peer, and what it answers.

use std::time::Duration;

use model::{Edit, Encoding, JsonText, JsonWriter, RevHistory, RevId};

/// What a database says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Live documents.
    pub documents: u64,
    /// Tombstones.
    pub deleted: u64,
    /// The last sequence.
    pub update_seq: String,
    /// Bytes of the documents as compact JSON, where the peer says so (CouchDB's `sizes.external`).
    pub external_bytes: Option<u64>,
    /// Bytes on disk, where the peer knows (CouchDB's `sizes.file`).
    pub file_bytes: Option<u64>,
    /// Whether it is being compacted.
    pub is_compacting: bool,
}

/// Which changes pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All of them.
    #[default]
    None,
    /// Those of these documents.
    DocIds(Vec<String>),
    /// Those of documents that match a Mango selector.
    Selector(JsonText),
    /// Those that a function of a design document lets pass.
    Function {
        /// `DESIGN_DOCUMENT/FUNCTION`.
        name: String,
        /// The parameters of the request that the function sees.
        params: Vec<(String, String)>,
    },
}

/// What to read of the feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesRequest {
    /// After this sequence; from the beginning where that is `None`. `now` is the last sequence.
    pub since: Option<String>,
    /// At most so many rows.
    pub limit: usize,
    /// Whether rows name all leaves and not only the winner.
    pub all_leaves: bool,
    /// Which changes pass.
    pub filter: Filter,
    /// How long to wait for a row where there is none.
    pub wait: Option<Duration>,
}

/// A row of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where the feed goes on behind it.
    pub seq: String,
    /// The document.
    pub id: String,
    /// The winner first, then the other leaves if asked for. As text: not all that CouchDB takes for a revision is one
    /// everywhere.
    pub revs: Vec<String>,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
    /// `error` and `reason`, where the document cannot be read.
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
    /// Where to go on.
    pub last_seq: String,
    /// Whether there is more now.
    pub more: bool,
    /// Rows behind this page, where the peer says so.
    pub pending: Option<u64>,
}

/// What a listing has of the documents.
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

/// A range of ids, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    /// Where it begins, itself included.
    pub start: String,
    /// Where it ends, itself excluded.
    pub end: Option<String>,
    /// At most so many rows a page.
    pub limit: usize,
    /// What is wanted of each document.
    pub docs: Docs,
}

/// A live document in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// Its winner.
    pub rev: RevId,
    /// The whole document, if asked for.
    pub doc: Option<JsonText>,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// The rest of the range; `None` after the last page.
    pub rest: Option<IdRange>,
}

impl IdRange {
    /// The page of these rows, which goes on behind the id `reached` where there is one.
    pub(crate) fn page(&self, rows: Vec<Row>, reached: Option<String>) -> Page {
        // The next possible id in the order of bytes.
        let rest = reached.map(|id| IdRange { start: format!("{id}\0"), ..self.clone() });
        Page { rows, rest }
    }
}

/// What is wanted of the leaves of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Their ancestors.
    pub ancestors: bool,
    /// In place of a revision that is no leaf any more, the leaves that descend from it.
    pub latest: bool,
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
    /// The leaf and its known ancestors, if asked for.
    pub history: Option<RevHistory>,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
}

impl Revision {
    /// The leaf without its attachments, as an edit that merges it elsewhere.
    pub fn into_edit(self) -> Edit {
        let mut edit = Edit::new(self.id, self.body);
        edit.deleted = self.deleted;
        edit.rev = Some(self.rev);
        edit.history = self.history;
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
    /// The position of the revision that it came with.
    pub revpos: u64,
    /// How many bytes it has, unpacked.
    pub length: u64,
    /// How the bytes are packed that the peer sends.
    pub encoding: Encoding,
    /// How many these are.
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
