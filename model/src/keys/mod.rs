//! All keys that the layer writes, in one place.
//!
//! Keys are tuples (`design/tuple.md` of FoundationDB) under an optional root. Subspaces are small integers, not names,
//! so each costs only two bytes in a key.
//!
//! ```text
//!  root ┬ (0)                                    format version of the layer
//!       ├ (1, Name)                              catalog: the number of each database
//!       ├ (2)                                    the next database's number
//!       ├ (3, Milliseconds, Nonce)               transaction ids (RFC 003, option 3)
//!       ├ (5)                                    the store's identity
//!       ├ (6, Name)                              progress of databases that are copied here
//!       ├ (7, Deadline, Number, Store)           staged uploads, which no edit names yet
//!       ├ (8, …)                                 jobs: keys of the crate `jobs`
//!       └ (4, Number) ┬ (0)                      instance: read by every transaction on the database
//!         a database's│
//!         prefix      ├ (1)                      security object
//!                     ├ (2)                      last sequence, which feeds watch
//!                     ├ (3)                      counters, added to atomically
//!                     ├ (4, DocID, NotDeleted, RevPosition, RevHash)        revisions   RFC 001
//!                     ├ (5, Incarnation, Versionstamp)                      changes     RFC 003
//!                     ├ (6, DocID, NotDeleted, RevPosition, RevHash, …)     docs        RFC 004
//!                     ├ (7, DocID)                                          all_docs
//!                     ├ (8, DocID[, Part])                                  local documents
//!                     ├ (9, Sha256, Length)                                 contents of attachments
//!                     ├ (10, Store, Part)                                   their bytes
//!                     ├ (11, Sha256, Length, DocID, NotDeleted, RevPosition, RevHash)   references to contents
//!                     ├ (12, Index)                                         definitions of indexes
//!                     ├ (13, Index[, Key, DocID])                           their rows, and the progress of a build
//!                     ├ (14, DocID)                                         id rows: the index rows of a document
//!                     ├ (15, …)                                             purges
//!                     └ (24 to 27, …)                                       rows of 4 to 7 that a repair moved
//! ```
//!
//! Invariants: the rows of a document in `revisions` sort so that the last one is the winner. Its rows in `docs` sort
//! in the same order. `changes` sort by sequence. `docs/keyspace.md` draws the bytes of keys and values.

use bytes::Bytes;
use kv_api::{KeySelector, RangeRequest};

use crate::attachments::{ContentId, StoreId};
use crate::error::{Error, Result};
use crate::limits::{MAX_DATABASE_NAME_BYTES, MAX_ID_BYTES};
use crate::revid::{RevHash, RevId};
use crate::row::{self, Reader, STAMP_LEN};
use crate::seq::Seq;
use crate::tuple;

/// A leaf of a document's revision tree. Sorts like its keys: the greatest of a document's leaves is the winner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf {
    /// Whether it is a live revision and no tombstone. Live revisions win over tombstones.
    pub not_deleted: bool,
    /// The revision. The higher position wins, then the greater hash.
    pub rev: RevId,
}

/// A key of the layer, before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    /// The layer's format version.
    Format,
    /// The prefix of the database with this name.
    Catalog(&'a str),
    /// The next database's number.
    Allocator,
    /// The id of a transaction that started at this time.
    Transaction { time_ms: u64, nonce: [u8; 16] },
    /// The prefix of the database with this number.
    Database(u64),
    /// The store's identity.
    Identity,
    /// The progress of copying the database with this name to this store.
    Arrival(&'a str),
    /// An upload to the database with this number. It is kept until the deadline if no edit names it.
    Staging { deadline_ms: u64, database: u64, store: &'a StoreId },
    /// The prefix of the jobs' registry.
    Jobs,
}

impl Key<'_> {
    const FORMAT: u64 = 0;
    const CATALOG: u64 = 1;
    const ALLOCATOR: u64 = 2;
    const TRANSACTION: u64 = 3;
    const DATABASE: u64 = 4;
    const IDENTITY: u64 = 5;
    const ARRIVAL: u64 = 6;
    const STAGING: u64 = 7;
    const JOBS: u64 = 8;

    /// The encoded key under `root`.
    pub(crate) fn under(self, root: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(root.len() + 32);
        out.extend_from_slice(root);
        match self {
            Key::Format => tuple::append_u64(&mut out, Self::FORMAT),
            Key::Catalog(name) => {
                tuple::append_u64(&mut out, Self::CATALOG);
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::Allocator => tuple::append_u64(&mut out, Self::ALLOCATOR),
            Key::Transaction { time_ms, nonce } => {
                tuple::append_u64(&mut out, Self::TRANSACTION);
                tuple::append_u64(&mut out, time_ms);
                tuple::append_bytes(&mut out, &nonce);
            }
            Key::Database(number) => {
                tuple::append_u64(&mut out, Self::DATABASE);
                tuple::append_u64(&mut out, number);
            }
            Key::Identity => tuple::append_u64(&mut out, Self::IDENTITY),
            Key::Arrival(name) => {
                tuple::append_u64(&mut out, Self::ARRIVAL);
                tuple::append_str(&mut out, cut(name, MAX_DATABASE_NAME_BYTES));
            }
            Key::Staging { deadline_ms, database, store } => {
                tuple::append_u64(&mut out, Self::STAGING);
                tuple::append_u64(&mut out, deadline_ms);
                tuple::append_u64(&mut out, database);
                tuple::append_bytes(&mut out, store);
            }
            Key::Jobs => tuple::append_u64(&mut out, Self::JOBS),
        }
        out
    }

    /// The range of all catalog rows.
    pub(crate) fn catalog_range(root: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::CATALOG);
        let end = end_of(&begin);
        (begin, end)
    }

    /// The name in a catalog key.
    pub(crate) fn catalog_name(root: &[u8], key: &[u8]) -> Result<String> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        reader.int()?;
        let name = reader.str()?.into_owned();
        reader.end()?;
        Ok(name)
    }

    /// The range of all transaction ids older than `time_ms`.
    pub(crate) fn transactions_before(root: &[u8], time_ms: u64) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::TRANSACTION);
        let mut end = begin.clone();
        tuple::append_u64(&mut end, time_ms);
        (begin, end)
    }

    /// The range of all uploads, or of those whose deadline is before `before_ms`.
    pub(crate) fn stagings(root: &[u8], before_ms: Option<u64>) -> (Vec<u8>, Vec<u8>) {
        let mut begin = root.to_vec();
        tuple::append_u64(&mut begin, Self::STAGING);
        let mut end = end_of(&begin);
        if let Some(time_ms) = before_ms {
            end.pop();
            tuple::append_u64(&mut end, time_ms);
        }
        (begin, end)
    }

    /// The database's number and the upload's store in the key of an upload.
    pub(crate) fn read_staging(root: &[u8], key: &[u8]) -> Result<(u64, StoreId)> {
        let mut reader = Reader::new(key.strip_prefix(root).ok_or_else(|| misplaced(key))?);
        let (_, _deadline) = (reader.int()?, reader.int()?);
        let database = reader.int()?;
        let store = StoreId::try_from(reader.bytes()?.as_ref()).map_err(|_| misplaced(key))?;
        reader.end()?;
        Ok((database, store))
    }
}

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
    Chunks,
    References,
    Indexes,
    IndexRows,
    Indexed,
    Purges,
}

impl Subspace {
    /// All subspaces, in key order.
    pub(crate) const ALL: [Subspace; 16] = [
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
        Subspace::Chunks,
        Subspace::References,
        Subspace::Indexes,
        Subspace::IndexRows,
        Subspace::Indexed,
        Subspace::Purges,
    ];

    /// The first element of the subspace's keys.
    const fn number(self) -> u64 {
        self as u64
    }
}

/// The key and the document of an index row.
pub(crate) type IndexPlace = (Vec<u8>, String);

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
    /// The bytes of a content, in chunks.
    ChunksOf(&'a StoreId),
    /// One chunk of a content.
    Chunk(&'a StoreId, u64),
    /// All references to a content.
    ReferencesTo(&'a ContentId),
    /// The reference of a revision to a content.
    Reference(&'a ContentId, &'a str, &'a Leaf),
    /// The definition of an index.
    Index(u64),
    /// All rows of an index. The row at the key itself tells how far the index is built.
    IndexRows(u64),
    /// The rows of an index that have this key.
    IndexKey(u64, &'a [u8]),
    /// The row of a document in an index.
    IndexRow(u64, &'a [u8], &'a str),
    /// The id row of a document: the rows that it has in indexes.
    Indexed(&'a str),
    /// The number of purges that are remembered.
    PurgesKept,
    /// The sequence of the purge with this UUID.
    PurgeOf(&'a [u8; 16]),
    /// The purge with this sequence.
    Purge(u64),
}

/// Distance in subspaces by which a repair moves a row that cannot be read.
const MOVED: u8 = 20;

const INSTANCE: u64 = Subspace::Instance.number();
const SECURITY: u64 = Subspace::Security.number();
const LAST: u64 = Subspace::Last.number();
const STATS: u64 = Subspace::Stats.number();
const REVISIONS: u64 = Subspace::Revisions.number();
const CHANGES: u64 = Subspace::Changes.number();
const DOCS: u64 = Subspace::Docs.number();
const ALL_DOCS: u64 = Subspace::AllDocs.number();
const LOCAL: u64 = Subspace::Local.number();
const CONTENTS: u64 = Subspace::Contents.number();
const CHUNKS: u64 = Subspace::Chunks.number();
const REFERENCES: u64 = Subspace::References.number();
const INDEXES: u64 = Subspace::Indexes.number();
const INDEX_ROWS: u64 = Subspace::IndexRows.number();
const INDEXED: u64 = Subspace::Indexed.number();
const PURGES: u64 = Subspace::Purges.number();

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
            DatabaseKey::ChunksOf(store) => {
                tuple::append_u64(out, CHUNKS);
                tuple::append_bytes(out, store);
            }
            DatabaseKey::Chunk(store, part) => {
                tuple::append_u64(out, CHUNKS);
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
            DatabaseKey::PurgesKept => tuple::append_u64(out, PURGES),
            DatabaseKey::PurgeOf(uuid) => {
                tuple::append_u64(out, PURGES);
                tuple::append_bytes(out, uuid);
            }
            DatabaseKey::Purge(seq) => {
                tuple::append_u64(out, PURGES);
                tuple::append_u64(out, seq);
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
        // One allocation for both keys: the begin is a slice of the end.
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

    /// A reader of a key's elements after the database's prefix and the subspace. Fails if the subspace is another one.
    fn inside<'k>(&self, key: &'k [u8], subspace: u64) -> Result<Reader<'k>> {
        let mut reader = Reader::new(key.strip_prefix(self.prefix.as_ref()).ok_or_else(|| misplaced(key))?);
        if reader.int()? == subspace { Ok(reader) } else { Err(misplaced(key)) }
    }

    /// The document and the leaf in a key of `revisions`.
    pub(crate) fn read_revision(&self, key: &[u8]) -> Result<(String, Leaf)> {
        let mut reader = self.inside(key, REVISIONS)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok((id, leaf))
    }

    /// The document in a key of `revisions`. The leaf in the key may be damaged.
    pub(crate) fn read_revision_id(&self, key: &[u8]) -> Result<String> {
        Ok(self.inside(key, REVISIONS)?.str()?.into_owned())
    }

    /// The leaf in a key of `revisions`; the document's prefix is `document_len` bytes long.
    pub(crate) fn read_leaf(key: &[u8], document_len: usize) -> Result<Leaf> {
        let mut reader = Reader::new(key.get(document_len..).ok_or_else(|| misplaced(key))?);
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok(leaf)
    }

    /// The document and the leaf in a key of `docs`, and the length of the key up to the leaf's end.
    pub(crate) fn read_doc(&self, key: &[u8]) -> Result<(String, Leaf, usize)> {
        let mut reader = self.inside(key, DOCS)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        Ok((id, leaf, key.len() - reader.rest().len()))
    }

    /// The leaf in a key of `docs`, and the length of the key up to the leaf's end; the document's prefix is
    /// `document_len` bytes long.
    pub(crate) fn read_doc_leaf(key: &[u8], document_len: usize) -> Result<(Leaf, usize)> {
        let mut reader = Reader::new(key.get(document_len..).ok_or_else(|| misplaced(key))?);
        let leaf = read_leaf(&mut reader)?;
        Ok((leaf, key.len() - reader.rest().len()))
    }

    /// The sequence in a key of `changes`.
    pub(crate) fn read_change(&self, key: &[u8]) -> Result<Seq> {
        let mut reader = self.inside(key, CHANGES)?;
        let seq = read_seq(&mut reader)?;
        reader.end()?;
        Ok(seq)
    }

    /// The document in a key of `all_docs`.
    pub(crate) fn read_all_doc(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, ALL_DOCS)?;
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }

    /// The content in a key of `contents`.
    pub(crate) fn read_content(&self, key: &[u8]) -> Result<ContentId> {
        let mut reader = self.inside(key, CONTENTS)?;
        let content = read_content(&mut reader)?;
        reader.end()?;
        Ok(content)
    }

    /// The upload's store and the chunk's number in a key of `chunks`.
    pub(crate) fn read_chunk(&self, key: &[u8]) -> Result<(StoreId, u64)> {
        let mut reader = self.inside(key, CHUNKS)?;
        let store = StoreId::try_from(reader.bytes()?.as_ref()).map_err(|_| misplaced(key))?;
        let part = reader.int()?;
        reader.end()?;
        Ok((store, part))
    }

    /// The content, the document and the leaf in a key of `references`.
    pub(crate) fn read_reference(&self, key: &[u8]) -> Result<(ContentId, String, Leaf)> {
        let mut reader = self.inside(key, REFERENCES)?;
        let content = read_content(&mut reader)?;
        let id = reader.str()?.into_owned();
        let leaf = read_leaf(&mut reader)?;
        reader.end()?;
        Ok((content, id, leaf))
    }

    /// The index in the key of an index row, and the row's key and document; `None` for the row that tells how far the
    /// index is built.
    pub(crate) fn read_index_row(&self, key: &[u8]) -> Result<(u64, Option<IndexPlace>)> {
        let mut reader = self.inside(key, INDEX_ROWS)?;
        let index = reader.int()?;
        if reader.rest().is_empty() {
            return Ok((index, None));
        }
        let (key, id) = (reader.bytes()?.into_owned(), reader.str()?.into_owned());
        reader.end()?;
        Ok((index, Some((key, id))))
    }

    /// The document in the key of an id row.
    pub(crate) fn read_indexed(&self, key: &[u8]) -> Result<String> {
        let mut reader = self.inside(key, INDEXED)?;
        let id = reader.str()?.into_owned();
        reader.end()?;
        Ok(id)
    }

    /// The purges from this sequence on. The rows of their UUIDs sort before them.
    pub(crate) fn purges_from(&self, seq: u64) -> RangeRequest {
        RangeRequest::keys(self.key(DatabaseKey::Purge(seq)), self.bounds(DatabaseKey::All(Subspace::Purges)).1)
    }

    /// The sequence in the key of a purge.
    pub(crate) fn read_purge(&self, key: &[u8]) -> Result<u64> {
        let mut reader = self.inside(key, PURGES)?;
        let seq = reader.int()?;
        reader.end()?;
        Ok(seq)
    }

    /// The UUID in the key of a purge's UUID.
    pub(crate) fn read_purge_of(&self, key: &[u8]) -> Result<[u8; 16]> {
        let mut reader = self.inside(key, PURGES)?;
        let uuid = reader.bytes()?.as_ref().try_into().map_err(|_| misplaced(key))?;
        reader.end()?;
        Ok(uuid)
    }

    /// The id in the key of a local document, and the part's number if it is a part of the body.
    pub(crate) fn read_local(&self, key: &[u8]) -> Result<(String, Option<u64>)> {
        let mut reader = self.inside(key, LOCAL)?;
        let id = reader.str()?.into_owned();
        let part = if reader.rest().is_empty() { None } else { Some(reader.int()?) };
        reader.end()?;
        Ok((id, part))
    }
}

/// Whether `key`, of a layer without a root, is the instance key of a database. Every transaction on the database reads
/// it, so counts of rows list it separately (`kv_api::Counted::apart`).
pub fn is_instance_key(key: &[u8]) -> bool {
    let mut reader = Reader::new(key);
    let parts = (|| Ok::<_, Error>((reader.int()?, reader.int()?, reader.int()?, reader.end()?)))();
    matches!(parts, Ok((Key::DATABASE, _, INSTANCE, ())))
}

/// Appends a subspace and a document's id. Ids in requests may have any length. An id that is too long is cut to a key
/// that sorts in the same place and that no document has.
fn push_id(out: &mut Vec<u8>, subspace: u64, id: &str) {
    tuple::append_u64(out, subspace);
    tuple::append_str(out, cut(id, MAX_ID_BYTES));
}

/// The beginning of a text, longer than `limit` only if the text is. Among texts within the limit it sorts like the
/// whole text.
fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit { text } else { &text[..text.ceil_char_boundary(limit + 1)] }
}

fn push_content(out: &mut Vec<u8>, subspace: u64, content: &ContentId) {
    tuple::append_u64(out, subspace);
    tuple::append_bytes(out, &content.sha256);
    tuple::append_u64(out, content.length);
}

fn read_content(reader: &mut Reader<'_>) -> Result<ContentId> {
    let sha256 = reader.bytes()?.as_ref().try_into().map_err(|_| Error::corrupt("a content's hash of wrong length"))?;
    Ok(ContentId { sha256, length: reader.int()? })
}

fn push_leaf(out: &mut Vec<u8>, leaf: &Leaf) {
    tuple::append_bool(out, leaf.not_deleted);
    tuple::append_u64(out, leaf.rev.position());
    tuple::append_bytes(out, leaf.rev.hash().as_bytes());
}

fn read_leaf(reader: &mut Reader<'_>) -> Result<Leaf> {
    let not_deleted = reader.bool()?;
    Ok(Leaf { not_deleted, rev: read_rev(reader)? })
}

/// Reads a revision's two elements.
pub(crate) fn read_rev(reader: &mut Reader<'_>) -> Result<RevId> {
    let position = reader.int()?;
    let hash = RevHash::from_bytes(&reader.bytes()?);
    let rev = hash.and_then(|hash| RevId::new(position, hash));
    rev.map_err(|_| Error::corrupt("a row with an impossible revision"))
}

/// Appends a sequence as its two elements.
pub(crate) fn push_seq(out: &mut Vec<u8>, incarnation: u8, stamp: &[u8; STAMP_LEN]) {
    tuple::append_u64(out, u64::from(incarnation));
    row::append_stamp(out, stamp);
}

pub(crate) fn read_seq(reader: &mut Reader<'_>) -> Result<Seq> {
    let incarnation = u8::try_from(reader.int()?).map_err(|_| Error::corrupt("an incarnation over 255"))?;
    Ok(Seq::new(incarnation, &reader.stamp()?))
}

/// The placeholder for a transaction's versionstamp until the commit, with the edit's number in the transaction.
pub(crate) fn pending_stamp(edit: u16) -> [u8; STAMP_LEN] {
    let mut stamp = [0xff; STAMP_LEN];
    stamp[STAMP_LEN - 2..].copy_from_slice(&edit.to_be_bytes());
    stamp
}

/// The first key after `key` and everything below it. The byte appended here is far above the type codes that elements
/// begin with. A longer string that continues the last element of `key` with a NUL has exactly this byte next, so its
/// keys are not included.
pub(crate) fn end_of(key: &[u8]) -> Vec<u8> {
    let mut end = Vec::with_capacity(key.len() + 1);
    end.extend_from_slice(key);
    end.push(BEYOND);
    end
}

/// The element, `true`, that follows the leaf in the keys of its attachments. Bodies have strings, integers or nothing
/// there, which all sort before `true`.
pub(crate) const ATTACHMENTS: u8 = 0x27;

/// The byte that [`end_of`] appends.
pub(crate) const BEYOND: u8 = 0xff;

fn misplaced(key: &[u8]) -> Error {
    Error::corrupt(format!("a key where it does not belong: {}", key.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use foundationdb_tuple::{Bytes as TupleBytes, Versionstamp, pack};

    use super::*;
    use crate::branch::{Ancestors, Branch, PendingCrown};
    use crate::policy::ConflictPolicy;

    const DRAWN: &str = include_str!("../../docs/keyspace.md");

    fn leaf() -> Leaf {
        Leaf { not_deleted: true, rev: "1-967a00dff5e02add41819138abb3284d".parse().unwrap() }
    }

    #[test]
    fn keys_are_the_tuples_that_are_drawn() {
        let keys = DatabaseKeys::new(b"", 300);
        let (leaf, id) = (leaf(), "a\0ö");
        let hash = TupleBytes::from(leaf.rev.hash().as_bytes());
        let content = ContentId { sha256: [0; 32], length: 300 };
        let sha256 = TupleBytes::from(&content.sha256[..]);
        let stamp = [7; STAMP_LEN];
        let in_tuple = Versionstamp::complete([7; 10], 0x0707);
        for (key, expected) in [
            (keys.key(DatabaseKey::Instance), pack(&(4, 300, 0))),
            (keys.key(DatabaseKey::Security), pack(&(4, 300, 1))),
            (keys.key(DatabaseKey::Last), pack(&(4, 300, 2))),
            (keys.key(DatabaseKey::Stats), pack(&(4, 300, 3))),
            (keys.key(DatabaseKey::Revision(id, &leaf)), pack(&(4, 300, 4, id, true, 1, &hash))),
            (keys.key(DatabaseKey::Change(Seq::new(2, &stamp))), pack(&(4, 300, 5, 2, &in_tuple))),
            (keys.key(DatabaseKey::Doc(id, &leaf)), pack(&(4, 300, 6, id, true, 1, &hash))),
            (keys.key(DatabaseKey::AllDoc(id)), pack(&(4, 300, 7, id))),
            (keys.key(DatabaseKey::Local(id)), pack(&(4, 300, 8, id))),
            (keys.key(DatabaseKey::Attachments(id, &leaf)), pack(&(4, 300, 6, id, true, 1, &hash, true))),
            (keys.key(DatabaseKey::Content(&content)), pack(&(4, 300, 9, &sha256, 300))),
            (keys.key(DatabaseKey::Chunk(&[8; 16], 3)), pack(&(4, 300, 10, TupleBytes::from(&[8; 16][..]), 3))),
            (
                keys.key(DatabaseKey::Reference(&content, id, &leaf)),
                pack(&(4, 300, 11, &sha256, 300, id, true, 1, &hash)),
            ),
            (keys.key(DatabaseKey::Index(70_000)), pack(&(4, 300, 12, 70_000))),
            (keys.key(DatabaseKey::IndexRows(1)), pack(&(4, 300, 13, 1))),
            (keys.key(DatabaseKey::IndexKey(1, b"k\0")), pack(&(4, 300, 13, 1, TupleBytes::from(&b"k\0"[..])))),
            (keys.key(DatabaseKey::IndexRow(1, b"k\0", id)), pack(&(4, 300, 13, 1, TupleBytes::from(&b"k\0"[..]), id))),
            (keys.key(DatabaseKey::Indexed(id)), pack(&(4, 300, 14, id))),
            (keys.key(DatabaseKey::PurgesKept), pack(&(4, 300, 15))),
            (keys.key(DatabaseKey::PurgeOf(&[8; 16])), pack(&(4, 300, 15, TupleBytes::from(&[8; 16][..])))),
            (keys.key(DatabaseKey::Purge(70_000)), pack(&(4, 300, 15, 70_000))),
            (Key::Format.under(b""), pack(&(0,))),
            (Key::Catalog("db").under(b""), pack(&(1, "db"))),
            (Key::Allocator.under(b""), pack(&(2,))),
            (
                Key::Transaction { time_ms: 1 << 40, nonce: [0; 16] }.under(b""),
                pack(&(3, 1i64 << 40, TupleBytes::from(&[0; 16][..]))),
            ),
            (Key::Identity.under(b""), pack(&(5,))),
            (Key::Arrival("db").under(b""), pack(&(6, "db"))),
            (
                Key::Staging { deadline_ms: 70_000, database: 300, store: &[8; 16] }.under(b""),
                pack(&(7, 70_000, 300, TupleBytes::from(&[8; 16][..]))),
            ),
            (Key::Jobs.under(b""), pack(&(8,))),
        ] {
            assert_eq!(key, expected);
        }
        assert!(Key::Format.under(b"root/").starts_with(b"root/"));
    }

    #[test]
    fn keys_read_back() {
        let keys = DatabaseKeys::new(b"root", 7);
        let leaf = Leaf { not_deleted: false, rev: "12-x".parse().unwrap() };
        let key = keys.key(DatabaseKey::Revision("a\0", &leaf));
        assert_eq!(keys.read_revision(&key).unwrap(), ("a\0".to_owned(), leaf.clone()));
        assert!(keys.read_doc(&key).is_err() && keys.read_revision(&key[1..]).is_err());
        for cut in keys.key(DatabaseKey::RevisionsOf("a\0")).len()..key.len() {
            assert!(keys.read_revision(&key[..cut]).is_err(), "cut at {cut}");
        }
        let mut row = keys.key(DatabaseKey::Doc("a\0", &leaf));
        let prefix = row.len();
        row.push(0x15);
        assert_eq!(keys.read_doc(&row).unwrap(), ("a\0".to_owned(), leaf, prefix));
        let seq = Seq::new(3, &[9; STAMP_LEN]);
        assert_eq!(keys.read_change(&keys.key(DatabaseKey::Change(seq))).unwrap(), seq);
        assert_eq!(keys.read_all_doc(&keys.key(DatabaseKey::AllDoc("x"))).unwrap(), "x");
        let (content, store) = (ContentId { sha256: [0; 32], length: 0 }, [0; 16]);
        assert_eq!(keys.read_content(&keys.key(DatabaseKey::Content(&content))).unwrap(), content);
        assert_eq!(keys.read_chunk(&keys.key(DatabaseKey::Chunk(&store, 256))).unwrap(), (store, 256));
        let dead = Leaf { not_deleted: false, rev: "12-x".parse().unwrap() };
        let reference = keys.key(DatabaseKey::Reference(&content, "a\0", &dead));
        assert_eq!(keys.read_reference(&reference).unwrap(), (content, "a\0".to_owned(), dead));
        let staging = Key::Staging { deadline_ms: 1 << 40, database: 300, store: &store }.under(b"root");
        assert_eq!(Key::read_staging(b"root", &staging).unwrap(), (300, store));
        let (begin, end) = Key::stagings(b"root", Some((1 << 40) + 1));
        assert!(begin < staging && staging < end && staging > Key::stagings(b"root", Some(1 << 40)).1);
        let (purge, name) = (keys.key(DatabaseKey::Purge(256)), keys.key(DatabaseKey::PurgeOf(&[0; 16])));
        assert_eq!((keys.read_purge(&purge).unwrap(), keys.read_purge_of(&name).unwrap()), (256, [0; 16]));
        assert!(keys.read_purge(&name).is_err() && keys.read_purge_of(&purge).is_err());
        assert!(keys.key(DatabaseKey::PurgesKept) < name && name < keys.key(DatabaseKey::Purge(0)));
        assert!(is_instance_key(&DatabaseKeys::new(b"", 9).key(DatabaseKey::Instance)));
        assert!(!is_instance_key(&DatabaseKeys::new(b"", 9).key(DatabaseKey::Security)));
    }

    #[test]
    fn subspaces_are_numbered_in_their_order() {
        for (at, subspace) in (0u64..).zip(Subspace::ALL) {
            assert_eq!(subspace.number(), at);
        }
        assert_eq!(Subspace::ALL.last(), Some(&Subspace::Purges), "the last one of the enum");
    }

    #[test]
    fn ranges_hold_a_document_and_not_its_neighbours() {
        let keys = DatabaseKeys::new(b"", 0);
        let (begin, end) = keys.bounds(DatabaseKey::RevisionsOf("a"));
        let of = |id: &str| keys.key(DatabaseKey::Revision(id, &leaf()));
        assert!(begin <= of("a") && of("a") < end);
        for other in ["", "`", "a\0", "a\0b", "aa", "b"] {
            assert!(!(begin <= of(other) && of(other) < end), "{other:?}");
        }
    }

    #[test]
    fn ids_that_are_too_long_sort_in_their_place() {
        let keys = DatabaseKeys::new(b"", 0);
        let longest = "m".repeat(2_048);
        let ids = [
            "m".repeat(2_047) + "l",
            longest.clone(),
            longest.clone() + "\0",
            "m".repeat(1_000_000),
            longest.clone() + "é",
            "m".repeat(2_047) + "n",
        ];
        let key = |id: &str| keys.key(DatabaseKey::AllDoc(id));
        assert!(ids.iter().all(|id| key(id).len() < 2_100));
        assert!(ids.is_sorted_by_key(|id| key(id)));
        assert!(ids[2..5].iter().all(|id| key(id) > key(&longest)));
    }

    #[test]
    fn moved_rows_stand_behind_all_others() {
        let keys = DatabaseKeys::new(b"root", 300);
        let bound = Subspace::ALL.into_iter().map(|subspace| keys.bounds(DatabaseKey::All(subspace)).1).max().unwrap();
        for key in [DatabaseKey::RevisionsOf("a"), DatabaseKey::Changes, DatabaseKey::DocsOf("a"), DatabaseKey::AllDocs]
        {
            let key = keys.key(key);
            for earlier in [0, 1, 57] {
                let moved = keys.moved(&key, earlier).unwrap();
                assert!(moved >= bound && moved.as_slice() < keys.everything().1.as_slice());
                assert_eq!(moved.len(), key.len());
            }
            assert!([58, 63, 64, 255].iter().all(|earlier| keys.moved(&key, *earlier).is_none()));
        }
    }

    #[test]
    fn leaves_sort_as_their_keys_do() {
        let keys = DatabaseKeys::new(b"", 0);
        let mut leaves: Vec<Leaf> = Vec::new();
        for not_deleted in [false, true] {
            for rev in ["1-a", "1-b", "1-ba", "2-a", "10-a", "256-0", "1-00000000000000000000000000000000"] {
                leaves.push(Leaf { not_deleted, rev: rev.parse().unwrap() });
            }
        }
        leaves.sort();
        assert!(leaves.is_sorted_by_key(|leaf| keys.key(DatabaseKey::Revision("x", leaf))));
    }

    /// Whether these bytes are in the documentation's drawings.
    fn is_drawn(bytes: &[u8]) -> bool {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        DRAWN.lines().any(|line| line.split_whitespace().collect::<String>() == digits)
    }

    #[test]
    fn the_drawings_are_right() {
        let keys = DatabaseKeys::new(b"", 0);
        assert!(is_drawn(&keys.key(DatabaseKey::Revision("a", &leaf()))));
        let seq = Seq::new(0, &[0, 0, 0, 0, 0, 1, 0xe2, 0x40, 0, 0, 0, 7]);
        assert!(is_drawn(&keys.key(DatabaseKey::Change(seq))));
        let mut row = Vec::new();
        let crown = PendingCrown { incarnation: 0, edit: 0, branches: 1 };
        Branch::append_winner(&mut row, ConflictPolicy::KeepAll, crown, 2, &Ancestors::EMPTY, false);
        assert!(is_drawn(&row), "{row:02x?}");
    }
}
