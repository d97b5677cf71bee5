//! redb's errors in the codes of the contract.

use std::io::ErrorKind;

use disk::folder::io_error;
use kv_api::{Error, error};

/// What failed, and redb's own words.
pub(crate) fn kv_error(failure: impl Into<redb::Error>, tried: &str) -> Error {
    let failure = failure.into();
    let code = match &failure {
        redb::Error::Corrupted(_) => error::FILE_CORRUPT,
        redb::Error::DatabaseAlreadyOpen => error::LOCK_FILE_FAILURE,
        redb::Error::Io(io) if io.kind() != ErrorKind::InvalidData => return io_error(tried, io),
        redb::Error::Io(_) => error::FILE_CORRUPT,
        _ => error::IO_ERROR,
    };
    let advice = if code == error::FILE_CORRUPT { "; restore the folder from a backup" } else { "" };
    Error::new(code).with_context(format!("{tried}: {failure}{advice}"))
}

/// What failed somewhere in a transaction.
pub(crate) fn failed(failure: impl Into<redb::Error>) -> Error {
    kv_error(failure, "redb")
}
