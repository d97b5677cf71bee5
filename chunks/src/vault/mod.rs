//! A folder of files in a database, and back: what LiveSync does for a vault, from a command line.
//!
//! ```text
//!  push:  folder ─ local ─► reader, cutting ─ pieces ─► round ─ chunks ─► documents of files
//!  pull:  documents of files ─ listing ─► assembly ─ round ─► target ─► folder
//! ```
//!
//! There is no state beside the folder and the database: each command compares the two as they are.
//!
//! * Chunks are stored before the document of the file that names them. What is interrupted leaves chunks that
//!   nobody refers to, at worst, and is gone on with by doing the same again.
//! * A push writes over a file's winner. Other leaves are left, and named.
//! * A pull writes below its folder and nowhere else, and over nothing that differs unless it is told to.
//! * Memory does not grow with the content: a round of chunks, and the names of all files.

mod agreement;
mod assembly;
mod cutting;
mod document;
mod forget;
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
    /// The files whose chunks are in `chunks`. Nothing is read yet.
    pub fn new(chunks: ChunkStore) -> Self {
        Vault { chunks }
    }

    /// The chunks.
    pub fn chunks(&self) -> &ChunkStore {
        &self.chunks
    }
}

/// A file that something is to be said about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its path.
    pub path: String,
    /// What, to be read after the path.
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

/// How far a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that are done with.
    pub bytes: u64,
    /// Bytes of files in all, as far as they are known.
    pub total_bytes: u64,
    /// Files that are done with.
    pub files: u64,
}
