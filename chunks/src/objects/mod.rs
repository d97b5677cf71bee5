//! The small object store that holds moved data documents: `Bucket`, over S3's protocol, a directory or memory.
//!
//! An object is written once, under a name that is never used again, and read until it is removed. Nothing more is
//! required of a store: no conditional writes, no versions, no renaming.

#[cfg(feature = "objects")]
mod bucket;
mod default_connect;
mod handles;
mod location;
mod places;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::store::StoreResult;

#[cfg(feature = "objects")]
pub use bucket::{Bucket, Connector};
pub use location::Location;

pub(crate) use default_connect::default_connect;
pub(crate) use handles::Handles;
pub(crate) use places::Places;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Full name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Time of the write, in milliseconds since 1970, by the store's clock.
    pub modified_ms: u64,
}

/// Size of an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectFigures {
    /// Number of objects of data documents.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// A part of an object store. An implementation is a cheap handle, and retries transient failures.
///
/// Names consist of ASCII letters, digits, `-`, `.` and `/`.
#[async_trait]
pub trait Objects: fmt::Debug + Send + Sync + 'static {
    /// Writes an object completely or not at all. It is stored when this returns.
    ///
    /// # Errors
    /// The store's errors, with its name; the object may have been written.
    async fn put(&self, name: &str, content: Bytes) -> StoreResult<()>;

    /// Reads an object; `None` if no object has that name.
    ///
    /// # Errors
    /// The store's errors, with its name.
    async fn get(&self, name: &str) -> StoreResult<Option<Bytes>>;

    /// Every object in a folder and below. An object written before the call is among them.
    ///
    /// # Errors
    /// The store's errors, with its name.
    async fn list(&self, folder: &str) -> StoreResult<Vec<Object>>;

    /// Removes an object. A missing one is not an error.
    ///
    /// # Errors
    /// The store's errors, with its name.
    async fn delete(&self, name: &str) -> StoreResult<()>;
}

/// Connects to the object stores in a database's settings.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    /// The store at this location. May send nothing yet.
    ///
    /// # Errors
    /// [`StoreErrorKind::Refused`](crate::StoreErrorKind::Refused) if the location is unsupported.
    fn connect(&self, location: &str) -> StoreResult<Arc<dyn Objects>>;
}
