//! `couch-layer top` as a process, beside a server.

#![cfg(feature = "mem")]

mod program;
#[path = "program/server.rs"]
mod server;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use reqwest::Client;
use serde_json::{Value, json};

use program::commands::{refused, succeed};
use program::program;
use server::{Process, put};

/// The lowest rate that counts as work: one request in the longest interval that a busy machine makes of a second.
const WORK: f64 = 0.001;

#[tokio::test(flavor = "multi_thread")]
async fn a_report_has_what_the_server_did_between_two_samples() {
    let (server, client) = (Process::with_administrator("mem:", &[]), Client::new());
    let admin = server.administrator_url();
    for name in ["notes", "tasks"] {
        assert!(put(&client, format!("{admin}/{name}"), Value::Null).await);
    }
    assert!(put(&client, format!("{admin}/notes/song"), json!({"title": "Gute Nacht"})).await);
    let mut command = program();
    command.args(["top", "--url", &admin, "--once", "--json", "--interval", "1s"]).stdout(Stdio::piped());
    let running = command.spawn().expect("the command starts");
    let mut ended = tokio::task::spawn_blocking(move || running.wait_with_output().expect("the command ends"));
    // Written without a pause until it ends, so some of it lies between the two samples.
    let mut number = 0;
    let output = loop {
        number += 1;
        assert!(put(&client, format!("{admin}/tasks/{number}"), json!({})).await);
        // A conflict.
        assert!(!put(&client, format!("{admin}/notes/song"), json!({})).await);
        if ended.is_finished() {
            break (&mut ended).await.expect("it ends");
        }
    };
    assert!(output.status.success());
    let lines: Vec<&str> = std::str::from_utf8(&output.stdout).expect("UTF-8").lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let report: Value = serde_json::from_str(lines[0]).expect("JSON");

    let rate = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {report}"));
    assert!(rate(&report["seconds"]) >= 1.0);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    for name in ["documents_written", "document_conflicts", "commits"] {
        assert!(rate(&report["rates"][name]) > WORK, "{name} in {report}");
    }
    let routes = report["requests"]["routes"].as_array().expect("routes");
    let writes = routes.iter().find(|route| route["route"] == "/{db}/{docid}").expect("the route of documents");
    assert_eq!(writes["method"], "PUT");
    assert!(rate(&writes["statuses"]["2xx"]) > WORK && rate(&writes["statuses"]["4xx"]) > WORK, "{writes}");
    assert!(rate(&writes["times_ms"]["p99"]) >= rate(&writes["times_ms"]["p50"]), "{writes}");
    assert!(rate(&report["requests"]["rate"]) >= rate(&writes["requests"]) / 2.0, "{report}");
    let names: Vec<&str> =
        report["databases"].as_array().expect("databases").iter().flat_map(|one| one["database"].as_str()).collect();
    assert!(names.contains(&"notes") && names.contains(&"tasks"), "{names:?}");
    assert!(rate(&report["levels"]["memory_budget_bytes"]) > 1e6);
    assert_eq!(report["levels"]["disk_free_bytes"], Value::Null, "memory is on no disk");
    assert_eq!(report["tasks"], json!([]));
}

#[tokio::test]
async fn a_table_has_a_line_for_each_subject() {
    let server = Process::with_administrator("mem:", &[]);
    let table = succeed(&["top", "--url", &server.administrator_url(), "--once", "--interval", "100ms"]);
    for begin in
        ["couch-layer ", "requests ", "clients ", "documents ", "commits ", "conflicts ", "memory ", "disk ", "jobs "]
    {
        assert!(table.lines().any(|line| line.starts_with(begin)), "{begin}: {table}");
    }
    // Its own requests.
    assert!(table.contains("GET /_active_tasks"), "{table}");
    let anonymous = refused(&["top", "--url", &server.base, "--once"]);
    assert!(anonymous.contains("401"), "{anonymous}");
    let short = refused(&["top", "--url", &server.base, "--interval", "1ms"]);
    assert!(short.contains("it must be at least 100ms"), "{short}");
}

/// As `top --json | head -n 1` does.
#[tokio::test]
async fn it_ends_when_nobody_reads_it() {
    let server = Process::with_administrator("mem:", &[]);
    let mut command = program();
    command.args(["top", "--url", &server.administrator_url(), "--json", "--interval", "100ms"]).stdout(Stdio::piped());
    let mut running = command.spawn().expect("the command starts");
    let mut out = BufReader::new(running.stdout.take().expect("piped"));
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line}");
    }
    drop(out);
    let begun = Instant::now();
    let ended = loop {
        match running.try_wait().expect("a state") {
            Some(ended) => break Some(ended),
            None if begun.elapsed() > Duration::from_secs(60) => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // Whatever comes of it, it ends with the test.
    let _ = running.kill();
    assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");
}

/// A user for figures sees everything but the running jobs.
#[tokio::test]
async fn a_user_of_figures_sees_no_jobs() {
    let (server, client) = (Process::with_administrator("mem:", &[]), Client::new());
    let admin = server.administrator_url();
    assert!(put(&client, format!("{admin}/_users"), Value::Null).await);
    let user = json!({"name": "watch", "type": "user", "password": "secret", "roles": ["_metrics"]});
    assert!(put(&client, format!("{admin}/_users/org.couchdb.user:watch"), user).await);
    let url = server.base.replace("http://", "http://watch:secret@");
    let report = succeed(&["top", "--url", &url, "--once", "--json", "--interval", "100ms"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["tasks"], report["requests"]["rate"].is_number()), (&Value::Null, true), "{report}");
}
