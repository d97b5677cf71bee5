//! The network thread: one in a process, and stopped for good. A test program of its own, since it cannot be
//! started again.

use std::time::Duration;

use engine_fdb::{FdbDatabase, OpenOptions, stop_network};
use futures_executor::block_on;
use kv_api::{Database, Read, Transaction, error};

#[test]
fn the_network_starts_once_and_stops_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    std::fs::write(&file, "test:test@127.0.0.1:1\n").unwrap();
    let open = || {
        let options =
            OpenOptions { cluster_file: Some(file.clone()), first_answer: Duration::ZERO, ..OpenOptions::default() };
        block_on(FdbDatabase::open_with(options))
    };
    let handles: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    // A read that is never answered. It must not keep the thread from ending.
    let transaction = handles[0].begin().unwrap();
    let _under_way = transaction.get(b"key", Read::Serializable);
    stop_network();
    stop_network();
    assert_eq!(open().unwrap_err().code(), error::SHUTDOWN_IN_PROGRESS);
}
