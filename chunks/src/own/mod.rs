//! A vault as LiveSync writes it, each chunk in a document of its own: what is in it, and what is wrong with it.
//!
//! ```text
//!  census          files and their lists ─► ids of chunks, in passes of bounded memory ─► documents of chunks
//!  past            replaced revisions that a conflict needs
//!  doctor          census, devices and their settings ─► a diagnosis, with advice, for people and as JSON
//!  would_collect   census, devices ─► what a collection would remove, and what holds it back
//! ```
//!
//! Everything here reads only. What cannot be read is named, and never taken for empty.

mod advice;
mod census;
mod diagnosis;
mod doctor;
mod json;
mod past;
mod would_collect;

pub use census::{Amount, BrokenFile, Census, CensusOptions, Files, Named};
pub use diagnosis::{Behind, Diagnosis};
pub use would_collect::WouldCollect;
