//! Checks that need no read, with CouchDB's reasons.
//!
//! Sources: `couch_doc:validate_docid/1`, `couch_db:validate_dbname/1`; RFC 001 and RFC 004, "Limits".

use std::ops::RangeInclusive;

use crate::error::{Error, ErrorKind, Result};

/// The longest document id, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 2_048;

/// The longest database name, in bytes.
pub const MAX_DATABASE_NAME_BYTES: usize = 238;

/// Default size limit of a document's body, in bytes of compact JSON. It is CouchDB's default, so documents
/// replicated from there fit. RFC 004 has 1,000,000.
pub const DEFAULT_MAX_DOCUMENT_SIZE: usize = 8_000_000;

/// Highest value of that setting: a larger document would not fit in one transaction.
pub const HIGHEST_MAX_DOCUMENT_SIZE: usize = 8_000_000;

/// Longest name of an attachment, and longest content type, in bytes of UTF-8. Every read of a document reads
/// them.
pub const MAX_ATTACHMENT_NAME_BYTES: usize = 4_096;

/// Maximum number of attachments of a document with this id: one transaction must be able to remove all of them. For
/// each it reads and clears a reference, whose key has the id, and may clear the content, all with conflict ranges.
pub fn max_attachments(id: &str) -> usize {
    const TRANSACTION_BYTES: usize = 8_000_000;
    const ATTACHMENT_BYTES: usize = 1_200;
    const KEYS: usize = 6;
    TRANSACTION_BYTES / (ATTACHMENT_BYTES + KEYS * id.len())
}

/// Allowed values of `_revs_limit` (RFC 001, "Limits").
pub const REVS_LIMITS: RangeInclusive<u32> = 1..=4_000;

/// Default of `_revs_limit`.
pub const DEFAULT_REVS_LIMIT: u32 = 1_000;

/// Prefix of the ids of local documents, which are never replicated.
pub const LOCAL_PREFIX: &str = "_local/";

/// Prefix of the ids of design documents.
pub const DESIGN_PREFIX: &str = "_design/";

/// The first id after all ids with [`DESIGN_PREFIX`]: '0' is the character after '/'.
pub(crate) const DESIGN_END: &str = "_design0";

/// CouchDB's database names with a leading underscore.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// Checks that a document may have this id.
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

/// Checks that a document of a partitioned database may have this id, which [`check_document_id`] admits. Design
/// documents and local documents belong to no partition.
///
/// # Errors
/// `illegal_docid` and `illegal_partition` with CouchDB's reasons (`couch_partition:validate_docid/1`).
pub fn check_partitioned_id(id: &str) -> Result<()> {
    require_partition(id)?;
    let Some((partition, rest)) = id.split_once(':').filter(|_| !is_unpartitioned(id)) else { return Ok(()) };
    let illegal = |reason: &str| Err(ErrorKind::IllegalPartition(reason.to_owned()).into());
    if partition.is_empty() {
        return illegal("Partition must not be empty");
    }
    if let Err(error) = mango::check_partition(partition) {
        return illegal(error.reason());
    }
    check_document_id(rest)
}

/// Checks that an id names a partition, or is that of a design document or a local document.
///
/// # Errors
/// `illegal_docid` with CouchDB's reason.
pub fn require_partition(id: &str) -> Result<()> {
    if is_unpartitioned(id) || mango::partition_of(id).is_some() {
        return Ok(());
    }
    Err(ErrorKind::IllegalDocId("Doc id must be of form partition:id".into()).into())
}

/// Whether a document with this id has no partition in a partitioned database.
fn is_unpartitioned(id: &str) -> bool {
    id.starts_with(DESIGN_PREFIX) || id.starts_with(LOCAL_PREFIX)
}

/// Whether the name is one of CouchDB's own databases, or ends with `/` and such a name.
pub(crate) fn is_system_database(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    SYSTEM_DATABASES.contains(&name) || matches!(last, "_users" | "_replicator")
}

/// Checks that a database may have this name: `^[a-z][a-z0-9_$()+/-]*$`, or one of CouchDB's own.
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

/// Checks the size of a body. The id is for the error.
pub(crate) fn check_document_size(id: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit { Err(ErrorKind::DocumentTooLarge(id.to_owned()).into()) } else { Ok(()) }
}

/// Checks the number of a document's attachments. The id is for the error.
pub(crate) fn check_attachment_count(id: &str, count: usize) -> Result<()> {
    if count > max_attachments(id) { Err(ErrorKind::DocumentTooLarge(id.to_owned()).into()) } else { Ok(()) }
}

/// Checks a value of `_revs_limit`.
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
    fn ids_in_partitions() {
        for id in ["a:b", "a:b:c", "a b:c d", "ä:_design/x", "_design/x", "_local/x", "a:b\0"] {
            check_partitioned_id(id).unwrap();
        }
        for (id, error, reason) in [
            ("a", "illegal_docid", "Doc id must be of form partition:id"),
            (":b", "illegal_partition", "Partition must not be empty"),
            ("_a:b", "illegal_partition", "Partition must not start with an underscore"),
            ("a:", "illegal_docid", "Document id must not be empty"),
            ("a:_b", "illegal_docid", "Only reserved document ids may start with underscore."),
        ] {
            let refused = check_partitioned_id(id).unwrap_err();
            assert_eq!((refused.status(), refused.error(), &*refused.reason()), (400, error, reason), "{id}");
        }
        assert!(
            require_partition("a").is_err() && require_partition(":").is_ok() && require_partition("_design/a").is_ok()
        );
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
