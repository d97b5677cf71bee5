//! Collections of a vault's chunks that a server does by itself.

use jobs::{JobId, JobState, NewJob};
use serde_json::{Value, json};
use server::http::Options;

#[cfg(feature = "lsm")]
use crate::relocating::{lsm, relocate, serve};
use crate::support::{Answer, Couch, wait_for};

const KIND: &str = "vault_collection";
const MILESTONE: &str = "_local/obsydian_livesync_milestone";

/// A vault of one note with a chunk, and a chunk that no file needs. A device has connected just now.
async fn vault(couch: &Couch, db: &str) {
    couch.database(db).await;
    for chunk in ["h:needed", "h:old"] {
        couch.put(&format!("/{db}/{chunk}"), json!({"type": "leaf", "data": "text"})).await;
    }
    couch.put(&format!("/{db}/note.md"), note(&["h:needed"])).await;
    let device = json!({"device_name": "phone", "progress": couch.get(&format!("/{db}")).await.json()["update_seq"]});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device}});
    assert_eq!(couch.json("PUT", &format!("/{db}/{MILESTONE}"), milestone).await.status, 201);
}

fn note(chunks: &[&str]) -> Value {
    json!({"path": "note.md", "children": chunks, "type": "plain", "size": 1, "ctime": 1, "mtime": 1, "eden": {}})
}

async fn set(couch: &Couch, db: &str, body: Value) -> Answer {
    couch.json("PUT", &format!("/{db}/_couch_layer/vault"), body).await
}

/// The setting of a database and its last run.
async fn collection(couch: &Couch, db: &str) -> Value {
    couch.get(&format!("/{db}/_couch_layer/vault")).await.json()["collect"].clone()
}

/// The next result of the job.
async fn result(couch: &Couch, db: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let found = async || Some(collection(couch, db).await["last"].clone()).filter(|last| is_wanted(last));
    wait_for("a run ends", found).await
}

/// Makes the job due.
async fn hurry(couch: &Couch, db: &str) {
    let (jobs, id) = (couch.layer.jobs(), JobId::new(KIND, db));
    let job = jobs.get(&id).await.unwrap().unwrap();
    jobs.add(&id, &NewJob { data: job.data, ..NewJob::default() }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_collects_the_vaults_that_it_is_asked_to() {
    let couch = Couch::start().await;
    vault(&couch, "vault").await;
    vault(&couch, "other").await;
    assert_eq!(collection(&couch, "vault").await, Value::Null);
    let asked = json!({"collect": "1d", "grace": "0s"});
    let told = set(&couch, "vault", asked.clone()).await.json();
    assert_eq!((&told["ok"], &told["holds"]), (&json!(true), &json!([])));
    let last = result(&couch, "vault", |last| last["at"].is_u64()).await;
    assert_eq!((&last["holds"], &last["collected"]["condemned"]), (&json!([]), &json!(1)));
    assert_eq!(couch.get("/vault/h:old").await.status, 200);
    let shown = collection(&couch, "vault").await;
    assert_eq!((&shown["every"], &shown["grace"], &shown["trash"]), (&json!("1d"), &json!("0d"), &json!(null)));

    hurry(&couch, "vault").await;
    let last = result(&couch, "vault", |last| last["collected"]["condemned"] == json!(0)).await;
    assert_eq!(last["collected"]["deleted"]["count"], json!(1));
    assert!(last["trash_holds"][0].as_str().unwrap().contains("phone (a)"), "it may keep what was deleted: {last}");
    couch.get("/vault/h:old").await.refused(404, "not_found", "deleted");
    assert_eq!(couch.get("/vault/h:needed").await.status, 200);
    // A list that nobody can read may name what is in the trash.
    let torn = json!({"path": "torn.md", "children": "h:1", "type": "plain"});
    let rev = couch.put("/vault/torn.md", torn).await;
    hurry(&couch, "vault").await;
    let last = result(&couch, "vault", |last| last["error"].is_string()).await;
    let told = last["error"].as_str().unwrap();
    assert!(told.contains("torn.md") && told.ends_with("; text in the trash may be needed"), "{told}");
    let examined = couch.get("/vault/_couch_layer/vault").await.json();
    assert_eq!(examined["advice"].as_array().unwrap().last().unwrap(), "text in the trash may be needed");
    assert_eq!(couch.call("DELETE", &format!("/vault/torn.md?rev={rev}")).await.status, 200);
    // A device that was away has written the file alone.
    couch.put("/vault/undone.md", note(&["h:old"])).await;
    assert_eq!(couch.get("/vault/h:old").await.json()["data"], "text");

    let listed = couch.layer.jobs().list(KIND).await.unwrap();
    assert_eq!(listed.iter().map(|job| job.id.id.as_str()).collect::<Vec<_>>(), ["vault"]);
    let documents = couch.layer.database("other").await.unwrap();
    assert_eq!(documents.last_collection().await.unwrap(), 0, "its edits pay nothing");
    for (trash, shown) in [(json!("30d"), json!("30d")), (json!("off"), Value::Null), (Value::Null, Value::Null)] {
        let told = set(&couch, "vault", json!({"collect": "1d", "trash": trash})).await.json();
        assert!(told["trash_holds"][0].as_str().unwrap().contains("phone (a)"), "the owner learns it at once: {told}");
        assert_eq!(collection(&couch, "vault").await["trash"], shown);
    }
    for off in [json!("off"), Value::Null] {
        assert_eq!(
            set(&couch, "vault", json!({"collect": off})).await.json(),
            json!({"ok": true, "holds": [], "trash_holds": []})
        );
        assert_eq!(collection(&couch, "vault").await, Value::Null);
        assert!(couch.layer.jobs().list(KIND).await.unwrap().is_empty());
        assert_eq!(set(&couch, "vault", asked.clone()).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_the_server_cannot_read_is_not_collected() {
    let couch = Couch::start().await;
    couch.database("bare").await;
    let refused = set(&couch, "bare", json!({"collect": "1d"})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (412, &json!("precondition_failed")));
    assert!(refused.text.contains("nobody can tell which devices use it"), "{}", refused.text);
    // Paths are obfuscated, and the lists are in ciphertext.
    vault(&couch, "closed").await;
    let sealed = json!({"path": "/\\:%abc", "children": [], "type": "plain", "size": 0, "ctime": 1, "mtime": 1});
    couch.put("/closed/f:0123", sealed).await;
    let refused = set(&couch, "closed", json!({"collect": "1d"})).await;
    assert_eq!(refused.status, 412, "{}", refused.text);
    assert!(refused.text.contains("cannot read which chunks 1 files refer to"), "{}", refused.text);
    // A device obfuscates paths, and has not brought a file yet.
    vault(&couch, "closing").await;
    let mut milestone = couch.get(&format!("/closing/{MILESTONE}")).await.json();
    milestone["tweak_values"] = json!({"a": {"usePathObfuscation": true}});
    assert_eq!(couch.json("PUT", &format!("/closing/{MILESTONE}"), milestone).await.status, 201);
    let refused = set(&couch, "closing", json!({"collect": "1d"})).await;
    assert_eq!(refused.status, 412, "{}", refused.text);
    assert!(refused.text.contains("a device obfuscates paths"), "{}", refused.text);
    for wrong in [
        json!({}),
        json!({"collect": "18446744073709551615s"}),
        json!({"collect": "1d", "grace": "10000000001s"}),
        json!({"collect": "soon"}),
        json!({"collect": "59s"}),
        json!({"collect": 1}),
        json!({"collect": "1d", "grace": "soon"}),
        json!({"collect": "1d", "trash": "soon"}),
        json!({"collect": "1d", "trash": "0s"}),
        json!({"collect": "1h", "trash": "47h"}),
        json!({"collect": "16d", "trash": "30d"}),
        json!({"collect": "1d", "every": "1d"}),
        json!([]),
    ] {
        let refused = set(&couch, "closed", wrong.clone()).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (400, &json!("bad_request")), "{wrong}");
    }
    assert!(couch.layer.jobs().list(KIND).await.unwrap().is_empty());
    set(&couch, "none", json!({"collect": "1d"})).await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_a_collection_is_shown_and_a_new_database_has_no_setting() {
    let couch = Couch::start().await;
    vault(&couch, "vault").await;
    assert_eq!(set(&couch, "vault", json!({"collect": "1d", "grace": "0s"})).await.status, 200);
    result(&couch, "vault", |last| last["at"].is_u64()).await;
    // A list that nobody can read: the run ends with an error, and the next one is due after a day.
    let rev = couch.put("/vault/torn.md", json!({"path": "torn.md", "children": "h:1", "type": "plain"})).await;
    hurry(&couch, "vault").await;
    let last = result(&couch, "vault", |last| last["error"].is_string()).await;
    assert!(last["error"].as_str().unwrap().contains("torn.md"), "{last}");
    let jobs = couch.layer.jobs();
    let planned = async || Some(jobs.list(KIND).await.unwrap().remove(0)).filter(|job| job.state == JobState::Pending);
    let job = wait_for("the next run is planned", planned).await;
    let pause = job.scheduled_ms - last["at"].as_u64().unwrap();
    assert!(pause > 86_000_000, "{pause}");
    // A chunk that is missing: nothing is removed, and the reason is shown.
    let mended = json!({"_rev": rev, "path": "torn.md", "children": ["h:gone"], "type": "plain"});
    couch.put("/vault/torn.md", mended).await;
    hurry(&couch, "vault").await;
    let last = result(&couch, "vault", |last| last["holds"][0].is_string()).await;
    assert!(last["holds"][0].as_str().unwrap().starts_with("1 chunks are missing"), "{last}");
    assert_eq!(couch.get("/vault/h:old").await.status, 200);

    assert_eq!(couch.call("DELETE", "/vault").await.status, 200);
    vault(&couch, "vault").await;
    assert_eq!(collection(&couch, "vault").await, Value::Null);
    hurry(&couch, "vault").await;
    wait_for("the job ends", async || jobs.list(KIND).await.unwrap().is_empty().then_some(())).await;
    assert_eq!(couch.layer.database("vault").await.unwrap().last_collection().await.unwrap(), 0);
}

#[cfg(feature = "lsm")]
#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_moved_to_another_folder_is_collected_there() {
    let folder = tempfile::tempdir().unwrap();
    let couch = serve(&lsm(folder.path(), "own")).await;
    vault(&couch, "db").await;
    assert_eq!(set(&couch, "db", json!({"collect": "1d", "grace": "0s"})).await.status, 200);
    result(&couch, "db", |last| last["collected"]["condemned"] == json!(1)).await;
    relocate(&couch, &lsm(folder.path(), "other")).await;
    // A device connects again: the sequences that it knows are of another incarnation.
    let mut milestone = couch.get(&format!("/db/{MILESTONE}")).await.json();
    milestone["node_info"]["a"]["progress"] = couch.get("/db").await.json()["update_seq"].clone();
    assert_eq!(couch.json("PUT", &format!("/db/{MILESTONE}"), milestone).await.status, 201);
    hurry(&couch, "db").await;
    let last = result(&couch, "db", |last| last["collected"]["deleted"]["count"] == json!(1)).await;
    assert_eq!((&last["error"], &last["holds"]), (&Value::Null, &json!([])));
    couch.get("/db/h:old").await.refused(404, "not_found", "deleted");
    assert_eq!(set(&couch, "db", json!({"collect": "2d"})).await.status, 200);
    assert_eq!(collection(&couch, "db").await["every"], "2d");
    assert_eq!(set(&couch, "db", json!({"collect": "off"})).await.status, 200);
    assert_eq!(collection(&couch, "db").await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_can_never_have_its_memory_is_not_set() {
    let mut options = Options::default();
    // More than a census takes, and less than a collection.
    options.memory.budget = 60 << 20;
    let couch = Couch::with(options).await;
    vault(&couch, "vault").await;
    assert_eq!(couch.get("/vault/_couch_layer/vault").await.status, 200);
    let refused = set(&couch, "vault", json!({"collect": "1d"})).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(couch.layer.jobs().list(KIND).await.unwrap().is_empty());
}
