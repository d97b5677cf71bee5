//! The tape on a server of its own.
//!
//! A tape needs a whole keyspace: its selectors count beyond the first and the last key. A shared cluster has
//! other keys there. Behind a prefix the selectors would be resolved first, which conflicts over more. So this
//! test starts its own server.
//!
//! ```text
//! CONFORMANCE_TAPES=1000 cargo test -p couch-layer-engine-fdb --test tape
//! ```

#[path = "support/server.rs"]
mod server;

use std::path::PathBuf;

use conformance::tape::{Run, run, run_pinned};
use conformance::{Fixture, Harness};
use engine_fdb::FdbDatabase;
use futures_executor::block_on;
use kv_api::{DatabaseExt, Error, Transaction};

use server::LocalServer;

/// A cluster for one test. Each fixture starts with an empty keyspace.
#[derive(Clone)]
struct Whole {
    cluster_file: PathBuf,
}

impl Whole {
    fn empty(&self) -> Result<FdbDatabase, Error> {
        block_on(async {
            let database = FdbDatabase::open(Some(&self.cluster_file)).await?;
            database
                .run(|tx, _| {
                    tx.clear_range(b"", b"\xff");
                    std::future::ready(Ok::<_, Error>(()))
                })
                .await?;
            Ok(database)
        })
    }
}

impl Harness for Whole {
    type Database = FdbDatabase;

    fn engine(&self) -> String {
        "engine-fdb".into()
    }

    fn open(&self, scenario: &str) -> Fixture<FdbDatabase> {
        match self.empty() {
            Ok(database) => Fixture::new(database),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}

#[test]
fn tapes_agree_with_the_oracle() {
    let server = match LocalServer::start() {
        Ok(server) => server,
        Err(missing) => return missing.skip("tapes on FoundationDB"),
    };
    let harness = Whole { cluster_file: server.cluster_file() };
    run_pinned(&harness);
    run(&harness, Run::short(40));
}
