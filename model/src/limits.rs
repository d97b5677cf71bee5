//! What is refused before anything is read or written, with CouchDB's reasons.
//!
//! Sources: `couch_doc:validate_docid/1`, `couch_db:validate_dbname/1`; RFC 001 and RFC 004, "Limits".

use std::ops::RangeInclusive;

use crate::error::{Error, ErrorKind, Result};

/// The longest document id, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 2_048;

/// The longest database name, in bytes.
pub const MAX_DATABASE_NAME_BYTES: usize = 238;

/// The largest document body unless a setting says otherwise, in bytes of compact JSON. CouchDB's default, so
/// that what replicates from there fits; RFC 004 has 1,000,000.
pub const DEFAULT_MAX_DOCUMENT_SIZE: usize = 8_000_000;

/// The most that setting may say: beyond it a document would not fit into one transaction.
pub const HIGHEST_MAX_DOCUMENT_SIZE: usize = 8_000_000;

/// The longest name of an attachment, and the longest content type, in bytes of UTF-8. Every reader of a document reads
/// them.
pub const MAX_ATTACHMENT_NAME_BYTES: usize = 4_096;

/// How many attachments a document with this id may have: so many that one transaction can take them away. For each it
/// reads and clears a reference, whose key holds the id, and may clear the content, with the conflict ranges of all that.
pub fn max_attachments(id: &str) -> usize {
    const TRANSACTION_BYTES: usize = 8_000_000;
    const ATTACHMENT_BYTES: usize = 1_200;
    const KEYS: usize = 6;
    TRANSACTION_BYTES / (ATTACHMENT_BYTES + KEYS * id.len())
}

/// How many revisions a branch may be told to remember (RFC 001, "Limits").
pub const REVS_LIMITS: RangeInclusive<u32> = 1..=4_000;

/// How many revisions a branch remembers unless told otherwise.
pub const DEFAULT_REVS_LIMIT: u32 = 1_000;

/// The prefix of local documents' ids, which are never replicated.
pub const LOCAL_PREFIX: &str = "_local/";

/// The prefix of design documents' ids.
pub const DESIGN_PREFIX: &str = "_design/";

/// The names with an underscore at the front that CouchDB knows.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// Whether a document may have this id.
///
/// # Errors
/// `illegal_docid` with CouchDB's reason.
pub fn check_document_id(id: &str) -> Result<()> {
    let reason = match id {
        "" => "Document id must not be empty",
        DESIGN_PREFIX => "Illegal document id `_design/`",
        LOCAL_PREFIX => "Illegal document id `_local/`",
        _ if id.len() > MAX_ID_BYTES => "Document id is too long",
        _ if id.starts_with('_') && !id.starts_with(DESIGN_PREFIX) && !id.starts_with(LOCAL_PREFIX) => {
            "Only reserved document ids may start with underscore."
        }
        _ => return Ok(()),
    };
    Err(ErrorKind::IllegalDocId(reason.into()).into())
}

/// Whether a database may have this name: `^[a-z][a-z0-9_$()+/-]*$`, or one of CouchDB's own.
///
/// # Errors
/// `illegal_database_name`, `database_name_too_long`.
pub fn check_database_name(name: &str) -> Result<()> {
    if name.len() > MAX_DATABASE_NAME_BYTES {
        return Err(ErrorKind::DatabaseNameTooLong(name.to_owned()).into());
    }
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_$()+/-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if begins && name.bytes().all(legal) || SYSTEM_DATABASES.contains(&name) {
        Ok(())
    } else {
        Err(ErrorKind::IllegalDatabaseName(name.to_owned()).into())
    }
}

/// Whether a body of this size fits; the id names the document in the answer.
pub(crate) fn check_document_size(id: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit { Err(ErrorKind::DocumentTooLarge(id.to_owned()).into()) } else { Ok(()) }
}

/// Whether a document may have so many attachments; the id names it in the answer.
pub(crate) fn check_attachment_count(id: &str, count: usize) -> Result<()> {
    if count > max_attachments(id) { Err(ErrorKind::DocumentTooLarge(id.to_owned()).into()) } else { Ok(()) }
}

/// Whether `_revs_limit` may be this.
pub(crate) fn check_revs_limit(limit: u32) -> Result<()> {
    if REVS_LIMITS.contains(&limit) {
        Ok(())
    } else {
        let reason = format!("`_revs_limit` must be from {} to {}", REVS_LIMITS.start(), REVS_LIMITS.end());
        Err(Error::bad_request(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_ids() {
        let longest = "é".repeat(1_024);
        for id in ["a", "0", "with space", "a\0b", "ä", "_design/x", "_local/x", "a/b", "-", longest.as_str()] {
            check_document_id(id).unwrap();
        }
        let too_long = "x".repeat(2_049);
        for id in ["", "_", "_x", "_design", "_design/", "_local/", "_Design/x", too_long.as_str()] {
            let error = check_document_id(id).unwrap_err();
            assert_eq!((error.status(), error.error()), (400, "illegal_docid"), "{id:?}");
        }
    }

    #[test]
    fn database_names() {
        let longest = "a".repeat(238);
        for name in ["a", "a0_$()+-/", "vault/notes", "_users", "_replicator", longest.as_str()] {
            check_database_name(name).unwrap();
        }
        for name in ["", "A", "aB", "0a", "_", "_a", "a.b", "a b", "ä", "/a", "a\n"] {
            let error = check_database_name(name).unwrap_err();
            assert_eq!((error.status(), error.error()), (400, "illegal_database_name"), "{name:?}");
        }
        assert_eq!(check_database_name(&"a".repeat(239)).unwrap_err().error(), "database_name_too_long");
    }
}
