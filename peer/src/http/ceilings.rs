//! Maximum length of the answer to a request, in bytes. It follows from the request.
//!
//! | answer | ceiling |
//! |---|---|
//! | description of a database, results of single writes, every refusal | [`SMALL`] |
//! | `_local/ID`, one document with all leaves that are asked for | [`DOCUMENT`] |
//! | one document of a listing with the contents of its attachments | [`WITH_ATTACHMENTS`] |
//! | several documents | [`SEVERAL`], or the size that their reader asks for |
//! | `_changes` | [`changes`]: the rows that are asked for |
//! | `_all_docs` | [`listing`], [`winners`]: the rows or ids that are asked for |
//! | `_revs_diff`, `_bulk_docs`, `_purge` | [`revs_diff`], [`written`], [`purged`]: what was sent |
//! | an attachment | the length that its document gives |
//! | heads | the HTTP library's: 100 fields, some 400 KB |
//!
//! A page that is longer is requested again in smaller pages: documents with many conflicts have long rows. So these
//! ceilings need no room for a page of the longest rows.

/// An answer of few fields. The longest are sequences of databases with many shards.
pub(super) const SMALL: usize = 64 << 10;

/// An answer to a command.
pub(super) const COMMAND: usize = 4 << 20;

/// A document: the largest one that a store takes, with every character escaped, and its ancestors and attachments.
pub(super) const DOCUMENT: usize = 4 * model::limits::HIGHEST_MAX_DOCUMENT_SIZE;

/// A document with the contents of its attachments: CouchDB's largest attachment in base64.
pub(super) const WITH_ATTACHMENTS: usize = DOCUMENT + ((1 << 30) / 3) * 4;

/// Several documents, if their reader does not give a size.
pub(super) const SEVERAL: usize = 64 << 20;

/// The longest page for a request of a single row.
const ROW: usize = 4 << 20;

/// Factor by which JSON escapes may lengthen a text: a byte becomes `\u0000`.
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

/// The missing ones of these revisions, with possible ancestors at the target.
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
