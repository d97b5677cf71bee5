//! Clusters that do not exist, cannot be named, or do not answer. Each gives an error within seconds that says what was
//! tried. Needs the client library, but no server.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use engine_fdb::{FdbDatabase, OpenOptions};
use futures_executor::block_on;
use kv_api::{Error, error};

fn refused(file: &Path) -> Error {
    let options =
        OpenOptions { cluster_file: Some(file.into()), first_answer: Duration::from_secs(1), ..OpenOptions::default() };
    block_on(FdbDatabase::open_with(options)).unwrap_err()
}

#[track_caller]
fn says(error: &Error, code: i32, words: &[&str]) {
    assert_eq!(error.code(), code, "{error}");
    for word in words {
        assert!(error.context().unwrap_or_default().contains(word), "{word:?} is not in: {error}");
    }
}

#[test]
fn a_cluster_file_that_is_not_there_is_1515() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    says(&refused(&file), error::NO_CLUSTER_FILE_FOUND, &[file.to_str().unwrap(), "FDB_CLUSTER_FILE"]);
    assert!(!file.exists());
}

#[test]
fn a_cluster_file_that_cannot_be_read_is_1513() {
    let folder = tempfile::tempdir().unwrap();
    // A folder cannot be read by any user, root included.
    says(&refused(folder.path()), error::FILE_NOT_READABLE, &[folder.path().to_str().unwrap(), "cannot be read"]);
}

#[test]
fn a_file_that_names_no_cluster_is_2104() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    for text in ["", "no cluster at all\n", "a:b@\n", "a:b@127.0.0.1\n"] {
        std::fs::write(&file, text).unwrap();
        says(&refused(&file), error::CONNECTION_STRING_INVALID, &[file.to_str().unwrap(), "names no cluster"]);
    }
}

#[test]
fn a_cluster_that_does_not_answer_is_1031_and_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    // A port without a listener, and one whose listener never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [free, silent.local_addr().unwrap()] {
        std::fs::write(&file, format!("test:test@{address}\n")).unwrap();
        let error = refused(&file);
        let check = format!("fdbcli -C {} --exec status", file.display());
        says(&error, error::TRANSACTION_TIMED_OUT, &["no answer within 1 s", &check]);
    }
}
