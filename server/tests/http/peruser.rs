//! A database for each user.

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use server::http::{Administrator, Options};

use crate::support::{Answer, Couch, wait_for};

const PASSWORD: &str = "pass word";

fn options() -> Options {
    let administrator = Administrator { name: "adm".into(), password: PASSWORD.into() };
    Options { administrator: Some(administrator), ..Options::default() }
}

fn as_user(request: RequestBuilder, name: &str) -> RequestBuilder {
    request.basic_auth(name, Some(PASSWORD))
}

async fn send(couch: &Couch, who: &str, method: &str, path: &str, body: Value) -> Answer {
    let request = as_user(couch.request(method, path), who).header("content-type", "application/json");
    couch.send(request.body(body.to_string())).await
}

async fn set(couch: &Couch, key: &str, value: &str) {
    let answer = send(couch, "adm", "PUT", &format!("/_node/_local/_config/{key}"), json!(value)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn register(couch: &Couch, name: &str) -> String {
    let user = json!({"name": name, "password": PASSWORD, "roles": [], "type": "user"});
    let path = format!("/_users/org.couchdb.user:{name}");
    let answer = send(couch, "adm", "PUT", &path, user).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["rev"].as_str().unwrap().to_owned()
}

/// Asks until the database's security is as expected, or the database is not there (`None`).
async fn until(couch: &Couch, db: &str, expected: Option<Value>) {
    let wait = async {
        loop {
            let answer = send(couch, "adm", "GET", &format!("/{db}/_security"), json!(null)).await;
            match &expected {
                None if answer.status == 404 => return,
                Some(expected) if answer.status == 200 && answer.json() == *expected => return,
                _ => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait)
        .await
        .unwrap_or_else(|_| panic!("{db}: {expected:?}"));
}

fn of(names: &[&str]) -> Value {
    let group = json!({"roles": ["_admin"], "names": names});
    json!({"admins": group, "members": group})
}

#[tokio::test(flavor = "multi_thread")]
async fn each_user_has_a_database_of_their_own() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine.clone(), options()).await;
    let other = Couch::over(engine, options()).await;
    set(&couch, "chttpd_auth/iterations", "10").await;
    // The option may come before the database of users, and users before the option.
    send(&couch, "adm", "PUT", "/_users", json!(null)).await;
    register(&couch, "anna").await;
    register(&couch, &"x".repeat(200)).await;
    send(&couch, "adm", "PUT", "/userdb-626f62", json!(null)).await;
    let mine = json!({"admins": {"names": ["carl"]}, "members": {"roles": ["staff"]}});
    send(&couch, "adm", "PUT", "/userdb-626f62/_security", mine).await;
    set(&couch, "couch_peruser/enable", "true").await;
    until(&couch, "userdb-616e6e61", Some(of(&["anna"]))).await;
    let rev = register(&other, "bob").await;
    let joined = json!({"admins": {"names": ["bob", "carl"]}, "members": {"roles": ["staff"], "names": ["bob"]}});
    until(&couch, "userdb-626f62", Some(joined)).await;
    // Written in a batch, and by a replication.
    let user =
        json!({"_id": "org.couchdb.user:dora", "name": "dora", "password": PASSWORD, "roles": [], "type": "user"});
    send(&couch, "adm", "POST", "/_users/_bulk_docs", json!({"docs": [user]})).await;
    until(&couch, "userdb-646f7261", Some(of(&["dora"]))).await;
    let user =
        json!({"_id": "org.couchdb.user:emil", "name": "emil", "password": PASSWORD, "roles": [], "type": "user"});
    send(&couch, "adm", "PUT", "/elsewhere", json!(null)).await;
    send(&couch, "adm", "POST", "/elsewhere", user).await;
    let replication = json!({"source": "elsewhere", "target": "_users"});
    assert_eq!(send(&couch, "adm", "POST", "/_replicate", replication).await.status, 200);
    until(&couch, "userdb-656d696c", Some(of(&["emil"]))).await;

    assert_eq!(send(&couch, "anna", "PUT", "/userdb-616e6e61/x", json!({})).await.status, 201);
    assert_eq!(send(&couch, "anna", "PUT", "/userdb-616e6e61/_design/d", json!({})).await.status, 201);
    assert_eq!(send(&couch, "anna", "GET", "/userdb-646f7261/x", json!(null)).await.status, 403);
    assert_eq!(couch.get("/userdb-616e6e61/x").await.status, 401);

    // A deleted user is no longer a member; the database and its other names are kept.
    send(&couch, "adm", "DELETE", &format!("/_users/org.couchdb.user:bob?rev={rev}"), json!(null)).await;
    let left = json!({"admins": {"names": ["carl"]}, "members": {"roles": ["staff"], "names": []}});
    until(&couch, "userdb-626f62", Some(left)).await;
    // With the other option it is dropped, also for users deleted earlier; existing users keep theirs.
    set(&couch, "couch_peruser/delete_dbs", "true").await;
    until(&couch, "userdb-626f62", None).await;
    assert_eq!(send(&couch, "anna", "GET", "/userdb-616e6e61/x", json!(null)).await.status, 200);
    register(&couch, "bob").await;
    until(&couch, "userdb-626f62", Some(of(&["bob"]))).await;
    // A new prefix applies to all users. Ending the option changes nothing for them.
    set(&couch, "couch_peruser/database_prefix", "home/").await;
    until(&couch, "home%2f646f7261", Some(of(&["dora"]))).await;
    set(&couch, "couch_peruser/enable", "false").await;
    let tasks = async {
        while send(&couch, "adm", "GET", "/_active_tasks", json!(null)).await.text.contains("peruser") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), tasks).await.unwrap();
    // The other server may run the job for a moment after its row is gone.
    for number in 0.. {
        let user = format!("late{number}");
        register(&couch, &user).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let all = send(&couch, "adm", "GET", "/_all_dbs", json!(null)).await.json();
        if !all.as_array().unwrap().contains(&json!(format!("home/{}", model::hex(user.as_bytes())))) {
            break;
        }
        assert!(number < 10, "{all}");
    }
}

/// Repeats until the answer has this status: the known size of a database is up to a second old.
async fn until_status(couch: &Couch, status: u16, method: &str, path: &str, body: Value) -> Answer {
    let sent =
        async || Some(send(couch, "adm", method, path, body.clone()).await).filter(|answer| answer.status == status);
    wait_for(&format!("{method} {path} is never {status}"), sent).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_takes_deletions_alone() {
    let couch = Couch::with(options()).await;
    let adm = |method: &'static str, path: &'static str, body: Value| send(&couch, "adm", method, path, body);
    assert_eq!(adm("PUT", "/notes", json!(null)).await.status, 201);
    assert_eq!(adm("GET", "/notes", json!(null)).await.json()["sizes"]["quota"], Value::Null);
    for wrong in ["much", "-1", "1 lot"] {
        assert_eq!(adm("PUT", "/_node/_local/_config/quotas/notes", json!(wrong)).await.status, 400, "{wrong}");
    }
    set(&couch, "quotas/notes", "150kB").await;
    assert_eq!(adm("GET", "/notes", json!(null)).await.json()["sizes"]["quota"], 150_000);
    assert_eq!(
        adm("POST", "/_dbs_info", json!({"keys": ["notes"]})).await.json()[0]["info"]["sizes"]["quota"],
        150_000
    );

    let text = "x".repeat(20_000);
    let documents: Vec<_> = (0..10).map(|n| json!({"_id": format!("d{n}"), "text": text})).collect();
    let written = adm("POST", "/notes/_bulk_docs", json!({"docs": documents})).await.json();
    let rev = |n: usize| written[n]["rev"].as_str().expect("written").to_owned();

    let full = until_status(&couch, 413, "PUT", "/notes/more", json!({})).await.json();
    assert_eq!(full["error"], "quota_exceeded");
    assert!(full["reason"].as_str().unwrap().contains("its quota is 150000"), "{full}");
    let attached = as_user(couch.request("PUT", &format!("/notes/d0/file?rev={}", rev(0))), "adm");
    assert_eq!(couch.send(attached.body("text")).await.status, 413);
    let large = json!({"_id": "d1", "_rev": rev(1), "_deleted": true, "text": text});
    let bulk = json!({"docs": [{"_id": "d0", "_rev": rev(0), "_deleted": true}, {"_id": "more"}, large]});
    let answer = adm("POST", "/notes/_bulk_docs", bulk).await;
    let rows = answer.json();
    assert_eq!((answer.status.as_u16(), &rows[0]["ok"]), (201, &json!(true)), "{rows}");
    assert_eq!((&rows[1]["error"], &rows[2]["error"]), (&json!("quota_exceeded"), &json!("quota_exceeded")));
    let transact = json!({"edits": [{"db": "notes", "doc": {"_id": "more"}}]});
    assert_eq!(adm("POST", "/_transact", transact).await.status, 413);
    // Checkpoints of replications are still written.
    assert_eq!(adm("PUT", "/notes/_local/place", json!({"at": 1})).await.status, 201);
    assert_eq!(adm("GET", "/notes/d2", json!(null)).await.status, 200);

    for n in 1..8 {
        let path = format!("/notes/d{n}?rev={}", rev(n));
        assert_eq!(send(&couch, "adm", "DELETE", &path, json!(null)).await.status, 200, "d{n}");
    }
    until_status(&couch, 201, "PUT", "/notes/again", json!({})).await;
    assert_eq!(adm("DELETE", "/_node/_local/_config/quotas/notes", json!(null)).await.status, 200);
    for n in 0..10 {
        let path = format!("/notes/e{n}");
        assert_eq!(send(&couch, "adm", "PUT", &path, json!({"text": text})).await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_databases_have_a_quota() {
    let couch = Couch::with(options()).await;
    set(&couch, "couch_peruser/enable", "true").await;
    set(&couch, "couch_peruser/quota", "50000").await;
    assert_eq!(send(&couch, "adm", "PUT", "/_users", json!(null)).await.status, 201);
    register(&couch, "bob").await;
    until(&couch, "userdb-626f62", Some(of(&["bob"]))).await;
    let text = "x".repeat(60_000);
    let first = send(&couch, "bob", "PUT", "/userdb-626f62/a", json!({"text": text})).await;
    assert_eq!(first.status, 201, "{}", first.text);
    until_status(&couch, 413, "PUT", "/userdb-626f62/b", json!({})).await;
    assert_eq!(send(&couch, "bob", "GET", "/userdb-626f62", json!(null)).await.json()["sizes"]["quota"], 50_000);
}
