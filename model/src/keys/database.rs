//! The keys of a database: its subspaces, and the bytes of each key.

use bytes::Bytes;
use kv_api::{KeySelector, RangeRequest};

use super::elements::{ATTACHMENTS, BEYOND, cut, end_of, pending_stamp, push_content, push_id, push_leaf, push_seq};
use super::{Key, Leaf};
use crate::attachments::{ContentId, StoreId};
use crate::error::Error;
use crate::feed::seq::Seq;
use crate::limits::MAX_ID_BYTES;
use crate::rows::row::Reader;
use crate::rows::tuple;

/// The kinds of rows of a database. Code that walks, copies or deletes a whole database matches them exhaustively, so a
/// new kind cannot be forgotten there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subspace {
    Instance,
    Security,
    Last,
    Stats,
    Revisions,
    Changes,
    Docs,
    AllDocs,
    Local,
    Contents,
    Parts,
    References,
    Indexes,
    IndexRows,
    Indexed,
    Purges,
    Views,
    Counts,
    Replaced,
    ReplacedDocs,
    Trash,
    TrashDocs,
    Passed,
    Ended,
}

impl Subspace {
    /// All subspaces, in key order.
    pub(crate) const ALL: [Subspace; 24] = [
        Subspace::Instance,
        Subspace::Security,
        Subspace::Last,
        Subspace::Stats,
        Subspace::Revisions,
        Subspace::Changes,
        Subspace::Docs,
        Subspace::AllDocs,
        Subspace::Local,
        Subspace::Contents,
        Subspace::Parts,
        Subspace::References,
        Subspace::Indexes,
        Subspace::IndexRows,
        Subspace::Indexed,
        Subspace::Purges,
        Subspace::Views,
        Subspace::Counts,
        Subspace::Replaced,
        Subspace::ReplacedDocs,
        Subspace::Trash,
        Subspace::TrashDocs,
        Subspace::Passed,
        Subspace::Ended,
    ];

    /// The first element of the subspace's keys.
    pub(super) const fn number(self) -> u64 {
        self as u64
    }
}

/// The key and the document of an index row.
pub(super) type IndexPlace = (Vec<u8>, String);

/// A key of one database, before it is encoded. Shorter variants, for example a document without a revision, are
/// prefixes of the longer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseKey<'a> {
    /// The row that every transaction on the database reads.
    Instance,
    /// The security object, in parts.
    Security,
    /// The last sequence.
    Last,
    /// The counters.
    Stats,
    /// All revisions of a document.
    RevisionsOf(&'a str),
    /// One branch of a document.
    Revision(&'a str, &'a Leaf),
    /// All changes.
    Changes,
    /// The row of a sequence in `changes`.
    Change(Seq),
    /// The row in `changes` of an edit that is not committed, so its commit version is unknown. Has the incarnation and
    /// the edit's number in the transaction.
    PendingChange { incarnation: u8, edit: u16 },
    /// The rows of all bodies.
    Docs,
    /// The bodies of all revisions of a document.
    DocsOf(&'a str),
    /// The bodies of a document's live leaves, or those of its tombstones.
    DocsOfKind(&'a str, bool),
    /// The body of one revision. The key of a packed body's first row.
    Doc(&'a str, &'a Leaf),
    /// All rows that count edits.
    Counts,
    /// The row of the transaction of a sequence that counts edits.
    Count(Seq),
    /// That of a transaction which is not committed, with the incarnation.
    PendingCount(u8),
    /// The replaced revisions of a document whose bodies are kept.
    ReplacedOf(&'a str),
    /// One of them.
    Replaced(&'a str, &'a Leaf),
    /// The replaced revisions from a time on, in milliseconds. Those of documents sort before all times.
    ReplacedFrom(u64),
    /// The time since which a revision is replaced.
    ReplacedSince(u64, &'a str, &'a Leaf),
    /// The body of a replaced revision: the same rows as in `docs`.
    ReplacedDoc(&'a str, &'a Leaf),
    /// The attachments of a replaced revision.
    ReplacedAttachments(&'a str, &'a Leaf),
    /// The row of a document that is condemned, or in the trash.
    Trash(&'a str),
    /// The body of a document in the trash. Its parts are below this key.
    TrashDoc(&'a str),
    /// What every client has passed, and since when.
    Passed,
    /// A document whose text has left the trash.
    Ended(&'a str),
    /// All winners.
    AllDocs,
    /// The winner of a live document.
    AllDoc(&'a str),
    /// All local documents.
    Locals,
    /// A local document. The parts of its body are below this key.
    Local(&'a str),
    /// All rows of a subspace.
    All(Subspace),
    /// The attachments of one revision, in parts below this key. They are the last of the revision's rows.
    Attachments(&'a str, &'a Leaf),
    /// A content of attachments.
    Content(&'a ContentId),
    /// The bytes of a content, in parts.
    PartsOf(&'a StoreId),
    /// One part of a content.
    Part(&'a StoreId, u64),
    /// All references to a content.
    ReferencesTo(&'a ContentId),
    /// The reference of a revision to a content.
    Reference(&'a ContentId, &'a str, &'a Leaf),
    /// The definition of an index.
    Index(u64),
    /// All rows of an index. The row at the key itself has the progress of the build.
    IndexRows(u64),
    /// The rows of an index that have this key.
    IndexKey(u64, &'a [u8]),
    /// The row of a document in an index.
    IndexRow(u64, &'a [u8], &'a str),
    /// The id row of a document: the rows that it has in indexes.
    Indexed(&'a str),
    /// The settings of purges.
    PurgeSettings,
    /// The sequence of the purge with this UUID.
    PurgeOf(&'a [u8; 16]),
    /// The purge with this sequence.
    Purge(u64),
    /// The number of the next view group.
    NextViewGroup,
    /// All view groups.
    ViewGroups,
    /// The view group with this signature.
    ViewGroup(&'a [u8; 16]),
    /// All rows of a view group. The row at the key itself has the progress of the build.
    ViewRows(u64),
    /// The id rows of a view group.
    ViewAllIds(u64),
    /// The rows and nodes of all views of a group.
    ViewTree(u64),
    /// The id row of a document in a view group. Its further parts are below this key.
    ViewIds(u64, &'a str),
    /// A row of a view at level 0, or a node of its tree above. `place` is the encoded key, document and number.
    ViewRow { group: u64, view: u64, level: u64, place: &'a [u8] },
    /// The parts of the value of a row that is too long for one.
    ViewLong { group: u64, view: u64, place: &'a [u8] },
    /// All documents that have no rows in a view group because of an error.
    ViewErrors(u64),
    /// The error of a document in a view group.
    ViewError(u64, &'a str),
    /// All documents that are left out of views of a group.
    ViewLeftOuts(u64),
    /// A document that is left out of the view with this number.
    ViewLeftOut { group: u64, view: u64, id: &'a str },
}

/// Distance in subspaces by which a repair moves a row that cannot be read.
const MOVED: u8 = 20;

const INSTANCE: u64 = Subspace::Instance.number();
pub(super) const SECURITY: u64 = Subspace::Security.number();
pub(super) const LAST: u64 = Subspace::Last.number();
pub(super) const STATS: u64 = Subspace::Stats.number();
pub(super) const REVISIONS: u64 = Subspace::Revisions.number();
pub(super) const CHANGES: u64 = Subspace::Changes.number();
pub(super) const DOCS: u64 = Subspace::Docs.number();
pub(super) const ALL_DOCS: u64 = Subspace::AllDocs.number();
pub(super) const LOCAL: u64 = Subspace::Local.number();
pub(super) const CONTENTS: u64 = Subspace::Contents.number();
pub(super) const PARTS: u64 = Subspace::Parts.number();
pub(super) const REFERENCES: u64 = Subspace::References.number();
pub(super) const INDEXES: u64 = Subspace::Indexes.number();
pub(super) const INDEX_ROWS: u64 = Subspace::IndexRows.number();
pub(super) const INDEXED: u64 = Subspace::Indexed.number();
pub(super) const PURGES: u64 = Subspace::Purges.number();
pub(super) const VIEWS: u64 = Subspace::Views.number();
pub(super) const COUNTS: u64 = Subspace::Counts.number();
pub(super) const REPLACED: u64 = Subspace::Replaced.number();
pub(super) const REPLACED_DOCS: u64 = Subspace::ReplacedDocs.number();
pub(super) const TRASH: u64 = Subspace::Trash.number();
const TRASH_DOCS: u64 = Subspace::TrashDocs.number();
const PASSED: u64 = Subspace::Passed.number();
const ENDED: u64 = Subspace::Ended.number();

/// The elements after [`VIEWS`]: the groups by signature, and the rows of each group.
pub(super) const VIEW_GROUPS: u64 = 0;
pub(super) const VIEW_ROWS: u64 = 1;

/// The kinds of a view group's rows.
pub(super) const VIEW_IDS: u64 = 0;
const VIEW_TREE: u64 = 1;
const VIEW_LONG: u64 = 2;
pub(super) const VIEW_ERRORS: u64 = 3;
const VIEW_LEFT_OUT: u64 = 4;

/// A database's prefix, and the keys under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseKeys {
    prefix: Bytes,
    number: u64,
}

impl DatabaseKeys {
    pub(crate) fn new(root: &[u8], number: u64) -> Self {
        DatabaseKeys { prefix: Key::Database(number).under(root).into(), number }
    }

    /// The database's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Writes `key` to `out`, replacing its content. So one buffer serves many keys.
    pub(crate) fn write(&self, out: &mut Vec<u8>, key: DatabaseKey<'_>) {
        out.clear();
        self.append(out, key);
    }

    /// Appends `key` to `out`.
    pub(crate) fn append(&self, out: &mut Vec<u8>, key: DatabaseKey<'_>) {
        out.extend_from_slice(&self.prefix);
        match key {
            DatabaseKey::Instance => tuple::append_u64(out, INSTANCE),
            DatabaseKey::Security => tuple::append_u64(out, SECURITY),
            DatabaseKey::Last => tuple::append_u64(out, LAST),
            DatabaseKey::Stats => tuple::append_u64(out, STATS),
            DatabaseKey::All(subspace) => tuple::append_u64(out, subspace.number()),
            DatabaseKey::RevisionsOf(id) => push_id(out, REVISIONS, id),
            DatabaseKey::Revision(id, leaf) => {
                push_id(out, REVISIONS, id);
                push_leaf(out, leaf);
            }
            DatabaseKey::Changes => tuple::append_u64(out, CHANGES),
            DatabaseKey::Change(seq) => {
                tuple::append_u64(out, CHANGES);
                push_seq(out, seq.incarnation(), &seq.stamp());
            }
            DatabaseKey::PendingChange { incarnation, edit } => {
                tuple::append_u64(out, CHANGES);
                push_seq(out, incarnation, &pending_stamp(edit));
            }
            DatabaseKey::Counts => tuple::append_u64(out, COUNTS),
            DatabaseKey::Count(seq) => {
                tuple::append_u64(out, COUNTS);
                push_seq(out, seq.incarnation(), &seq.stamp());
            }
            DatabaseKey::PendingCount(incarnation) => {
                tuple::append_u64(out, COUNTS);
                push_seq(out, incarnation, &pending_stamp(0));
            }
            DatabaseKey::Docs => tuple::append_u64(out, DOCS),
            DatabaseKey::DocsOf(id) => push_id(out, DOCS, id),
            DatabaseKey::DocsOfKind(id, not_deleted) => {
                push_id(out, DOCS, id);
                tuple::append_bool(out, not_deleted);
            }
            DatabaseKey::Doc(id, leaf) => {
                push_id(out, DOCS, id);
                push_leaf(out, leaf);
            }
            DatabaseKey::ReplacedOf(id) => push_id(out, REPLACED, id),
            DatabaseKey::Replaced(id, leaf) => {
                push_id(out, REPLACED, id);
                push_leaf(out, leaf);
            }
            DatabaseKey::ReplacedFrom(since_ms) => append_all(out, &[REPLACED, since_ms]),
            DatabaseKey::ReplacedSince(since_ms, id, leaf) => {
                append_all(out, &[REPLACED, since_ms]);
                tuple::append_str(out, cut(id, MAX_ID_BYTES));
                push_leaf(out, leaf);
            }
            DatabaseKey::ReplacedDoc(id, leaf) => {
                push_id(out, REPLACED_DOCS, id);
                push_leaf(out, leaf);
            }
            DatabaseKey::ReplacedAttachments(id, leaf) => {
                push_id(out, REPLACED_DOCS, id);
                push_leaf(out, leaf);
                out.push(ATTACHMENTS);
            }
            DatabaseKey::Trash(id) => push_id(out, TRASH, id),
            DatabaseKey::TrashDoc(id) => push_id(out, TRASH_DOCS, id),
            DatabaseKey::Passed => tuple::append_u64(out, PASSED),
            DatabaseKey::Ended(id) => push_id(out, ENDED, id),
            DatabaseKey::AllDocs => tuple::append_u64(out, ALL_DOCS),
            DatabaseKey::AllDoc(id) => push_id(out, ALL_DOCS, id),
            DatabaseKey::Locals => tuple::append_u64(out, LOCAL),
            DatabaseKey::Local(id) => push_id(out, LOCAL, id),
            DatabaseKey::Attachments(id, leaf) => {
                push_id(out, DOCS, id);
                push_leaf(out, leaf);
                out.push(ATTACHMENTS);
            }
            DatabaseKey::Content(content) => push_content(out, CONTENTS, content),
            DatabaseKey::PartsOf(store) => {
                tuple::append_u64(out, PARTS);
                tuple::append_bytes(out, store);
            }
            DatabaseKey::Part(store, part) => {
                tuple::append_u64(out, PARTS);
                tuple::append_bytes(out, store);
                tuple::append_u64(out, part);
            }
            DatabaseKey::ReferencesTo(content) => push_content(out, REFERENCES, content),
            DatabaseKey::Reference(content, id, leaf) => {
                push_content(out, REFERENCES, content);
                tuple::append_str(out, cut(id, MAX_ID_BYTES));
                push_leaf(out, leaf);
            }
            DatabaseKey::Index(index) => {
                tuple::append_u64(out, INDEXES);
                tuple::append_u64(out, index);
            }
            DatabaseKey::IndexRows(index) => {
                tuple::append_u64(out, INDEX_ROWS);
                tuple::append_u64(out, index);
            }
            DatabaseKey::IndexKey(index, key) => {
                tuple::append_u64(out, INDEX_ROWS);
                tuple::append_u64(out, index);
                tuple::append_bytes(out, key);
            }
            DatabaseKey::IndexRow(index, key, id) => {
                tuple::append_u64(out, INDEX_ROWS);
                tuple::append_u64(out, index);
                tuple::append_bytes(out, key);
                tuple::append_str(out, cut(id, MAX_ID_BYTES));
            }
            DatabaseKey::Indexed(id) => push_id(out, INDEXED, id),
            DatabaseKey::PurgeSettings => tuple::append_u64(out, PURGES),
            DatabaseKey::PurgeOf(uuid) => {
                tuple::append_u64(out, PURGES);
                tuple::append_bytes(out, uuid);
            }
            DatabaseKey::Purge(seq) => {
                tuple::append_u64(out, PURGES);
                tuple::append_u64(out, seq);
            }
            DatabaseKey::NextViewGroup => tuple::append_u64(out, VIEWS),
            DatabaseKey::ViewGroups => append_all(out, &[VIEWS, VIEW_GROUPS]),
            DatabaseKey::ViewGroup(signature) => {
                append_all(out, &[VIEWS, VIEW_GROUPS]);
                tuple::append_bytes(out, signature);
            }
            DatabaseKey::ViewRows(group) => append_all(out, &[VIEWS, VIEW_ROWS, group]),
            DatabaseKey::ViewAllIds(group) => append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_IDS]),
            DatabaseKey::ViewTree(group) => append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_TREE]),
            DatabaseKey::ViewIds(group, id) => {
                append_all(out, &[VIEWS, VIEW_ROWS, group]);
                push_id(out, VIEW_IDS, id);
            }
            DatabaseKey::ViewRow { group, view, level, place } => {
                append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_TREE, view, level]);
                out.extend_from_slice(place);
            }
            DatabaseKey::ViewLong { group, view, place } => {
                append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_LONG, view]);
                out.extend_from_slice(place);
            }
            DatabaseKey::ViewErrors(group) => append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_ERRORS]),
            DatabaseKey::ViewError(group, id) => {
                append_all(out, &[VIEWS, VIEW_ROWS, group]);
                push_id(out, VIEW_ERRORS, id);
            }
            DatabaseKey::ViewLeftOuts(group) => append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_LEFT_OUT]),
            DatabaseKey::ViewLeftOut { group, view, id } => {
                append_all(out, &[VIEWS, VIEW_ROWS, group, VIEW_LEFT_OUT]);
                push_id(out, view, id);
            }
        }
    }

    /// The encoded `key`.
    pub(crate) fn key(&self, key: DatabaseKey<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix.len() + 80);
        self.append(&mut out, key);
        out
    }

    /// `key` itself and every key below it: the first key, and the first key after them.
    pub(crate) fn bounds(&self, key: DatabaseKey<'_>) -> (Vec<u8>, Vec<u8>) {
        let begin = self.key(key);
        let end = end_of(&begin);
        (begin, end)
    }

    /// The range of `key` itself and every key below it.
    pub(crate) fn range(&self, key: DatabaseKey<'_>) -> RangeRequest {
        let mut end = self.key(key);
        end.push(BEYOND);
        // One allocation for both keys: the start is a slice of the end.
        let end = Bytes::from(end);
        RangeRequest::keys(end.slice(..end.len() - 1), end)
    }

    /// A document's branches up to and including `leaf`, in reverse order: `leaf`, then the branch that would win
    /// without it.
    pub(crate) fn revisions_down_from(&self, id: &str, leaf: &Leaf) -> RangeRequest {
        let begin = KeySelector::first_greater_or_equal(self.key(DatabaseKey::RevisionsOf(id)));
        let end = KeySelector::first_greater_than(self.key(DatabaseKey::Revision(id, leaf)));
        RangeRequest::selectors(begin, end).reverse()
    }

    /// The prefix of all keys of the database.
    pub(crate) fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// All keys of the database: the first key, and the first key after them.
    pub(crate) fn everything(&self) -> (Bytes, Vec<u8>) {
        (self.prefix.clone(), end_of(&self.prefix))
    }

    /// The key to which a repair moves the row of `revisions`, `changes`, `docs` or `all_docs` at `key`. It is 20
    /// subspaces higher, so the key does not become longer, and 4 more for each of the `earlier` rows that were moved
    /// from there. `None` beyond the last subspace.
    pub(crate) fn moved(&self, key: &[u8], earlier: u8) -> Option<Vec<u8>> {
        let mut moved = key.to_vec();
        // The byte after the type code of a one-byte integer.
        let subspace = moved.get_mut(self.prefix.len() + 1)?;
        *subspace = subspace.checked_add(MOVED)?.checked_add(earlier.checked_mul(4)?)?;
        Some(moved)
    }

    /// All rows that repairs have moved.
    pub(crate) fn all_moved(&self) -> RangeRequest {
        let last = Subspace::ALL[Subspace::ALL.len() - 1];
        RangeRequest::keys(self.bounds(DatabaseKey::All(last)).1, self.everything().1)
    }

    /// The purges from this sequence on. The rows of their UUIDs sort before them.
    pub(crate) fn purges_from(&self, seq: u64) -> RangeRequest {
        RangeRequest::keys(self.key(DatabaseKey::Purge(seq)), self.bounds(DatabaseKey::All(Subspace::Purges)).1)
    }
}

fn append_all(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| tuple::append_u64(out, *number));
}

/// Whether `key`, of a layer without a root, is the instance key of a database. Every transaction on the database reads
/// it, so counts of rows list it separately (`kv_api::Counted::separately`).
pub fn is_instance_key(key: &[u8]) -> bool {
    let mut reader = Reader::new(key);
    let parts = (|| Ok::<_, Error>((reader.int()?, reader.int()?, reader.int()?, reader.end()?)))();
    matches!(parts, Ok((Key::DATABASE, _, INSTANCE, ())))
}
