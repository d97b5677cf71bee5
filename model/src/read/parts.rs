//! Parts of a document: the values at some paths, read without the rest (RFC 004).
//!
//! ```text
//!  first round trip    the last row below the document's live leaves, as for a whole document: it names the winner
//!  second              exploded: the metadata, and the range of each path; packed: all of the body
//! ```
//!
//! An exploded body has a row for each leaf of its JSON, with the path in the key, so a path is one range. A step that
//! is a number may be an index or a name, and both are read. In two cases the whole body is read anyway: for very many
//! ranges, and for a part of several members whose order the metadata alone do not tell.
//!
//! Parts have no checksum of their own. A read of the whole body and a check notice a lost row.

use kv_api::{Bytes, Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf, end_of};
use crate::read::winner::{decode, why_not_live};
use crate::rows::body::{BodyFormat, RevisionMetadata, decode_part};
use crate::rows::revid::RevId;
use crate::rows::tuple;
use json::{JsonRef, JsonText, JsonWriter};

/// Maximum number of ranges. Beyond it, reading the body is cheaper.
const MAX_RANGES: usize = 100;

/// The values at some paths of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The winner, whose values these are.
    pub rev: RevId,
    /// The value at each path, in the order of the paths; `None` if missing.
    pub values: Vec<Option<JsonText>>,
}

impl<D: Database> Documents<D> {
    /// The values at these paths of the document's winner. A step into an array is an index. Paths may name members of
    /// the body, `_id` and `_rev`, but no other special members.
    ///
    /// # Errors
    /// 404 if the document is missing or deleted.
    pub async fn get_parts(&self, id: &str, paths: &[Vec<String>]) -> Result<Parts> {
        self.check_id_to_read(id).await?;
        let found = self.read(|transaction| self.parts(transaction, id, paths)).await;
        found.map_err(|error| error.of_document(id))
    }

    async fn parts(&self, transaction: D::Transaction, id: &str, paths: &[Vec<String>]) -> Result<Parts> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Snapshot);
        let (begin, end) = keys.bounds(DatabaseKey::DocsOfKind(id, true));
        // One byte after the document's prefix marks live leaves.
        let document = begin.len() - 1;
        let last = transaction.get_range(&RangeRequest::keys(begin, end).reverse().limit(1), Read::Snapshot);
        self.saw(&instance.await?);
        let Some(last) = last.await?.rows.pop() else {
            return Err(why_not_live(&transaction, keys, id).await?);
        };
        let (leaf, prefix) = DatabaseKeys::read_doc_leaf(&last.key, document)?;
        let prefix = last.key.slice(..prefix);
        let ranges = if self.format_seen() == BodyFormat::Packed || last.key.len() == prefix.len() {
            None
        } else {
            self.ranges(&prefix, paths)
        };
        let values = match ranges {
            Some(ranges) => self.read_ranges(&transaction, &prefix, ranges).await?,
            None => None,
        };
        let rev = leaf.rev.clone();
        if let Some(mut values) = values {
            for (value, path) in values.iter_mut().zip(paths) {
                *value = value.take().or_else(|| special(id, &leaf, path));
            }
            return Ok(Parts { rev, values });
        }
        let mut rows = Vec::new();
        if last.key.len() > prefix.len() {
            let before = RangeRequest::keys(prefix.clone(), last.key.clone());
            rows = transaction.get_all(before, Read::Snapshot).await?;
        }
        rows.push(last);
        let text = decode(&prefix, &rows)?.text;
        let at = |path: &Vec<String>| look_up(text.root(), path).map(|value| text.slice_ref(value));
        let values = paths.iter().map(|path| special(id, &leaf, path).or_else(|| at(path))).collect();
        Ok(Parts { rev, values })
    }

    /// The prefixes of the keys below each path; `None` if there are too many.
    fn ranges(&self, prefix: &Bytes, paths: &[Vec<String>]) -> Option<Vec<Vec<Vec<u8>>>> {
        let longest = self.engine().limits().key_bytes;
        let (mut ranges, mut count) = (Vec::with_capacity(paths.len()), 0);
        for path in paths {
            let mut begins = vec![prefix.to_vec()];
            for (depth, step) in path.iter().enumerate() {
                // The body itself is an object.
                let index = if depth > 0 { step.parse::<usize>().ok() } else { None };
                begins = begins
                    .into_iter()
                    .flat_map(|begin| {
                        let mut name = begin.clone();
                        tuple::append_str(&mut name, step);
                        let indexed = index.map(|index| {
                            let mut indexed = begin;
                            tuple::append_u64(&mut indexed, index as u64);
                            indexed
                        });
                        std::iter::once(name).chain(indexed)
                    })
                    // Rows never have longer keys.
                    .filter(|begin| begin.len() <= longest)
                    .collect();
                if count + begins.len() > MAX_RANGES {
                    return None;
                }
            }
            count += begins.len();
            ranges.push(if path.is_empty() { Vec::new() } else { begins });
        }
        Some(ranges)
    }

    /// Reads the value of each path; `None` if the whole body must be read.
    async fn read_ranges(
        &self,
        transaction: &D::Transaction,
        prefix: &Bytes,
        ranges: Vec<Vec<Vec<u8>>>,
    ) -> Result<Option<Vec<Option<JsonText>>>> {
        let metadata = transaction.get(prefix, Read::Snapshot);
        let read = |begin: Vec<u8>| {
            let length = begin.len();
            let range = RangeRequest::keys(begin.clone(), end_of(&begin));
            (length, transaction.get_all(range, Read::Snapshot))
        };
        let reads: Vec<Vec<_>> = ranges.into_iter().map(|begins| begins.into_iter().map(read).collect()).collect();
        let metadata = metadata.await?.ok_or_else(|| Error::corrupt("a body without metadata"))?;
        let corrupt = |error| Error::corrupt(format!("{error} at {}", prefix.escape_ascii()));
        let metadata = RevisionMetadata::read(&metadata).map_err(corrupt)?;
        if metadata.format() == BodyFormat::Packed {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(reads.len());
        for begins in reads {
            let mut value = None;
            for (length, rows) in begins {
                let rows: Vec<KeyValue> = rows.await?;
                if rows.is_empty() {
                    continue;
                }
                let rows: Vec<(&[u8], &[u8])> = rows.iter().map(|row| (&row.key[length..], &row.value[..])).collect();
                match decode_part(&metadata, &rows).map_err(corrupt)? {
                    Some(text) => value = Some(text),
                    None => return Ok(None),
                }
            }
            values.push(value);
        }
        Ok(Some(values))
    }
}

/// `_id` and `_rev`, which are not in the body.
fn special(id: &str, leaf: &Leaf, path: &[String]) -> Option<JsonText> {
    let mut out = Vec::new();
    match path {
        [name] if name == "_id" => JsonWriter::new(&mut out).str(id),
        [name] if name == "_rev" => JsonWriter::new(&mut out).display(&leaf.rev),
        _ => return None,
    };
    JsonText::from_normalised(out)
}

/// The value at a path within a value.
fn look_up<'a>(value: JsonRef<'a>, path: &[String]) -> Option<JsonRef<'a>> {
    if path.is_empty() {
        return None;
    }
    path.iter().try_fold(value, |value, step| value.step(step))
}
