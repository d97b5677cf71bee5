//! `serve --ship-to` and `restore --at` as processes.
#![cfg(all(feature = "lsm", feature = "mem"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::UNIX_EPOCH;

use reqwest::Client;
use serde_json::{Value, json};

use program::commands::{couch_layer, refused, succeed};
use server::{Process, get, now_ms, put, shipped};

fn time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + std::time::Duration::from_millis(ms)).to_string()
}

/// The time in "as it was at TIME;".
fn restored_ms(said: &str) -> u64 {
    let text = said.split_once("as it was at ").and_then(|(_, rest)| rest.split(';').next()).expect("a time");
    let time = humantime::parse_rfc3339(text).expect("a time");
    u64::try_from(time.duration_since(UNIX_EPOCH).expect("a time").as_millis()).expect("a time")
}

fn ids(engine: &str) -> BTreeSet<String> {
    let exported = succeed(&["export", "db", "--engine", engine]);
    let lines = exported.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["_id"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_store_is_restored_as_it_was_at_a_time() {
    let (root, client) = (tempfile::tempdir().expect("a folder"), Client::new());
    let path = |name: &str| root.path().join(name).display().to_string();
    let (store, place, key) = (path("store"), path("place"), path("key"));
    std::fs::write(&key, "correct horse\n").expect("a file");
    let listen = ["--listen", "127.0.0.1:0"];
    let ship = ["--ship-to", &place, "--ship-passphrase-file", &key];
    let said = refused(&[&["serve", "--engine", &store, "--ship-to", &place], &listen[..]].concat());
    assert!(said.contains("--ship-no-encryption"), "{said}");
    let said = refused(&[&["serve", "--engine", "mem:"], &ship[..], &listen].concat());
    assert!(said.contains("engine lsm"), "{said}");
    let said = refused(&[&["serve", "--engine", &store, "--ship-keep", "10m"], &ship[..], &listen].concat());
    assert!(said.contains("at least 1h"), "{said}");

    let within = path("store/place");
    for place in [&within, &store, &path("store/../store/deep/place"), &root.path().display().to_string()] {
        let ship = ["--ship-to", place, "--ship-passphrase-file", &key];
        let said = refused(&[&["serve", "--engine", &store], &ship[..], &listen].concat());
        assert!(said.contains("a folder apart from the store's"), "{said}");
        assert!(!Path::new(&store).exists(), "nothing was written");
    }

    let served = Process::with_administrator(&store, &ship);
    let here = served.administrator_url();
    assert!(put(&client, format!("{here}/db"), Value::Null).await);
    assert!(put(&client, format!("{here}/db/a"), json!({})).await);
    shipped(&client, &here).await;
    let at = now_ms();
    while now_ms() == at {}
    assert!(put(&client, format!("{here}/db/b"), json!({})).await);
    let state = shipped(&client, &here).await;
    assert!(state["behind_ms"].as_u64().is_some_and(|ms| ms < now_ms() - at), "{state}");
    assert_eq!(
        (&state["state"], &state["bases"], &state["begun"]),
        (&json!("running"), &json!(1), &json!(1)),
        "{state}"
    );
    // A server that stops ships what was acknowledged last.
    assert!(put(&client, format!("{here}/db/c"), json!({})).await);
    let last = get(&client, format!("{here}/db")).await["update_seq"].as_str().expect("a sequence").to_owned();
    assert!(served.stop("-TERM").success());

    let protection = ["--passphrase-file", &key];
    let listed = succeed(&[&["backup", "list", &place], &protection[..]].concat());
    assert!(listed.starts_with("shipped: ") && listed.contains("bases: 1"), "{listed}");
    let verified = succeed(&[&["backup", "verify", &place], &protection[..]].concat());
    assert!(verified.contains("bases of a shipped store that can be restored: 1"), "{verified}");
    assert!(refused(&["restore", &place, "--at", "latest", "--no-encryption"]).contains("is encrypted"));
    let restore = |at: &str, to: &str| {
        let arguments = ["restore", &place, "--at", at, "--engine", to, "--passphrase-file", &key];
        couch_layer(&arguments)
    };
    let then = path("then");
    let (success, said, remarks) = restore(&time(at), &then);
    assert!(success && remarks.contains("the next state"), "{said}{remarks}");
    assert!(restored_ms(&said) <= at);
    assert!(!restore("latest", &then).0, "the folder exists");
    let said = refused(&["restore", &place, "--engine", &path("no"), "--passphrase-file", &key]);
    assert!(said.contains("--at"), "{said}");
    assert!(restore("yesterday", &path("no")).2.contains("a time in UTC"));
    assert!(restore("2001-01-01T00:00:00Z", &path("no")).2.contains("nothing was shipped here by then"));
    assert!(!Path::new(&path("no")).exists());
    assert!(refused(&["export", "db", "--engine", &then]).contains("is a snapshot"));
    let newest = path("newest");
    let (success, _, remarks) = restore("latest", &newest);
    assert!(success && remarks.contains("is not known here"), "{remarks}");

    // The restored store is shipped to the same place, and goes on there.
    let served = Process::with_administrator(&then, &ship);
    let here = served.administrator_url();
    let listed = get(&client, format!("{here}/db/_all_docs")).await;
    assert_eq!((&listed["total_rows"], &listed["rows"][0]["id"]), (&json!(1), &json!("a")));
    let seq = get(&client, format!("{here}/db")).await["update_seq"].as_str().expect("a sequence").to_owned();
    let digits = |seq: &str| seq.split_once('-').expect("a sequence").1.to_owned();
    assert!(digits(&seq) > digits(&last), "every old sequence lies below all new ones");
    shipped(&client, &here).await;
    assert!(served.stop("-TERM").success());
    succeed(&["adopt", &newest]);
    assert_eq!(ids(&newest).into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    let again = path("again");
    assert!(restore("latest", &again).0);
    succeed(&["adopt", &again]);
    assert_eq!(ids(&again).into_iter().collect::<Vec<_>>(), ["a"]);

    std::fs::write(&key, "another\n").expect("a file");
    let said = refused(&[&["serve", "--engine", &store], &ship[..], &listen].concat());
    assert!(said.contains("the passphrase does not open"), "{said}");
}

/// The server starts, serves and stops although the place does not answer.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_does_not_answer_delays_neither_start_nor_stop() {
    let (root, client) = (tempfile::tempdir().expect("a folder"), Client::new());
    let path = |name: &str| root.path().join(name).display().to_string();
    let (store, place) = (path("store"), path("place"));
    std::fs::create_dir(&place).expect("a folder");
    // Nobody ever writes into this pipe.
    let pipe = format!("{place}/repository.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("a pipe").success());
    let served = Process::with_administrator(&store, &["--ship-to", &place, "--ship-no-encryption"]);
    let here = served.administrator_url();
    assert!(put(&client, format!("{here}/db"), Value::Null).await);
    assert_eq!(get(&client, format!("{here}/_couch_layer/ship")).await["until_ms"], json!(0));
    assert!(served.stop("-TERM").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_ship_to_one_place_the_later_one_goes_on() {
    let (root, client) = (tempfile::tempdir().expect("a folder"), Client::new());
    let path = |name: &str| root.path().join(name).display().to_string();
    let (store, place, copy) = (path("store"), path("place"), path("copy"));
    let ship = ["--ship-to", &place, "--ship-no-encryption"];
    let served = Process::with_administrator(&store, &ship);
    let here = served.administrator_url();
    assert!(put(&client, format!("{here}/db"), Value::Null).await);
    shipped(&client, &here).await;
    succeed(&["snapshot", &copy, "--url", &here]);
    let copied = Process::with_administrator(&copy, &ship);
    let there = copied.administrator_url();
    shipped(&client, &there).await;
    assert!(put(&client, format!("{here}/db/lost"), json!({})).await, "the earlier one goes on serving");
    loop {
        let state = get(&client, format!("{here}/_couch_layer/ship")).await;
        if state["state"] == json!("fenced") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(put(&client, format!("{there}/db/kept"), json!({})).await);
    shipped(&client, &there).await;
    drop((served, copied));
    let restored = path("restored");
    succeed(&["restore", &place, "--at", "latest", "--engine", &restored, "--no-encryption"]);
    succeed(&["adopt", &restored]);
    assert_eq!(ids(&restored).into_iter().collect::<Vec<_>>(), ["kept"]);
    // A store of its own is refused there.
    let other = Process::with_administrator(&path("other"), &ship);
    loop {
        let state = get(&client, format!("{}/_couch_layer/ship", other.administrator_url())).await;
        if state["state"] == json!("failing") {
            assert!(state["reasons"][0].as_str().expect("a reason").contains("the log of the store"), "{state}");
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
