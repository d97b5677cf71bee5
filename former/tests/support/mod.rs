//! Folders that are packed as one file each, and the rows in them.

pub(crate) mod packed;

use std::collections::BTreeMap;

use kv_api::Bytes;
use occ::Random;

/// Rows of the user.
pub(crate) type Model = BTreeMap<Bytes, Bytes>;

/// One commit: ranges to clear, then rows to write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commit {
    pub(crate) clears: Vec<(Bytes, Bytes)>,
    pub(crate) rows: Vec<(Bytes, Option<Bytes>)>,
}

impl Commit {
    pub(crate) fn apply(&self, model: &mut Model) {
        for (begin, end) in &self.clears {
            model.retain(|key, _| key < begin || key >= end);
        }
        for (key, value) in &self.rows {
            match value {
                Some(value) => drop(model.insert(key.clone(), value.clone())),
                None => drop(model.remove(key)),
            }
        }
    }
}

/// Of few, with the empty one and some of NULs.
fn key(random: &Random) -> Bytes {
    match random.next() % 12 {
        0 => vec![0; (random.next() % 4) as usize].into(),
        1 => vec![0, 0, (random.next() % 3) as u8].into(),
        _ => format!("{:03}", random.next() % 300).into(),
    }
}

/// Values of up to 700 bytes, some larger. Few are incompressible, since the folders are in the repository.
fn value(random: &Random) -> Bytes {
    let length = match random.next() % 16 {
        0 => random.next() % 9_000,
        _ => random.next() % 700,
    };
    match random.next() % 40 {
        0 => (0..length).map(|_| random.next() as u8).collect::<Vec<u8>>().into(),
        _ => vec![random.next() as u8; length as usize].into(),
    }
}

/// Rows that are cleared together in one of the folders.
const BULK: u32 = 9_000;

/// The commits of a folder, in order.
///
/// With `bulk`, the last commits clear very many rows, and write a few of them again.
pub(crate) fn commits(seed: u64, count: usize, bulk: bool) -> Vec<Commit> {
    let random = Random::new(seed);
    let mut commits = Vec::new();
    let bulk_key = |n: u32| Bytes::from(format!("bulk/{n:05}"));
    if bulk {
        let rows = (0..BULK).map(|n| (bulk_key(n), Some(Bytes::from(n.to_string()))));
        commits.push(Commit { rows: rows.collect(), ..Commit::default() });
    }
    for _ in 0..count {
        let mut commit = Commit::default();
        for _ in 0..=random.next() % 12 {
            match random.next() % 10 {
                0 => {
                    let (one, other) = (key(&random), key(&random));
                    if one != other {
                        commit.clears.push((one.clone().min(other.clone()), one.max(other)));
                    }
                }
                1..=3 => commit.rows.push((key(&random), None)),
                _ => commit.rows.push((key(&random), Some(value(&random)))),
            }
        }
        commits.push(commit);
    }
    if bulk {
        let rows = (0..3).map(|n| (bulk_key(n * 2_000 + 7), Some(Bytes::from_static(b"again"))));
        commits.push(Commit { clears: vec![("bulk/".into(), "bulk0".into())], rows: rows.collect() });
    }
    commits
}
