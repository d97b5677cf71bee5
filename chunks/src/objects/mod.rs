//! The small object store that sealed data documents may be moved to: [`Bucket`], over S3's protocol, a
//! directory or memory.
//!
//! An object is written once, under a name that no other one has, and read until it is removed. Nothing here
//! relies on more than that: no conditional writes, no versions, no renaming.

#[cfg(feature = "objects")]
mod bucket;
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

pub(crate) use handles::Handles;
pub(crate) use places::Places;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its whole name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970, by the store's clock.
    pub modified_ms: u64,
}

/// How much is in an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectFigures {
    /// Objects of data documents.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A part of an object store. An implementation is a cheap handle to it, and retries what may pass.
///
/// Names are of ASCII letters, digits, `-`, `.` and `/`.
#[async_trait]
pub trait Objects: fmt::Debug + Send + Sync + 'static {
    /// Writes an object; it is stored when this returns, or not at all.
    ///
    /// # Errors
    /// The store's failures, which name the store; it may have been written then.
    async fn put(&self, name: &str, content: Bytes) -> StoreResult<()>;

    /// Reads an object; `None` where there is none of that name.
    ///
    /// # Errors
    /// The store's failures, which name the store.
    async fn get(&self, name: &str) -> StoreResult<Option<Bytes>>;

    /// Every object in a folder and below, as it is by now: one that was written before this is called
    /// is among them.
    ///
    /// # Errors
    /// The store's failures, which name the store.
    async fn list(&self, folder: &str) -> StoreResult<Vec<Object>>;

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// The store's failures, which name the store.
    async fn delete(&self, name: &str) -> StoreResult<()>;
}

/// How object stores are reached that the settings of a database name.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    /// The store at this location. Nothing need be sent yet.
    ///
    /// # Errors
    /// [`StoreErrorKind::Refused`](crate::StoreErrorKind::Refused) where the location means nothing here.
    fn connect(&self, location: &str) -> StoreResult<Arc<dyn Objects>>;
}

/// How they are reached unless something else is said.
#[cfg(feature = "objects")]
pub(crate) fn default_connect() -> Arc<dyn Connect> {
    Arc::new(Connector::from_env())
}

/// How they are reached unless something else is said.
#[cfg(not(feature = "objects"))]
pub(crate) fn default_connect() -> Arc<dyn Connect> {
    Arc::new(Unconnected)
}

/// A build that knows no object store.
#[cfg(not(feature = "objects"))]
#[derive(Debug)]
struct Unconnected;

#[cfg(not(feature = "objects"))]
impl Connect for Unconnected {
    fn connect(&self, location: &str) -> StoreResult<Arc<dyn Objects>> {
        Err(crate::StoreError::new(
            crate::StoreErrorKind::Refused,
            format!("chunks of this database are in {location}, and this program was built without object stores"),
        ))
    }
}
