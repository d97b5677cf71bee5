//! The list of a leaf's attachments: the last of its rows in `docs`.
//!
//! ```text
//!  key     (6, DocID, NotDeleted, RevPosition, RevHash, true, Part)
//!  value   a part of   Format = 1, and for each attachment, in the document's order:
//!                      Name, Type, RevPos, Encoding, Length, Md5, Sha256, StoredLength
//! ```

use bytes::Bytes;
use kv_api::KeyValue;

use super::{Attachment, ContentId, Encoding};
use crate::error::{Error, Result};
use crate::keys::{self, DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::row::Reader;
use crate::rows::tuple;

const FORMAT: u64 = 1;

const IDENTITY: u64 = 0;
const GZIP: u64 = 1;

/// The rows of a leaf's attachments, with values up to a limit.
pub(crate) fn list_rows(
    keys: &DatabaseKeys,
    id: &str,
    leaf: &Leaf,
    attachments: &[Attachment],
    max_value_bytes: usize,
) -> Vec<(Bytes, Bytes)> {
    let mut list = Vec::with_capacity(16 + attachments.len() * 160);
    tuple::append_u64(&mut list, FORMAT);
    for attachment in attachments {
        tuple::append_str(&mut list, &attachment.name);
        tuple::append_str(&mut list, &attachment.content_type);
        tuple::append_u64(&mut list, attachment.revpos);
        tuple::append_u64(
            &mut list,
            match attachment.encoding {
                Encoding::Identity => IDENTITY,
                Encoding::Gzip => GZIP,
            },
        );
        tuple::append_u64(&mut list, attachment.length);
        tuple::append_bytes(&mut list, &attachment.digest);
        tuple::append_bytes(&mut list, &attachment.content.sha256);
        tuple::append_u64(&mut list, attachment.content.length);
    }
    let (prefix, list) = (keys.key(DatabaseKey::Attachments(id, leaf)), Bytes::from(list));
    let part_bytes = super::address::part_bytes(max_value_bytes);
    let parts = (0..list.len()).step_by(part_bytes).enumerate().map(|(part, begin)| {
        let mut key = prefix.clone();
        tuple::append_u64(&mut key, part as u64);
        (Bytes::from(key), list.slice(begin..list.len().min(begin + part_bytes)))
    });
    parts.collect()
}

/// Separates the rows of attachments at the end of a leaf's rows, whose keys share a prefix of this length. Looks
/// at the last row only if there are none.
pub(crate) fn split_rows(prefix_len: usize, rows: &[KeyValue]) -> (&[KeyValue], &[KeyValue]) {
    let is_list = |row: &KeyValue| row.key.get(prefix_len) == Some(&keys::ATTACHMENTS);
    match rows.last() {
        Some(last) if is_list(last) => rows.split_at(rows.partition_point(|row| !is_list(row))),
        _ => (rows, &[]),
    }
}

/// The attachments in these rows; empty without rows.
pub(crate) fn read_list(prefix_len: usize, rows: &[KeyValue]) -> Result<Vec<Attachment>> {
    let mut list = Vec::with_capacity(rows.iter().map(|row| row.value.len()).sum());
    for (part, row) in (0u64..).zip(rows) {
        let mut number = Reader::new(row.key.get(prefix_len + 1..).unwrap_or_default());
        if number.int()? != part {
            return Err(Error::corrupt("a part of a list of attachments is missing"));
        }
        number.end()?;
        list.extend_from_slice(&row.value);
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut reader = Reader::new(&list);
    match reader.int()? {
        FORMAT => {}
        other => return Err(Error::unknown_format(format!("attachments in format {other}"))),
    }
    let mut attachments = Vec::new();
    while !reader.rest().is_empty() {
        attachments.push(read_one(&mut reader)?);
    }
    Ok(attachments)
}

fn read_one(reader: &mut Reader<'_>) -> Result<Attachment> {
    let hash = |_| Error::corrupt("an attachment's hash of wrong length");
    let name = reader.str()?.into_owned();
    let content_type = reader.str()?.into_owned();
    let revpos = reader.int()?;
    let encoding = match reader.int()? {
        IDENTITY => Encoding::Identity,
        GZIP => Encoding::Gzip,
        other => return Err(Error::unknown_format(format!("an attachment in encoding {other}"))),
    };
    let length = reader.int()?;
    let digest = reader.bytes()?.as_ref().try_into().map_err(hash)?;
    let sha256 = reader.bytes()?.as_ref().try_into().map_err(hash)?;
    let encoded_length = reader.int()?;
    let content = ContentId { sha256, length: encoded_length };
    Ok(Attachment {
        name,
        content_type,
        revpos,
        digest,
        length,
        encoded_length,
        encoding,
        wanted: false,
        data: None,
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(name: &str, revpos: u64) -> Attachment {
        Attachment {
            name: name.to_owned(),
            content_type: "text/plain".to_owned(),
            revpos,
            digest: [0; 16],
            length: 3,
            encoded_length: 23,
            encoding: if revpos == 1 { Encoding::Gzip } else { Encoding::Identity },
            wanted: false,
            data: None,
            content: ContentId { sha256: [0; 32], length: 23 },
        }
    }

    #[test]
    fn lists_round_trip_in_parts_and_torn_ones_are_errors() {
        let keys = DatabaseKeys::new(b"", 0);
        let leaf = Leaf { not_deleted: true, rev: "1-a".parse().unwrap() };
        let prefix = keys.key(DatabaseKey::Doc("a", &leaf)).len();
        let list: Vec<Attachment> = ["", "a\0b", "ü", "x"].iter().map(|name| attachment(name, 1)).collect();
        let list = [list, vec![attachment("later", 300)]].concat();
        for max in [100_000, 100, 7] {
            let rows = list_rows(&keys, "a", &leaf, &list, max);
            let rows: Vec<KeyValue> = rows.into_iter().map(|(key, value)| KeyValue { key, value }).collect();
            assert!(rows.iter().all(|row| row.value.len() <= max) && rows.is_sorted_by(|a, b| a.key < b.key));
            assert_eq!(read_list(prefix, &rows).unwrap(), list);
            let body = KeyValue { key: keys.key(DatabaseKey::Doc("a", &leaf)).into(), value: Bytes::new() };
            let all = [vec![body], rows.clone()].concat();
            assert_eq!(split_rows(prefix, &all).1, &rows[..]);
            assert_eq!(split_rows(prefix, &all[..1]).1.len(), 0);
            for lost in 0..rows.len().min(20) {
                let mut rows = rows.clone();
                rows.remove(lost);
                assert!(rows.is_empty() || read_list(prefix, &rows).is_err(), "{lost} of parts of {max}");
            }
        }
    }
}
