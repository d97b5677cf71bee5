//! The conformance suite on a cluster: the engine, every wrapper around it, and the engine beside the one in
//! memory. (The tapes need a whole keyspace, and so a server of their own: `tape.rs`.)
//!
//! Time is real: scenarios about the window of five seconds wait. A test mostly waits, so run many at a time:
//!
//! ```text
//! FDB_CLUSTER_FILE=/etc/foundationdb/fdb.cluster cargo test -p couch-layer-engine-fdb -- --test-threads=16
//! ```

mod support;

use conformance::mirror::Mirror;
use conformance::wrappers::run_on_one_thread;
use conformance::{Fixture, Harness, Missing};
use engine_fdb::FdbDatabase;
use engine_mem::MemDatabase;
use kv_api::Prefixed;

use support::{FdbHarness, Subspace, cluster};

conformance::suite!(FdbHarness);

mod prefixed {
    conformance::suite!(conformance::wrappers::prefixed(super::FdbHarness));
}

mod counted {
    conformance::suite!(conformance::wrappers::counted(super::FdbHarness));
}

mod boxed {
    conformance::suite!(conformance::wrappers::boxed(super::FdbHarness));
}

mod chaos_at_rate_zero {
    conformance::suite!(conformance::wrappers::calm(super::FdbHarness));
}

/// The cluster and the engine in memory as one. Both use the same prefix, so each has only the scenario's keys and
/// the same limits. Both use real time.
#[derive(Clone, Copy)]
struct BesideMemory;

impl Harness for BesideMemory {
    type Database = Mirror<Prefixed<FdbDatabase>, Prefixed<MemDatabase>>;

    fn engine(&self) -> String {
        "engine-fdb mirrored by engine-mem".into()
    }

    fn missing(&self) -> Option<Missing> {
        cluster().err()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        let database = match cluster() {
            Ok(database) => database,
            Err(missing) => panic!("{scenario}: {missing:?}"),
        };
        let subspace = Subspace::new(&database);
        let cluster = Prefixed::new(database, subspace.prefix().clone());
        let memory = Prefixed::new(MemDatabase::new(), subspace.prefix().clone());
        Fixture::new(Mirror::new(cluster, memory)).keep(subspace)
    }
}

#[test]
fn a_mirror_in_memory_passes_what_one_thread_can_ask() {
    run_on_one_thread(&BesideMemory);
}
