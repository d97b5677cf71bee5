#![doc = include_str!("../README.md")]

use std::future::Future;
use std::ops::Deref;
use std::path::Path;

use kv_api::{AnyDatabase, error as codes};
#[doc(no_inline)]
pub use model::*;

#[cfg(feature = "sync")]
mod sync;

/// The key-value contract below the documents, for programs with rows of their own and for engines.
pub use kv_api as kv;
/// Selectors and searches in CouchDB's query language.
pub use mango;

#[cfg(feature = "fdb")]
pub use engine_fdb;
#[cfg(feature = "lsm")]
pub use engine_lsm;
#[cfg(feature = "mem")]
pub use engine_mem;
#[cfg(feature = "sled")]
pub use engine_sled;
#[cfg(feature = "javascript")]
pub use javascript;
#[cfg(feature = "sync")]
pub use {peer, replicate};

#[cfg(feature = "sync")]
pub use sync::{Sync, Synced};

/// The reason why a store cannot be opened, or an error in it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the folder open.
    #[error("{0}")]
    Locked(String),
    /// The folder has other files and no store.
    #[error("{0}")]
    Foreign(String),
    /// The store was written by another engine, or in the format of another version.
    #[error("{0}")]
    OtherFormat(String),
    /// Files of the store are missing or damaged.
    #[error("{0}")]
    Damaged(String),
    /// Another error of the engine, with its code.
    #[error(transparent)]
    Store(kv::Error),
    /// An error of the documents, with CouchDB's status and name.
    #[error(transparent)]
    Documents(model::Error),
    /// A URL that does not name a database.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Address(#[from] peer::AddressError),
    /// An error of the other side of a replication: it cannot be reached, rejects the password, or refuses.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Peer(#[from] peer::Error),
}

impl From<kv::Error> for Error {
    fn from(error: kv::Error) -> Self {
        let sentence = || error.context().map_or_else(|| error.to_string(), ToString::to_string);
        match error.code() {
            codes::LOCK_FILE_FAILURE => Error::Locked(sentence()),
            codes::CLIENT_INVALID_OPERATION => Error::Foreign(sentence()),
            codes::UNSUPPORTED_OPERATION => Error::OtherFormat(sentence()),
            codes::FILE_CORRUPT => Error::Damaged(sentence()),
            _ => Error::Store(error),
        }
    }
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        match error.kind() {
            ErrorKind::Format { .. } => Error::OtherFormat(error.to_string()),
            ErrorKind::NotOurs => Error::Foreign(error.to_string()),
            _ => Error::Documents(error),
        }
    }
}

/// A store with its databases. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CouchLayer {
    layer: Layer<AnyDatabase>,
}

impl CouchLayer {
    /// Opens the store in a folder, or creates it there. One process has a folder open at a time.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Foreign`], [`Error::OtherFormat`], [`Error::Damaged`]: nothing is changed then.
    #[cfg(feature = "lsm")]
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let store = engine_lsm::LsmDatabase::open(folder.as_ref(), engine_lsm::LsmOptions::new())?;
        Self::over(store, LayerOptions::default()).await
    }

    /// Opens the store in any engine.
    ///
    /// # Errors
    /// As [`Layer::open`].
    pub async fn over(engine: impl kv::Database, options: LayerOptions) -> Result<Self, Error> {
        Ok(CouchLayer { layer: Layer::open(AnyDatabase::new(engine), options).await? })
    }

    /// The database of this name. It is created if it does not exist.
    ///
    /// # Errors
    /// 400 for an invalid name.
    pub async fn database(&self, name: &str) -> Result<Db, Error> {
        let documents = match self.layer.database(name).await {
            Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Database) => {
                match self.layer.create_database(name, CreateOptions::default()).await {
                    // Somebody else was faster.
                    Err(error) if *error.kind() == ErrorKind::FileExists => self.layer.database(name).await?,
                    created => created?,
                }
            }
            found => found?,
        };
        Ok(Db { documents })
    }

    /// The layer, for everything else: databases by name, transactions over several, jobs.
    pub fn layer(&self) -> &Layer<AnyDatabase> {
        &self.layer
    }
}

/// A database: [`Documents`], which can be synced. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Db {
    documents: Documents<AnyDatabase>,
}

impl Deref for Db {
    type Target = Documents<AnyDatabase>;

    fn deref(&self) -> &Self::Target {
        &self.documents
    }
}

impl From<Documents<AnyDatabase>> for Db {
    fn from(documents: Documents<AnyDatabase>) -> Self {
        Db { documents }
    }
}

/// Runs a program's future, on a runtime of its own. A program that already uses tokio's runtime does not need it.
///
/// # Panics
/// Within a runtime, and if the system provides no threads.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("threads for the runtime").block_on(future)
}
