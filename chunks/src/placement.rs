//! The documents that may hold a chunk, and the length of prefixes.
//!
//! ```text
//!  chunk id ─ xxh64 ─► 3fa9c2…  ┬ idx:       prefix of no digits
//!                               ├ idx:3      of one
//!                               ├ idx:3f     of two: the current length, where new entries go
//!                               └ idx:3fa    of three: only after the length has grown
//!                                 dat:3f-001-9c0de1b2
//! ```
//!
//! A database has one current length. It only grows. Growing moves nothing: indexes of shorter prefixes stay valid, and
//! lookups include them. There are at most five lengths, so a chunk is in one of five indexes, and a batch of chunks
//! shares most of them.

use crate::error::{Error, Result};
use crate::id::{Bucket, CHUNK_PREFIX};

/// Prefix of index documents' ids.
pub const INDEX_PREFIX: &str = "idx:";
/// Prefix of data documents' ids.
pub const DATA_PREFIX: &str = "dat:";
/// The settings' id.
pub const SETTINGS_ID: &str = "chunks:settings";

/// Longest prefix, in hexadecimal digits: enough for 34 million chunks.
pub const MAX_PREFIX_LENGTH: u8 = 4;

/// The prefix length is chosen for this average number of entries in an index document. The fullest of thousands has a
/// fifth more: 26 KB at some 41 bytes an entry.
const ENTRIES: u64 = 520;

/// The prefix length for a database with this number of chunks.
pub fn prefix_length_for(chunks: u64) -> u8 {
    (0..MAX_PREFIX_LENGTH).find(|&length| chunks <= ENTRIES << (4 * length)).unwrap_or(MAX_PREFIX_LENGTH)
}

/// Approximate number of index and data documents with this prefix length: one of each for every prefix that has a
/// chunk. Full data documents are not included.
pub fn documents_for(chunks: u64, length: u8) -> u64 {
    let prefixes = 16f64.powi(i32::from(length));
    let empty = (1.0 - 1.0 / prefixes).powf(chunks as f64);
    // Precision beyond 2^53 does not matter.
    (2.0 * prefixes * (1.0 - empty)).round() as u64
}

/// Checks that this prefix length makes sense for this number of chunks.
///
/// # Errors
/// [`Error::Setting`], with the figures, if there would be more documents than chunks, or index documents over 32
/// KB.
pub fn check_prefix_length(chunks: u64, length: u8) -> Result<()> {
    let advice = prefix_length_for(chunks);
    if length > MAX_PREFIX_LENGTH {
        return Err(Error::Setting(format!(
            "chunk_prefix_length {length} is over {MAX_PREFIX_LENGTH}, which is enough for 34 million chunks"
        )));
    }
    let documents = documents_for(chunks, length);
    if length > advice && documents >= chunks {
        return Err(Error::Setting(format!(
            "chunk_prefix_length {length} would spread {chunks} chunks over some {documents} index and data documents, \
             more than one for each chunk; {advice} makes some {}",
            documents_for(chunks, advice)
        )));
    }
    if length < advice {
        return Err(Error::Setting(format!(
            "chunk_prefix_length {length} would put some {} of {chunks} chunks into one index document, over its limit \
             of 32 KB; {advice} puts some {}",
            chunks >> (4 * length),
            chunks >> (4 * advice)
        )));
    }
    Ok(())
}

/// The index document of a prefix.
pub(crate) fn index_id(prefix: &str) -> String {
    format!("{INDEX_PREFIX}{prefix}")
}

/// The prefix of an index document; `None` for any other document.
pub(crate) fn index_prefix(id: &str) -> Option<&str> {
    id.strip_prefix(INDEX_PREFIX).filter(|prefix| is_prefix(prefix))
}

/// The indexes that may name a chunk, the longest prefix first.
pub(crate) fn candidates(chunk: &str, longest: u8) -> impl Iterator<Item = String> {
    let bucket = Bucket::of(chunk);
    (0..=longest).rev().map(move |length| index_id(&bucket.prefix(length)))
}

/// A new data document's id. The sequence orders a prefix's data documents for readers. The nonce distinguishes
/// the documents of two clients that use the same sequence.
pub(crate) fn data_id(prefix: &str, sequence: u64, nonce: u64) -> String {
    format!("{DATA_PREFIX}{prefix}-{sequence:03}-{:08x}", nonce as u32)
}

/// The prefix and the sequence of a data document; `None` for any other document. The nonce is optional. Any client can
/// write an id, so a sequence that is too large counts as the largest.
pub(crate) fn data_parts(id: &str) -> Option<(&str, u64)> {
    let (prefix, rest) = id.strip_prefix(DATA_PREFIX)?.split_once('-')?;
    let sequence = rest.split_once('-').map_or(rest, |(sequence, _)| sequence);
    let is_number = !sequence.is_empty() && sequence.bytes().all(|byte| byte.is_ascii_digit());
    (is_prefix(prefix) && is_number).then(|| (prefix, sequence.parse().unwrap_or(u64::MAX)))
}

fn is_prefix(text: &str) -> bool {
    text.len() <= usize::from(MAX_PREFIX_LENGTH) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a document is this crate's or a chunk, so not a file.
pub(crate) fn is_no_file(id: &str) -> bool {
    id.starts_with(CHUNK_PREFIX) || index_prefix(id).is_some() || data_parts(id).is_some() || id == SETTINGS_ID
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_fall_at_every_size() {
        for chunks in [100, 520, 521, 7_000, 8_321, 32_000, 116_000, 133_121, 1_000_000, 2_200_000, 30_000_000] {
            let length = prefix_length_for(chunks);
            let documents = documents_for(chunks, length);
            assert!(documents * 15 <= chunks || chunks == 100, "{chunks} chunks, {documents} documents");
            assert!(chunks >> (4 * length) <= ENTRIES);
            check_prefix_length(chunks, length).unwrap();
        }
        assert_eq!([7_000, 32_000, 116_000, 1_000_000].map(prefix_length_for), [1, 2, 2, 3]);
        assert_eq!(documents_for(32_000, 2), 512);
    }

    #[test]
    fn a_length_that_would_raise_the_count_is_refused_with_figures() {
        let refused = check_prefix_length(32_000, 4).unwrap_err().to_string();
        for figure in ["32000 chunks", "50636 index", "512"] {
            assert!(refused.contains(figure), "{refused}");
        }
        assert!(check_prefix_length(32_000, 5).unwrap_err().to_string().contains("over 4"));
        assert!(check_prefix_length(32_000, 3).is_ok(), "it makes more documents than need be, and fewer than chunks");
        let refused = check_prefix_length(32_000, 1).unwrap_err().to_string();
        assert!(refused.contains("2000 of 32000") && refused.contains("125"), "{refused}");
    }

    #[test]
    fn ids_are_made_and_read() {
        let id = data_id("a9", 6, 0xdead_beef);
        assert_eq!((id.as_str(), data_parts(&id)), ("dat:a9-006-deadbeef", Some(("a9", 6))));
        assert_eq!(data_parts("dat:-1"), Some(("", 1)));
        assert_eq!(data_parts("dat:a9f1-006"), Some(("a9f1", 6)));
        assert_eq!(data_parts("dat:3f-18446744073709551616-x"), Some(("3f", u64::MAX)));
        for alien in ["dat:a9", "dat:A9-001", "dat:a9f1b-001", "dat:a9-x", "dat:a9-+6", "dat:a9--6", "idx:a9", "dat:"] {
            assert_eq!(data_parts(alien), None, "{alien}");
        }
        assert_eq!(index_prefix("idx:"), Some(""));
        assert_eq!(index_prefix("idx:a9f1b"), None);
        assert_eq!(index_prefix("idx:zz"), None);
    }

    #[test]
    fn a_chunk_is_in_one_of_a_few_indexes() {
        let found: Vec<String> = candidates("h:1ecijke328qp3", 2).collect();
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with(&found[1]) && found[1].len() == 5);
        assert_eq!(found[2], "idx:");
    }
}
