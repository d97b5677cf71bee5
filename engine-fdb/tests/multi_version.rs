//! The multi-version client, with which clients survive an upgrade of their cluster. It loads further client libraries
//! when the network starts, so the test runs itself again, with the variable that names one.

#![cfg(target_os = "linux")]

mod support;

use std::process::Command;

use engine_fdb::stop_network;
use futures_executor::block_on;
use kv_api::{DatabaseExt, Read, Transaction};

use support::{Subspace, cluster};

const LIBRARY: &str = "FDB_NETWORK_OPTION_EXTERNAL_CLIENT_LIBRARY";

#[test]
fn a_cluster_is_opened_through_the_multi_version_client() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => {
            // Its first answer is 1039, which must not end the opening.
            assert!(std::env::var_os(LIBRARY).is_none(), "{missing:?}");
            return missing.skip("the multi-version client");
        }
    };
    if std::env::var_os(LIBRARY).is_some() {
        let subspace = Subspace::new(&database);
        let key = [subspace.prefix(), b"key".as_slice()].concat();
        let found = block_on(database.run(|tx, _| {
            tx.set(&key, b"value");
            tx.get(&key, Read::Serializable)
        }));
        assert_eq!(found.unwrap().as_deref(), Some(b"value".as_slice()));
        drop(subspace);
        drop(database);
        return stop_network();
    }
    // A copy of the library that this process runs with.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.split_whitespace().find(|word| word.contains("libfdb_c")).expect("the library is loaded");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libfdb_c_external.so");
    std::fs::copy(library, &copy).unwrap();
    let again = Command::new(std::env::current_exe().unwrap()).env(LIBRARY, &copy).output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&again.stderr));
}
