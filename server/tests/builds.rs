//! Builds of indexes and views by a server that is killed: the next server continues them.

#![cfg(all(feature = "lsm", feature = "sled", feature = "javascript"))]

#[path = "program/server.rs"]
mod process;

use std::collections::BTreeSet;

use model::{Layer, LayerOptions};
use process::Process;
use serde_json::{Value, json};

const DOCUMENTS: u64 = 2_500;

/// Members that the indexes and the views read. With the text, a transaction of a build has room for some hundreds of
/// rows.
fn document(n: u64, edit: u64) -> Value {
    json!({"_id": format!("d{n:05}"), "n": (n * 7 + edit) % 50, "m": edit, "text": "x".repeat(400),
        "list": [n % 3, format!("x{}", n % 11)]})
}

async fn answer(request: reqwest::RequestBuilder) -> Option<Value> {
    let text = request.send().await.ok()?.text().await.ok()?;
    serde_json::from_str(&text).ok()
}

/// Edits random documents until the server is gone.
async fn edit(client: reqwest::Client, base: String, round: u64) {
    for step in 0.. {
        let ids: Vec<u64> = (0..20).map(|n| (step * 613 + n * 197 + round) % DOCUMENTS).collect();
        let keys = json!({"keys": ids.iter().map(|n| format!("d{n:05}")).collect::<BTreeSet<_>>()});
        let Some(known) = answer(
            client
                .post(format!("{base}/db/_all_docs"))
                .header("content-type", "application/json")
                .body(keys.to_string()),
        )
        .await
        else {
            return;
        };
        let edits: Vec<Value> = known["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| {
                let n = row["id"].as_str().expect("an id")[1..].parse().expect("a number");
                let mut document = document(n, 100 * round + step % 90 + 1);
                document["_rev"] = row["value"]["rev"].clone();
                document["_deleted"] = json!(n % 19 == 0);
                document
            })
            .collect();
        if answer(
            client
                .post(format!("{base}/db/_bulk_docs"))
                .header("content-type", "application/json")
                .body(json!({"docs": edits}).to_string()),
        )
        .await
        .is_none()
        {
            return;
        }
    }
}

fn view(map: &str) -> Value {
    json!({"views": {"list": {"map": map}, "sum": {"map": map, "reduce": "_sum"}}})
}

/// Emits the elements of the list, with the edit's number.
const MAP: &str = "function(doc) { (doc.list || []).forEach(function(one) { emit([one, doc.n], doc.m) }) }";

/// The answer of a scan of all documents: the rows of the view, and the ids by `n`.
async fn scan(client: &reqwest::Client, server: &Process) -> (Vec<Value>, Vec<(u64, String)>) {
    let all = answer(client.get(server.url("/db/_all_docs?include_docs=true"))).await.expect("a listing");
    let (mut rows, mut ids) = (Vec::new(), Vec::new());
    for row in all["rows"].as_array().expect("rows") {
        let (id, doc) = (row["id"].as_str().expect("an id"), &row["doc"]);
        let Some(n) = doc["n"].as_u64() else { continue };
        ids.push((n, id.to_owned()));
        for one in doc["list"].as_array().expect("a list") {
            rows.push(json!({"id": id, "key": [one, n], "value": doc["m"]}));
        }
    }
    ids.sort();
    // Numbers come before texts. These texts are ordered by their bytes.
    rows.sort_by_key(|row| {
        let key = &row["key"];
        (
            key[0].as_u64().unwrap_or(99),
            key[0].as_str().map(str::to_owned),
            key[1].as_u64(),
            row["id"].as_str().map(str::to_owned),
        )
    });
    (rows, ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_that_a_kill_ended_go_on_and_agree_with_a_scan() {
    assert_builds_go_on("lsm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_that_a_kill_ended_go_on_in_sled_too() {
    assert_builds_go_on("sled").await;
}

async fn assert_builds_go_on(engine: &str) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    let store = format!("{engine}:{}", folder.display());
    let client = reqwest::Client::new();
    let mut server = Process::start(&["--engine", &store]);
    assert_eq!(client.put(server.url("/db")).send().await.unwrap().status(), 201);
    for first in (0..DOCUMENTS).step_by(500) {
        let docs: Vec<Value> = (first..first + 500).map(|n| document(n, 0)).collect();
        let written = client
            .post(server.url("/db/_bulk_docs"))
            .header("content-type", "application/json")
            .body(json!({"docs": docs}).to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(written.status(), 201);
    }
    let (mut half_indexes, mut half_views) = (0, 0);
    for round in 0..2u64 {
        let mut busy = tokio::task::JoinSet::new();
        busy.spawn(edit(client.clone(), server.base.clone(), round));
        // Another map function is another view group.
        let map = format!("{MAP} // {round}");
        let put = client
            .put(server.url(&format!("/db/_design/v{round}")))
            .header("content-type", "application/json")
            .body(view(&map).to_string());
        assert_eq!(put.send().await.unwrap().status(), 201);
        let asked = client.get(server.url(&format!("/db/_design/v{round}/_view/sum")));
        busy.spawn(async { drop(answer(asked).await) });
        let index = json!({"index": {"fields": ["n", "m", "text"]}, "ddoc": format!("i{round}"), "name": "n"});
        let asked =
            client.post(server.url("/db/_index")).header("content-type", "application/json").body(index.to_string());
        busy.spawn(async { drop(answer(asked).await) });
        // Until some documents are in the index, but not all.
        loop {
            let listed = answer(client.get(server.url("/db/_index"))).await.expect("indexes");
            let new = listed["indexes"].as_array().expect("a list").len() as u64 == round + 2;
            let building =
                listed["indexes"].as_array().expect("a list").iter().find(|one| one["build_status"] == "building");
            match building {
                Some(index) if index["documents_done"].as_u64() > Some(0) => break,
                None if new => break,
                _ => {}
            }
        }
        assert_eq!(server.stop("-KILL").code(), None);
        while busy.join_next().await.is_some() {}

        {
            let engine = server::engine::open(&store.parse().unwrap(), server::engine::IfMissing::Fail).unwrap();
            let database = Layer::open(engine, LayerOptions::default()).await.unwrap().database("db").await.unwrap();
            let indexes = database.indexes().await.unwrap();
            half_indexes += indexes.iter().filter(|index| !index.active && index.documents > 0).count();
            let last = database.last_seq().await.unwrap();
            let groups = database.view_groups().await.unwrap();
            half_views += groups.iter().filter(|group| group.seq < last).count();
            let report = database.check(|_| ()).await.unwrap();
            assert!(report.is_sound(), "round {round}: {:?}", report.problems);
        }
        server = Process::start(&["--engine", &store]);

        // Both queries wait for the build.
        let (rows, ids) = scan(&client, &server).await;
        let query = json!({"selector": {"n": {"$gte": 0}}, "sort": ["n", "m", "text"], "fields": ["_id", "n"], "limit": 100_000,
            "use_index": format!("i{round}"), "allow_fallback": false});
        let found = answer(
            client.post(server.url("/db/_find")).header("content-type", "application/json").body(query.to_string()),
        )
        .await
        .expect("documents");
        let found = found["docs"].as_array().unwrap_or_else(|| panic!("{found}"));
        let mut found: Vec<(u64, String)> =
            found.iter().map(|doc| (doc["n"].as_u64().unwrap(), doc["_id"].as_str().unwrap().to_owned())).collect();
        assert!(found.windows(2).all(|two| two[0].0 <= two[1].0), "round {round}: in order");
        found.sort();
        assert!(found == ids, "round {round}: the index has {} documents, a scan {}", found.len(), ids.len());
        for design in (0..=round).map(|round| format!("v{round}")) {
            let view = answer(client.get(server.url(&format!("/db/_design/{design}/_view/list")))).await.unwrap();
            let found = view["rows"].as_array().unwrap_or_else(|| panic!("{view}"));
            assert_eq!(found.len(), rows.len(), "round {round}, {design}");
            let differs = found.iter().zip(&rows).find(|(found, row)| found != row);
            assert_eq!(differs, None, "round {round}, {design}");
            let sum = answer(client.get(server.url(&format!("/db/_design/{design}/_view/sum")))).await.unwrap();
            let expected: u64 = rows.iter().map(|row| row["value"].as_u64().unwrap()).sum();
            assert_eq!(sum["rows"][0]["value"], json!(expected), "round {round}, {design}");
        }
        let report = answer(client.get(server.url("/db/_couch_layer/check"))).await.unwrap();
        assert_eq!(report["problem_count"], json!(0), "round {round}: {report}");
    }
    println!("{half_indexes} indexes and {half_views} view groups were half built");
    assert!(half_indexes > 0 && half_views > 0, "{half_indexes} indexes and {half_views} view groups were half built");
    assert_eq!(server.stop("-TERM").code(), Some(0));
}
