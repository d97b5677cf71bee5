//! The program without a FoundationDB cluster: it prints one message within seconds, and ends cleanly. The test needs
//! the client library and no server.

#![cfg(feature = "fdb")]

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a command that must fail before it does anything. Returns its message.
fn refused(arguments: &[&str], cluster_file: Option<&Path>) -> String {
    let sentence = failed(arguments, cluster_file);
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    assert!(sentence.starts_with("couch-layer: "), "{sentence}");
    sentence
}

/// The same for a command that also logs.
fn failed(arguments: &[&str], cluster_file: Option<&Path>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    // The loader may need this to find the client library.
    let library_path = std::env::var_os("LD_LIBRARY_PATH").map(|path| ("LD_LIBRARY_PATH", path));
    command.args(arguments).env_clear().envs(library_path).stdin(Stdio::null());
    if let Some(file) = cluster_file {
        command.env("FDB_CLUSTER_FILE", file);
    }
    let output = command.output().unwrap();
    let sentence = String::from_utf8(output.stderr).unwrap();
    // It ended by itself, not by a signal, so the client's thread was stopped first.
    assert_eq!(output.status.code(), Some(1), "{sentence}");
    assert!(output.stdout.is_empty());
    assert!(!sentence.contains("panicked"), "{sentence}");
    sentence
}

/// The commands that open a store themselves.
fn commands(engine: &str) -> [Vec<&str>; 3] {
    [
        vec!["serve", "--listen", "127.0.0.1:0", "--wait-for-store", "2s", "--engine", engine],
        vec!["check", "db", "--engine", engine],
        vec!["export", "db", "--engine", engine],
    ]
}

#[test]
fn a_missing_cluster_file_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    for command in commands(&format!("fdb:{}", file.display())) {
        let sentence = refused(&command, None);
        assert!(sentence.contains(&format!("no cluster file at {}", file.display())), "{sentence}");
    }
    let sentence = refused(&commands("fdb:")[0], Some(&file));
    assert!(sentence.contains(&format!("no cluster file at {}", file.display())), "{sentence}");
}

#[test]
fn an_unreachable_cluster_is_one_sentence_and_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(&file, format!("test:test@{free}\n")).unwrap();
    for command in commands(&format!("fdb:{}?prefix=a", file.display())) {
        let sentence = refused(&command, None);
        assert!(sentence.contains("no answer within"), "{sentence}");
        assert!(sentence.contains(&format!("fdbcli -C {} --exec status", file.display())), "{sentence}");
    }
}

#[test]
fn a_server_that_waits_for_its_cluster_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(&file, format!("test:test@{free}\n")).unwrap();
    let engine = format!("fdb:{}", file.display());
    let said = failed(&["serve", "--listen", "127.0.0.1:0", "--wait-for-store", "7s", "--engine", &engine], None);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("no answer from the FoundationDB cluster yet; waiting for up to 7 s"), "{said}");
    assert!(lines[1].starts_with("couch-layer: no answer within 7 s"), "{said}");
}

#[test]
fn a_file_that_names_no_cluster_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    std::fs::write(&file, "not a cluster\n").unwrap();
    let sentence = refused(&commands(&format!("fdb:{}", file.display()))[0], None);
    assert!(sentence.contains("names no cluster"), "{sentence}");
}
