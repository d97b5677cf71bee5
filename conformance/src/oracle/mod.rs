//! The oracle of the tape: FoundationDB's semantics, written as plainly as possible.
//!
//! Deliberately naive, so that it can be checked by reading. Every commit keeps a full copy of the map and the
//! list of ranges that it wrote. A transaction keeps a log of its writes, and replays it over a full copy for
//! every read. The oracle shares no code with any engine.
//!
//! ```text
//!   commits   version 10 {a=1}   [a, a·)      transaction   read version 10
//!             version 12 {a=1 b=2}  [b, b·)                 log: set c, clear [a, b)
//!                                                           read conflicts: [b, d)
//!   a commit checks its read conflicts against the ranges of every version after its read version
//! ```
//!
//! Versions and stamps are the engine's, and the tape passes them in. One thing is left open on purpose: where
//! exactly a range read that crosses pending versionstamps stops.
//!
//! Source: the files named by the scenarios, above all `ReadYourWrites.actor.cpp`.

mod atomic;
mod transaction;

use std::collections::BTreeMap;

use kv_api::{Result, Versionstamp, error};

pub use transaction::{Ends, OracleTransaction, Row};

/// Keys and values.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A range of keys: its first key, and the first key beyond it.
pub type Range = (Vec<u8>, Vec<u8>);

/// The end of the keyspace.
const END: &[u8] = b"\xff";

fn key_after(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

fn point(key: &[u8]) -> Range {
    (key.to_vec(), key_after(key))
}

fn overlap(a: &Range, b: &Range) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// `ranges` without `taken`.
fn subtract(ranges: &[Range], taken: &Range) -> Vec<Range> {
    let mut left = Vec::new();
    for (begin, end) in ranges {
        for part in [(begin.clone(), end.min(&taken.0).clone()), (begin.max(&taken.1).clone(), end.clone())] {
            if part.0 < part.1 && !left.contains(&part) {
                left.push(part);
            }
        }
    }
    left
}

struct Commit {
    version: i64,
    map: Map,
    wrote: Vec<Range>,
}

/// The database.
#[derive(Default)]
pub struct Oracle {
    commits: Vec<Commit>,
}

impl Oracle {
    /// The map as it was at `version`.
    pub fn at(&self, version: i64) -> Map {
        self.commits
            .iter()
            .rfind(|commit| commit.version <= version)
            .map(|commit| commit.map.clone())
            .unwrap_or_default()
    }

    /// The version of the newest commit; 0 before the first.
    pub fn newest(&self) -> i64 {
        self.commits.last().map_or(0, |commit| commit.version)
    }

    /// The version of the commit that was `back` commits before the newest, if there is one.
    pub fn version(&self, back: usize) -> Option<i64> {
        self.commits.iter().rev().nth(back).map(|commit| commit.version)
    }

    /// The value of `key` at `version`, and after each later commit.
    pub fn values_since(&self, version: i64, key: &[u8]) -> Vec<Option<Vec<u8>>> {
        let later = self.commits.iter().filter(|commit| commit.version > version);
        let values = later.map(|commit| commit.map.get(key).cloned());
        std::iter::once(self.at(version).get(key).cloned()).chain(values).collect()
    }

    /// The required answer to a commit of `transaction`: whether it gets a commit version, or its error.
    pub fn judge(&self, transaction: &OracleTransaction) -> Result<bool> {
        transaction.may_commit()?;
        if !transaction.writes() {
            return Ok(false);
        }
        // Without a read version the commit reads at the newest version: nothing can have been written since.
        let read_version = transaction.read_version.unwrap_or(i64::MAX);
        let conflict = self
            .commits
            .iter()
            .filter(|commit| commit.version > read_version)
            .flat_map(|commit| &commit.wrote)
            .any(|wrote| transaction.read_conflicts.iter().any(|read| overlap(read, wrote)));
        if conflict { Err(error::NOT_COMMITTED.into()) } else { Ok(true) }
    }

    /// Applies the writes of a transaction that the engine has committed with this stamp.
    pub fn commit(&mut self, transaction: &OracleTransaction, version: i64, stamp: Versionstamp) {
        let mut map = self.at(i64::MAX);
        let stamped_keys = transaction.apply(&mut map, Some(stamp));
        let mut wrote = transaction.write_conflicts.clone();
        wrote.extend(stamped_keys.iter().map(|key| point(key)));
        self.commits.push(Commit { version, map, wrote });
    }
}
