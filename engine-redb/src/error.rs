//! redb's errors in the codes of the contract.

use std::io::ErrorKind;

use kv_api::{Error, error};

pub(crate) fn kv_error(failure: impl Into<redb::Error>) -> Error {
    let failure = failure.into();
    let code = match &failure {
        redb::Error::Corrupted(_) => error::FILE_CORRUPT,
        redb::Error::DatabaseAlreadyOpen => error::LOCK_FILE_FAILURE,
        redb::Error::Io(io) => match io.kind() {
            ErrorKind::NotFound => error::FILE_NOT_FOUND,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => error::FILE_NOT_WRITABLE,
            ErrorKind::InvalidData => error::FILE_CORRUPT,
            _ => error::IO_ERROR,
        },
        _ => error::IO_ERROR,
    };
    Error::new(code).with_context(failure.to_string())
}
