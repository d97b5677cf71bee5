//! Random histories of edits in databases that move through every engine of this build.

#![cfg(all(feature = "mem", feature = "redb", feature = "sled"))]

use kv_api::AnyDatabase;
use model_suite::tape;
use server::engine::{IfMissing, open};
use tempfile::TempDir;

/// Memory, redb, sled, memory.
fn stores() -> (Vec<AnyDatabase>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let named = |name: &str| format!("{name}:{}", folder.path().join(name).display());
    let urls = ["mem:".to_owned(), named("redb"), named("sled"), "mem:".to_owned()];
    let open = |url: String| open(&url.parse().expect("a URL"), IfMissing::Create).expect("a store");
    (urls.map(open).into(), folder)
}

#[test]
fn random_edits_of_databases_that_move_agree_with_the_oracle() {
    tape::run_relocating(stores, tape::exploded(2));
}

#[test]
fn random_edits_of_databases_that_move_through_faults_agree_with_the_oracle() {
    tape::run_relocating(stores, tape::packed(2).through_faults());
}
