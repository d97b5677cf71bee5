//! Maps `lsm-tree`'s errors to the codes of the contract.

use std::io::ErrorKind;

use disk::folder::io_error;
use kv_api::{Error, error};

/// An error that says what was tried.
pub(crate) fn kv_error(failure: &lsm_tree::Error, tried: &str) -> Error {
    match failure {
        lsm_tree::Error::Io(io) if !was_changed(io.kind()) => io_error(tried, io),
        _ => corrupt(&format!("{tried}: {failure}")),
    }
}

/// Whether a table is gone, or shorter than its manifest says: something outside changed it.
fn was_changed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound | ErrorKind::InvalidInput)
}

/// Whether a failed read met damage. Other failures may be temporary.
pub(crate) fn is_damage(failure: &lsm_tree::Error) -> bool {
    kv_error(failure, "").code() == error::FILE_CORRUPT
}

/// The error of a failed read.
pub(crate) fn failed_to_read(failure: lsm_tree::Error) -> Error {
    kv_error(&failure, "cannot read a table")
}

/// An error of damage, with a description.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!("{what}; restore the folder from a backup"))
}
