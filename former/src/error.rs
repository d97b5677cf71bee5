//! Errors, with the codes of the contract.

use std::io::ErrorKind;

use disk::folder::io_error;
use kv_api::{Error, error};

/// The error for damage, with a description.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!("{what}; restore the folder from a backup"))
}

/// An error of redb, with its message.
pub(crate) fn redb_error(failure: impl Into<redb::Error>) -> Error {
    match failure.into() {
        redb::Error::Io(io) if io.kind() != ErrorKind::InvalidData => io_error("cannot read data.redb", &io),
        failure => corrupt(&format!("cannot read data.redb: {failure}")),
    }
}

/// An error of `lsm-tree`. If a table is missing, or shorter than its manifest says, the folder was changed from
/// outside.
pub(crate) fn table_error(failure: lsm_tree::Error) -> Error {
    use ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    let tried = "cannot read a table";
    match failure {
        lsm_tree::Error::Io(io) if !matches!(io.kind(), InvalidData | UnexpectedEof | NotFound | InvalidInput) => {
            io_error(tried, &io)
        }
        failure => corrupt(&format!("{tried}: {failure}")),
    }
}
