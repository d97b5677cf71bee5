//! A cluster for tests: the one in `FDB_CLUSTER_FILE`. Every fixture has a random prefix of its own, which is
//! cleared when the fixture ends, even by a panic.
//!
//! A killed run leaves its keys behind. In `fdbcli`, `clearrange` from `couch-layer test/` to `couch-layer test0`
//! removes them all.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::OnceLock;
use std::time::Duration;

use conformance::{Fixture, Harness, Missing};
use engine_fdb::{FdbDatabase, OpenOptions};
use futures_executor::block_on;
use kv_api::{Bytes, DatabaseExt, Error, RangeRequest, Transaction};

/// The cluster, opened once in a process.
///
/// # Errors
///
/// The missing thing: the variable, or an answer.
pub(crate) fn cluster() -> Result<FdbDatabase, Missing> {
    static CLUSTER: OnceLock<Result<FdbDatabase, Missing>> = OnceLock::new();
    let open = || {
        if std::env::var_os("FDB_CLUSTER_FILE").is_none_or(|file| file.is_empty()) {
            return Err(Missing::new("fdb", "FDB_CLUSTER_FILE names no FoundationDB cluster to test on"));
        }
        block_on(FdbDatabase::open(None)).map_err(|error| Missing::new("fdb", error.to_string()))
    };
    CLUSTER.get_or_init(open).clone()
}

/// Another handle of the same cluster, with watches and options of its own.
pub(crate) fn own_handle(database: &FdbDatabase) -> FdbDatabase {
    let cluster_file = Some(database.cluster_file().to_owned());
    // The cluster has answered before.
    let options = OpenOptions { cluster_file, first_answer: Duration::ZERO, ..OpenOptions::default() };
    block_on(FdbDatabase::open_with(options)).expect("the file was read before")
}

/// Bits that differ in each run.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}

/// A part of the cluster for one test, cleared when this is dropped.
///
/// Selectors that count beyond it meet a fence of keys that nobody writes, and so do not conflict with other
/// tests.
///
/// ```text
///   …test/NUMBER!00 … !15      …test/NUMBER/…      …test/NUMBER~00 … ~15
///   └ fence                    └ prefix            └ fence
/// ```
#[derive(Debug)]
pub(crate) struct Subspace {
    database: FdbDatabase,
    whole: String,
    prefix: Bytes,
}

/// More keys than any selector of a test counts.
const FENCE: usize = 16;

impl Subspace {
    /// A new one.
    pub(crate) fn new(database: &FdbDatabase) -> Self {
        let whole = format!("couch-layer test/{:016x}", random());
        let fenced = block_on(database.run(|tx, _| {
            for n in 0..FENCE {
                tx.set(format!("{whole}!{n:02}").as_bytes(), b"");
                tx.set(format!("{whole}~{n:02}").as_bytes(), b"");
            }
            std::future::ready(Ok::<_, Error>(()))
        }));
        fenced.expect("the cluster takes writes");
        let prefix = format!("{whole}/").into();
        Subspace { database: database.clone(), whole, prefix }
    }

    /// Prefix of all its keys.
    pub(crate) fn prefix(&self) -> &Bytes {
        &self.prefix
    }
}

impl Drop for Subspace {
    fn drop(&mut self) {
        let range = RangeRequest::prefix(self.whole.as_bytes());
        let cleared = block_on(self.database.run(|tx, _| {
            tx.clear_range(&range.begin.key, &range.end.key);
            std::future::ready(Ok::<_, Error>(()))
        }));
        if let Err(error) = cleared {
            eprintln!("{} stays in the cluster: {error}", self.whole);
        }
    }
}

/// Opens fixtures on the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FdbHarness;

impl Harness for FdbHarness {
    type Database = FdbDatabase;

    fn engine(&self) -> String {
        "engine-fdb".into()
    }

    fn missing(&self) -> Option<Missing> {
        cluster().err()
    }

    fn open(&self, scenario: &str) -> Fixture<FdbDatabase> {
        match cluster() {
            Ok(database) => {
                let subspace = Subspace::new(&database);
                Fixture::new(own_handle(&database)).shared(subspace.prefix().clone()).keep(subspace)
            }
            Err(missing) => panic!("{scenario}: {missing:?}"),
        }
    }
}
