//! A process that writes is killed; what it had acknowledged is there afterwards, and nothing in part.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use engine_sled::{SledDatabase, SledOptions};
use futures_executor::block_on;
use kv_api::{Database, MutationType, RangeRequest, Read, Transaction, TransactionExt};

const FOLDER: &str = "COUCH_LAYER_KILL_TEST_FOLDER";
const WRITERS: usize = 4;

fn open(path: &Path) -> SledDatabase {
    SledDatabase::open(path, SledOptions::new().cache_bytes(16 << 20)).unwrap()
}

/// The child: writers that print each commit once it is acknowledged. A test, since this binary has
/// no other entry; without the variable it does nothing.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let db = open(Path::new(&folder));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let db = &db;
            scope.spawn(move || {
                let nonce = std::process::id();
                for count in 0.. {
                    let tx = db.begin().unwrap();
                    let name = format!("{nonce}/{writer}/{count:06}");
                    // Two keys of one commit, one of them large now and then, and a count of all commits.
                    let length = if count % 7 == 0 { 50_000 } else { 50 };
                    tx.set(format!("a/{name}").as_bytes(), &vec![1; length]);
                    tx.set(format!("b/{name}").as_bytes(), b"");
                    tx.atomic_op(MutationType::Add, b"count", &1u64.to_le_bytes());
                    block_on(tx.commit()).unwrap();
                    println!("acknowledged {name}");
                }
            });
        }
    });
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..4usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut heard = 0;
        while heard < 40 + 60 * round {
            let line = lines.next().expect("the child lives until it is killed").unwrap();
            if let Some((_, name)) = line.split_once("acknowledged ") {
                acknowledged.push(name.to_owned());
                heard += 1;
            }
        }
        child.kill().unwrap();
        // What it still said before it died counts too, but for a line that was cut off.
        for line in lines.map_while(Result::ok) {
            if let Some((_, name)) = line.split_once("acknowledged ")
                && name.split('/').nth(2).is_some_and(|count| count.len() == 6)
            {
                acknowledged.push(name.to_owned());
            }
        }
        child.wait().unwrap();

        let db = open(folder.path());
        let tx = db.begin().unwrap();
        let names = |prefix: &'static str| {
            let rows = block_on(tx.get_all(RangeRequest::prefix(prefix.as_bytes()), Read::Snapshot)).unwrap();
            rows.iter().map(|row| String::from_utf8_lossy(&row.key[2..]).into_owned()).collect::<Vec<_>>()
        };
        let (first, second) = (names("a/"), names("b/"));
        assert_eq!(first, second, "a commit is there in part");
        for name in &acknowledged {
            assert!(first.binary_search(name).is_ok(), "{name} was acknowledged and is lost");
        }
        let count = block_on(tx.get(b"count", Read::Snapshot)).unwrap().unwrap();
        assert_eq!(count, (first.len() as u64).to_le_bytes()[..], "the count of commits");
    }
}
