//! The number of the format in which this build stores everything: the files of a folder, and the rows in any store.
//!
//! It is on the mark of a folder and in the first row of a layer. A store with another number is refused untouched, so
//! no code reads other builds' formats. Every change of files, rows or keys raises it, and no number is reused.

/// The number. Builds before it wrote 1 to 4.
pub const STORED_FORMAT: u32 = 18;

/// The sentence about a store in another format: which build reads it, and what to do.
pub fn other_format(found: u64) -> String {
    format!(
        "written by couch-layer format {found}; this build reads format {STORED_FORMAT}: export or replicate the databases \
         to a new store with the build that wrote it"
    )
}
