//! How long the answer to a request may be, in bytes. It follows from what is asked.
//!
//! | answer | ceiling |
//! |---|---|
//! | description of a database, results of single writes, every refusal | [`SMALL`] |
//! | `_local/ID`, one document with all leaves that are asked for | [`DOCUMENT`] |
//! | one document of a listing with the contents of its attachments | [`WITH_ATTACHMENTS`] |
//! | several documents | [`SEVERAL`], or what their reader wants |
//! | `_changes` | [`changes`]: the rows that are asked for |
//! | `_all_docs` | [`listing`], [`winners`]: the rows or ids that are asked for |
//! | `_revs_diff`, `_bulk_docs`, `_purge` | [`revs_diff`], [`written`], [`purged`]: what was sent |
//! | an attachment | the length that its document gives |
//! | heads | the HTTP library's: 100 fields, some 400 KB |
//!
//! A page that is longer is asked for again in smaller pages, since rows of few documents may be long: those of documents with
//! many conflicts. So these ceilings need no room for the longest of all rows.

/// An answer of few fields. Sequences of databases with many shards are its longest ones.
pub(super) const SMALL: usize = 64 << 10;

/// An answer to a command.
pub(super) const COMMAND: usize = 4 << 20;

/// A document: the largest that a store takes, where each character is escaped, with its ancestors and attachments.
pub(super) const DOCUMENT: usize = 4 * model::limits::HIGHEST_MAX_DOCUMENT_SIZE;

/// A document with the contents of its attachments: CouchDB's largest attachment in base64.
pub(super) const WITH_ATTACHMENTS: usize = DOCUMENT + ((1 << 30) / 3) * 4;

/// Several documents, where their reader names no size.
pub(super) const SEVERAL: usize = 64 << 20;

/// The longest page of which a single row is asked for.
const ROW: usize = 4 << 20;

/// What the receiver's JSON may make of a text in the sender's: a byte becomes `\u0000`.
const ESCAPED: usize = 6;

/// A page of the feed.
pub(super) fn changes(rows: usize) -> usize {
    page(rows, 1 << 10)
}

/// A page of a listing without documents. Each row has its id twice.
pub(super) fn listing(rows: usize) -> usize {
    page(rows, 5 << 10)
}

fn page(rows: usize, row: usize) -> usize {
    if rows <= 1 { ROW } else { (1 << 20) + rows.saturating_mul(row) }
}

/// The winners of documents. `sent` is the length of the request, which has their ids.
pub(super) fn winners(sent: usize, ids: usize) -> usize {
    SMALL + sent.saturating_mul(2 * ESCAPED) + ids.saturating_mul(1 << 10)
}

/// What is missing of these revisions, with ancestors that may be the target's.
pub(super) fn revs_diff(sent: usize, documents: usize) -> usize {
    if documents <= 1 {
        return ROW + sent.saturating_mul(ESCAPED);
    }
    SMALL + sent.saturating_mul(ESCAPED) + documents.saturating_mul(4 << 10)
}

/// The results of these writes. `ids` is the length of the documents' ids.
pub(super) fn written(ids: usize, documents: usize) -> usize {
    SMALL + ids.saturating_mul(ESCAPED) + documents.saturating_mul(4 << 10)
}

/// The results of these purges.
pub(super) fn purged(sent: usize, documents: usize) -> usize {
    SMALL + sent.saturating_mul(ESCAPED) + documents.saturating_mul(4 << 10)
}
