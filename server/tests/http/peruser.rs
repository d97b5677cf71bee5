//! A database for each user.

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use server::http::{Administrator, Options};

use crate::support::{Answer, Couch};

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

    // A user who is gone is no member any more; the database and its other names stay.
    send(&couch, "adm", "DELETE", &format!("/_users/org.couchdb.user:bob?rev={rev}"), json!(null)).await;
    let left = json!({"admins": {"names": ["carl"]}, "members": {"roles": ["staff"], "names": []}});
    until(&couch, "userdb-626f62", Some(left)).await;
    // With the other option it is dropped, also of users who were gone before; those who are there keep theirs.
    set(&couch, "couch_peruser/delete_dbs", "true").await;
    until(&couch, "userdb-626f62", None).await;
    assert_eq!(send(&couch, "anna", "GET", "/userdb-616e6e61/x", json!(null)).await.status, 200);
    register(&couch, "bob").await;
    until(&couch, "userdb-626f62", Some(of(&["bob"]))).await;
    // A new prefix is for all users, and the end of the option for none.
    set(&couch, "couch_peruser/database_prefix", "home/").await;
    until(&couch, "home%2f646f7261", Some(of(&["dora"]))).await;
    set(&couch, "couch_peruser/enable", "false").await;
    let tasks = async {
        while send(&couch, "adm", "GET", "/_active_tasks", json!(null)).await.text.contains("peruser") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), tasks).await.unwrap();
    register(&couch, "frida").await;
    let all = send(&couch, "adm", "GET", "/_all_dbs", json!(null)).await.json();
    assert!(!all.as_array().unwrap().contains(&json!("home/6672696461")), "{all}");
}
