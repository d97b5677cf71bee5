//! Records tapes on a cluster for `conformance/tapes`. Not a test; run it by hand.
//!
//! ```text
//! FDB_CLUSTER_FILE=/etc/foundationdb/fdb.cluster RECORD_VERSION=7.3.77 \
//!     cargo test -p couch-layer-engine-fdb --test record -- --ignored --nocapture
//! ```
//!
//! `RECORD_VERSION` is the version from `fdbserver --version`. `RECORD_SEED`, `RECORD_TAPES` and `RECORD_LENGTH`
//! select other tapes than the first twelve of 150 instructions. The cluster should be idle: a tape with
//! transactions older than five seconds is started again.

mod support;

use std::path::Path;

use conformance::recorded::{Unfit, record};
use futures_executor::block_on;
use kv_api::Prefixed;

use support::{Subspace, cluster};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
#[ignore = "it writes files for conformance/tapes: see the module"]
fn tapes_are_recorded() {
    let database = cluster().unwrap_or_else(|missing| panic!("{missing:?}"));
    let version = std::env::var("RECORD_VERSION").expect("RECORD_VERSION is what `fdbserver --version` says");
    let (first, tapes) = (number("RECORD_SEED", 1), number("RECORD_TAPES", 12));
    let length = usize::try_from(number("RECORD_LENGTH", 150)).expect("a length");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/tapes");
    for seed in first..first + tapes {
        let mut attempts = (1..=10).map(|_| {
            let subspace = Subspace::new(&database);
            let place = Prefixed::new(database.clone(), subspace.prefix().clone());
            block_on(record(&place, "FoundationDB", &version, seed, length))
        });
        let recording = attempts.find(|outcome| !matches!(outcome, Err(Unfit::Disturbed(_) | Unfit::Crowded(_))));
        let recording = match recording {
            Some(Ok(recording)) => recording,
            Some(Err(unfit)) => panic!("seed {seed}: {unfit}"),
            None => panic!("seed {seed}: disturbed in every attempt; is the cluster busy?"),
        };
        let path = folder.join(format!("foundationdb-{version}-{seed:04}.tape"));
        std::fs::write(&path, recording.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!("{}", path.display());
    }
}
