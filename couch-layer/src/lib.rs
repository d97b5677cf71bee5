#![doc = include_str!("../GUIDE.md")]

mod error;
#[cfg(feature = "sync")]
mod sync;

use std::future::Future;
use std::ops::Deref;
#[cfg(feature = "lsm")]
use std::path::Path;

use kv_api::AnyDatabase;

pub use error::{Error, Result};
pub use model::{
    Begun, Change, ChangesRequest, ConflictPolicy, CreateOptions, DatabaseInfo, Document, Documents, Edit, Edits,
    ErrorKind, GetOptions, JsonText, KeepReplaced, Layer, LayerOptions, NameRange, NotFound, Purge, RevId, Seq, Since,
    Token, Typed, Versioned,
};
#[cfg(feature = "sync")]
pub use sync::{Sync, Synced};

/// The key-value contract below the documents, for programs with rows of their own and for engines.
pub use kv_api as kv;
/// Everything about documents, including the parts that few programs need.
pub use model;

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

/// JSON as flat text: parsed, read and written without a tree.
pub mod json {
    pub use model::{
        Elements, Event, Events, FromSerdeError, JsonArray, JsonError, JsonErrorKind, JsonKind, JsonRef, JsonStr,
        JsonText, JsonWriter, Members, ParseOptions, Patch, PatchError, SplitObject, TooDeepForSerde,
    };
}

/// Attachments: their contents, read and written piece by piece.
pub mod attachments {
    pub use model::{
        Attachment, AttachmentEdit, AttachmentReader, AttachmentSource, Content, Encoding, Upload, UploadAs,
        check_attachment_name,
    };
}

/// The feed of changes, its consumers and watchers, and the list of all documents.
pub mod feed {
    pub use model::{
        AllDocs, AllDocsEntry, AllDocsRequest, AllDocsRow, Change, ChangesBatch, ChangesRequest, Consumer,
        DatabaseEvent, DatabaseEventKind, DatabaseEvents, DatabaseWatcher, Feed, NumberedSeq, Seq, Since, Style,
        Watcher,
    };
}

/// Searches by selectors, and their indexes.
pub mod find {
    pub use mango::Selector;
    pub use model::{Find, IndexBuild, IndexBuilder, IndexInfo, IndexPage, IndexRequest, IndexRow};
}

/// Views: map and reduce functions, and their rows.
pub mod views {
    pub use model::{
        Emit, Emitted, FunctionError, Grouping, LeftOut, Mapped, Reduce, ReduceRow, Reduced, ReducedPage, ReducedRow,
        Reduction, RustView, View, ViewError, ViewFunctions, ViewGroup, ViewGroupInfo, ViewOptions, ViewPage,
        ViewProgress, ViewRequest, ViewResume, ViewRow, ViewUpdate,
    };
}

/// Revisions and their trees, conflicts, and edits made elsewhere.
pub mod revisions {
    pub use model::{
        BulkGet, ConflictPolicy, Conflicted, Conflicts, InvalidRev, OpenRev, OpenRevs, RevHash, RevHistory, RevId,
        RevInfo, RevStatus, RevsDiff, WriteMode,
    };
}

/// Rules about edits.
pub mod validation {
    pub use model::{Question, Validator, Verdict, Writing};
}

/// Checks and repairs, purges, relocation to another store, local documents.
pub mod maintenance {
    pub use model::{
        Adopted, CheckProgress, CheckReport, LocalDocs, LocalDocument, LocalRow, Problem, Purge, PurgeInfo,
        RelocateOptions, RelocatePhase, RelocateProgress, RelocateReport, Repair, RepairReport, Rewriting, Setting,
        Sizes, Stemming, VerifyReport, abandon_relocation, relocate,
    };
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
        let store = engine_lsm::LsmDatabase::open(folder.as_ref(), engine_lsm::LsmOptions::new());
        let store = store.map_err(Error::of_opening)?;
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
                    // Another writer created it first.
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

/// Runs a program's future on its own runtime. A program that already uses tokio's runtime does not need it.
///
/// # Panics
/// Within a runtime, and if the system provides no threads.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("threads for the runtime").block_on(future)
}
