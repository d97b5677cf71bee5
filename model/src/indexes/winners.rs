//! Reads the parts of consecutive documents that a build needs.
//!
//! | bodies | what is read |
//! |---|---|
//! | exploded | the rows of the indexes' fields (RFC 004): by key, and also below it if that row is missing |
//! | packed | one range over the bodies, which follow each other in the store like the documents |
//!
//! A scalar is the row at the field's own key. Only if that row is missing, the metadata and the rows below it are
//! read: the field may be an object, an array or a long string, or missing, or the body is packed.
//!
//! If this is not enough, the whole body is read when its turn comes. That happens if an exploded database has packed
//! bodies, if the order of an object's members is stored with the whole body, or if a packed database has very long
//! bodies or many bodies of losing leaves.
//!
//! Single members have no checksum. Damage elsewhere in the document is not noticed, and its index rows are correct.

use std::future::Future;

use bytes::Bytes;
use kv_api::{KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use mango::Index;

use crate::error::Result;
use crate::keys::{BEYOND, DatabaseKey, DatabaseKeys, Leaf, end_of};
use crate::limits::DESIGN_PREFIX;
use crate::read::all_docs::read_winner;
use crate::read::batch::{BATCH_BYTES, FIRST_BYTES};
use crate::read::document::Body;
use crate::read::winner::{body_of, corrupt_at, decode};
use crate::rows::body::{BodyFormat, RevisionMetadata, decode_members, is_in_order};
use crate::rows::tuple;

/// Maximum number of members. For more, reading the body is cheaper.
const MAX_MEMBERS: usize = 20;

/// Maximum number of rows that are read for each packed body. Bodies of losing leaves lie between those of winners.
const ROWS_OF_PACKED: usize = 4;

/// The parts of documents that indexes need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The body, which is probably packed.
    Packed,
    /// All of the body.
    Body,
    /// The members at these keys below the key of an exploded body, in key order.
    Members(Vec<Vec<u8>>),
}

impl Needs {
    pub(super) fn of<'i>(format: BodyFormat, indexes: impl Iterator<Item = &'i Index>) -> Needs {
        if format == BodyFormat::Packed {
            return Needs::Packed;
        }
        let Some(parts) = Index::parts(indexes).filter(|parts| parts.len() <= MAX_MEMBERS) else { return Needs::Body };
        let suffix = |path: &[String]| {
            let mut suffix = Vec::new();
            path.iter().for_each(|name| tuple::append_str(&mut suffix, name));
            suffix
        };
        let mut members: Vec<Vec<u8>> = parts.into_iter().map(suffix).collect();
        members.sort_unstable();
        Needs::Members(members)
    }
}

/// A document of a listing.
pub(super) struct Listed<F> {
    pub(super) id: String,
    /// `None` for design documents, and if the listing cannot be read: a repair repairs it, and writes the rows.
    pub(super) winner: Option<Winner<F>>,
}

/// A winner that may have rows in indexes.
pub(super) struct Winner<F> {
    pub(super) leaf: Leaf,
    /// Its id row.
    pub(super) indexed: Option<Bytes>,
    pub(super) body: Wanted<F>,
}

/// The parts of a body that the indexes need.
pub(super) enum Wanted<F> {
    /// It was read; `None` if the body has no rows.
    Read(Result<Option<Body>>),
    /// It is read when its turn comes.
    Later(F),
}

/// A body that is being read.
struct Reading {
    key: Bytes,
    /// The rows of members: each is the suffix of its key, and its value.
    rows: Vec<(Bytes, Bytes)>,
    /// The parts that were read, or the error of this document. `None` if the body is read as a whole.
    body: Option<Result<Option<Body>>>,
}

/// Reads what the indexes need of the documents in these rows of the listing.
pub(super) async fn read_winners<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    longest_key: usize,
    needs: &Needs,
    listing: &[KeyValue],
) -> Result<Vec<Listed<impl Future<Output = Result<Option<Body>>> + Send + use<T>>>> {
    let mut listed = Vec::with_capacity(listing.len());
    for row in listing {
        let id = keys.read_all_doc(&row.key)?;
        let rev = read_winner(&row.value).ok().filter(|_| !id.starts_with(DESIGN_PREFIX));
        listed.push((id, rev.map(|rev| Leaf { not_deleted: true, rev })));
    }
    let winners = || listed.iter().filter_map(|(id, leaf)| Some((id.as_str(), leaf.as_ref()?)));
    let (Some((first, _)), Some((last, _))) = (winners().next(), winners().next_back()) else {
        return Ok(listed.into_iter().map(|(id, _)| Listed { id, winner: None }).collect());
    };
    let id_rows =
        RangeRequest::keys(keys.key(DatabaseKey::Indexed(first)), end_of(&keys.key(DatabaseKey::Indexed(last))));
    let id_rows = transaction.get_all(id_rows, Read::Snapshot);
    let reading =
        |(id, leaf)| Reading { key: keys.key(DatabaseKey::Doc(id, leaf)).into(), rows: Vec::new(), body: None };
    let mut bodies: Vec<Reading> = winners().map(reading).collect();
    match needs {
        Needs::Packed => read_packed(transaction, &mut bodies).await?,
        Needs::Body => {}
        Needs::Members(members) => read_members(transaction, longest_key, members, &mut bodies).await?,
    }
    let mut id_rows = id_rows.await?.into_iter().peekable();
    let mut bodies = bodies.into_iter();
    let mut found = Vec::with_capacity(listed.len());
    for (id, leaf) in listed {
        let winner = match leaf {
            None => None,
            Some(leaf) => {
                let key = keys.key(DatabaseKey::Indexed(&id));
                while id_rows.next_if(|row| row.key[..] < key[..]).is_some() {}
                let indexed = id_rows.next_if(|row| row.key == key).map(|row| row.value);
                let body = match bodies.next().and_then(|reading| reading.body) {
                    Some(body) => Wanted::Read(body),
                    None => Wanted::Later(body_of(transaction, keys, &id, &leaf)),
                };
                Some(Winner { leaf, indexed, body })
            }
        };
        found.push(Listed { id, winner });
    }
    Ok(found)
}

/// Reads one range over bodies that are probably packed.
async fn read_packed<T: Transaction>(transaction: &T, bodies: &mut [Reading]) -> Result<()> {
    let (Some(first), Some(last)) = (bodies.first(), bodies.last()) else { return Ok(()) };
    let range = RangeRequest::keys(first.key.clone(), end_of(&last.key));
    let range = range.limit(ROWS_OF_PACKED * bodies.len()).target_bytes(BATCH_BYTES);
    let batch = transaction.get_range(&range, Read::Snapshot).await?;
    let mut rest = &batch.rows[..];
    for reading in bodies {
        rest = &rest[rest.partition_point(|row| row.key < reading.key)..];
        let is_own = |row: &KeyValue| {
            row.key.strip_prefix(&reading.key[..]).is_some_and(|suffix| suffix.first() != Some(&BEYOND))
        };
        let (own, behind) = rest.split_at(rest.partition_point(is_own));
        if behind.is_empty() && batch.more {
            return Ok(());
        }
        let body = if own.is_empty() { Ok(None) } else { decode(&reading.key, own).map(Some) };
        reading.body = Some(body);
        rest = behind;
    }
    Ok(())
}

/// Reads these members of bodies that are probably exploded.
async fn read_members<T: Transaction>(
    transaction: &T,
    longest_key: usize,
    members: &[Vec<u8>],
    bodies: &mut [Reading],
) -> Result<()> {
    let place = |reading: &Reading, member: &[u8]| [&reading.key[..], member].concat();
    let fits = |reading: &Reading, member: &[u8]| reading.key.len() + member.len() < longest_key;
    // Scalars.
    let scalars: Vec<Vec<_>> = bodies
        .iter()
        .map(|reading| {
            let get = |member: &Vec<u8>| transaction.get(&place(reading, member), Read::Snapshot);
            members.iter().map(|member| fits(reading, member).then(|| get(member))).collect()
        })
        .collect();
    let mut missing: Vec<Vec<&Vec<u8>>> = Vec::with_capacity(bodies.len());
    for (reading, reads) in bodies.iter_mut().zip(scalars) {
        let mut none = Vec::new();
        for (member, read) in members.iter().zip(reads) {
            let value = match read {
                Some(read) => read.await?,
                None => None,
            };
            match value {
                Some(value) => reading.rows.push((Bytes::copy_from_slice(member), value)),
                None => none.push(member),
            }
        }
        missing.push(none);
    }
    // The others: all of these reads are issued before one is awaited.
    let others: Vec<_> = bodies
        .iter()
        .zip(&missing)
        .map(|(reading, missing)| {
            let range = |member: &Vec<u8>| {
                let begin = place(reading, member);
                let range = RangeRequest::keys(begin.clone(), end_of(&begin)).target_bytes(FIRST_BYTES / MAX_MEMBERS);
                (begin.len(), transaction.get_range(&range, Read::Snapshot))
            };
            let needs_metadata = members.is_empty() || !missing.is_empty();
            needs_metadata.then(|| {
                let below: Vec<_> =
                    missing.iter().filter(|member| fits(reading, member)).map(|one| range(one)).collect();
                (transaction.get(&reading.key, Read::Snapshot), below)
            })
        })
        .collect();
    for (reading, others) in bodies.iter_mut().zip(others) {
        if let Some((metadata, below)) = others {
            let metadata = metadata.await?;
            let Some(metadata) = &metadata else {
                reading.body = Some(Ok(None));
                continue;
            };
            let metadata = match RevisionMetadata::read(metadata) {
                Ok(metadata) => metadata,
                Err(error) => {
                    reading.body = Some(Err(corrupt_at(&reading.key, error)));
                    continue;
                }
            };
            let mut is_enough = metadata.format() == BodyFormat::Exploded;
            for (length, below) in below {
                let below = below.await?;
                let suffixes: Vec<(&[u8], &[u8])> =
                    below.rows.iter().map(|row| (&row.key[length..], &row.value[..])).collect();
                is_enough &= !below.more && (suffixes.is_empty() || is_in_order(&metadata, &suffixes));
                let begin = reading.key.len();
                reading.rows.extend(below.rows.into_iter().map(|row| (row.key.slice(begin..), row.value)));
            }
            if !is_enough {
                continue;
            }
            reading.rows.sort_unstable();
        }
        let rows: Vec<(&[u8], &[u8])> = reading.rows.iter().map(|(suffix, value)| (&suffix[..], &value[..])).collect();
        let text = decode_members(&rows).map_err(|error| corrupt_at(&reading.key, error));
        reading.body = Some(text.map(|text| Some(Body { text, attachments: Vec::new() })));
    }
    Ok(())
}
