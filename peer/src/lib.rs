//! A database as a replication, an export or a chunk store sees it.
//!
//! ```text
//!  replicate   cmd   chunks
//!       └───────┼──────┘
//!             Peer ─┬─ Local    a database of this process, over any engine
//!                   ├─ Http     a database behind any server that speaks CouchDB's protocol
//!                   └─ Steady   one of these, asked again where that is safe
//! ```
//!
//! Requests are as large as their callers make them. A peer cuts them up by the time that its answers take
//! (`Pace`), and a batch is never atomic: what a part of it wrote stays when a later part fails.
//!
//! [`Local`] and [`Http`] ask once. [`Retry`] is the loop that asks again: [`Steady`] runs it over a whole peer, and the
//! chunk store over its documents, where it looks what became of an edit before it sends it again.
//!
//! Attachments are streams: no peer holds more than a piece of one.

mod environment;
mod error;
mod http;
mod local;
mod pace;
mod retry;
mod steady;
mod types;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use model::{BulkGet, Edit, JsonText, RevId, RevsDiff, WriteMode};

pub use environment::{Environment, random};
pub use error::{Error, ErrorKind, Result};
pub use http::{Address, AddressError, Http, Method, Url, problem};
pub use local::Local;
pub use retry::{LONGEST_MS, Retry};
pub use steady::Steady;
pub use types::{
    Attachment, Change, Changes, ChangesRequest, Docs, Filter, IdRange, Info, LocalDocument, Page, ReadOptions,
    Revision, Row,
};

/// The bytes of an attachment as they are stored. Nothing is asked for before the first of them is polled.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// One database. An implementation is a cheap handle to it.
#[async_trait]
pub trait Peer: fmt::Debug + Send + Sync + 'static {
    /// What the database says about itself.
    async fn info(&self) -> Result<Info>;

    /// A page of the feed of changes. It may be empty and not the last.
    async fn changes(&self, request: &ChangesRequest) -> Result<Changes>;

    /// A page of the live documents, in the order of their ids.
    async fn list(&self, range: &IdRange) -> Result<Page>;

    /// The winner of each document; `None` where that is a tombstone or there is no such document.
    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>>;

    /// Leaves of documents, for each in the order asked for: all of them, or the one that is named. One that is not
    /// there is left out. Attachments come without their bytes.
    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>>;

    /// The stored bytes of an attachment of a leaf.
    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream;

    /// Of the revisions asked about, those that are not there.
    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>>;

    /// Writes edits, each with an outcome of its own. One whose outcome is [`Unavailable`](ErrorKind::Unavailable) may
    /// have been written or not. Attachments are data or stubs.
    ///
    /// # Errors
    /// The peer's failures; any part of the edits may have been written then.
    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>>;

    /// Merges one leaf that was written elsewhere, with the bytes of its attachments in their order; `None` where the
    /// peer has the bytes, in the leaf that it replaces.
    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()>;

    /// A local document, which is in no listing and no feed. `id` begins with `_local/`.
    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>>;

    /// Writes one over the revision that was read; its new revision.
    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String>;

    /// Has everything that was acknowledged on disk; when the database was opened, as it says.
    async fn commit(&self) -> Result<String>;
}
