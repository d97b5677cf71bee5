//! The ancestors of a leaf, at the end of its [row](crate::rows::branch).
//!
//! ```text
//!  RevFormat 1   [ParentRev, GrandparentRev, …]           a nested tuple
//!  RevFormat 2   Length ParentRev Length GrandparentRev … raw, up to the end of the row
//! ```
//!
//! The raw form is for lists whose tuple would exceed the limit on values: zero bytes in identifiers double in length
//! there.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::rows::revid::RevHash;
use crate::rows::row::{NESTED, Reader};
use crate::rows::tuple;

/// Ancestors as a nested tuple.
const FORMAT_TUPLE: u64 = 1;
/// Ancestors length-prefixed.
const FORMAT_RAW: u64 = 2;
/// Maximum size of the ancestors in a row: the limit on values less the elements before them.
const MAX_ANCESTOR_BYTES: usize = 100_000 - 64;

/// The ancestors of a leaf, parent first, as in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestors {
    format: u64,
    raw: Bytes,
}

impl Ancestors {
    /// None.
    pub(crate) const EMPTY: Ancestors = Ancestors { format: FORMAT_TUPLE, raw: Bytes::new() };

    /// Size in a row, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.raw.len()
    }

    /// The format of a row with these ancestors, as far as they decide it.
    pub(crate) fn format(&self) -> u64 {
        self.format
    }

    /// Whether this format exists.
    pub(crate) fn is_format(format: u64) -> bool {
        format == FORMAT_TUPLE || format == FORMAT_RAW
    }

    /// Reads the ancestors at the end of a row in this format.
    pub(crate) fn read(format: u64, row: &Bytes, reader: &mut Reader<'_>) -> Result<Ancestors> {
        let raw = if format == FORMAT_TUPLE {
            reader.expect(NESTED)?;
            let raw = reader.rest().strip_suffix(&[0]);
            raw.ok_or_else(|| Error::corrupt("a list of ancestors without end"))?
        } else {
            reader.rest()
        };
        Ok(Ancestors { format, raw: row.slice_ref(raw) })
    }

    /// Appends them to a row.
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        if self.format == FORMAT_TUPLE {
            out.push(NESTED);
            out.extend_from_slice(&self.raw);
            out.push(0);
        } else {
            out.extend_from_slice(&self.raw);
        }
    }

    /// These ancestors, parent first; as many of the newest as fit in a row.
    pub(crate) fn from_hashes<'h>(hashes: impl IntoIterator<Item = &'h RevHash, IntoIter: Clone>) -> Ancestors {
        let hashes = hashes.into_iter();
        let mut raw = Vec::with_capacity(hashes.size_hint().0 * 18);
        for hash in hashes.clone() {
            tuple::append_bytes(&mut raw, hash.as_bytes());
        }
        if raw.len() <= MAX_ANCESTOR_BYTES {
            return Ancestors { format: FORMAT_TUPLE, raw: raw.into() };
        }
        raw.clear();
        for hash in hashes {
            let bytes = hash.as_bytes();
            if raw.len() + 1 + bytes.len() > MAX_ANCESTOR_BYTES {
                break;
            }
            // Identifiers have at most 255 bytes.
            raw.push(bytes.len() as u8);
            raw.extend_from_slice(bytes);
        }
        Ancestors { format: FORMAT_RAW, raw: raw.into() }
    }

    /// The ancestors of a child of the leaf with this hash, stemmed to the newest `limit`.
    pub(crate) fn of_child(&self, leaf: &RevHash, limit: usize) -> Result<Ancestors> {
        if limit == 0 {
            return Ok(Ancestors::EMPTY);
        }
        if self.format == FORMAT_TUPLE {
            let kept = self.newest(limit - 1)?;
            let mut raw = Vec::with_capacity(kept.len() + 20);
            tuple::append_bytes(&mut raw, leaf.as_bytes());
            raw.extend_from_slice(kept);
            if raw.len() <= MAX_ANCESTOR_BYTES {
                return Ok(Ancestors { format: FORMAT_TUPLE, raw: raw.into() });
            }
        }
        let mut path = vec![leaf.clone()];
        path.extend(self.to_vec()?);
        path.truncate(limit);
        Ok(Ancestors::from_hashes(&path))
    }

    /// The bytes of the newest `count` of a tuple.
    fn newest(&self, count: usize) -> Result<&[u8]> {
        // The shortest element has two bytes, most have eighteen: short histories need no walk.
        if self.raw.len() / 2 <= count {
            return Ok(&self.raw);
        }
        let mut end = 0;
        for _ in 0..count {
            if end == self.raw.len() {
                break;
            }
            end += tuple::element_len(&self.raw[end..]).ok_or_else(|| Error::corrupt("a torn list of ancestors"))?;
        }
        Ok(&self.raw[..end])
    }

    /// The newest `count` in the same format, unless these are all.
    pub(crate) fn stemmed(&self, count: usize) -> Result<Option<Ancestors>> {
        let kept = if self.format == FORMAT_TUPLE { self.newest(count)?.len() } else { newest_raw(&self.raw, count)? };
        Ok((kept < self.raw.len()).then(|| Ancestors { format: self.format, raw: self.raw.slice(..kept) }))
    }

    /// Each of them, parent first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<RevHash>> + '_ {
        let mut rest: &[u8] = &self.raw;
        let format = self.format;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let one = if format == FORMAT_TUPLE { next_element(rest) } else { next_raw(rest) };
            Some(match one {
                Ok((hash, after)) => {
                    rest = after;
                    Ok(hash)
                }
                Err(error) => {
                    rest = &[];
                    Err(error)
                }
            })
        })
    }

    /// All of them, parent first.
    pub(crate) fn to_vec(&self) -> Result<Vec<RevHash>> {
        self.iter().collect()
    }
}

fn next_element(raw: &[u8]) -> Result<(RevHash, &[u8])> {
    let mut reader = Reader::new(raw);
    let hash = hash_of(&reader.bytes()?)?;
    Ok((hash, reader.rest()))
}

/// The length of the newest `count`.
fn newest_raw(raw: &[u8], count: usize) -> Result<usize> {
    let mut rest = raw;
    for _ in 0..count {
        if rest.is_empty() {
            break;
        }
        rest = next_raw(rest)?.1;
    }
    Ok(raw.len() - rest.len())
}

fn next_raw(raw: &[u8]) -> Result<(RevHash, &[u8])> {
    let (&len, rest) = raw.split_first().ok_or_else(|| Error::corrupt("a torn list of ancestors"))?;
    let (bytes, rest) =
        rest.split_at_checked(usize::from(len)).ok_or_else(|| Error::corrupt("a torn list of ancestors"))?;
    Ok((hash_of(bytes)?, rest))
}

fn hash_of(bytes: &[u8]) -> Result<RevHash> {
    RevHash::from_bytes(bytes).map_err(|_| Error::corrupt("an ancestor of impossible length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_too_long_becomes_raw() {
        let hashes = vec![RevHash::from([0; 16]); 4_000];
        let ancestors = Ancestors::from_hashes(&hashes);
        assert_eq!(ancestors.format, FORMAT_RAW);
        assert_eq!(ancestors.to_vec().unwrap(), hashes, "4,000 identifiers of zero bytes fit raw");

        let child = ancestors.of_child(&RevHash::from([1; 16]), 3_999).unwrap();
        assert_eq!(child.to_vec().unwrap().len(), 3_999);
        assert_eq!(child.to_vec().unwrap()[0], RevHash::from([1; 16]));
        let stemmed = ancestors.stemmed(7).unwrap().unwrap();
        assert_eq!((stemmed.format, stemmed.to_vec().unwrap()), (FORMAT_RAW, hashes[..7].to_vec()));
        assert_eq!(ancestors.stemmed(4_000).unwrap(), None);
        // It becomes a tuple again when stemming makes it short enough.
        assert_eq!(ancestors.of_child(&RevHash::from([1; 16]), 10).unwrap().format, FORMAT_TUPLE);
    }

    #[test]
    fn hashes_without_bytes_are_counted_too() {
        let none = RevHash::from_text("").unwrap();
        let ancestors = Ancestors::from_hashes(&vec![none; 10]);
        assert_eq!(ancestors.of_child(&RevHash::from([1; 16]), 10).unwrap().to_vec().unwrap().len(), 10);
    }
}
