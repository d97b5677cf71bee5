//! Stores a folder of files in a database, and restores it, as LiveSync does for a vault.
//!
//! ```text
//!  push:  folder ─ local ─► reader, cutting ─ pieces ─► round ─ chunks ─► documents of files
//!  pull:  documents of files ─ listing ─► assembly ─ round ─► target ─► folder
//! ```
//!
//! There is no state besides the folder and the database: each command compares the two.
//!
//! * Chunks are stored before the file's document that names them. An interruption leaves at worst unreferenced chunks,
//!   and the operation is completed by repeating it.
//! * A push replaces a file's winner. Other leaves are kept, and reported.
//! * A pull writes only below its folder, and replaces a different file only if told to.
//! * Memory does not grow with the content: it holds a round of chunks, and the names of all files.

mod agreement;
mod assembly;
mod cutting;
mod document;
mod forget;
mod known;
mod listing;
mod local;
mod path;
mod pull;
mod push;
mod reader;
mod round;
mod stats;
mod target;
mod verify;

use std::fmt;

use crate::ChunkStore;

pub use cutting::{CUTTING, Kind};
pub use forget::Forgotten;
pub use listing::Listed;
pub(crate) use listing::Listing;
pub(crate) use path::id_of;
pub use path::shown;
pub use pull::{PullOptions, Pulled};
pub use push::{PushOptions, Pushed};
pub use stats::Stats;
pub use verify::VerifiedFiles;

/// The files of one database. A cheap handle.
#[derive(Clone, Debug)]
pub struct Vault {
    chunks: ChunkStore,
}

impl Vault {
    /// The files whose chunks are in `chunks`. Reads nothing.
    pub fn new(chunks: ChunkStore) -> Self {
        Vault { chunks }
    }

    /// The chunks.
    pub fn chunks(&self) -> &ChunkStore {
        &self.chunks
    }
}

/// A message about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the file.
    pub path: String,
    /// The message, as a predicate of the path.
    pub what: String,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, what: impl Into<String>) -> Self {
        Problem { path: path.into(), what: what.into() }
    }
}

impl fmt::Display for Problem {
    /// One line, without control characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shown(&self.path), shown(&self.what))
    }
}

/// Progress of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes of finished files.
    pub bytes: u64,
    /// Number of bytes of all files, as far as known.
    pub total_bytes: u64,
    /// Number of finished files.
    pub files: u64,
}
