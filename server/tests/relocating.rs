//! Random histories of edits in databases that move through every engine of this build.

#![cfg(all(feature = "mem", feature = "lsm", feature = "sled"))]

mod program;

use kv_api::AnyDatabase;
use model_suite::tape;
use server::engine::{IfMissing, open};
use tempfile::TempDir;

/// Memory, lsm, sled, another lsm, memory.
fn stores() -> (Vec<AnyDatabase>, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let named = |engine: &str, name: &str| format!("{engine}:{}", folder.path().join(name).display());
    let urls = ["mem:".to_owned(), named("lsm", "a"), named("sled", "b"), named("lsm", "c"), "mem:".to_owned()];
    let open = |url: String| open(&url.parse().expect("a URL"), IfMissing::Create).expect("a store");
    (urls.map(open).into(), folder)
}

#[test]
fn random_edits_of_databases_that_move_agree_with_the_oracle() {
    tape::run_relocating(stores, tape::exploded(2));
    tape::run_relocating(stores, tape::packed(1).where_the_last_write_wins());
}

#[test]
fn random_edits_of_databases_that_move_through_faults_agree_with_the_oracle() {
    tape::run_relocating(stores, tape::packed(2).through_faults());
}

/// The same with a FoundationDB cluster, if there is one.
#[cfg(feature = "fdb")]
mod cluster {
    use kv_api::{AnyDatabase, Database, Transaction};
    use model_suite::tape;
    use server::engine::{IfMissing, open};

    /// Stores in a cluster, which are cleared when this is dropped.
    struct Emptied(Vec<AnyDatabase>);

    impl Drop for Emptied {
        fn drop(&mut self) {
            conformance::block_on(async {
                for store in &self.0 {
                    let transaction = store.begin().expect("a transaction");
                    // The keys under the store's prefix. The store sees only these.
                    transaction.clear_range(b"", b"\xff");
                    transaction.commit().await.expect("an empty store");
                }
            });
        }
    }

    #[test]
    fn random_edits_of_databases_that_move_through_a_cluster_agree_with_the_oracle() {
        let Ok(file) = std::env::var("FDB_CLUSTER_FILE") else {
            let missing = conformance::Missing::new("fdb", "FDB_CLUSTER_FILE names no cluster file");
            return missing.skip("relocation through a cluster");
        };
        let stores = || {
            let folder = tempfile::tempdir().expect("a folder");
            // The folder's name is unique.
            let own = folder.path().file_name().expect("a name").to_string_lossy().into_owned();
            let local = |name: &str| format!("{name}:{}", folder.path().join(name).display());
            let shared = |name: &str| format!("fdb:{file}?prefix=couch-layer%20tests/{own}/{name}/");
            let urls = [local("sled"), shared("one"), local("lsm"), shared("two"), shared("three")];
            let open = |url: String| open(&url.parse().expect("a URL"), IfMissing::Create).expect("a store");
            let stores = urls.map(open);
            let emptied = Emptied(vec![stores[1].clone(), stores[3].clone(), stores[4].clone()]);
            (Vec::from(stores), (emptied, folder))
        };
        tape::run_relocating(stores, tape::exploded(1));
        tape::run_relocating(stores, tape::packed(1).through_faults());
        // The client's thread must end before the process does.
        server::engine::shut_down();
    }
}

/// The command, as a process.
mod command {
    use std::path::Path;
    use std::process::{Command, Output, Stdio};
    use std::time::Duration;

    use serde_json::Value;

    use crate::program::{self, program};

    fn couch_layer(arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(arguments: &[&str]) -> Output {
        program::run(arguments, "")
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).expect("UTF-8")
    }

    #[track_caller]
    fn succeed(arguments: &[&str]) -> String {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    #[track_caller]
    fn refused(arguments: &[&str]) -> String {
        let output = run(arguments);
        let sentence = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {sentence}");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        sentence
    }

    /// A folder with a database of documents in `sled:FOLDER/old`; the URLs of that store and of another.
    fn filled(engine: &str, folder: &Path, documents: usize) -> (String, String) {
        let old = format!("{engine}:{}", folder.join("old").display());
        let lines: String = (0..documents)
            .map(|n| format!("{{\"_id\":\"doc-{n:05}\",\"n\":{n},\"text\":\"{}\"}}\n", "x".repeat(n % 300)))
            .collect();
        let file = folder.join("documents.jsonl");
        std::fs::write(&file, lines).expect("a file");
        succeed(&["import", "db", file.to_str().expect("UTF-8"), "--engine", &old]);
        (old, format!("lsm:{}", folder.join("new").display()))
    }

    #[test]
    fn a_database_moves_between_two_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("the folder");
        let (old, new) = filled("sled", &folder, 1_200);
        let exported = succeed(&["export", "db", "--engine", &old]);
        let feed = succeed(&["changes", "db", "--engine", &old]);

        let moved = succeed(&["relocate", "db", "--from", &old, "--to", &new, "--verify", "--json"]);
        let moved: Value = serde_json::from_str(&moved).expect("JSON");
        assert_eq!((&moved["moved"], &moved["documents"]), (&Value::from(true), &Value::from(1_200)), "{moved}");
        assert_eq!((&moved["incarnation"], &moved["to"]), (&Value::from(1), &Value::from(new.as_str())), "{moved}");
        let verified = &moved["verified"];
        assert_eq!((&verified["documents"], &verified["difference_count"]), (&1_200.into(), &0.into()), "{moved}");

        assert_eq!(succeed(&["export", "db", "--engine", &new]), exported);
        assert_eq!(succeed(&["changes", "db", "--engine", &new]), feed, "old sequences stay");
        for store in [&old, &new] {
            assert!(succeed(&["check", "db", "--engine", store]).contains("everything agrees"));
        }
        let messages = text(&run(&["check", "db", "--engine", &old]).stderr);
        assert!(messages.contains(&format!("has moved to {new}")), "{messages}");
        let sentence = refused(&["export", "db", "--engine", &old]);
        assert!(sentence.contains(&format!("db has moved from {old} to {new}")), "{sentence}");

        // A second run has nothing to move, and deletes the rest.
        let again = succeed(&["relocate", "db", "--from", &old, "--to", &new, "--verify", "--delete-source"]);
        assert!(again.contains("already moved") && again.contains("1200 are the same"), "{again}");
        let checked = succeed(&["check", "db", "--engine", &old, "--json"]);
        assert_eq!(serde_json::from_str::<Value>(&checked).expect("JSON")["documents"], 0);
        assert_eq!(succeed(&["export", "db", "--engine", &new]), exported);

        for (arguments, sentence) in [
            (["--from", &old, "--to", "mem:"], "mem: keeps nothing"),
            (["--from", &new, "--to", &new], "already"),
            (["--from", &old, "--to", &format!("sled:{}", folder.join("third").display())], "has moved from"),
            (["--from", &format!("sled:{}", folder.join("none").display()), "--to", &new], "no data folder"),
        ] {
            let messages = refused(&[&["relocate", "db"], &arguments[..]].concat());
            assert!(messages.contains(sentence), "{arguments:?}: {messages}");
        }
        assert!(refused(&["relocate", "other", "--from", &old, "--to", &new]).contains("no database other"));
        let nothing = succeed(&["relocate", "db", "--from", &new, "--to", &old, "--abandon"]);
        assert!(nothing.contains("no relocation to abandon"), "{nothing}");
    }

    #[test]
    fn a_command_that_is_killed_is_run_again() {
        let folder = tempfile::tempdir().expect("a folder");
        // Not sled, which a kill may damage while it writes a snapshot of its pages (ADR 0018).
        let (old, new) = filled("lsm", folder.path(), 3_000);
        let exported = succeed(&["export", "db", "--engine", &old]);
        let relocate = ["relocate", "db", "--from", &old, "--to", &new, "--verify"];
        for pause in [5, 20, 40, 80, 120, 200, 300] {
            let mut child = couch_layer(&relocate).spawn().expect("the binary starts");
            std::thread::sleep(Duration::from_millis(pause));
            // At any step, even at its end.
            child.kill().expect("a kill");
            child.wait().expect("its end");
        }
        succeed(&relocate);
        assert_eq!(succeed(&["export", "db", "--engine", &new]), exported);
        for store in [&old, &new] {
            assert!(succeed(&["check", "db", "--engine", store]).contains("everything agrees"));
        }
    }
}
