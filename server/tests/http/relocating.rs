//! A database moves to another store while it is in use.

#![cfg(feature = "lsm")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::chaos::Chaos;
use jobs::{Accepted, JobId, NewJob, ServerOptions};
use kv_api::AnyDatabase;
use model::{Layer, LayerOptions};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use server::engine::{EngineUrl, IfMissing, open};
use server::http::{Administrator, Options};
use tokio::sync::watch;

use crate::support::{Couch, wait_for};

const RELOCATE: &str = "/db/_couch_layer/relocate";

/// A server on this store whose client is its administrator.
pub(crate) async fn serve(store: &str) -> Couch {
    let store: EngineUrl = store.parse().unwrap();
    let engine = open(&store, IfMissing::Create).unwrap();
    serve_over(engine, store).await
}

async fn serve_over(engine: AnyDatabase, store: EngineUrl) -> Couch {
    let administrator = Some(Administrator { name: "adm".into(), password: "pw".into() });
    let mut couch = Couch::over(engine, Options { administrator, store: Some(store), ..Options::default() }).await;
    // adm:pw
    let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Basic YWRtOnB3"))]);
    couch.client = Client::builder().default_headers(headers).build().unwrap();
    couch
}

pub(crate) fn lsm(folder: &Path, name: &str) -> String {
    format!("lsm:{}", folder.canonicalize().unwrap().join(name).display())
}

/// Waits for the end of the relocation. Returns its status.
async fn ended(couch: &Couch) -> Value {
    for _ in 0..600 {
        let status = couch.get(RELOCATE).await.json();
        if status["state"] != "running" {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the relocation does not end");
}

pub(crate) async fn relocate(couch: &Couch, to: &str) {
    let begun = couch.json("POST", RELOCATE, json!({"to": to, "verify": true})).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let status = ended(couch).await;
    assert_eq!((&status["state"], &status["outcome"]["moved"]), (&json!("ended"), &json!(true)), "{status}");
    assert_eq!(status["outcome"]["verified"]["difference_count"], 0, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_stands_still_is_abandoned_at_once_and_continues_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let store: EngineUrl = lsm(folder.path(), "a").parse().unwrap();
    let (switch, starved) = watch::channel(true);
    let engine = AnyDatabase::new(Chaos::starving(open(&store, IfMissing::Create).unwrap(), starved));
    let couch = serve_over(engine, store).await;
    fill(&couch, 20).await;
    let to = json!({"to": lsm(folder.path(), "b")});
    let copying = async || {
        assert_eq!(couch.json("POST", RELOCATE, to.clone()).await.status, 202);
        let phase = async || (couch.get(RELOCATE).await.json()["phase"] == "copying").then_some(());
        wait_for("the copy", phase).await;
    };
    copying().await;
    let abandoned = tokio::time::timeout(Duration::from_secs(60), couch.call("DELETE", RELOCATE)).await;
    assert_eq!(abandoned.expect("it does not wait for the cluster").json()["abandoned"], true);
    copying().await;
    switch.send_replace(false);
    assert_eq!(ended(&couch).await["outcome"]["moved"], true);
    assert_eq!(couch.get("/db").await.json()["doc_count"], 20);
}

async fn fill(couch: &Couch, count: usize) {
    couch.database("db").await;
    for some in 0..count.div_ceil(500) {
        let docs: Vec<Value> = (some * 500..count.min(some * 500 + 500))
            .map(|n| json!({"_id": format!("doc-{n:05}"), "n": n, "text": "x".repeat(100)}))
            .collect();
        let written = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
        assert_eq!(written.status, 201);
    }
    couch.put("/db/_local/checkpoint", json!({"seen": "everything"})).await;
}

/// Reads a feed until the row of this document. Returns ids and sequences of the rows.
async fn read_until(mut feed: Response, last: &str) -> Vec<(String, String)> {
    let mut text = String::new();
    let reading = async {
        loop {
            let rows: Vec<(String, String)> = text
                .lines()
                .map(|line| line.strip_prefix("data: ").unwrap_or(line).trim_end_matches(','))
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter_map(|row| Some((row["id"].as_str()?.to_owned(), row["seq"].as_str()?.to_owned())))
                .collect();
            if rows.iter().any(|(id, _)| id == last) {
                return rows;
            }
            match feed.chunk().await.unwrap() {
                Some(chunk) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
                None => panic!("the feed ended with {text}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("a row")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn feeds_and_writers_go_on_while_their_database_moves() {
    let folder = tempfile::tempdir().unwrap();
    let couch = Arc::new(serve("mem:").await);
    fill(&couch, 2_000).await;
    let before = couch.get("/db").await.json();
    let since = before["update_seq"].as_str().unwrap().to_owned();
    let mut feeds = Vec::new();
    for kind in ["continuous", "eventsource"] {
        let path = format!("/db/_changes?feed={kind}&since={since}&heartbeat=1000");
        feeds.push(tokio::spawn(read_until(couch.request("GET", &path).send().await.unwrap(), "last")));
    }
    let waiting =
        couch.request("GET", &format!("/db/_changes?feed=longpoll&filter=_doc_ids&doc_ids=[\"last\"]&since={since}"));
    let waiting = tokio::spawn(async move { waiting.send().await.unwrap().text().await.unwrap() });

    // Each writer writes one document, until some time after the database has moved.
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (couch, is_over) = (couch.clone(), is_over.clone());
            tokio::spawn(async move {
                let (mut rev, mut written) = (None::<String>, 0);
                while !is_over.load(Ordering::Relaxed) || written < 20 {
                    let mut body = json!({"n": written});
                    if let Some(rev) = &rev {
                        body["_rev"] = json!(rev);
                    }
                    // Writes never fail.
                    rev = Some(couch.put(&format!("/db/writer-{writer}"), body).await);
                    written += 1;
                    let read = couch.get(&format!("/db/writer-{writer}")).await;
                    assert_eq!(read.json()["_rev"].as_str(), rev.as_deref(), "{}", read.text);
                }
                (rev.unwrap(), written)
            })
        })
        .collect();
    let to = lsm(folder.path(), "new");
    relocate(&couch, &to).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    is_over.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await.unwrap());
    }
    couch.put("/db/last", json!({})).await;

    for feed in feeds {
        let rows = feed.await.unwrap();
        assert!(rows.is_sorted_by(|(_, one), (_, next)| one < next), "in order, none twice");
        for writer in 0..4 {
            assert!(rows.iter().any(|(id, _)| *id == format!("writer-{writer}")));
        }
        assert!(rows.iter().all(|(id, _)| !id.starts_with("doc-")), "nothing from before");
    }
    let longpoll = waiting.await.unwrap();
    assert!(longpoll.contains(r#""id":"last""#), "{longpoll}");

    let after = couch.get("/db").await.json();
    assert_eq!(after["instance_start_time"], before["instance_start_time"]);
    assert_eq!(after["doc_count"], 2_005);
    assert!(after["update_seq"].as_str().unwrap() > since.as_str());
    for (writer, (rev, _)) in written.iter().enumerate() {
        assert_eq!(couch.get(&format!("/db/writer-{writer}")).await.json()["_rev"], json!(rev));
    }
    assert_eq!(couch.get("/db/_local/checkpoint").await.json()["seen"], "everything");
    assert_eq!(couch.get("/_all_dbs").await.json(), json!(["db"]));
    assert_eq!(couch.get("/_dbs_info").await.json()[0]["info"]["doc_count"], 2_005);
    let checked = couch.get("/db/_couch_layer/check").await.json();
    assert_eq!((&checked["documents"], &checked["problem_count"]), (&json!(2_005), &json!(0)), "{checked}");

    // The database is only in the other folder. After a drop it is in neither.
    assert!(matches!(couch.layer.database("db").await.unwrap_err().kind(), model::ErrorKind::Moved(at) if *at == to));
    assert_eq!(couch.call("DELETE", "/db").await.status, 200);
    assert_eq!(couch.get("/db").await.status, 404);
    assert_eq!(couch.get("/_all_dbs").await.json(), json!([]));
    couch.database("db").await;
    assert_eq!(couch.get("/db").await.json()["doc_count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_knows_after_a_restart_where_its_databases_are() {
    let folder = tempfile::tempdir().unwrap();
    let (own, second, third) = (lsm(folder.path(), "own"), lsm(folder.path(), "second"), lsm(folder.path(), "third"));
    let couch = serve(&own).await;
    fill(&couch, 20).await;
    couch.put("/db/before", json!({})).await;
    let uuid = couch.get("/").await.json()["uuid"].clone();
    relocate(&couch, &second).await;
    couch.put("/db/after", json!({})).await;
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;

    let couch = serve(&own).await;
    assert_eq!(couch.get("/db").await.json()["doc_count"], 22);
    // On to a third store, and back to the first.
    relocate(&couch, &third).await;
    couch.put("/db/third", json!({})).await;
    relocate(&couch, &own).await;
    couch.put("/db/back", json!({})).await;
    assert_eq!(couch.get("/db").await.json()["doc_count"], 24);
    assert!(couch.get("/db").await.json()["update_seq"].as_str().unwrap().contains("-03"), "three moves");
    relocate(&couch, &second).await;
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;

    // A server of the new store alone has the database, and the same uuid.
    let couch = serve(&second).await;
    assert_eq!(couch.get("/db").await.json()["doc_count"], 24);
    assert_eq!(couch.get("/").await.json()["uuid"], uuid);
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;

    // Without that store the database is missing, and its name cannot be reused.
    std::fs::remove_dir_all(folder.path().join("second")).unwrap();
    let couch = serve(&own).await;
    let lost = couch.get("/db").await;
    assert_eq!(lost.status, 503, "{}", lost.text);
    assert!(!lost.text.contains(&*folder.path().to_string_lossy()), "{}", lost.text);
    assert_eq!(couch.call("PUT", "/db").await.status, 412);
    assert!(!folder.path().join("second").exists());
    couch.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (lsm(folder.path(), "own"), lsm(folder.path(), "other"));
    let couch = serve(&own).await;
    fill(&couch, 3).await;
    let refused = async |body: Value, status: u16| {
        let answer = couch.json("POST", RELOCATE, body).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        answer.json()["reason"].as_str().unwrap().to_owned()
    };
    assert!(refused(json!({}), 400).await.contains("`to`"));
    assert!(refused(json!({"to": "lsm:x"}), 400).await.contains("absolute path"));
    assert!(refused(json!({"to": "mem:"}), 400).await.contains("mem:"));
    assert!(refused(json!({"to": "ftp:x"}), 400).await.contains("no engine"));
    assert!(refused(json!({"to": &own}), 412).await.contains("already"));
    std::fs::create_dir(folder.path().join("photos")).unwrap();
    std::fs::write(folder.path().join("photos/cat.txt"), "meow").unwrap();
    assert!(refused(json!({"to": lsm(folder.path(), "photos")}), 412).await.contains("holds other things"));
    assert_eq!(couch.raw("POST", RELOCATE, "{").await.status, 400);
    assert_eq!(couch.json("POST", "/none/_couch_layer/relocate", json!({"to": &other})).await.status, 404);
    assert_eq!(couch.json("PUT", RELOCATE, json!({})).await.status, 405);
    assert_eq!(couch.get(RELOCATE).await.json(), json!({"state": "none"}));
    assert_eq!(couch.call("DELETE", &format!("{RELOCATE}?to={other}")).await.status, 412, "there is no such folder");

    // Only an administrator may do this; without an administrator, nobody may.
    for method in ["GET", "POST", "DELETE"] {
        let request = Client::new().request(method.parse().unwrap(), format!("{}{RELOCATE}", couch.base));
        assert_eq!(couch.send(request.body(json!({"to": &other}).to_string())).await.status, 401);
    }
    let open = Couch::start().await;
    open.database("db").await;
    let answer = open.json("POST", RELOCATE, json!({"to": &other})).await;
    assert_eq!(answer.status, 403, "{}", answer.text);
    assert!(!folder.path().join("other").exists());

    // The target has another database of that name.
    let there = serve(&other).await;
    there.database("db").await;
    let Couch { server, layer, .. } = there;
    drop(layer);
    server.stop().await;
    assert_eq!(couch.json("POST", RELOCATE, json!({"to": &other})).await.status, 202);
    let status = ended(&couch).await;
    assert_eq!(status["state"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("another database"), "{status}");
    couch.put("/db/still-here", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relocation_is_stopped_gone_on_with_and_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (lsm(folder.path(), "own"), lsm(folder.path(), "other"));
    let couch = serve(&own).await;
    fill(&couch, 3_000).await;
    let begin = json!({"to": &other});
    assert_eq!(couch.json("POST", RELOCATE, begin.clone()).await.status, 202);
    // The server's stop interrupts it, wherever it is.
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;

    // After a restart it continues by itself.
    let couch = serve(&own).await;
    let status = ended(&couch).await;
    assert_eq!((&status["state"], &status["outcome"]["moved"]), (&json!("ended"), &json!(true)), "{status}");
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]));
    assert_eq!(couch.call("DELETE", &format!("{RELOCATE}?to={other}")).await.status, 412, "it has moved");
    // Requested again, the database is in that store already.
    assert_eq!(couch.json("POST", RELOCATE, begin).await.status, 412);
    assert_eq!(couch.get("/db").await.json()["doc_count"], 3_000);

    // Abandoned while it runs, unless it ended before.
    let third = lsm(folder.path(), "third");
    assert_eq!(couch.json("POST", RELOCATE, json!({"to": &third})).await.status, 202);
    let abandoned = couch.call("DELETE", &format!("{RELOCATE}?to={third}")).await;
    if abandoned.status == 200 {
        assert_eq!(abandoned.json()["ok"], true);
        assert_eq!(couch.get(RELOCATE).await.json(), json!({"state": "none"}));
        // Nothing of it remains, so there is nothing more to abandon.
        let again = couch.call("DELETE", &format!("{RELOCATE}?to={third}")).await;
        assert_eq!(again.json(), json!({"ok": true, "abandoned": false}));
    } else {
        assert_eq!(abandoned.status, 412, "{}", abandoned.text);
    }
    couch.put("/db/more", json!({})).await;
    assert_eq!(couch.get("/db").await.json()["doc_count"], 3_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_left_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (lsm(folder.path(), "own"), lsm(folder.path(), "other"));
    let couch = serve(&own).await;
    fill(&couch, 20).await;
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;

    // A server that accepted the job and died.
    let engine = open(&own.parse().unwrap(), IfMissing::Fail).unwrap();
    let jobs = Layer::open(engine, LayerOptions::default()).await.unwrap().jobs();
    let task = json!({"database": "db", "target": other});
    let data =
        json!({"task": task, "from": own, "to": other, "verify": true, "delete_source": false, "abandon": false});
    let new = NewJob { data: data.to_string().into(), ..NewJob::default() };
    jobs.add(&JobId::new("relocation", "db"), &new).await.unwrap();
    let options = ServerOptions { name: "gone".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut gone = jobs::Server::new(jobs, [1; 16], options);
    assert!(matches!(gone.accept("relocation", 0).await.unwrap(), Accepted::Job(..)));
    drop(gone);

    let couch = serve(&own).await;
    let status = ended(&couch).await;
    assert_eq!((&status["state"], &status["to"]), (&json!("ended"), &json!(other)), "{status}");
    assert_eq!((&status["outcome"]["moved"], &status["outcome"]["documents"]), (&json!(true), &json!(20)), "{status}");
    assert_eq!(couch.get("/db").await.json()["doc_count"], 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document_and_attachment_are_those_of_all_stores_behind_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let couch = serve(&lsm(folder.path(), "own")).await;
    couch.database("db").await;
    let limit = async |bytes: &str| {
        for name in ["max_document_size", "max_attachment_size"] {
            let set = couch.json("PUT", &format!("/_node/_local/_config/couchdb/{name}"), json!(bytes)).await;
            assert_eq!(set.status, 200, "{}", set.text);
        }
    };
    limit("1000").await;
    relocate(&couch, &lsm(folder.path(), "other")).await;
    let large = json!({"a": "x".repeat(1_001)});
    couch.json("PUT", "/db/a", large.clone()).await.refused(413, "document_too_large", "a");
    couch.put_body("/db/b/f", "x/y", "x".repeat(1_001)).await.refused(413, "attachment_too_large", "f");
    limit("2000").await;
    couch.put("/db/a", large).await;
    assert_eq!(couch.put_body("/db/b/f", "x/y", "x".repeat(1_001)).await.status, 201);
}

#[tokio::test]
async fn active_tasks_are_the_jobs_that_run() {
    let couch = Couch::start().await;
    let jobs = couch.layer.jobs();
    let data = json!({"task": {"database": "db", "design_document": "_design/x"}, "other": "not shown"});
    let new = NewJob { data: data.to_string().into(), ..NewJob::default() };
    // A job of a kind that only another server runs.
    jobs.add(&JobId::new("sorting", "a"), &new).await.unwrap();
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]), "it is pending");
    let options = ServerOptions { name: "elsewhere".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut elsewhere = jobs::Server::new(jobs.clone(), [1; 16], options);
    let Accepted::Job(_, hold) = elsewhere.accept("sorting", 1_700_000_000_999).await.unwrap() else { panic!("a job") };
    let mut expected = json!({
        "node": "nonode@nohost", "server": "elsewhere", "pid": "<0.0.0>", "process_status": "running", "type": "sorting",
        "started_on": 1_700_000_000, "updated_on": 1_700_000_000, "database": "db", "design_document": "_design/x",
    });
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([expected]));
    jobs.update(&hold, br#"{"changes_done":3,"progress":30}"#, 1_700_000_005_500).await.unwrap();
    expected["updated_on"] = json!(1_700_000_005);
    expected["changes_done"] = json!(3);
    expected["progress"] = json!(30);
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([expected]));
    jobs.finish(&hold, None, 0).await.unwrap();
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]));
}
