//! A row as it is kept: the value, and behind it a checksum over key and value.
//!
//! redb has checksums in its pages, and looks at them after a kill and when it is told to, not when it
//! reads. So a row has one of its own: a bit that turned over on the disk is an error, whenever it is read.
//!
//! ```text
//!   ├── value ──┬─ CRC-32 of key and value, 4 bytes big-endian ─┤
//! ```

use crc32fast::Hasher;
use kv_api::{Error, Result, error};

fn checksum(key: &[u8], value: &[u8]) -> [u8; 4] {
    let mut hasher = Hasher::new();
    hasher.update(key);
    hasher.update(value);
    hasher.finalize().to_be_bytes()
}

/// Makes `row` the row of these.
pub(crate) fn write(row: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    row.clear();
    row.extend_from_slice(value);
    row.extend_from_slice(&checksum(key, value));
}

/// The value of a row: 1522 for one that is damaged.
pub(crate) fn value<'r>(key: &[u8], row: &'r [u8]) -> Result<&'r [u8]> {
    match row.split_last_chunk::<4>() {
        Some((value, check)) if *check == checksum(key, value) => Ok(value),
        _ => Err(damaged()),
    }
}

/// Appends the key and the value of a row: 1522 for one that is damaged. `hasher` is a new one: making it takes as
/// long as a short row, copying it does not. One look at key and value together is quicker than one at each.
pub(crate) fn append(out: &mut Vec<u8>, key: &[u8], row: &[u8], mut hasher: Hasher) -> Result<()> {
    let (value, check) = row.split_last_chunk::<4>().ok_or_else(damaged)?;
    let from = out.len();
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    hasher.update(&out[from..]);
    match hasher.finalize().to_be_bytes() == *check {
        true => Ok(()),
        false => Err(damaged()),
    }
}

fn damaged() -> Error {
    Error::new(error::FILE_CORRUPT).with_context("a row in data.redb is damaged: restore the folder from a backup")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written_and_no_other_way() {
        let mut row = vec![9; 100];
        for value in [b"".as_slice(), b"v", &[7; 1000]] {
            write(&mut row, b"key", value);
            assert_eq!(super::value(b"key", &row).unwrap(), value);
            let mut out = b"before".to_vec();
            append(&mut out, b"key", &row, Hasher::new()).unwrap();
            assert_eq!(out, [b"before".as_slice(), b"key", value].concat());
            for bit in 0..row.len() * 8 {
                row[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(super::value(b"key", &row).unwrap_err().code(), error::FILE_CORRUPT, "bit {bit}");
                assert_eq!(
                    append(&mut out, b"key", &row, Hasher::new()).unwrap_err().code(),
                    error::FILE_CORRUPT,
                    "bit {bit}"
                );
                row[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(super::value(b"kez", &row).is_err() && super::value(b"key", &row[1..]).is_err());
        }
        assert!(
            super::value(b"key", b"123").is_err() && append(&mut Vec::new(), b"key", b"123", Hasher::new()).is_err()
        );
    }
}
