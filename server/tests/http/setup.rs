//! The token that names the first administrator.

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use server::http::{Options, SetupToken};

use crate::rights::cookie;
use crate::support::{Answer, Couch};

const HEADER: &str = "x-couch-layer-setup-token";
const ADMINS: &str = "/_node/_local/_config/admins";

async fn with_token() -> (Couch, String) {
    let token = SetupToken::random().unwrap();
    let couch = Couch::with(Options { setup_token: Some(token.clone()), ..Options::default() }).await;
    (couch, token.as_str().to_owned())
}

fn named(couch: &Couch, name: &str, token: &str) -> RequestBuilder {
    couch.request("PUT", &format!("{ADMINS}/{name}")).header(HEADER, token).body("\"geheim\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_uses_documents_and_changes_no_setting() {
    let (couch, token) = with_token().await;
    couch.database("db").await;
    couch.put("/db/one", json!({})).await;
    let set_up = json!({"action": "enable_single_node", "username": "eve", "password": "x"});
    let changes: [(&str, &str, Value); 7] = [
        ("PUT", "/_node/_local/_config/admins/eve", json!("x")),
        ("PUT", "/_node/_local/_config/chttpd_auth/secret", json!("known")),
        ("PUT", "/_node/_local/_config/jwt_keys/hmac:_default", json!("a25vd24=")),
        ("PUT", "/_node/nonode@nohost/_config/couchdb/default_security", json!("everyone")),
        ("DELETE", "/_node/_local/_config/cors/origins", json!(null)),
        ("POST", "/_cluster_setup", set_up),
        ("POST", "/_node/_local/_config/_reload", json!(null)),
    ];
    let security = json!({"admins": {"names": ["eve"]}});
    let user = json!({"name": "eve", "type": "user", "roles": [], "password": "x"});
    let own = couch.request("PUT", "/_node/_local/_config/jwt_keys/hmac:own").header(HEADER, &token);
    assert_eq!(couch.send(own.body("\"geheim\"")).await.status, 200);
    couch.database("_users").await;
    let users: [(&str, &str, Value); 7] = [
        ("PUT", "/db/_security", security.clone()),
        ("PUT", "/_users/_security", security),
        ("PUT", "/_users/org.couchdb.user:eve", user.clone()),
        ("POST", "/_users/_bulk_docs", json!({"docs": [user.clone()]})),
        ("POST", "/_users", user),
        ("PUT", "/_users/_design/x", json!({})),
        ("PUT", "/_users/_local/x", json!({})),
    ];
    for (method, path, mut body) in users {
        if path == "/_users" || path == "/_users/_bulk_docs" {
            body.as_object_mut().unwrap().entry("_id").or_insert(json!("org.couchdb.user:eve"));
        }
        let refused = couch.json(method, path, body).await;
        assert!(refused.status == 403 || refused.text.contains("forbidden"), "{method} {path}: {}", refused.text);
        assert!(refused.text.contains("token"), "{method} {path}: {}", refused.text);
    }
    assert_eq!(couch.get("/_users").await.json()["doc_count"], 1, "the design document alone");
    for path in ["", "/jwt_keys", "/jwt_keys/hmac:own", "/admins", "/chttpd_auth/secret"] {
        let path = format!("/_node/_local/_config{path}");
        let refused = couch.get(&path).await;
        assert!(refused.status == 403 && !refused.text.contains("geheim"), "{path}: {}", refused.text);
    }
    let config = async || {
        let asked = couch.request("GET", "/_node/_local/_config").header(HEADER, &token);
        couch.send(asked).await.text
    };
    let before = config().await;
    assert!(before.contains("geheim"), "whoever shows the token reads settings");
    for (method, path, body) in &changes {
        let refused = couch.json(method, path, body.clone()).await;
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text);
        assert!(refused.text.contains("token") && !refused.text.contains(&token), "{}", refused.text);
        for wrong in ["", "0", &token[1..], &token.to_uppercase()] {
            if wrong == token {
                continue;
            }
            let asked = couch.request(method, path).header(HEADER, wrong).header("content-type", "application/json");
            let refused = couch.send(asked.body(body.to_string())).await;
            assert_eq!(refused.status, 401, "{wrong:?} {method} {path}: {}", refused.text);
        }
    }
    assert_eq!(config().await, before);
    assert_eq!(couch.get("/_all_dbs").await.json(), json!(["_users", "db"]), "no database of the set-up");
    assert!(!before.contains(&token));
    for path in ["/", "/_session", "/_node/_local/_stats", "/_node/_local/_system"] {
        assert!(!couch.get(path).await.text.contains(&token), "{path}");
    }
    couch.get("/_couch_layer/log").await.refused(
        403,
        "forbidden",
        "the log is for administrators, and this server has none",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_names_one_administrator_however_many_show_it() {
    let (couch, token) = with_token().await;
    // A name that nobody can have leaves the token as it is.
    assert_eq!(couch.send(named(&couch, "a:b", &token)).await.status, 400);
    let other = couch.request("PUT", "/_node/_local/_config/chttpd_auth/iterations").header(HEADER, &token);
    assert_eq!(couch.send(other.body("\"10\"")).await.status, 200);
    let at_once = (0..8).map(|number| couch.send(named(&couch, &format!("admin{number}"), &token)));
    let answers: Vec<Answer> = join_all(at_once).await;
    let winners: Vec<usize> = (0..8).filter(|number| answers[*number].status == 200).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    for lost in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(lost.status, 401, "{}", lost.text);
    }
    let name = format!("admin{}", winners[0]);
    let admins = couch.request("GET", ADMINS).basic_auth(&name, Some("geheim"));
    let admins = couch.send(admins).await.json();
    assert_eq!(admins.as_object().unwrap().keys().collect::<Vec<_>>(), [&name]);
    // It proves nothing any more, and the server has forgotten that it had one.
    assert!(couch.server.setup_token().is_none());
    for path in ["/_all_dbs", ADMINS] {
        let asked = couch.request("GET", path).header(HEADER, &token);
        assert_eq!(couch.send(asked).await.status, 401, "{path}");
    }
    assert_eq!(couch.send(named(&couch, "late", &token)).await.status, 401);
    assert!(!couch.get("/_session").await.text.contains("needs_administrator"));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_store_name_one_administrator_together() {
    let (one, token) = with_token().await;
    let own = SetupToken::random().unwrap();
    let options = Options { setup_token: Some(own.clone()), ..Options::default() };
    let other = Couch::over(one.layer.engine().clone(), options).await;
    let at_once = (0..8).map(|number| {
        let (couch, token) = if number % 2 == 0 { (&one, &*token) } else { (&other, own.as_str()) };
        couch.send(named(couch, &format!("admin{number}"), token))
    });
    let answers: Vec<Answer> = join_all(at_once).await;
    let winners: Vec<usize> = (0..8).filter(|number| answers[*number].status == 200).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.status == 200 || answer.status == 401), "{answers:?}");
    let admins = one.request("GET", ADMINS).basic_auth(format!("admin{}", winners[0]), Some("geheim"));
    assert_eq!(one.send(admins).await.json().as_object().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_comes_before_other_proofs() {
    let (couch, token) = with_token().await;
    let asked = named(&couch, "anna", &token).basic_auth("nobody", Some("wrong"));
    assert_eq!(couch.send(asked.header("cookie", "AuthSession=b2xkOjE6MQ")).await.status, 200);
    // It proves nothing any more, and the others count again.
    let asked = couch.request("GET", "/_all_dbs").header(HEADER, &token).basic_auth("anna", Some("geheim"));
    assert_eq!(couch.send(asked).await.status, 200);
    let asked = couch.request("GET", "/_all_dbs").header(HEADER, &token).basic_auth("nobody", Some("wrong"));
    assert_eq!(couch.send(asked).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_named_by_its_address_is_not_this_machine() {
    let token = SetupToken::random().unwrap();
    let couch = Couch::with(Options {
        setup_token: Some(token.clone()),
        proxies: vec!["127.0.0.1".parse().unwrap()],
        ..Options::default()
    });
    let couch = couch.await;
    assert_eq!(couch.get("/_all_dbs").await.status, 403);
    assert_eq!(couch.get("/_session").await.json()["userCtx"]["roles"], json!([]));
    let asked = couch.request("GET", "/_all_dbs").header(HEADER, token.as_str());
    assert_eq!(couch.send(asked).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_when_another_server_of_the_store_has_an_administrator() {
    let (couch, token) = with_token().await;
    let own = SetupToken::random().unwrap();
    let options = Options { setup_token: Some(own.clone()), ..Options::default() };
    let other = Couch::over(couch.layer.engine().clone(), options).await;
    assert_eq!(other.send(named(&other, "anna", &token)).await.status, 401, "the token of another process");
    assert_eq!(couch.send(named(&couch, "anna", &token)).await.status, 200);
    assert_eq!(other.send(named(&other, "eve", own.as_str())).await.status, 401);
    let admins = couch.request("GET", ADMINS).basic_auth("anna", Some("geheim"));
    assert_eq!(couch.send(admins).await.json().as_object().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_nobody_is_an_administrator_without_the_token() {
    let (couch, token) = with_token().await;
    couch.database("db").await;
    let through = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-ssl", "on"),
        ("x-real-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("via", "1.1 proxy"),
        ("host", "couch.example"),
    ];
    for (name, value) in through {
        for (method, path) in
            [("GET", "/_all_dbs"), ("GET", "/db"), ("PUT", "/other"), ("GET", "/_node/_local/_config")]
        {
            let refused = couch.send(couch.request(method, path).header(name, value)).await;
            assert_eq!(refused.status, 403, "{name} {method} {path}: {}", refused.text);
        }
        // The console comes, and says what is missing.
        assert_eq!(couch.send(couch.request("GET", "/_utils/").header(name, value)).await.status, 200, "{name}");
        let session = couch.send(couch.request("GET", "/_session").header(name, value)).await.json();
        assert_eq!(session["userCtx"]["roles"], json!([]), "{name}");
        assert_eq!(session["needs_administrator"], true, "{name}");
        let shown = couch.request("GET", "/_all_dbs").header(name, value).header(HEADER, &token);
        assert_eq!(couch.send(shown).await.status, 200, "{name}");
    }
    // A browser's request through a proxy that ends TLS, and hands its own host on.
    let asked = named(&couch, "anna", &token).header("origin", "https://couch.example").header("via", "1.1 proxy");
    assert_eq!(couch.send(asked).await.status, 200);
    let login = json!({"name": "anna", "password": "geheim"});
    let login = couch
        .request("POST", "/_session")
        .header("via", "1.1 proxy")
        .header("content-type", "application/json")
        .body(login.to_string());
    let login = couch.send(login).await;
    assert_eq!(login.status, 200, "{}", login.text);
    let listed = couch.request("GET", "/_all_dbs").header("via", "1.1 proxy").header("cookie", cookie(&login));
    assert_eq!(couch.send(listed).await.json(), json!(["db"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_scripts_show_the_token() {
    let (couch, token) = with_token().await;
    let body = json!({"action": "enable_single_node", "username": "anna", "password": "geheim"}).to_string();
    let asked = couch.request("POST", "/_cluster_setup").header("content-type", "application/json").body(body);
    assert_eq!(couch.send(asked.header(HEADER, &token)).await.status, 201);
    let state = couch.request("GET", "/_cluster_setup").basic_auth("anna", Some("geheim"));
    assert_eq!(couch.send(state).await.json(), json!({"state": "single_node_enabled"}));
}
