//! fjall's errors in the codes of the contract.

use std::io::ErrorKind;

use disk::folder::io_error;
use fjall::LsmError;
use kv_api::{Error, error};

/// What failed, and fjall's own words.
pub(crate) fn kv_error(failure: &fjall::Error, tried: &str) -> Error {
    let io = match failure {
        fjall::Error::Io(io) | fjall::Error::Storage(LsmError::Io(io)) => Some(io),
        _ => None,
    };
    match io {
        // What is missing or too short is fjall's own: someone took it away.
        Some(io) if !is_damage(io.kind()) => io_error(tried, io),
        _ => match failure {
            fjall::Error::Locked => Error::new(error::LOCK_FILE_FAILURE).with_context(format!(
                "{tried}: it is still open; drop its transactions, or wait for the process that has it"
            )),
            fjall::Error::Poisoned => Error::new(error::IO_ERROR).with_context(format!("{tried}: {failure}")),
            _ => corrupt(&format!("{tried}: {failure}")),
        },
    }
}

fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound | ErrorKind::InvalidInput)
}

/// What failed somewhere in the store.
pub(crate) fn failed(failure: fjall::Error) -> Error {
    kv_error(&failure, "fjall")
}

/// Damage, with what is wrong.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!("{what}; restore the folder from a backup"))
}
