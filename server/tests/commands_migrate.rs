//! `couch-layer migrate` as a process. The old server is one of ours.
#![cfg(all(feature = "lsm", feature = "mem"))]

mod program;
#[path = "program/server.rs"]
mod server;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use program::commands::couch_layer;
use server::Process;

/// A server with the administrator `anna`, who asks.
struct Served {
    process: Process,
    client: Client,
}

impl Served {
    fn start(engine: &str) -> Served {
        Served { process: Process::with_administrator(engine, &[]), client: Client::new() }
    }

    /// Its address with the administrator.
    fn url(&self) -> String {
        self.process.administrator_url()
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let request = self.client.request(method, format!("{}{path}", self.url()));
        let request = request.header("content-type", "application/json").body(body.to_string());
        let answer = request.send().await.expect("an answer");
        (answer.status(), serde_json::from_slice(&answer.bytes().await.expect("a body")).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path, Value::Null).await;
        assert!(status.is_success(), "GET {path}: {status} {body}");
        body
    }

    async fn put(&self, path: &str, body: Value) {
        let (status, body) = self.ask(Method::PUT, path, body).await;
        assert!(status.is_success(), "PUT {path}: {status} {body}");
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, body) = self.ask(Method::POST, path, body).await;
        assert!(status.is_success(), "POST {path}: {status} {body}");
        body
    }

    /// All documents of a database with all their leaves, deleted ones too, without sequences.
    async fn leaves(&self, db: &str) -> Vec<Value> {
        let feed = self.get(&format!("/{db}/_changes?style=all_docs")).await;
        let mut rows: Vec<Value> = feed["results"].as_array().expect("rows").clone();
        for row in &mut rows {
            let row = row.as_object_mut().expect("a row");
            row.remove("seq");
            let revs = row["changes"].as_array_mut().expect("leaves");
            revs.sort_by_key(|rev| rev["rev"].as_str().map(str::to_owned));
        }
        rows.sort_by_key(|row| row["id"].as_str().map(str::to_owned));
        rows
    }

    /// A server with something of everything.
    async fn filled() -> Served {
        let old = Served::start("mem:");
        old.put("/notes", Value::Null).await;
        old.put("/notes/_security", json!({"members": {"names": ["bert"], "roles": []}})).await;
        old.put("/notes/_revs_limit", json!(77)).await;
        old.put("/notes/_design/by", json!({"views": {"n": {"map": "function (doc) { emit(doc.n) }"}}})).await;
        let edits: Vec<Value> = (0..50).map(|n| json!({"_id": format!("n{n:02}"), "n": n})).collect();
        old.post("/notes/_bulk_docs", json!({ "docs": edits })).await;
        let branches = ["a", "b"].map(|hash| {
            json!({"_id": "torn", "_rev": format!("1-{hash}"), "from": hash, "_revisions": {"start": 1, "ids": [hash]}})
        });
        old.put("/plain", Value::Null).await;
        old.post("/plain/_bulk_docs", json!({"docs": branches, "new_edits": false})).await;
        old.put("/plain/gone", json!({})).await;
        let rev = old.get("/plain/gone").await["_rev"].as_str().expect("a revision").to_owned();
        old.ask(Method::DELETE, &format!("/plain/gone?rev={rev}"), Value::Null).await;
        let attached = json!({"_attachments": {"a.txt": {"content_type": "text/plain", "data": "SGVsbG8="}}});
        old.put("/plain/attached", attached).await;
        old.put("/plain/_local/client", json!({"last_seq": 7})).await;
        old.put("/parts?partitioned=true", Value::Null).await;
        old.put("/parts/p:1", json!({"n": 1})).await;
        old.put("/cloud", Value::Null).await;
        old.put("/cloud/_security", json!({"cloudant": {"key": ["_reader"]}})).await;
        old.put("/_users", Value::Null).await;
        old.put("/_replicator", Value::Null).await;
        let user = json!({"name": "bert", "type": "user", "roles": ["r"], "password": "geheim"});
        old.put("/_users/org.couchdb.user:bert", user).await;
        let user = json!({"name": "carl", "type": "user", "roles": [], "password": "old"});
        old.put("/_users/org.couchdb.user:carl", user).await;
        // It would begin at once.
        let replication = json!({"source": format!("{}/parts", old.url()), "target": format!("{}/copied", old.url()),
            "create_target": true, "continuous": true});
        old.put("/_replicator/again", replication).await;
        for (key, value) in
            [("cors/origins", "https://notes.example"), ("uuids/algorithm", "random"), ("admins/dora", "word")]
        {
            old.put(&format!("/_node/_local/_config/{key}"), json!(value)).await;
        }
        // Weaker than what is usual here.
        old.put("/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
        old
    }
}

/// Databases that `filled` makes, without those of the system.
const DATABASES: [&str; 4] = ["notes", "plain", "parts", "cloud"];

async fn logs_in(server: &Served, name: &str, password: &str) -> bool {
    let url = format!("{}/_session", server.process.base);
    let body = json!({"name": name, "password": password}).to_string();
    let answer = server.client.post(url).header("content-type", "application/json").body(body).send().await;
    answer.expect("an answer").status().is_success()
}

/// Everything that is to be there after a move.
async fn assert_moved(old: &Served, here: &Served, admins: bool) {
    for db in DATABASES {
        assert_eq!(old.leaves(db).await, here.leaves(db).await, "{db}");
    }
    assert_eq!(here.get("/notes/_security").await, json!({"members": {"names": ["bert"], "roles": []}}));
    assert_eq!(here.get("/notes/_revs_limit").await, json!(77));
    assert_eq!(here.get("/parts").await["props"]["partitioned"], json!(true));
    assert_eq!(here.get("/cloud/_security").await["members"]["roles"], json!(["_admin"]), "closed");
    let text = here.client.get(format!("{}/plain/attached/a.txt", here.url())).send().await.expect("an answer");
    assert_eq!(text.text().await.expect("a text"), "Hello");
    assert_eq!(here.get("/notes/_design/by/_view/n?key=7").await["rows"][0]["id"], json!("n07"));
    assert!(logs_in(here, "bert", "geheim").await && !logs_in(here, "bert", "else").await);
    assert_eq!(logs_in(here, "dora", "word").await, admins, "an administrator of the old server");
    assert_eq!(here.get("/_node/_local/_config/uuids/algorithm").await, json!("random"));
    assert_ne!(here.get("/_node/_local/_config/cors").await["origins"], json!("https://notes.example"));
    assert_eq!(here.get("/_node/_local/_config/chttpd_auth/iterations").await, json!("600000"));
    // Replications are there, and start nothing.
    assert_eq!(here.get("/paused_replicator/again").await["continuous"], json!(true));
    assert_eq!(here.get("/paused_replicator/_security").await["members"]["roles"], json!(["_admin"]));
    assert_eq!(here.get("/_scheduler/jobs").await["jobs"], json!([]));
    let (status, _) = here.ask(Method::GET, "/plain/_local/client", Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "a checkpoint of the old server's sequences");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_moves_into_a_folder_and_what_it_gets_later_follows() {
    let old = Served::filled().await;
    // Its function would refuse the documents that come after it in the feed.
    old.put("/plain/_security", json!({})).await;
    old.put("/ruled", Value::Null).await;
    old.put("/ruled/old", json!({})).await;
    let ruled = "function (doc, old) { if (!old) throw({forbidden: 'no new ones'}) }";
    old.put("/ruled/_design/ruled", json!({ "validate_doc_update": ruled })).await;
    let rev = old.get("/ruled/old").await["_rev"].clone();
    old.put("/ruled/old", json!({"_rev": rev, "n": 2})).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = format!("lsm:{}", folder.path().join("data").display());
    let (from, wanted) = (old.url(), ["_users", "_replicator"].into_iter().chain(DATABASES).collect::<Vec<_>>());
    let migrate = ["migrate", "--from", &from, "--engine", &engine];

    let refused = couch_layer(&[&migrate[..], &["none"]].concat());
    assert!(!refused.0 && refused.2.contains("no database none"), "{refused:?}");
    let (success, said, remarks) = couch_layer(&[&migrate[..], &wanted].concat());
    assert!(success, "{said}{remarks}");
    assert!(said.contains("notes: 51 documents, 51 revisions written, the same revisions"), "{said}");
    assert!(said.contains("plain: 2 documents, 4 revisions written"), "{said}");
    assert!(said.contains("_replicator as paused_replicator"), "{said}");
    assert!(remarks.contains("rights of a Cloudant"), "{remarks}");
    assert!(remarks.contains("plain: everybody may read and write it"), "{remarks}");
    assert!(!remarks.contains("notes: everybody"), "{remarks}");
    // Only what is new is read and written.
    old.put("/plain/later", json!({})).await;
    let (success, said, remarks) = couch_layer(&[&migrate[..], &["plain", "notes"]].concat());
    assert!(success, "{said}{remarks}");
    assert!(said.contains("plain: 3 documents, 1 revisions written, the same revisions"), "{said}");
    assert!(said.contains("notes: 51 documents, 0 revisions written, the same revisions"), "{said}");
    // From the checkpoint of the first run.
    let locals = old.get("/plain/_local_docs?include_docs=true").await;
    let rows = locals["rows"].as_array().expect("rows").iter();
    let [record] = &rows.filter(|row| row["doc"]["history"].is_array()).collect::<Vec<_>>()[..] else {
        panic!("{locals}");
    };
    let sessions = record["doc"]["history"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 2, "{record}");
    // Figures are those of all sessions: four leaves, and then one.
    assert_eq!((&sessions[1]["missing_checked"], &sessions[0]["missing_checked"]), (&json!(4), &json!(5)), "{record}");
    assert_eq!(sessions[0]["start_last_seq"], sessions[1]["end_last_seq"], "{record}");
    // A move of all has the settings too. Databases that the old server's replication made come along.
    let (success, said, remarks) = couch_layer(&migrate);
    assert!(success, "{said}{remarks}");
    assert!(said.contains("uuids/algorithm") && !said.contains("admins"), "{said}");
    assert!(remarks.contains("administrators of the old server are not copied: anna, dora; --admins"), "{remarks}");
    let settings = remarks.lines().find(|line| line.contains("these settings are other ones")).expect("a line");
    assert!(settings.contains("chttpd_auth/iterations") && settings.contains("cors/origins"), "{settings}");
    let here = Served::start(&engine);
    assert_moved(&old, &here, false).await;
    assert_eq!(here.get("/plain/_security").await, json!({}));
    assert_eq!(old.leaves("ruled").await, here.leaves("ruled").await);

    // Differences are named, and nothing here is changed for them.
    here.put("/plain/own", json!({})).await;
    here.put("/plain/_security", json!({"members": {"names": ["dora"]}})).await;
    let carl = json!({"name": "carl", "type": "user", "roles": [], "password": "new"});
    let rev = here.get("/_users/org.couchdb.user:carl").await["_rev"].clone();
    here.ask(Method::DELETE, &format!("/_users/org.couchdb.user:carl?rev={}", rev.as_str().unwrap()), json!({})).await;
    here.put("/_users/org.couchdb.user:carl", carl).await;
    let rev = old.get("/_users/org.couchdb.user:carl").await["_rev"].clone();
    let carl = json!({"_rev": rev, "name": "carl", "type": "user", "roles": ["boss"], "password": "old"});
    old.put("/_users/org.couchdb.user:carl", carl).await;
    assert!(here.process.stop("-TERM").success());
    let (success, said, remarks) = couch_layer(&[&migrate[..], &["plain", "_users"]].concat());
    assert!(!success && said.contains("plain: 4 documents, 0 revisions written, not the same"), "{said}{remarks}");
    assert!(remarks.contains("plain: its _security is another one here, and stays"), "{remarks}");
    assert!(remarks.contains("is missing on the old server") && remarks.contains("\"own\""), "{remarks}");
    assert!(remarks.contains("counts 3 documents, and here are 4"), "{remarks}");
    assert!(remarks.contains("\"org.couchdb.user:carl\" exists here with another history"), "{remarks}");
    assert!(remarks.contains("there are 4 differences"), "{remarks}");
    let here = Served::start(&engine);
    assert!(logs_in(&here, "carl", "new").await && !logs_in(&here, "carl", "old").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_moves_to_a_running_one_and_replicas_go_on_without_a_body() {
    let (old, here) = (Served::filled().await, Served::start("mem:"));
    let folder = tempfile::tempdir().expect("a folder");
    let replica = format!("lsm:{}", folder.path().join("replica").display());
    let replicate = |source: &str, target: &str| {
        let stores = ["--source-engine", &replica, "--target-engine", &replica];
        let of = |side: &str, at: usize| if side.contains("://") { vec![] } else { stores[at..at + 2].to_vec() };
        let options = [vec!["replicate", source, target, "--json", "--create-target"], of(source, 0), of(target, 2)];
        let (success, said, remarks) = couch_layer(&options.concat());
        assert!(success, "{said}{remarks}");
        serde_json::from_str::<Value>(&said).expect("a record")
    };
    // A client that is in sync with the old server, both ways.
    let (there, away) = (format!("{}/plain", old.url()), format!("{}/plain", here.url()));
    assert_eq!(replicate(&there, "plain")["history"][0]["docs_written"], json!(4));
    assert_eq!(replicate("plain", &there)["history"][0]["docs_written"], json!(0));

    let (from, to) = (old.url(), here.url());
    let refused = couch_layer(&["migrate", "--from", &from, "--url", &from]);
    assert!(!refused.0 && refused.2.contains("is the one that the databases are to move to"), "{refused:?}");
    let (success, said, remarks) = couch_layer(&["migrate", "--from", &from, "--url", &to, "--admins"]);
    assert!(success, "{said}{remarks}");
    assert!(said.contains("admins/dora"), "{said}");
    assert!(remarks.contains("admins/anna is another one here, and stays"), "{remarks}");
    assert_moved(&old, &here, true).await;

    // The client goes on against the new server: it asks for what is missing, and nothing is.
    for record in [replicate(&away, "plain"), replicate("plain", &away)] {
        let session = &record["history"][0];
        assert_eq!((&session["docs_read"], &session["docs_written"]), (&json!(0), &json!(0)), "{record}");
        assert_eq!((&session["missing_checked"], &session["missing_found"]), (&json!(4), &json!(0)), "{record}");
        assert_eq!(session["start_last_seq"], json!(0), "from the beginning");
    }
    // Replications start when somebody says so.
    let (paused, started) = (format!("{}/paused_replicator", here.url()), format!("{}/_replicator", here.url()));
    replicate(&paused, &started);
    let mut listed = json!([]);
    for _ in 0..1_500 {
        listed = here.get("/_scheduler/docs").await["docs"].clone();
        if listed != json!([]) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(listed[0]["doc_id"], json!("again"));
    here.put("/plain/new", json!({})).await;
    assert_eq!(replicate(&away, "plain")["history"][0]["docs_written"], json!(1));
}

/// `migrate` with these environment variables.
fn migrate_with(variables: &[(&str, &str)], arguments: &[&str]) -> (bool, String) {
    let mut command = program::program();
    let output = command.arg("migrate").args(arguments).envs(variables.iter().copied()).output().expect("it starts");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_of_the_old_server_is_an_administrators_here() {
    let old = Served::start("mem:");
    old.put("/_users", Value::Null).await;
    let user = json!({"name": "bert", "type": "user", "roles": [], "password": "geheim"});
    old.put("/_users/org.couchdb.user:bert", user).await;
    for name in ["bert", "dora", "eva"] {
        old.put(&format!("/_node/_local/_config/admins/{name}"), json!("of-old")).await;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let engine = |name: &str| format!("lsm:{}", folder.path().join(name).display());
    let (plain, admins) = (engine("plain"), engine("admins"));

    // The new administrator's name and password are not sent to the old server.
    let base = old.process.base.clone();
    let own = [("COUCHDB_USER", "anna"), ("COUCHDB_PASSWORD", "secret")];
    let (success, said) = migrate_with(&own, &["--from", &base, "--engine", &plain]);
    assert!(!success && said.contains("401"), "{said}");
    let its = [("COUCHDB_FROM_USER", "anna"), ("COUCHDB_FROM_PASSWORD", "secret")];
    let (success, said) = migrate_with(&its, &["--from", &base, "--engine", &plain]);
    assert!(success, "{said}");
    assert!(said.contains("not copied: anna, bert, dora, eva; --admins copies them"), "{said}");
    let mut command = server::command(&["--engine", &plain, "--listen", "127.0.0.1:0"]);
    let process = Process::of(command.env("COUCHDB_USER", "eva").env("COUCHDB_PASSWORD", "new"));
    let here = Served { process, client: Client::new() };
    assert!(logs_in(&here, "eva", "new").await && !logs_in(&here, "eva", "of-old").await);
    assert!(!logs_in(&here, "dora", "of-old").await && !logs_in(&here, "anna", "secret").await);
    assert!(logs_in(&here, "bert", "geheim").await && !logs_in(&here, "bert", "of-old").await, "a user");

    let of_eva = [its[0], its[1], ("COUCHDB_USER", "eva"), ("COUCHDB_PASSWORD", "new")];
    let (success, said) = migrate_with(&of_eva, &["--from", &base, "--engine", &admins, "--admins"]);
    assert!(success && said.contains("admins/dora"), "{said}");
    assert!(said.contains("admins/bert is not copied: a user here has this name"), "{said}");
    assert!(said.contains("admins/eva is another one here, and stays"), "{said}");
    let open = Process::start(&["--engine", "mem:"]);
    let (success, said) = migrate_with(&its, &["--from", &base, "--url", &open.base, "--admins"]);
    // Users would outlast the time without an administrator.
    assert!(!success && said.contains("X-Couch-Layer-Setup-Token"), "{said}");
    let (success, said) = migrate_with(&its, &["notes", "--from", &base, "--engine", &admins, "--admins"]);
    assert!(!success && said.contains("--admins"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_only_where_their_rights_are() {
    let (old, here) = (Served::filled().await, Served::start("mem:"));
    here.put("/_node/_local/_config/couchdb/default_security", json!("everyone")).await;
    here.put("/notes", Value::Null).await;
    here.put("/notes/_revs_limit", json!(5)).await;
    here.put("/cloud", Value::Null).await;
    // As a run that was killed leaves it.
    let (members, admin_only) = (
        json!({"members": {"names": ["bert"], "roles": []}}),
        json!({"members": {"roles": ["_admin"]}, "admins": {"roles": ["_admin"]}}),
    );
    here.put("/parts?partitioned=true", Value::Null).await;
    here.put("/parts/_security", old.get("/parts/_security").await).await;
    old.put("/parts/_security", members.clone()).await;
    old.put("/new", Value::Null).await;
    old.put("/new/_security", json!({"cloudant": {}})).await;
    let (from, to) = (old.url(), here.url());
    let migrate = ["migrate", "--from", &from, "--url", &to];
    let moved = |databases: &[&str]| couch_layer(&[&migrate[..], databases].concat());

    let (success, said, remarks) = moved(&["notes", "cloud", "parts", "new"]);
    assert!(!success && remarks.contains("not copied completely: cloud, notes"), "{said}{remarks}");
    assert!(remarks.contains("its _security is not that of the old server"), "{remarks}");
    assert!(remarks.contains("the database of this name here is everybody's"), "{remarks}");
    for db in ["/notes", "/cloud"] {
        let info = here.get(db).await;
        assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(0), &json!(0)), "{db}");
    }
    assert_eq!(here.get("/parts/_security").await, members);
    assert_eq!(here.get("/new/_security").await["members"]["roles"], admin_only["members"]["roles"], "closed");
    // With the rights of the old server. Other settings stay.
    here.put("/notes/_security", members).await;
    here.put("/cloud/_security", json!({"members": {"names": ["carl"]}})).await;
    let (success, said, remarks) = moved(&["notes", "cloud"]);
    assert!(success && said.contains("notes: 51 documents"), "{said}{remarks}");
    assert!(remarks.contains("notes: _revs_limit is 77 on the old server, and 5 here"), "{remarks}");
    assert_eq!(here.get("/notes/_revs_limit").await, json!(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_were_refused_once_arrive_with_a_later_run() {
    let (old, here) = (Served::start("mem:"), Served::start("mem:"));
    old.put("/notes", Value::Null).await;
    old.put("/notes/small", json!({})).await;
    for id in ["long", "100%25+more"] {
        old.put(&format!("/notes/{id}"), json!({ "text": "a".repeat(5_000) })).await;
    }
    here.put("/_node/_local/_config/couchdb/max_document_size", json!("1000")).await;
    let (from, to) = (old.url(), here.url());
    let migrate = ["migrate", "--from", &from, "--url", &to, "notes"];
    let (success, said, remarks) = couch_layer(&migrate);
    assert!(!success && said.contains("notes: 1 documents, 1 revisions written, not the same"), "{said}{remarks}");
    assert!(remarks.contains("\"long\": 1-") && remarks.contains("is missing here"), "{remarks}");
    here.put("/_node/_local/_config/couchdb/max_document_size", json!("8000000")).await;
    let (success, said, remarks) = couch_layer(&migrate);
    assert!(success && said.contains("notes: 3 documents, 2 revisions written, the same"), "{said}{remarks}");
    assert_eq!(old.leaves("notes").await, here.leaves("notes").await);
}
