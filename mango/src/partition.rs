//! Partitions: the part of an id before its first colon, in databases that are partitioned.
//!
//! Partitioned views and indexes put the partition before the key, as bytes that mark their end:
//!
//! ```text
//!   partition, its bytes 00 and 01 as 01 01 and 01 02 │ 00 │ key
//! ```
//!
//! So the rows of a partition are one range, from these bytes up to the same bytes followed by `FF`: all keys begin
//! below it.
//!
//! Source: `couch_partition.erl`.

use crate::error::Error;

/// The partition of a document: what is before the first colon of its id. `None` if there is no colon.
pub fn partition_of(id: &str) -> Option<&str> {
    id.split_once(':').map(|(partition, _)| partition)
}

/// The range of a partition's ids: the lowest possible one, and the first one after all of them.
pub fn ids_of_partition(partition: &str) -> (String, String) {
    // `;` is the character after the colon.
    (format!("{partition}:"), format!("{partition};"))
}

/// Refuses invalid names of partitions, as CouchDB's `couch_partition:validate_partition` does.
///
/// # Errors
/// 400 `illegal_partition`.
pub fn check_partition(name: &str) -> Result<(), Error> {
    if name.starts_with('_') {
        return Err(illegal_partition("Partition must not start with an underscore"));
    }
    if name.contains(':') {
        return Err(illegal_partition("Partition must not contain a colon"));
    }
    Ok(())
}

pub(crate) fn illegal_partition(reason: &str) -> Error {
    Error::plain("illegal_partition", reason)
}

/// Appends the bytes before the keys of a partition.
pub fn append_partition(out: &mut Vec<u8>, partition: &str) {
    for byte in partition.bytes() {
        match byte {
            0 | 1 => out.extend_from_slice(&[1, byte + 1]),
            other => out.push(other),
        }
    }
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_partition_is_a_prefix_of_another() {
        let written = |partition: &str| {
            let mut out = Vec::new();
            append_partition(&mut out, partition);
            out
        };
        let rising = ["\0", "\0\0", "\0\u{1}", "\u{1}", "\u{1}\0", "a", "a\0", "a\u{1}", "a\u{2}", "aa", "é"];
        let keys: Vec<_> = rising.iter().map(|partition| written(partition)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "in the order of their bytes");
        for (at, key) in keys.iter().enumerate() {
            assert!(keys.iter().enumerate().all(|(other, bytes)| other == at || !bytes.starts_with(key)), "{at}");
        }
        assert_eq!((partition_of("a:b:c"), partition_of(":"), partition_of("a")), (Some("a"), Some(""), None));
    }
}
