//! `couch-layer setup`, beside a server and on a store that no server has open.
//!
//! The end-to-end tests open the link with the plugin's library, and connect with real PouchDB.

#![cfg(all(feature = "mem", feature = "lsm"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::process::Output;

use reqwest::{Client, StatusCode};
use serde_json::Value;

use program::commands::{couch_layer, refused, succeed};
use server::Process;

fn outcome(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

fn sentences(outcome: &Value, member: &str) -> Vec<String> {
    let all = outcome[member].as_array().expect("sentences");
    all.iter().map(|sentence| sentence.as_str().expect("a sentence").to_owned()).collect()
}

fn text<'v>(outcome: &'v Value, member: &str) -> &'v str {
    outcome[member].as_str().unwrap_or_else(|| panic!("{member} in {outcome}"))
}

async fn status(url: &str, user: Option<(&str, &str)>) -> StatusCode {
    loop {
        let request = Client::new().get(url);
        let request = match user {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        };
        let status = request.send().await.expect("an answer").status();
        // A busy machine may hash a password for longer than a login waits. The result is kept for the next attempt.
        if status != StatusCode::SERVICE_UNAVAILABLE {
            return status;
        }
    }
}

const SETTINGS: usize = 8;

#[tokio::test]
async fn a_vault_is_set_up_once() {
    let server = Process::with_administrator("mem:", &[]);
    let admin = server.administrator_url();
    let place = ["setup", "livesync", "--url", &admin, "--vault", "notes", "--json"];
    let first = outcome(&[&place[..], &["--public-url", "https://notes.example/couch/"]].concat());
    assert_eq!(text(&first, "url"), "https://notes.example/couch");
    assert_eq!((text(&first, "database"), text(&first, "user")), ("notes", "notes"));
    assert!(text(&first, "link").starts_with("obsidian://setuplivesync?settings=%25%24"), "{first}");
    let done = sentences(&first, "done");
    assert_eq!(done[..2], ["database _users: created", "user notes: created"]);
    assert_eq!(done.iter().filter(|sentence| sentence.starts_with("setting ")).count(), SETTINGS, "{done:?}");
    assert_eq!(sentences(&first, "already"), [""; 0]);
    let password = text(&first, "password");

    // Who may what.
    let notes = server.url("/notes");
    assert_eq!(status(&notes, Some(("notes", password))).await, StatusCode::OK);
    assert_eq!(status(&notes, Some(("notes", "another"))).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&notes, None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&server.url("/_up"), None).await, StatusCode::OK);
    assert_eq!(status(&server.url("/_all_dbs"), Some(("notes", password))).await, StatusCode::UNAUTHORIZED);
    let compacting = Client::new().post(server.url("/notes/_compact")).basic_auth("notes", Some(password));
    let compacting = compacting.header("content-type", "application/json").send().await.expect("an answer");
    assert_eq!(compacting.status(), StatusCode::ACCEPTED, "it is an administrator of the database");

    // Again, nothing changes, and the password is not known.
    let again = outcome(&place);
    assert_eq!(sentences(&again, "done"), [""; 0]);
    assert_eq!(sentences(&again, "already").len(), 3 + SETTINGS);
    assert_eq!((&again["password"], &again["link"]), (&Value::Null, &Value::Null));
    assert_eq!(status(&notes, Some(("notes", password))).await, StatusCode::OK);

    // With the password there is a link again; with another one there is none.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password").display().to_string();
    std::fs::write(&file, format!("{password}\n")).expect("a file");
    let linked = outcome(&[&place[..], &["--password-file", &file]].concat());
    assert!(text(&linked, "link").len() > 500 && sentences(&linked, "done").is_empty(), "{linked}");
    std::fs::write(&file, "of my own").expect("a file");
    let message = refused(&[&place[..], &["--password-file", &file]].concat());
    assert!(message.contains("--new-password replaces it") && !message.contains("of my own"), "{message}");
    let changed = outcome(&[&place[..], &["--password-file", &file, "--new-password"]].concat());
    assert_eq!(sentences(&changed, "done"), ["user notes: has another password"]);
    assert_eq!(status(&notes, Some(("notes", "of my own"))).await, StatusCode::OK);
    assert_eq!(status(&notes, Some(("notes", password))).await, StatusCode::UNAUTHORIZED);
}

/// Only a vault that this command creates gets a random passphrase.
#[tokio::test]
async fn a_vault_that_exists_gets_no_other_passphrase() {
    let server = Process::with_administrator("mem:", &[]);
    let admin = server.administrator_url();
    let place = ["setup", "livesync", "--url", &admin, "--vault", "notes", "--new-password"];
    let first = outcome(&[&place[..], &["--encrypt", "--json"]].concat());
    assert_eq!(text(&first, "passphrase").split('-').count(), 6);
    let again = outcome(&[&place[..], &["--encrypt", "--json"]].concat());
    assert_eq!((&again["passphrase"], &again["link"]), (&Value::Null, &Value::Null));
    let (success, printed, remarks) = couch_layer(&[&place[..], &["--encrypt"]].concat());
    assert!(success && !printed.contains("obsidian://"), "{printed}");
    assert!(remarks.contains("give it by --passphrase-file"), "{remarks}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("passphrase").display().to_string();
    std::fs::write(&file, text(&first, "passphrase")).expect("a file");
    let (success, printed, remarks) = couch_layer(&[&place[..], &["--passphrase-file", &file, "--qr"]].concat());
    assert!(success && printed.contains("obsidian://"), "{printed}");
    assert!(printed.lines().filter(|line| line.starts_with("████")).count() > 40, "{printed}");
    assert!(remarks.contains("only this machine reaches the address"), "{remarks}");
}

/// The same on a folder, which a server opens afterwards.
#[tokio::test]
async fn a_store_is_set_up_before_its_server_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = format!("lsm:{}", folder.path().join("data").display());
    let place = ["setup", "livesync", "--engine", &engine, "--vault", "notes", "--user", "obsidian", "--json"];
    assert!(refused(&place).contains("--public-url"), "it has no address");
    let place = [&place[..], &["--public-url", "https://notes.example"]].concat();
    let first = outcome(&place);
    assert_eq!(sentences(&first, "done").len(), 4 + SETTINGS, "{first}");
    let again = outcome(&place);
    assert_eq!((sentences(&again, "done").len(), sentences(&again, "already").len()), (0, 3 + SETTINGS));
    let file = folder.path().join("password").display().to_string();
    std::fs::write(&file, "wrong").expect("a file");
    assert!(refused(&[&place[..], &["--password-file", &file]].concat()).contains("has another password"));
    std::fs::write(&file, text(&first, "password")).expect("a file");
    assert!(text(&outcome(&[&place[..], &["--password-file", &file]].concat()), "link").starts_with("obsidian://"));

    let server = Process::with_administrator(&engine, &[]);
    let password = text(&first, "password");
    assert_eq!(status(&server.url("/notes"), Some(("obsidian", password))).await, StatusCode::OK);
    assert_eq!(status(&server.url("/notes"), None).await, StatusCode::UNAUTHORIZED);
    // The server agrees that everything is right.
    let admin = server.administrator_url();
    let seen = outcome(&["setup", "livesync", "--url", &admin, "--vault", "notes", "--user", "obsidian", "--json"]);
    assert_eq!(sentences(&seen, "done"), [""; 0]);
}

#[tokio::test]
async fn an_application_gets_a_database_and_its_origin() {
    let server = Process::with_administrator("mem:", &["--cors-origins", "https://other.example"]);
    let admin = server.administrator_url();
    let origin = "https://app.example,http://localhost:8080";
    let place = ["setup", "pouchdb", "--url", &admin, "--database", "a/b", "--origin", origin, "--user", "bert"];
    let printed = succeed(&place);
    assert!(printed.contains("cors/origins: https://other.example,https://app.example,http://localhost:8080"));
    assert!(printed.contains(&format!("new PouchDB(\"{}/a%2Fb\"", server.base)), "{printed}");
    assert!(succeed(&place).contains("already so: user bert, setting cors"));
    // The administrator's document is nobody's.
    let message =
        refused(&["setup", "pouchdb", "--url", &admin, "--database", "c", "--origin", "a://b", "--user", "anna"]);
    assert!(message.contains("anna is an administrator of the server"), "{message}");
    assert_eq!(status(&format!("{admin}/c"), None).await, StatusCode::NOT_FOUND, "nothing was created");
    // A user of whom nothing is known gets no new database.
    let of_bert =
        refused(&["setup", "pouchdb", "--url", &admin, "--database", "c", "--origin", "a://b", "--user", "bert"]);
    assert!(of_bert.contains("the user bert exists: give its password"), "{of_bert}");
    assert_eq!(status(&format!("{admin}/c"), None).await, StatusCode::NOT_FOUND, "nothing was created");
    // A database that everyone uses is not closed to them.
    let put = async |path: &str, body: &str| {
        let put = Client::new().put(format!("{admin}/{path}")).body(body.to_owned());
        assert!(put.send().await.expect("an answer").status().is_success(), "{path}");
    };
    put("shop", "").await;
    put("shop/a", "{}").await;
    put("shop/_security", "{}").await;
    let public = ["setup", "pouchdb", "--url", &admin, "--database", "shop", "--origin", "a://b"];
    assert!(refused(&public).contains("everyone may use the database shop"), "{}", refused(&public));
    assert_eq!(status(&server.url("/shop"), None).await, StatusCode::OK);
    // Nor may every page send passwords.
    put("_node/_local/_config/cors/origins", "\"https://a.example, *\"").await;
    put("_node/_local/_config/cors/credentials", "\"false\"").await;
    assert!(refused(&place).contains("cors/origins has *"), "{}", refused(&place));
    let anonymous = ["setup", "pouchdb", "--url", &server.base, "--database", "c", "--origin", "a://b"];
    assert!(refused(&anonymous).contains("401"), "{}", refused(&anonymous));
    for (arguments, expected) in [
        (["pouchdb", "--database", "c", "--origin", "https://app.example/"], "write https://app.example"),
        (["livesync", "--vault", "My notes", "--user", "c"], "write a small letter"),
        (["livesync", "--vault", "c", "--user", "a:b"], "no colon"),
    ] {
        let message = refused(&[&["setup"], &arguments[..], &["--url", &admin]].concat());
        assert!(message.contains(expected), "{message}");
    }
}

/// Others could read a command line.
#[tokio::test]
async fn passwords_come_from_the_environment() {
    let server = Process::with_administrator("mem:", &[]);
    let url = server.base.replace("http://", "http://anna@");
    let arguments = ["setup", "pouchdb", "--url", &url, "--database", "tasks", "--origin", "https://app.example"];
    assert!(refused(&arguments).contains("401"));
    let Output { status: ended, stdout, stderr } = program::program()
        .args(arguments)
        .env("COUCHDB_PASSWORD", "secret")
        .env("COUCH_LAYER_USER_PASSWORD", "of tasks")
        .output()
        .expect("the command runs");
    assert!(ended.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(String::from_utf8_lossy(&stdout).contains("password: \"of tasks\""));
    assert_eq!(status(&server.url("/tasks"), Some(("tasks", "of tasks"))).await, StatusCode::OK);
}
