//! A database as a replication, an export or a chunk store uses it.
//!
//! ```text
//!  replicate   cmd   chunks
//!       └───────┼──────┘
//!             Peer ─┬─ Local    a database in this process, on any engine
//!                   ├─ Http     a database on any server that speaks CouchDB's protocol
//!                   └─ Steady   one of these, with retries where they are safe
//! ```
//!
//! Callers make requests of any size. A peer splits them by the time that responses take (`Pace`). A batch is never
//! atomic: if a part of it fails, the earlier parts stay written.
//!
//! [`Local`] and [`Http`] send each request once. [`Retry`] is the retry loop. [`Steady`] uses it for a whole peer, and
//! the chunk store for its documents. The chunk store finds out the result of an edit before it sends the edit again.
//!
//! Attachments are streams: a peer has at most a piece of one in memory.

mod environment;
mod error;
mod http;
mod local;
mod pace;
mod retry;
mod steady;
mod text;
mod types;
mod whole;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use model::{BulkGet, Edit, JsonText, Purge, RevId, RevsDiff, WriteMode};

pub use environment::{TimedEnvironment, random};
pub use error::{Error, ErrorKind, Result};
pub use http::{
    Address, AddressError, Clients, Connecting, Given, Held, Http, Method, Trust, TrustError, Url, is_loopback, problem,
};
pub use local::Local;
pub use retry::{LONGEST_MS, Retry};
pub use steady::Steady;
pub use text::{MOST_TEXT, cut};
pub use types::{
    Attachment, Change, Changes, Docs, FeedRequest, Filter, IdRange, Info, ListedDocument, ListingPage, LocalDocument,
    ReadOptions, Revision,
};

/// The bytes of an attachment as stored. Nothing is requested before the stream is polled.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// A database. Implementations are cheap handles.
#[async_trait]
pub trait Peer: fmt::Debug + Send + Sync + 'static {
    /// Information about the database.
    async fn info(&self) -> Result<Info>;

    /// A page of the changes feed. It may be empty and not be the last one.
    async fn changes(&self, request: &FeedRequest) -> Result<Changes>;

    /// A page of the live documents, sorted by id.
    async fn list(&self, range: &IdRange) -> Result<ListingPage>;

    /// The winner of each document; `None` for a tombstone, or if the document does not exist.
    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>>;

    /// Leaves of documents, in the order of the requests: all leaves of a document, or a named one. Leaves that do not
    /// exist are left out. Attachments have no bytes. With [`most_bytes`](ReadOptions::most_bytes) there may be results
    /// for the first requests only.
    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>>;

    /// The bytes of a leaf's attachment as stored.
    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream;

    /// The requested revisions that do not exist.
    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>>;

    /// Writes edits. Each has its own result. An edit with the result [`Unavailable`](ErrorKind::Unavailable) may have
    /// been written. Attachments are data or stubs.
    ///
    /// # Errors
    /// The peer's failures. Any part of the edits may have been written.
    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>>;

    /// Merges one leaf that was written elsewhere, with the bytes of its attachments in order. `None` for an attachment
    /// that the peer has in the replaced leaf.
    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()>;

    /// Purges leaves of different documents. Returns the removed leaves of each; revisions that are not leaves are
    /// ignored.
    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>>;

    /// A local document, which is not in listings and feeds. `id` starts with `_local/`.
    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>>;

    /// Writes a local document over the revision that was read. Returns the new revision.
    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String>;

    /// Ensures that all acknowledged writes are on disk. Returns when the database was opened, as the peer reports it.
    async fn commit(&self) -> Result<String>;
}
