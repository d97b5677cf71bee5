//! `_stats`, `_prometheus`, `_system` and `_versions` of a node.

use std::collections::BTreeMap;
#[cfg(feature = "lsm")]
use std::collections::BTreeSet;

#[cfg(feature = "lsm")]
use kv_api::{Database, Read, Transaction};
use serde_json::{Value, json};
use server::http::{Administrator, Options};

use crate::rights::{admin, user, with_users};
use crate::support::{Couch, wait_for};

async fn count(couch: &Couch, path: &str) -> u64 {
    let answer = couch.get(&format!("/_node/_local/_stats/couchdb/{path}")).await.json();
    assert_eq!(answer["type"], "counter", "{answer}");
    assert!(answer["desc"].is_string(), "{answer}");
    answer["value"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_method_status_and_effect() {
    let couch = Couch::start().await;
    couch.call("PUT", "/db").await;
    assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, 201);
    assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, 409);
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "b"}, {"_id": "c"}]})).await.status, 201);
    assert_eq!(couch.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "a"}, {"id": "b"}]})).await.status, 200);
    assert_eq!(couch.get("/db/a").await.status, 200);
    assert_eq!(couch.get("/db/none").await.status, 404);
    assert_eq!(count(&couch, "httpd_request_methods/PUT").await, 3);
    assert_eq!(count(&couch, "httpd_request_methods/POST").await, 2);
    assert_eq!(count(&couch, "httpd_status_codes/201").await, 3);
    assert_eq!(count(&couch, "httpd_status_codes/409").await, 1);
    assert_eq!(count(&couch, "httpd_status_codes/404").await, 1);
    assert_eq!(count(&couch, "httpd/bulk_requests").await, 1);
    assert_eq!(count(&couch, "database_writes").await, 2, "a conflict changes nothing");
    assert_eq!(count(&couch, "database_reads").await, 3);
    assert_eq!(count(&couch, "open_databases").await, 1);
    // Each of these requests was counted too.
    assert_eq!(count(&couch, "httpd/requests").await, 16);
    let all = couch.get("/_node/nonode@nohost/_stats?flush=true").await.json();
    assert_eq!(all["couchdb"]["httpd_status_codes"]["409"]["value"], 1);
    assert_eq!(couch.get("/_node/_local/_stats/couchdb/none/x").await.json(), Value::Null);
    assert_eq!(couch.get("/_node/other@host/_stats").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_memory_and_its_versions() {
    let couch = Couch::start().await;
    let system = couch.get("/_node/_local/_system").await.json();
    assert!(system["uptime"].is_u64(), "{system}");
    if cfg!(target_os = "linux") {
        assert!(system["memory"]["other"].as_u64().unwrap() > 1_000_000, "{system}");
    }
    let versions = couch.get("/_node/_local/_versions").await.json();
    assert_eq!(versions["collation_driver"]["name"], "icu4x");
    assert_eq!(versions["javascript_engine"]["name"] == "quickjs", cfg!(feature = "javascript"));
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_for_administrators_and_those_who_measure() {
    let couch = with_users(&[("anna", &[]), ("meter", &["_metrics"])]).await;
    for (path, is_for_meters) in [
        ("_stats", true),
        ("_stats/couchdb/httpd", true),
        ("_prometheus", true),
        ("_system", true),
        ("_versions", false),
    ] {
        let path = format!("/_node/_local/{path}");
        assert_eq!(couch.get(&path).await.status, 401, "{path}");
        assert_eq!(user(&couch, "anna", "GET", &path).await.status, 401, "{path}");
        assert_eq!(user(&couch, "meter", "GET", &path).await.status == 200, is_for_meters, "{path}");
        assert_eq!(admin(&couch, "GET", &path, json!({})).await.status, 200, "{path}");
    }
    assert_eq!(user(&couch, "meter", "GET", "/_all_dbs").await.status, 401);
}

/// The series of an answer for Prometheus: name with labels, and value. Checks its form.
fn series(text: &str) -> BTreeMap<String, f64> {
    let mut kinds = BTreeMap::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let is_typed = kinds.contains_key(name) || family.is_some_and(|family| kinds.contains_key(family));
        assert!(is_typed, "{line} has no type");
        assert!(found.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} comes twice");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_what_was_done() {
    let couch = Couch::start().await;
    couch.call("PUT", "/db").await;
    couch.put("/db/a", json!({})).await;
    assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, 409);
    assert_eq!(couch.json("POST", "/db/_find", json!({"selector": {"n": 1}})).await.status, 200);
    let answer = couch.get("/_node/_local/_prometheus").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let found = series(&answer.text);
    let value = |series: &str| *found.get(series).unwrap_or_else(|| panic!("no {series} in {}", answer.text));
    assert_eq!(value("couchdb_httpd_requests_total"), 4.0);
    assert_eq!(value(r#"couchdb_httpd_status_codes{code="409"}"#), 1.0);
    assert_eq!(value(r#"couchdb_httpd_request_methods{method="PUT"}"#), 3.0);
    assert_eq!(value("couchdb_database_writes_total"), 1.0);
    assert_eq!(value("couchdb_mango_unindexed_queries_total"), 1.0);
    assert_eq!(value("couchdb_request_time_seconds_count"), 4.0);
    assert_eq!(value("couchdb_open_databases"), 1.0);
    assert!(value(r#"couchdb_request_time_seconds{quantile="0.99"}"#) > 0.0);
    assert!(value("couchdb_commits_total") >= 2.0, "a database and a document");
    assert_eq!(value("couchdb_commits_total"), value("couch_layer_commit_seconds_count"));
    assert_eq!(value("couch_layer_batch_commits_sum"), value("couchdb_commits_total"));
    let put = r#"couch_layer_request_seconds_count{method="PUT",route="/{db}/{docid}",status="#;
    assert_eq!((value(&format!("{put}\"2xx\"}}")), value(&format!("{put}\"4xx\"}}"))), (1.0, 1.0));
    assert!(value("couch_layer_connections") >= 1.0);
    assert_eq!(value("couch_layer_store_readable"), 1.0);
    assert_eq!(value(r#"couch_layer_database_documents{database="db"}"#), 1.0);
    assert_eq!(value(r#"couch_layer_jobs{kind="replication",state="running"}"#), 0.0);
    assert_eq!(couch.get("/_node/other/_prometheus").await.status, 404);
    assert_eq!(couch.call("HEAD", "/_node/_local/_prometheus").await.text, "");
    let system = couch.get("/_node/_local/_system").await.json();
    assert!(system["process_count"].as_u64().unwrap() > 0 && system["io_output"].as_u64().unwrap() > 1_000, "{system}");
}

/// The job of a replication that has ended keeps its answer for a while. It is neither a failure nor a job that waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_replication_that_ends_well_is_no_failure() {
    let couch = Couch::start().await;
    couch.database("a").await;
    couch.database("b").await;
    for (source, status, failures) in [("a", 200, 0.0), ("none", 404, 1.0)] {
        let asked = json!({"source": source, "target": "b"});
        assert_eq!(couch.json("POST", "/_replicate", asked).await.status, status);
        let found = series(&couch.get("/_node/_local/_prometheus").await.text);
        assert_eq!(found["couch_layer_job_failures_total"], failures, "{source}");
        for state in ["running", "waiting", "failed"] {
            let jobs = format!(r#"couch_layer_jobs{{kind="replication",state="{state}"}}"#);
            assert_eq!(found[&jobs], 0.0, "{state}");
        }
        for sample in ["jobs", "databases"] {
            assert_eq!(found[&format!(r#"couch_layer_sample_whole{{sample="{sample}"}}"#)], 1.0);
        }
        // The run ends after its answer.
        let running =
            async || series(&couch.get("/_node/_local/_prometheus").await.text)["couchdb_couch_replicator_jobs_total"];
        wait_for("the end of the run", async || (running().await == 0.0).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_feeds_are_counted_until_they_end() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let feeds = async || count(&couch, "httpd/clients_requesting_changes").await;
    assert_eq!(feeds().await, 0);
    let feed = couch.request("GET", "/db/_changes?feed=continuous&heartbeat=50").send().await.unwrap();
    assert_eq!(feeds().await, 1);
    drop(feed);
    wait_for("the feed's end", async || (feeds().await == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_of_its_own_tells_figures_and_nothing_else() {
    let administrator = Administrator { name: "adm".into(), password: "pass word".into() };
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let options = Options { administrator: Some(administrator), metrics_listen: listen, ..Options::default() };
    let couch = Couch::with(options).await;
    let base = format!("http://{}", couch.server.metrics_address().unwrap());
    let get = async |path: &str| couch.send(couch.client.get(format!("{base}{path}"))).await;
    for path in ["/metrics", "/_node/_local/_prometheus"] {
        let answer = get(path).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(series(&answer.text).contains_key("couchdb_uptime_seconds"));
    }
    for path in ["/", "/_all_dbs", "/_node/_local/_config", "/metrics/x"] {
        assert_eq!(get(path).await.status, 404, "{path}");
    }
    assert_eq!(couch.send(couch.client.post(format!("{base}/metrics"))).await.status, 404);
    // A page of another host may have pointed its name to this address.
    for (host, status) in [("localhost:1", 200), ("[::1]:1", 200), ("10.0.0.1", 200), ("evil.example", 403)] {
        let asked = couch.client.get(format!("{base}/metrics")).header("host", host);
        assert_eq!(couch.send(asked).await.status, status, "{host}");
    }
    assert_eq!(couch.get("/_node/_local/_prometheus").await.status, 401);
    couch.server.stop().await;
    assert!(couch.client.get(format!("{base}/metrics")).send().await.is_err(), "it stops with the server");
}

/// The names of figures in a text.
#[cfg(feature = "lsm")]
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_figure =
        |word: &&str| ["couchdb_", "couch_layer_", "process_"].iter().any(|prefix| word.starts_with(prefix));
    words.filter(is_figure).collect()
}

/// Two transactions that read and write one key: the second to commit runs again.
#[cfg(feature = "lsm")]
async fn conflict(couch: &Couch) {
    let engine = couch.layer.engine();
    let (one, other) = (engine.begin().unwrap(), engine.begin().unwrap());
    for transaction in [&one, &other] {
        transaction.get(b"\xfeconflict", Read::Serializable).await.unwrap();
        transaction.set(&b"\xfeconflict"[..], &b"x"[..]);
    }
    one.commit().await.unwrap();
    let error = other.commit().await.unwrap_err();
    other.on_error(error).await.unwrap();
}

/// A renamed figure must not leave a panel empty or an alert silent.
#[cfg(feature = "lsm")]
#[tokio::test(flavor = "multi_thread")]
async fn what_the_dashboard_and_the_alerts_name_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("lsm:{}", folder.path().join("data").display());
    let engine = server::engine::open(&url.parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine, Options::default()).await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    conflict(&couch).await;
    let answer = couch.get("/_node/_local/_prometheus").await;
    // Sentences name families of figures.
    let found = series(&answer.text).into_keys();
    let found = found.flat_map(|series| {
        let name = series.split('{').next().unwrap().to_owned();
        [name.strip_suffix("_count").map(str::to_owned), Some(name)]
    });
    let found: BTreeSet<String> = found.flatten().collect();
    let contrib = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib");
    for file in ["grafana/couch-layer.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(format!("{contrib}/{file}")).unwrap();
        let mut named = names(&text);
        // Of servers with another place, which `commands_standby` starts.
        named.retain(|name| {
            !["ship", "standby", "backup"].iter().any(|of| name.starts_with(&format!("couch_layer_{of}_")))
        });
        assert!(named.len() > 10, "{file}");
        let missing: Vec<_> = named.into_iter().filter(|name| !found.contains(*name)).collect();
        assert!(missing.is_empty(), "{file} names {missing:?}, which are not in {}", answer.text);
    }
    let dashboard = std::fs::read_to_string(format!("{contrib}/grafana/couch-layer.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&dashboard).unwrap()["panels"].is_array());
    let alerts = std::fs::read_to_string(format!("{contrib}/prometheus/alerts.yml")).unwrap();
    let lines = |begin: &str| alerts.lines().filter(|line| line.trim().starts_with(begin)).count();
    assert_eq!(lines("- alert:"), lines("action:"), "each says what to do");
    assert!(found.contains("couch_layer_flush_seconds_count") && found.contains("couch_layer_disk_free_bytes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_of_the_last_hour_begin_with_the_server() {
    let couch = Couch::start().await;
    // Nobody has to ask for the sample of the start.
    while couch.get("/_couch_layer/figures").await.json()["samples"].as_array().unwrap().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    couch.call("PUT", "/db").await;
    couch.put("/db/a", json!({})).await;
    let first = couch.get("/_couch_layer/figures").await.json();
    let names: Vec<&str> = first["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names, ["requests", "writes", "reads", "commits", "failed", "scans", "median_ms", "memory"]);
    let samples = first["samples"].as_array().unwrap();
    let (start, now) = (samples.first().unwrap(), samples.last().unwrap());
    let figure = |sample: &Value, name: &str| {
        let at = names.iter().position(|one| *one == name).unwrap();
        sample[at + 1].as_f64().unwrap()
    };
    assert!(samples.len() >= 2 && samples.iter().all(|one| one.as_array().unwrap().len() == names.len() + 1));
    assert_eq!((figure(now, "writes") - figure(start, "writes"), figure(now, "failed")), (1.0, 0.0));
    assert!(start[0].as_u64().unwrap() >= first["began_ms"].as_u64().unwrap());
    assert!(figure(now, "memory") > 0.0 || !cfg!(target_os = "linux"));
    let later = couch.get(&format!("/_couch_layer/figures?after={}", u64::MAX)).await.json();
    assert_eq!(later["samples"].as_array().unwrap().len(), 1, "those after a time, and now");
    assert_eq!(couch.get("/_couch_layer/figures?after=x").await.status, 400);
}
