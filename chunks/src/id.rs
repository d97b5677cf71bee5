//! Ids of chunks, as Self-hosted LiveSync makes them, and their buckets.

use std::hash::Hasher;

use twox_hash::XxHash64;

/// Prefix of the ids of LiveSync's chunks.
pub const CHUNK_PREFIX: &str = "h:";

/// The id of a piece of a file: `h:`, then in base 36 the xxh64 (seed 0) of the piece, a hyphen and the piece's
/// length in UTF-16 units. A piece of a binary file is its bytes in base64.
///
/// Ids of encrypted chunks (`h:+…`) also depend on a passphrase.
///
/// ```
/// assert_eq!(chunks::chunk_id("from-a\n"), "h:1ecijke328qp3");
/// ```
pub fn chunk_id(piece: &str) -> String {
    hashed_id(CHUNK_PREFIX, piece, "")
}

/// The same with another prefix, and with more text to hash before the length.
pub(crate) fn hashed_id(prefix: &str, piece: &str, more: &str) -> String {
    let length = if piece.is_ascii() { piece.len() } else { piece.encode_utf16().count() };
    let mut hash = XxHash64::with_seed(0);
    hash.write(piece.as_bytes());
    hash.write(format!("{more}-{length}").as_bytes());
    format!("{prefix}{}", base36(hash.finish()))
}

pub(crate) fn base36(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::with_capacity(13);
    loop {
        digits.push(char::from(DIGITS[(number % 36) as usize]));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

/// The bucket of a chunk: a uniform hash of its id.
///
/// Ids themselves are not uniform: in base 36 a quarter of them share one first character, and those of encrypted
/// chunks all begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bucket(u64);

impl Bucket {
    /// xxh64 (seed 0) of the id's UTF-8.
    pub(crate) fn of(chunk: &str) -> Bucket {
        Bucket(XxHash64::oneshot(0, chunk.as_bytes()))
    }

    /// The first `length` of its sixteen hexadecimal digits.
    pub(crate) fn prefix(self, length: u8) -> String {
        let mut digits = format!("{:016x}", self.0);
        digits.truncate(usize::from(length));
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_livesyncs() {
        assert_eq!(chunk_id("from-a\n"), "h:1ecijke328qp3");
        assert_eq!(chunk_id("base\n"), "h:2mj7d2m7tephp");
    }

    #[test]
    fn lengths_count_utf16_units() {
        // A character beyond the first plane is two units, and four bytes.
        assert_eq!(chunk_id("\u{1f600}"), format!("h:{}", base36(XxHash64::oneshot(0, "\u{1f600}-2".as_bytes()))));
    }

    #[test]
    fn base_36_has_no_leading_zeros() {
        assert_eq!(base36(0), "0");
        assert_eq!(base36(35), "z");
        assert_eq!(base36(36), "10");
        assert_eq!(base36(u64::MAX), "3w5e11264sgsf");
    }

    #[test]
    fn skewed_ids_fall_evenly() {
        let mut counts = [0u32; 16];
        for number in 0..16_000u64 {
            // Realistic ids: nine in ten begin with one of three characters.
            let id = format!("h:{}{}", ["1", "2", "3"][(number % 3) as usize], base36(number * 7_919));
            let first = Bucket::of(&id).prefix(1);
            counts[usize::from_str_radix(&first, 16).unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| (850..1_150).contains(&count)), "{counts:?}");
    }

    #[test]
    fn prefixes_nest() {
        let bucket = Bucket::of("h:1ecijke328qp3");
        assert_eq!(bucket.prefix(0), "");
        assert!(bucket.prefix(4).starts_with(&bucket.prefix(3)));
        assert_eq!(bucket.prefix(4).len(), 4);
    }
}
