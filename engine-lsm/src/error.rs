//! `lsm-tree`'s errors in the codes of the contract.

use std::io::ErrorKind;

use disk::folder::io_error;
use kv_api::{Error, error};

/// What failed, and why.
pub(crate) fn kv_error(failure: &lsm_tree::Error, tried: &str) -> Error {
    match failure {
        lsm_tree::Error::Io(io) if !is_damage(io.kind()) => io_error(tried, io),
        _ => corrupt(&format!("{tried}: {failure}")),
    }
}

/// A table that is gone, or shorter than its manifest says, was changed by someone else.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound | ErrorKind::InvalidInput)
}

/// A read that failed.
pub(crate) fn failed_to_read(failure: lsm_tree::Error) -> Error {
    kv_error(&failure, "cannot read a table")
}

/// Damage, with what is wrong.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!("{what}; restore the folder from a backup"))
}
