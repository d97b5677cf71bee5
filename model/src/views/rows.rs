//! Encodes the rows of views.

use bytes::Bytes;
use json::{JsonRef, JsonText, JsonWriter};
use kv_api::{KeyValue, RangeRequest, Read, Transaction, TransactionExt};

use super::{FORMAT, MAX_KEY, MAX_VALUE};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, end_of};
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::unguarded::Unguarded;

/// Position of a row in its view, and in the levels above: `(Key, DocID, Emit)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The bytes that order the row. Cut if it has [`MAX_KEY`] of them.
    pub(crate) key: Vec<u8>,
    pub(crate) id: String,
    /// The number of the row among those of the document with this key, in the order of their values.
    pub(crate) emit: u64,
}

impl Place {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = at_id(&self.key, &self.id);
        tuple::append_u64(&mut out, self.emit);
        out
    }

    pub(super) fn read(place: &[u8]) -> Result<Place> {
        let mut reader = Reader::new(place);
        let (key, id) = (reader.bytes()?.into_owned(), reader.str()?.into_owned());
        let emit = reader.int()?;
        reader.end()?;
        Ok(Place { key, id, emit })
    }

    pub(super) fn is_cut(&self) -> bool {
        is_cut(&self.key)
    }
}

/// The start of the places of all rows with this key.
pub(super) fn at_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 40);
    tuple::append_bytes(&mut out, key);
    out
}

/// The start of the places of all rows with this key and document.
pub(super) fn at_id(key: &[u8], id: &str) -> Vec<u8> {
    let mut out = at_key(key);
    // An id in a request may have any length. An id that is too long sorts after all ids with the same start.
    let id = &id[..id.floor_char_boundary(id.len().min(crate::limits::MAX_ID_BYTES + 1))];
    tuple::append_str(&mut out, id);
    out
}

/// The start of the places of all rows whose keys start with these bytes.
pub(super) fn at_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut out = at_key(prefix);
    out.pop();
    out
}

pub(super) fn is_cut(key: &[u8]) -> bool {
    key.len() >= MAX_KEY
}

/// The order of a view's rows, or of those of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowOrder {
    /// Whether the view is in raw collation.
    pub(super) is_raw: bool,
    /// The bytes before all keys: those of the partition, if the group is partitioned.
    pub(super) prefix: Vec<u8>,
}

impl RowOrder {
    /// The order of a view without partitions, or of this partition.
    pub(super) fn of(is_raw: bool, partition: Option<&str>) -> RowOrder {
        let mut prefix = Vec::new();
        if let Some(partition) = partition {
            mango::append_partition(&mut prefix, partition);
        }
        RowOrder { is_raw, prefix }
    }

    /// All of the bytes that order a key.
    pub(super) fn whole_key(&self, key: JsonRef<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.prefix.len() + 32);
        out.extend_from_slice(&self.prefix);
        match self.is_raw {
            true => mango::append_term_key(&mut out, key),
            false => mango::append_key(&mut out, key),
        }
        out
    }
}

pub(super) fn cut(mut key: Vec<u8>) -> Vec<u8> {
    key.truncate(MAX_KEY);
    key
}

/// The key and the value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair(JsonText);

impl Pair {
    pub(super) fn new(key: &JsonText, value: &JsonText) -> Pair {
        let mut out = Vec::with_capacity(key.len() + value.len() + 3);
        let mut json = JsonWriter::new(&mut out);
        json.begin_array().text(key).text(value).end_array();
        // The text consists of two normalised texts.
        Pair(JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key and the value. They share the row's memory.
    pub(super) fn split(&self) -> Result<(JsonText, JsonText)> {
        let mut elements = self.0.root().elements();
        let (key, value) = elements.next().zip(elements.next()).ok_or_else(|| Error::corrupt("a row of a view"))?;
        Ok((self.0.slice_ref(key), self.0.slice_ref(value)))
    }

    pub(super) fn key(&self) -> Result<JsonText> {
        let key = self.0.root().elements().next().ok_or_else(|| Error::corrupt("a row of a view"))?;
        Ok(self.0.slice_ref(key))
    }

    fn read(text: Bytes) -> Result<Pair> {
        JsonText::from_normalised(text).map(Pair).ok_or_else(|| Error::corrupt("a row of a view that is not UTF-8"))
    }
}

/// Writes a row. A long row is written in parts, and its own value has the length. Returns whether it has parts.
pub(super) fn set_row<T: Transaction>(
    tx: &T,
    keys: &DatabaseKeys,
    (group, view): (u64, u64),
    place: &[u8],
    pair: &Pair,
) -> bool {
    let key = keys.key(DatabaseKey::ViewRow { group, view, level: 0, place });
    if pair.len() <= MAX_VALUE {
        tx.set_unguarded(key, pair.0.clone().into_bytes());
        return false;
    }
    let mut head = Vec::with_capacity(12);
    tuple::append_u64(&mut head, FORMAT);
    tuple::append_u64(&mut head, pair.len() as u64);
    tx.set_unguarded(key, Bytes::from(head));
    let base = keys.key(DatabaseKey::ViewLong { group, view, place });
    for (part, bytes) in pair.0.as_bytes().chunks(MAX_VALUE).enumerate() {
        let mut key = base.clone();
        tuple::append_u64(&mut key, part as u64);
        tx.set_unguarded(key, Bytes::copy_from_slice(bytes));
    }
    true
}

/// Removes a row's parts.
pub(super) fn clear_parts<T: Transaction>(tx: &T, keys: &DatabaseKeys, (group, view): (u64, u64), place: &[u8]) {
    let (begin, end) = keys.bounds(DatabaseKey::ViewLong { group, view, place });
    tx.clear_range_unguarded(&begin, &end);
}

/// Reads the value of a row, and its parts if it has any.
pub(super) async fn read_pair<T: Transaction>(
    tx: &T,
    keys: &DatabaseKeys,
    (group, view): (u64, u64),
    place: &[u8],
    value: &Bytes,
) -> Result<Pair> {
    if value.first() == Some(&b'[') {
        return Pair::read(value.clone());
    }
    let bytes = long_len(value)?;
    let (begin, end) = keys.bounds(DatabaseKey::ViewLong { group, view, place });
    let parts = tx.get_all(RangeRequest::keys(begin, end), Read::Snapshot).await?;
    let text: Vec<u8> = parts.iter().flat_map(|part| part.value.iter().copied()).collect();
    if text.len() as u64 != bytes {
        return Err(Error::corrupt("a row of a view whose length is not the stated one"));
    }
    Pair::read(text.into())
}

/// The length of a row in parts.
fn long_len(value: &[u8]) -> Result<u64> {
    let mut reader = Reader::new(value);
    match reader.int()? {
        FORMAT => {}
        other => return Err(Error::unknown_format(format!("a row of a view in format {other}"))),
    }
    let bytes = reader.int()?;
    reader.end()?;
    Ok(bytes)
}

/// Number of parts that a row has in addition to its value.
pub(super) fn parts_of(value: &[u8]) -> Result<u64> {
    match value.first() {
        Some(b'[') => Ok(0),
        _ => Ok(long_len(value)?.div_ceil(MAX_VALUE as u64)),
    }
}

/// A row that an id row names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) view: u64,
    pub(super) emit: u64,
    pub(super) has_parts: bool,
    pub(super) key: Vec<u8>,
}

/// The id row of a document: the rows that it has, whether it has an error, and the views that leave it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IdRow {
    pub(super) has_error: bool,
    /// Only in a document with an error.
    pub(super) left_out: Vec<u64>,
    pub(super) rows: Vec<Named>,
}

impl IdRow {
    pub(super) fn is_empty(&self) -> bool {
        !self.has_error && self.rows.is_empty()
    }

    /// Writes the row, in place of `had` parts.
    pub(super) fn set<T: Transaction>(&self, tx: &T, keys: &DatabaseKeys, group: u64, id: &str, had: u64) {
        let key = keys.key(DatabaseKey::ViewIds(group, id));
        let mut raw = Vec::new();
        for Named { view, emit, has_parts, key } in &self.rows {
            tuple::append_u64(&mut raw, *view);
            tuple::append_u64(&mut raw, *emit);
            tuple::append_bool(&mut raw, *has_parts);
            tuple::append_u64(&mut raw, key.len() as u64);
            raw.extend_from_slice(key);
        }
        let mut parts = raw.chunks(MAX_VALUE);
        let first = parts.next().unwrap_or_default();
        let mut head = Vec::with_capacity(first.len() + 8);
        tuple::append_u64(&mut head, FORMAT);
        tuple::append_u64(&mut head, 1 + parts.len() as u64);
        tuple::append_bool(&mut head, self.has_error);
        if self.has_error {
            tuple::append_u64(&mut head, self.left_out.len() as u64);
            self.left_out.iter().for_each(|view| tuple::append_u64(&mut head, *view));
        }
        head.extend_from_slice(first);
        if had > 1 {
            tx.clear_range(&key, &end_of(&key));
        }
        for (part, bytes) in (1u64..).zip(parts) {
            let mut key = key.clone();
            tuple::append_u64(&mut key, part);
            tx.set_unguarded(key, Bytes::copy_from_slice(bytes));
        }
        tx.set_unguarded(key, Bytes::from(head));
    }

    /// Reads the first part, then the others. Also returns the number of parts.
    pub(super) async fn read<T: Transaction>(
        tx: &T,
        keys: &DatabaseKeys,
        group: u64,
        id: &str,
        first: &[u8],
    ) -> Result<(IdRow, u64)> {
        let mut reader = Reader::new(first);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("an id row of views in format {other}"))),
        }
        let (parts, has_error) = (reader.int()?, reader.bool()?);
        let views = if has_error { reader.int()? } else { 0 };
        let left_out = (0..views).map(|_| reader.int()).collect::<Result<_>>()?;
        let mut raw = reader.rest().to_vec();
        if parts > 1 {
            let key = keys.key(DatabaseKey::ViewIds(group, id));
            let mut after = key.clone();
            after.push(0);
            let rest: Vec<KeyValue> = tx.get_all(RangeRequest::keys(after, end_of(&key)), Read::Snapshot).await?;
            if rest.len() as u64 != parts - 1 {
                return Err(Error::corrupt("an id row of views with missing parts"));
            }
            rest.iter().for_each(|part| raw.extend_from_slice(&part.value));
        }
        let (mut rows, mut reader) = (Vec::new(), Reader::new(&raw));
        while !reader.rest().is_empty() {
            let (view, emit, has_parts) = (reader.int()?, reader.int()?, reader.bool()?);
            let len = reader.int()?;
            rows.push(Named { view, emit, has_parts, key: reader.raw(len)?.to_vec() });
        }
        Ok((IdRow { has_error, left_out, rows }, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_round_trip_and_sort_by_key_then_document_then_number() {
        let place = |key: &[u8], id: &str, emit| Place { key: key.to_vec(), id: id.to_owned(), emit };
        let rising = [
            place(b"", "z", 300),
            place(b"a\0", "", 0),
            place(b"a\0", "a", 255),
            place(b"a\0", "a", 256),
            place(b"a\0", "a\0", 1),
            place(b"a\0\x10", "", 0),
            place(b"a\x10", "", 0),
        ];
        let written: Vec<Vec<u8>> = rising.iter().map(Place::write).collect();
        assert!(written.is_sorted_by(|a, b| a < b));
        for (place, bytes) in rising.iter().zip(&written) {
            assert_eq!(&Place::read(bytes).unwrap(), place);
            assert!(bytes.starts_with(&at_id(&place.key, &place.id)));
            assert!(bytes.starts_with(&at_key(&place.key)) && bytes.starts_with(&at_prefix(&place.key)));
        }
        let longest = "m".repeat(crate::limits::MAX_ID_BYTES);
        assert!(at_id(b"k", &longest) < at_id(b"k", &longest.repeat(2)));
    }
}
