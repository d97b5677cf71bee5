//! Replications that the server runs.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use server::http::Options;

use crate::support::Couch;

async fn replicate(couch: &Couch, body: Value) -> crate::support::Answer {
    couch.json("POST", "/_replicate", body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_is_answered_with_its_record() {
    let (near, far) = (Couch::start().await, Couch::with_administrator().await);
    near.database("here").await;
    for number in 0..30 {
        near.put(&format!("/here/{number}"), json!({"n": number})).await;
    }
    let address = far.base.replace("http://", "http://adm:pass%20word@");
    let there = format!("{address}/there");
    let refused = replicate(&near, json!({"source": "here", "target": there})).await;
    refused.refused(404, "db_not_found", &format!("could not open {}/there/", far.base));
    let push = json!({"source": "here", "target": there, "create_target": true});
    let answer = replicate(&near, push.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(!answer.text.contains("pass"), "{}", answer.text);
    let first = answer.json();
    let session = &first["history"][0];
    assert_eq!((&first["ok"], &first["replication_id_version"]), (&json!(true), &json!(4)));
    assert_eq!((&session["docs_written"], &session["session_id"]), (&json!(30), &first["session_id"]));
    assert_eq!((&session["recorded_seq"], first.get("no_changes")), (&first["source_last_seq"], None));
    let again = replicate(&near, push).await.json();
    assert_eq!((&again["no_changes"], &again["session_id"]), (&json!(true), &first["session_id"]));
    // Back, as an object with credentials, into a new database, by name and by selector.
    let source = json!({"url": format!("{}/there", far.base),
        "auth": {"basic": {"username": "adm", "password": "pass word"}}});
    let pull = json!({"source": source, "target": "back", "create_target": true, "selector": {"n": {"$gte": 20}}});
    assert_eq!(replicate(&near, pull).await.json()["history"][0]["docs_written"], 10);
    let local = json!({"source": "here", "target": "copy", "create_target": true, "doc_ids": ["1", "2", "x"]});
    assert_eq!(replicate(&near, local).await.json()["docs_written"], 2);
    assert_eq!(near.get("/copy").await.json()["doc_count"], 2);
}

/// Passes connections on to a server, but closes this many first.
async fn hesitant(server: SocketAddr, closed: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            if number >= closed {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    // It ends as the connections do.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_at_the_beginning_is_made_again() {
    let (near, far) = (Couch::start().await, Couch::start().await);
    near.database("here").await;
    near.put("/here/a", json!({})).await;
    let address = hesitant(far.base.strip_prefix("http://").unwrap().parse().unwrap(), 2).await;
    let push = json!({"source": "here", "target": format!("http://{address}/there"), "create_target": true});
    let answer = replicate(&near, push).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(far.get("/there").await.json()["doc_count"], 1);
    let address = hesitant(address, 1).await;
    let once = json!({"source": "here", "target": format!("http://{address}/there"), "retries_per_request": 0});
    assert_eq!(replicate(&near, once).await.status, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replicated_is_said_without_credentials() {
    let (near, far) = (Couch::start().await, Couch::with_administrator().await);
    near.database("here").await;
    replicate(&near, json!({"source": "here", "target": "none"})).await.refused(
        404,
        "db_not_found",
        "could not open none",
    );
    let stranger = json!({"source": "here", "target": format!("{}/x", far.base.replace("//", "//adm:geheim@"))});
    let refused = replicate(&near, stranger).await;
    let reason = format!("unauthorized to access or create database {}/x/", far.base);
    refused.refused(401, "unauthorized", &reason);
    let address = {
        let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        nobody.local_addr().unwrap()
    };
    let gone = replicate(&near, json!({"source": "here", "target": format!("http://adm:geheim@{address}/x")})).await;
    assert_eq!((gone.status.as_u16(), &gone.json()["error"]), (500, &json!("replication_failed")));
    assert!(!gone.text.contains("geheim"), "{}", gone.text);
    // A client with an account that is not admitted; and an invalid cookie.
    let anna = json!({"name": "anna", "password": "geheim", "roles": [], "type": "user"});
    for (path, body) in [("/_users", json!({})), ("/_users/org.couchdb.user:anna", anna), ("/x", json!({}))] {
        let put = far.request("PUT", path).basic_auth("adm", Some("pass word"));
        far.send(put.header("content-type", "application/json").body(body.to_string())).await;
    }
    let stranger = json!({"source": "here", "target": format!("{}/x", far.base.replace("//", "//anna:geheim@"))});
    let refused = replicate(&near, stranger).await;
    let reason = format!("not allowed to access or create database {}/x/", far.base);
    refused.refused(403, "forbidden", &reason);
    let side = json!({"url": format!("{}/x", far.base), "headers": {"Cookie": "AuthSession=abc"}});
    let malformed = replicate(&near, json!({"source": "here", "target": side})).await;
    assert_eq!((malformed.status.as_u16(), &malformed.json()["error"]), (500, &json!("db_not_found")));
    let by_stranger = far.json("POST", "/_replicate", json!({"source": "a", "target": "b"})).await;
    assert_eq!(by_stranger.status, 401);
}

/// A replication started by another server is continued by a server with the same uuid, which is part of the id.
#[tokio::test(flavor = "multi_thread")]
async fn the_uuid_of_another_server_continues_its_replications() {
    let far = Couch::start().await;
    far.database("a").await;
    far.put("/a/x", json!({})).await;
    let side = |name: &str| format!("{}/{name}", far.base);
    let asked = json!({"source": side("a"), "target": side("b"), "create_target": true});
    let uuid = "0a959b9b8227188afc2ac26ccdf345a6";
    let mut records = Vec::new();
    for uuid in [Some(uuid), Some(uuid), None] {
        let server = Couch::with(Options { uuid: uuid.map(str::to_owned), ..Options::default() }).await;
        if let Some(uuid) = uuid {
            assert_eq!(server.get("/").await.json()["uuid"], uuid);
        }
        records.push(replicate(&server, asked.clone()).await.json());
    }
    assert_eq!(records[0]["history"][0]["docs_written"], 1);
    assert_eq!((&records[1]["no_changes"], &records[1]["session_id"]), (&json!(true), &records[0]["session_id"]));
    // Another server reads everything again, and finds that it exists.
    assert_eq!((records[2].get("no_changes"), &records[2]["history"][0]["docs_written"]), (None, &json!(0)));
}

#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn filters_of_sources_here_are_run_with_their_parameters() {
    let couch = Couch::start().await;
    couch.database("here").await;
    let filter = "function (doc, req) { return doc.kind === req.query.kind && req.method === 'GET'; }";
    couch.put("/here/_design/app", json!({"filters": {"kind": filter, "wrong": "function () { throw 'no'; }"}})).await;
    for number in 0..10 {
        couch.put(&format!("/here/{number}"), json!({"kind": if number % 3 == 0 { "a" } else { "b" }})).await;
    }
    // The document has two leaves, and the losing one passes.
    let leaves = json!({"new_edits": false, "docs": [
        {"_id": "both", "_rev": "1-a", "kind": "a"}, {"_id": "both", "_rev": "1-b", "kind": "b"}]});
    assert_eq!(couch.json("POST", "/here/_bulk_docs", leaves).await.status, 201);
    let order = |name: &str, target: &str| {
        json!({"source": "here", "target": target, "create_target": true, "filter": name, "query_params": {"kind": "a"},
            "worker_batch_size": 3})
    };
    let done = replicate(&couch, order("app/kind", "there")).await.json();
    assert_eq!(done["history"][0]["docs_written"], 5, "{done}");
    assert_eq!(couch.get("/there/both").await.json()["_rev"], "1-a");
    assert_eq!(couch.get("/there").await.json()["doc_count"], 5, "no design document");
    assert_eq!(replicate(&couch, order("app/kind", "there")).await.json()["no_changes"], true);
    for (wrong, status, error) in
        [("app/wrong", 500, "replication_failed"), ("app/none", 404, "not_found"), ("none/kind", 404, "not_found")]
    {
        let refused = replicate(&couch, order(wrong, "nowhere")).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (status, &json!(error)), "{wrong}");
    }
}

/// The source code of the function is part of the id, before the replication starts.
#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_those_of_their_filter_functions() {
    let (near, far) = (Couch::start().await, Couch::with_administrator().await);
    let address = far.base.replace("http://", "http://adm:pass%20word@");
    let client = reqwest::Client::new();
    let write = async |path: &str, body: Value| {
        let put = client.put(format!("{address}/{path}")).header("content-type", "application/json");
        let answer = put.body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 201, "{path}");
        let text = answer.text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["rev"].clone()
    };
    write("there", json!({})).await;
    let filters = |text: &str| json!({"filters": {"f": format!("function (doc) {{ return doc.n {text} 1; }}")}});
    let rev = write("there/_design/app", filters("==")).await;
    write("there/a", json!({"n": 1})).await;
    near.database("back").await;
    let asked = json!({"source": format!("{address}/there"), "target": "back", "filter": "app/f", "continuous": true,
        "checkpoint_interval": 1});
    let begun = replicate(&near, asked.clone()).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let id = begun.json()["_local_id"].as_str().unwrap().to_owned();
    let base = id.strip_suffix("+continuous").unwrap();
    while near.get(&format!("/back/_local/{base}")).await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(near.get("/back/a").await.status, 200);
    assert_eq!(near.get(&format!("/_scheduler/jobs/{id}")).await.json()["id"], json!(id));
    let tasks = near.get("/_active_tasks").await.json();
    assert_eq!((tasks.as_array().unwrap().len(), &tasks[0]["replication_id"]), (1, &json!(id)));

    // Another function under the same name is another replication.
    let mut other = filters("!=");
    other["_rev"] = rev;
    write("there/_design/app", other).await;
    let second = replicate(&near, asked.clone()).await.json()["_local_id"].as_str().unwrap().to_owned();
    assert_ne!(second, id);
    let mut cancel = asked.clone();
    cancel["cancel"] = json!(true);
    assert_eq!(replicate(&near, cancel).await.json(), json!({"ok": true, "_local_id": second}));
    assert_eq!(replicate(&near, json!({"cancel": true, "id": id})).await.json()["_local_id"], json!(id));
    assert_eq!(near.get("/_scheduler/jobs").await.json()["total_rows"], 0);

    // A missing one is reported at once. A document waits for it.
    let mut missing = asked;
    missing["filter"] = json!("app/none");
    replicate(&near, missing.clone()).await.refused(404, "not_found", "the source has no filter app/none");
    near.database("_replicator").await;
    near.put("/_replicator/x", missing).await;
    let row = loop {
        let row = near.get("/_scheduler/docs/_replicator/x").await;
        if row.status == 200 && row.json()["state"] == "error" {
            break row.json();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!((&row["id"], &row["info"]["error"]), (&json!(null), &json!("the source has no filter app/none")));
    assert_eq!(near.get("/_scheduler/jobs").await.json()["total_rows"], 0);
}
