//! Why a store could not be opened.

use std::path::PathBuf;

/// Why a store could not be opened, with what to do about it. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The URL's scheme names no engine.
    #[error(
        "there is no engine \"{name}\"; a store is named lsm:FOLDER, sled:FOLDER, fdb:CLUSTER_FILE, mem:, or by its folder alone"
    )]
    UnknownEngine {
        /// The scheme.
        name: String,
    },
    /// `mem:` with a path.
    #[error("mem: takes no path; it keeps everything in memory until the process ends")]
    MemWithPath,
    /// An engine on disk without a folder.
    #[error("\"{url}\" does not name a folder; write lsm:FOLDER or sled:FOLDER")]
    NoPath {
        /// The URL.
        url: String,
    },
    /// The query of a cluster's URL is not a prefix.
    #[error(
        "\"?{query}\" is not a prefix for keys; write ?prefix=TEXT with 1 to 1000 bytes, percent-encoded, the first not %FF"
    )]
    BadPrefix {
        /// The text after the question mark.
        query: String,
    },
    /// A path cannot be made absolute, or is not UTF-8.
    #[error("\"{url}\" has no absolute path in UTF-8, which relocations between stores need")]
    Unnameable {
        /// The URL.
        url: String,
    },
    /// This build does not include the engine.
    #[error("this build has no engine {engine}; build couch-layer again with `--features {engine}`")]
    NotBuilt {
        /// The engine's name.
        engine: String,
    },
    /// The store does not exist and was not to be created.
    #[error("there is no data folder at {}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The engine's error, with its own message.
    #[error("{}", .0.context().map_or_else(|| .0.to_string(), str::to_owned))]
    Open(kv_api::Error),
}

impl From<kv_api::Error> for EngineError {
    /// Not as a source: its message is this error's own, and would be printed twice.
    fn from(error: kv_api::Error) -> Self {
        EngineError::Open(error)
    }
}
