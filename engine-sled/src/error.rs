//! Maps sled's errors to the codes of the contract.

use disk::folder::io_error;
use disk::panics;
use kv_api::{Error, Result, error};

/// Calls into sled. A panic becomes 1522: sled panics where others return errors.
pub(crate) fn caught<T>(doing: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T> {
    panics::caught(doing, || call().map_err(|cause| sled_error(doing, &cause)))
}

/// sled's error in the contract's terms.
pub(crate) fn sled_error(doing: &str, cause: &sled::Error) -> Error {
    match cause {
        sled::Error::Io(cause) => io_error(doing, cause),
        sled::Error::Corruption { .. } => Error::new(error::FILE_CORRUPT)
            .with_context(format!("{doing}: the data is damaged ({cause}); restore it from a backup")),
        _ => Error::new(error::OPERATION_FAILED).with_context(format!("{doing}: {cause}")),
    }
}
