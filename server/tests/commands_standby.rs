//! `serve --follow` and `promote` as processes.
#![cfg(all(feature = "lsm", feature = "mem"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use program::commands::{refused, succeed};
use server::{Process, get, put, shipped};

const PAUSE: Duration = Duration::from_millis(50);

/// Waits for so many documents. The server may start again meanwhile.
async fn has(client: &Client, here: &str, documents: u64) {
    loop {
        if let Ok(answer) = client.get(format!("{here}/db/_all_docs?limit=0")).send().await
            && answer.status().is_success()
            && let Ok(body) = answer.bytes().await
            && serde_json::from_slice::<Value>(&body).expect("JSON")["total_rows"] == json!(documents)
        {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a state of the ship.
async fn reaches(client: &Client, here: &str, state: &str) -> Value {
    loop {
        let found = get(client, format!("{here}/_couch_layer/ship")).await;
        if found["state"] == json!(state) {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn send(client: &Client, method: &str, url: String, body: Value) -> (u16, Value) {
    let method: Method = method.parse().expect("a method");
    let request = client.request(method, url).header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON"))
}

async fn sequence(client: &Client, here: &str) -> String {
    get(client, format!("{here}/db")).await["update_seq"].as_str().expect("a sequence").to_owned()
}

fn digits(seq: &str) -> &str {
    seq.split_once('-').expect("a sequence").1
}

/// A server that ships to a place, and a standby that follows it. Its folders are `store`, `place` and `standby`.
struct Pair {
    root: tempfile::TempDir,
    client: Client,
    primary: Process,
    standby: Process,
}

impl Pair {
    fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    fn there(&self) -> String {
        self.standby.administrator_url()
    }

    async fn start() -> Pair {
        Self::start_with(&[]).await
    }

    /// With further options of the first server.
    async fn start_with(options: &[&str]) -> Pair {
        let root = tempfile::tempdir().expect("a folder");
        let path = |name: &str| root.path().join(name).display().to_string();
        let (client, place) = (Client::new(), path("place"));
        let options = [&["--ship-to", &place, "--ship-no-encryption"], options].concat();
        let primary = Process::with_administrator(&path("store"), &options);
        let here = primary.administrator_url();
        assert!(put(&client, format!("{here}/db"), Value::Null).await);
        assert!(put(&client, format!("{here}/db/first"), json!({"n": 1})).await);
        let standby = Self::standby_in(&path("standby"), &place);
        has(&client, &standby.administrator_url(), 1).await;
        Pair { root, client, primary, standby }
    }

    fn standby_in(folder: &str, place: &str) -> Process {
        Process::with_administrator(folder, &["--follow", place, "--ship-to", place, "--ship-no-encryption"])
    }
}

/// A query asks for the build of an index that is missing, and a standby takes no such write.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_answers_queries_while_an_index_is_not_built() {
    let pair = Pair::start_with(&["--pause-jobs"]).await;
    let (client, here, there) = (&pair.client, pair.primary.administrator_url(), pair.there());
    let (status, made) = send(client, "POST", format!("{here}/db/_index"), json!({"index": {"fields": ["n"]}})).await;
    assert_eq!((status, &made["result"]), (200, &json!("created")));
    assert!(put(client, format!("{here}/db/second"), json!({"n": 2})).await);
    // The index has a document, too.
    has(client, &there, 3).await;
    assert_eq!(get(client, format!("{there}/db/_index")).await["total_rows"], json!(2));
    for path in ["_find", "_explain"] {
        let query = json!({"selector": {"n": {"$gt": 1}}});
        let (status, found) = send(client, "POST", format!("{there}/db/{path}"), query).await;
        assert_eq!(status, 200, "{path}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_the_place_of_a_server_that_was_killed() {
    let Pair { root, client, primary, standby } = Pair::start().await;
    let path = |name: &str| root.path().join(name).display().to_string();
    let (here, there) = (primary.administrator_url(), standby.administrator_url());

    // Who waits there hears of what is written here, and what was cached there follows.
    let waiting = {
        let (client, url) = (client.clone(), format!("{there}/db/_changes?feed=longpoll&since=now"));
        tokio::spawn(async move { get(&client, url).await })
    };
    let user = json!({"type": "user", "name": "ben", "roles": [], "password": "secret"});
    assert!(put(&client, format!("{here}/_users"), Value::Null).await);
    assert!(put(&client, format!("{here}/_users/org.couchdb.user:ben"), user).await);
    assert!(put(&client, format!("{here}/db/_security"), json!({"members": {"names": ["ben"]}})).await);
    assert!(put(&client, format!("{here}/db/second"), json!({"n": 2})).await);
    let heard = waiting.await.expect("an answer");
    assert_eq!(heard["results"].as_array().expect("changes").len(), 1, "{heard}");
    has(&client, &there, 2).await;
    let (status, found) = send(&client, "POST", format!("{there}/db/_find"), json!({"selector": {"n": 2}})).await;
    assert_eq!((status, &found["docs"][0]["_id"]), (200, &json!("second")), "{found}");
    assert_eq!(get(&client, there.replace("anna:", "ben:") + "/db/second").await["n"], json!(2));
    assert_eq!(client.get(format!("{}/db/second", standby.base)).send().await.expect("an answer").status(), 401);
    let (status, _) =
        send(&client, "POST", format!("{}/_session", standby.base), json!({"name": "ben", "password": "secret"})).await;
    assert_eq!(status, 200);
    assert_eq!(sequence(&client, &there).await, sequence(&client, &here).await);

    for (method, path, body) in [
        ("PUT", "/db/own", json!({})),
        ("PUT", "/db/_local/own", json!({})),
        ("DELETE", "/db/first?rev=1-a", json!({})),
        ("POST", "/db", json!({"_id": "own"})),
        ("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "own"}]})),
        ("POST", "/db/_index", json!({"index": {"fields": ["n"]}})),
        ("POST", "/db/_purge", json!({"first": ["1-a"]})),
        ("POST", "/_transact", json!({"edits": [{"db": "db", "doc": {"_id": "own"}}]})),
        ("POST", "/_replicate", json!({"source": "db", "target": "other"})),
        ("PUT", "/other", json!({})),
        ("DELETE", "/db", json!({})),
        ("PUT", "/db/_security", json!({})),
        ("PUT", "/_node/_local/_config/couchdb/uuid", json!("own")),
    ] {
        let (status, answer) = send(&client, method, format!("{there}{path}"), body).await;
        assert_eq!((status, &answer["error"]), (503, &json!("service unavailable")), "{method} {path}: {answer}");
        assert!(answer["reason"].as_str().expect("a reason").contains("is a standby"), "{answer}");
    }
    let state = reaches(&client, &there, "following").await;
    assert!(state["behind_ms"].is_u64() && state["standby"] == json!(true), "{state}");

    // It goes on where it was.
    std::fs::write(root.path().join("standby/marker"), "").expect("a file");
    assert!(standby.stop("-TERM").success());
    for at in 0..20 {
        assert!(put(&client, format!("{here}/db/away{at}"), json!({})).await);
    }
    let standby = Pair::standby_in(&path("standby"), &path("place"));
    let there = standby.administrator_url();
    has(&client, &there, 22).await;
    assert!(root.path().join("standby/marker").exists(), "it was not restored anew");

    shipped(&client, &here).await;
    let last = sequence(&client, &here).await;
    drop(primary);
    let said = succeed(&["promote", "--url", &there]);
    assert!(said.contains("it takes writes"), "{said}");
    has(&client, &there, 22).await;
    assert!(put(&client, format!("{there}/db/new"), json!({})).await);
    let seq = sequence(&client, &there).await;
    assert!(digits(&seq) > digits(&last), "every old sequence lies below all new ones: {seq}, {last}");
    let changes = get(&client, format!("{there}/db/_changes?since={last}")).await;
    let ids: Vec<&Value> = changes["results"].as_array().expect("changes").iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [&json!("new")], "a client goes on where it was");
    // It ships to the same place, and what it has can be restored from there.
    shipped(&client, &there).await;
    let said = refused(&["promote", "--url", &there]);
    assert!(said.contains("it takes writes"), "{said}");

    // The same command line starts it again.
    assert!(standby.stop("-TERM").success());
    let again = Pair::standby_in(&path("standby"), &path("place"));
    assert!(put(&client, format!("{}/db/newer", again.administrator_url()), json!({})).await);
    shipped(&client, &again.administrator_url()).await;
    drop(again);
    succeed(&["restore", &path("place"), "--at", "latest", "--engine", &path("restored"), "--no-encryption"]);
    succeed(&["adopt", &path("restored")]);
    let exported = succeed(&["export", "db", "--engine", &path("restored")]);
    assert!(exported.contains("\"newer\"") && exported.contains("\"away19\""), "{exported}");
}

/// The log has a gap after a server wrote without shipping.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_restored_anew_where_the_log_is_broken_off() {
    let pair = Pair::start().await;
    let (place, store, there) = (pair.path("place"), pair.path("store"), pair.there());
    let Pair { root, client, primary, standby } = pair;
    std::fs::write(root.path().join("standby/marker"), "").expect("a file");
    assert!(primary.stop("-TERM").success());
    let alone = Process::with_administrator(&store, &[]);
    assert!(put(&client, format!("{}/db/silent", alone.administrator_url()), json!({})).await);
    assert!(alone.stop("-TERM").success());
    let primary = Process::with_administrator(&store, &["--ship-to", &place, "--ship-no-encryption"]);
    let here = primary.administrator_url();
    assert!(put(&client, format!("{here}/db/shipped"), json!({})).await);
    has(&client, &there, 3).await;
    assert!(!root.path().join("standby/marker").exists(), "it is a new store, at the same address");
    assert!(!root.path().join("standby.standby-old").exists() && !root.path().join("standby.standby-new").exists());
    assert!(put(&client, format!("{here}/db/later"), json!({})).await);
    has(&client, &there, 4).await;

    // The earlier server is still there, and ships no more once the promoted one does.
    succeed(&["promote", "--url", &there]);
    reaches(&client, &here, "fenced").await;
    assert!(put(&client, format!("{there}/db/own"), json!({})).await);
    shipped(&client, &there).await;
    assert!(standby.stop("-TERM").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_without_its_place_is_promoted_if_that_is_said() {
    let pair = Pair::start().await;
    let (place, there) = (pair.path("place"), pair.there());
    let Pair { root, client, primary, standby } = pair;
    let said = refused(&["promote", "--url", &primary.administrator_url()]);
    assert!(said.contains("follows none"), "{said}");
    drop(primary);
    // As if it was not mounted.
    std::fs::rename(&place, root.path().join("away")).expect("a folder");
    let said = refused(&["promote", "--url", &there]);
    assert!(said.contains("is not promoted"), "{said}");
    let (status, _) = send(&client, "PUT", format!("{there}/db/own"), json!({})).await;
    assert_eq!(status, 503);
    succeed(&["promote", "--anyway", "--url", &there]);
    assert!(put(&client, format!("{there}/db/own"), json!({})).await);
    has(&client, &there, 2).await;
    drop(standby);
}

/// Without `--follow` the folder of a standby becomes a store of its own too.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_a_store_of_its_own_does_not_follow() {
    let pair = Pair::start().await;
    let (place, folder, store) = (pair.path("place"), pair.path("standby"), pair.path("store"));
    let other = pair.path("other");
    let Pair { root: _root, client, primary, standby } = pair;
    assert!(standby.stop("-TERM").success());
    assert!(refused(&["export", "db", "--engine", &folder]).contains("is a snapshot"));
    drop(primary);
    let serve = |engine: &str, more: &[&str]| {
        let own = ["serve", "--listen", "127.0.0.1:0", "--engine", engine, "--follow", &place];
        refused(&[&own[..], more].concat())
    };
    let said = serve(&store, &["--ship-no-encryption"]);
    assert!(said.contains("has a store of its own"), "{said}");
    let said = serve("mem:", &["--ship-no-encryption"]);
    assert!(said.contains("--follow needs a store in a folder"), "{said}");
    let said = serve(&format!("{place}/inside"), &["--ship-no-encryption"]);
    assert!(said.contains("--follow needs a folder apart"), "{said}");
    assert!(serve(&other, &[]).contains("--ship-passphrase-file"));
    let alone = Process::with_administrator(&folder, &[]);
    assert!(put(&client, format!("{}/db/own", alone.administrator_url()), json!({})).await);
    assert!(alone.stop("-TERM").success());
    let again = Pair::standby_in(&folder, &place);
    assert!(put(&client, format!("{}/db/again", again.administrator_url()), json!({})).await, "it follows no more");
}

/// The figures of shipping, of the standby and of backups, by their names with labels.
async fn figures(client: &Client, here: &str) -> BTreeMap<String, f64> {
    let answer = client.get(format!("{here}/_node/_local/_prometheus")).send().await.expect("an answer");
    let text = answer.text().await.expect("a text");
    let lines = text.lines().filter_map(|line| line.strip_prefix("couch_layer_")?.rsplit_once(' '));
    let is_ours = |name: &str| ["ship_", "standby_", "backup_", "backups_"].iter().any(|of| name.starts_with(of));
    let numbers = lines.map(|(name, value)| (name.to_owned(), value.parse().expect("a number")));
    numbers.filter(|(name, _)| is_ours(name)).collect()
}

/// What the alerts and the dashboard ask for is there, and a place that is gone shows.
#[tokio::test(flavor = "multi_thread")]
async fn figures_show_that_nothing_is_shipped_or_followed() {
    let pair = Pair::start().await;
    let (client, here, there) = (&pair.client, pair.primary.administrator_url(), pair.there());
    shipped(client, &here).await;
    reaches(client, &there, "following").await;
    let backup = |to: String| {
        let body = json!({"to": to, "no_encryption": true});
        send(client, "POST", format!("{here}/_couch_layer/backup"), body)
    };
    let ended = async || {
        loop {
            let state = get(client, format!("{here}/_couch_layer/backup")).await;
            if state["state"] != json!("running") {
                return state;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    assert_eq!(backup(pair.path("backup")).await.0, 202);
    assert_eq!(ended().await["state"], json!("ended"));
    let (ours, its) = (figures(client, &here).await, figures(client, &there).await);
    assert_eq!((ours["backups_total"], ours["backup_failures_total"], ours["backup_running"]), (1.0, 0.0, 0.0));
    assert!(ours["backup_bytes_total"] > 0.0 && ours["backup_last_seconds"] > 1e9, "{ours:?}");
    assert_eq!((ours["ship_state{state=\"running\"}"], its["standby_state{state=\"following\"}"]), (1.0, 1.0));
    assert_eq!((ours["ship_failures_total"], ours["ship_begun_total"], ours["ship_bases_total"]), (0.0, 1.0, 1.0));
    assert_eq!((its["standby_failures_total"], its["standby_restores_total"]), (0.0, 1.0));
    assert!(ours["ship_segments_total"] >= 1.0 && ours["ship_bytes_total"] > 0.0 && ours["ship_until_seconds"] > 1e9);
    assert!(!its.keys().any(|name| name.starts_with("ship_")) && !ours.keys().any(|name| name.starts_with("standby_")));
    let known: BTreeSet<&str> =
        ours.keys().chain(its.keys()).map(|name| name.split('{').next().expect("a name")).collect();
    let contrib = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib");
    for file in ["grafana/couch-layer.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(format!("{contrib}/{file}")).expect("a file");
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let named: BTreeSet<&str> = words.filter_map(|word| word.strip_prefix("couch_layer_")).collect();
        for of in ["ship_", "standby_", "backup_"] {
            let asked: Vec<_> = named.iter().filter(|name| name.starts_with(of)).collect();
            assert!(!asked.is_empty() && asked.iter().all(|name| known.contains(**name)), "{file}: {asked:?}");
        }
    }

    std::fs::rename(pair.path("place"), pair.path("away")).expect("a folder");
    assert!(put(client, format!("{here}/db/late"), json!({})).await, "the server goes on");
    reaches(client, &here, "failing").await;
    reaches(client, &there, "failing").await;
    std::fs::write(pair.path("file"), "").expect("a file");
    assert_eq!(backup(pair.path("file/backup")).await.0, 202);
    assert_eq!(ended().await["state"], json!("failed"));
    let (ours, its) = (figures(client, &here).await, figures(client, &there).await);
    assert_eq!((ours["ship_state{state=\"failing\"}"], its["standby_state{state=\"failing\"}"]), (1.0, 1.0));
    assert!(ours["ship_failures_total"] >= 1.0 && its["standby_failures_total"] >= 1.0);
    assert_eq!((ours["backups_total"], ours["backup_failures_total"]), (1.0, 1.0));
    let behind = (ours["ship_behind_seconds"], its["standby_behind_seconds"]);
    while figures(client, &here).await["ship_behind_seconds"] <= behind.0 {}
    while figures(client, &there).await["standby_behind_seconds"] <= behind.1 {}
    std::fs::rename(pair.path("away"), pair.path("place")).expect("a folder");
    has(client, &there, 2).await;
    shipped(client, &here).await;
}

/// What could not be served after a promotion keeps it from happening: the standby goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_could_not_be_served_is_not_promoted() {
    let pair = Pair::start().await;
    let (client, here, there) = (&pair.client, pair.primary.administrator_url(), pair.there());
    let body = json!({"to": pair.path("other")});
    let (status, answer) = send(client, "POST", format!("{here}/db/_couch_layer/relocate"), body).await;
    assert!(status < 300, "{answer}");
    shipped(client, &here).await;
    let (status, answer) = send(client, "POST", format!("{there}/_couch_layer/promote"), json!({"anyway": true})).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["reason"].as_str().is_some_and(|reason| reason.contains("in another store")), "{answer}");
    assert_eq!(reaches(client, &there, "following").await["standby"], json!(true));
    // Its pages could lack events.
    assert_eq!(send(client, "GET", format!("{there}/_db_updates"), json!({})).await.0, 503);
}
