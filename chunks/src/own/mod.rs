//! A vault as LiveSync writes it, each chunk in a document of its own: what is in it, and what is wrong with it.
//!
//! ```text
//!  census          files and their lists ─► ids of chunks, in passes of bounded memory ─► documents of chunks
//!  ids             the ids of a pass
//!  past            replaced revisions that a conflict needs
//!  doctor          census, devices and their settings ─► a diagnosis, with advice, for people and as JSON
//!  would_collect   census, devices ─► what a collection would remove, and what holds it back
//!  collect         the same, and then the steps of a collection in the database
//!  trash           what collections left
//! ```
//!
//! Everything but `collect` reads only. What cannot be read is named, and never taken for empty.

use crate::livesync::Device;

mod advice;
mod census;
mod collect;
mod diagnosis;
mod doctor;
mod ids;
mod json;
mod past;
mod trash;
mod would_collect;

pub use census::{Amount, BrokenFile, Census, CensusOptions, Files, Named};
pub use collect::{VaultCollectOptions, VaultCollected, collect_vault};
pub use diagnosis::{Behind, Diagnosis};
pub use trash::{TRASH_ADVICE, Trash};
pub use would_collect::{WouldCollect, would_collect_vault};

/// Number of characters of the longest text from a vault in an answer.
const LONGEST: usize = 200;
/// Number of devices that are named in a sentence.
const NAMED_DEVICES: usize = 50;

/// A text from a vault, cut if it is very long.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Names devices.
fn titles<'d>(devices: impl IntoIterator<Item = &'d Device>) -> String {
    let mut devices = devices.into_iter();
    let mut named: Vec<String> = devices.by_ref().take(NAMED_DEVICES).map(|device| cut(&device.title())).collect();
    match devices.count() {
        0 => {}
        more => named.push(format!("and {more} more")),
    }
    named.join(", ")
}
