//! Authorisation, sessions, and pages of other origins.

use serde_json::json;
use server::http::{CorsOptions, Options, Server};

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn with_an_administrator_everything_but_the_front_door_is_closed() {
    let couch = Couch::with_administrator().await;
    let admin = |method: &str, path: &str| couch.request(method, path).basic_auth("adm", Some("pass word"));
    assert_eq!(couch.send(admin("PUT", "/db")).await.status, 201);
    assert_eq!(couch.send(admin("PUT", "/db/x").body("{}")).await.status, 201);
    for path in ["/", "/_up", "/_uuids", "/_session"] {
        assert_eq!(couch.get(path).await.status, 200, "{path}");
    }
    let server = "You are not a server admin.";
    let member = "You are not authorized to access this db.";
    for (method, path, reason) in [
        ("GET", "/_all_dbs", server),
        ("GET", "/_dbs_info", server),
        ("GET", "/_active_tasks", server),
        ("PUT", "/other", server),
        ("DELETE", "/db", server),
        ("GET", "/db", member),
        ("POST", "/db", member),
        ("GET", "/db/x", member),
        ("PUT", "/db/y", member),
        ("DELETE", "/db/x", member),
        ("POST", "/db/_bulk_docs", member),
        ("GET", "/db/_changes", member),
        ("GET", "/db/_all_docs", member),
        ("GET", "/db/_local/x", member),
        ("GET", "/db/_security", member),
        ("PUT", "/db/_security", member),
        ("PUT", "/db/_revs_limit", member),
        ("POST", "/db/_compact", member),
    ] {
        let answer = couch.json(method, path, json!({"docs": []})).await;
        answer.refused(401, "unauthorized", reason);
        assert_eq!(answer.header("www-authenticate"), "", "{path}: no dialog of the browser opens");
    }
    couch.get("/none").await.refused(404, "not_found", "Database does not exist.");
    for (name, password) in [("adm", "wrong"), ("adm", ""), ("other", "pass word"), ("", "")] {
        for path in ["/", "/db/x"] {
            let answer = couch.send(couch.request("GET", path).basic_auth(name, Some(password))).await;
            answer.refused(401, "unauthorized", "Name or password is incorrect.");
        }
    }
    assert_eq!(couch.send(admin("GET", "/db")).await.json()["doc_count"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_security_object_without_members_opens_a_database() {
    let couch = Couch::with_administrator().await;
    let admin = |method: &str, path: &str| couch.request(method, path).basic_auth("adm", Some("pass word"));
    couch.send(admin("PUT", "/db")).await;
    couch.send(admin("PUT", "/db/_security").body(r#"{"members":{"names":[],"roles":[]}}"#)).await;
    couch.put("/db/x", json!({})).await;
    assert_eq!(couch.get("/db/x").await.status, 200);
    // Design documents and settings are for administrators only.
    let design = "You are not a db or server admin.";
    couch.json("PUT", "/db/_design/d", json!({})).await.refused(401, "unauthorized", design);
    couch.json("POST", "/db", json!({"_id": "_design/d"})).await.refused(401, "unauthorized", design);
    let docs = json!({"docs": [{"_id": "a"}, {"_id": "_design/d"}, {"_id": "b"}]});
    let bulk = couch.json("POST", "/db/_bulk_docs", docs).await.json();
    assert_eq!((&bulk[0]["ok"], &bulk[2]["ok"]), (&json!(true), &json!(true)));
    assert_eq!(bulk[1], json!({"id": "_design/d", "error": "unauthorized", "reason": design}));
    // The same for a replicated one.
    let brought = json!({"docs": [{"_id": "_design/d", "_rev": "1-a"}], "new_edits": false});
    let bulk = couch.json("POST", "/db/_bulk_docs", brought).await;
    assert_eq!((bulk.status.as_u16(), &bulk.json()[0]["error"]), (201, &json!("unauthorized")));
    assert_eq!(couch.get("/db/_design/d").await.status, 404);
    let either = "You are not a db or server admin.";
    couch.raw("PUT", "/db/_revs_limit", "5").await.refused(401, "unauthorized", either);
    couch.call("DELETE", "/db").await.refused(401, "unauthorized", "You are not a server admin.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_begun_used_and_ended() {
    let couch = Couch::with_administrator().await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let nobody = couch.get("/_session").await.json();
    assert_eq!(nobody["userCtx"], json!({"name": null, "roles": []}));
    couch.get("/_session?basic=true").await.refused(401, "unauthorized", "Please login.");

    let login = couch.json("POST", "/_session", json!({"name": "adm", "password": "pass word"})).await;
    assert_eq!(login.json(), json!({"ok": true, "name": "adm", "roles": ["_admin"]}));
    let cookie = login.header("set-cookie").to_owned();
    assert!(cookie.starts_with("AuthSession=") && cookie.contains("HttpOnly") && cookie.contains("Max-Age=600"));
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with = |path: &str| couch.request("GET", path).header("cookie", &cookie);
    let session = couch.send(with("/_session")).await.json();
    assert_eq!(session["userCtx"], json!({"name": "adm", "roles": ["_admin"]}));
    assert_eq!(session["info"]["authenticated"], "cookie");
    assert_eq!(couch.send(with("/_all_dbs")).await.status, 200);

    let form = couch.request("POST", "/_session").header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(couch.send(form.body("name=adm&password=pass+word")).await.status, 200);
    let ended = couch.send(couch.request("DELETE", "/_session").header("cookie", &cookie)).await;
    let ended = ended.header("set-cookie");
    assert!(ended.starts_with("AuthSession=; Version=1; Expires=") && ended.contains("; Max-Age=600; "), "{ended}");
    // A login leads to paths of this server, and nowhere else.
    for (next, status) in [("/db", 302), ("http://evil.example/", 400), ("//evil.example", 400), ("x", 400)] {
        for (password, parameter) in [("pass word", "next"), ("wrong", "fail")] {
            let login = json!({"name": "adm", "password": password}).to_string();
            let sent = couch.request("POST", &format!("/_session?{parameter}={next}"));
            let sent = sent.header("content-type", "application/json").body(login).build().unwrap();
            let found = client.execute(sent).await.unwrap();
            assert_eq!(found.status(), status, "{parameter}={next}");
            let location = found.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(location, (status == 302).then(|| format!("{}/db", couch.base)));
        }
    }

    for (body, status) in [
        (json!({"name": "adm", "password": "wrong"}), 401),
        (json!({"name": "adm"}), 401),
        (json!({"password": "pass word"}), 400),
        (json!({"name": "adm", "username": "x", "password": "pass word"}), 400),
    ] {
        assert_eq!(couch.json("POST", "/_session", body.clone()).await.status, status, "{body}");
    }
    let plain = couch.send(couch.request("POST", "/_session").header("content-type", "text/plain").body("x")).await;
    assert_eq!(plain.status, 415);
    let malformed = couch.send(couch.request("GET", "/_session").header("cookie", "AuthSession=%%%")).await;
    malformed.refused(400, "bad_request", "Malformed AuthSession cookie. Please clear your cookies.");
    let large = json!({"name": "adm", "password": "x".repeat(64 * 1024)});
    assert_eq!(couch.json("POST", "/_session", large).await.status, 413);
    let large = json!({"edits": [{"db": "db", "doc": {"_id": "x", "text": "x".repeat(1 << 20)}}]});
    assert_eq!(couch.json("POST", "/_transact", large).await.status, 413, "an anonymous client's");
    // A bad cookie must not prevent a login.
    let again = couch.request("POST", "/_session").header("cookie", "AuthSession=%%%");
    let again = again.header("content-type", "application/json").body(r#"{"name":"adm","password":"pass word"}"#);
    assert_eq!(couch.send(again).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_survives_the_server_but_not_a_new_password() {
    let couch = Couch::with_administrator().await;
    let login = couch.json("POST", "/_session", json!({"name": "adm", "password": "pass word"})).await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let uuid = couch.get("/").await.json()["uuid"].clone();
    let engine = couch.layer.engine().clone();
    couch.server.stop().await;
    for (password, status) in [("pass word", 200), ("changed", 401)] {
        let administrator = server::http::Administrator { name: "adm".into(), password: password.into() };
        let options = Options { administrator: Some(administrator), ..Options::default() };
        let again = Couch::over(engine.clone(), options).await;
        assert_eq!(again.get("/").await.json()["uuid"], uuid);
        let listed = again.send(again.request("GET", "/_all_dbs").header("cookie", &cookie)).await;
        assert_eq!(listed.status, status, "{password}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_administrator_only_loopback_is_listened_on_and_answered() {
    let couch = Couch::start().await;
    let refused = Server::start(couch.layer.clone(), "0.0.0.0:0".parse().unwrap(), Options::default()).await;
    let sentence = refused.unwrap_err().to_string();
    assert!(sentence.contains("COUCHDB_USER") && sentence.contains("loopback"), "{sentence}");
    // A page that points its own name at loopback sends that name as its host.
    let rebound = couch.send(couch.request("GET", "/_all_dbs").header("host", "evil.example:5984")).await;
    assert_eq!((rebound.status.as_u16(), &rebound.json()["error"]), (403, &json!("forbidden")));
    for host in ["localhost:1", "127.0.0.1", "[::1]:5984", "couch.localhost"] {
        let answer = couch.send(couch.request("GET", "/_all_dbs").header("host", host)).await;
        assert_eq!(answer.status, 200, "{host}");
    }
    let session = couch.get("/_session").await.json();
    assert_eq!(session["userCtx"], json!({"name": null, "roles": ["_admin"]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_named_origins_may_ask() {
    let cors = CorsOptions { origins: vec!["https://app.example".into()], credentials: true };
    let couch = Couch::with(Options { cors, ..Options::default() }).await;
    let asked = |origin: &str| couch.request("GET", "/").header("origin", origin);
    let allowed = couch.send(asked("https://app.example")).await;
    assert_eq!(allowed.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(allowed.header("access-control-allow-credentials"), "true");
    assert!(allowed.header("access-control-expose-headers").contains("etag"));
    assert_eq!(couch.send(asked("https://evil.example")).await.header("access-control-allow-origin"), "");

    let preflight = |origin: &str, method: &str, headers: &str| {
        let request = couch.request("OPTIONS", "/db/x").header("origin", origin);
        request.header("access-control-request-method", method).header("access-control-request-headers", headers)
    };
    let yes = couch.send(preflight("https://app.example", "PUT", "Content-Type, authorization")).await;
    assert_eq!((yes.status.as_u16(), yes.header("access-control-allow-headers")), (204, "Content-Type, authorization"));
    assert!(yes.header("access-control-allow-methods").contains("COPY"));
    for (origin, method, headers) in [
        ("https://evil.example", "PUT", "content-type"),
        ("https://app.example", "LOCK", "content-type"),
        ("https://app.example", "PUT", "x-strange"),
    ] {
        let no = couch.send(preflight(origin, method, headers)).await;
        assert_ne!(no.status, 204, "{origin} {method} {headers}");
        assert_eq!(no.header("access-control-allow-methods"), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_origin_may_send_passwords_where_star_has_credentials() {
    let cors = CorsOptions { origins: vec!["*".into()], credentials: true };
    let couch = Couch::with(Options { cors, ..Options::default() }).await;
    let answer = couch.send(couch.request("GET", "/").header("origin", "https://any.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), "https://any.example");
    assert_eq!(answer.header("access-control-allow-credentials"), "true");
    // As in CouchDB, an origin may be empty, and one that is `*` itself gets no credentials.
    let empty = couch.send(couch.request("GET", "/").header("origin", "")).await;
    assert_eq!(empty.headers.get("access-control-allow-origin").unwrap(), "");
    assert_eq!(empty.header("access-control-allow-credentials"), "true");
    let star = couch.send(couch.request("GET", "/").header("origin", "*")).await;
    assert_eq!(star.header("access-control-allow-credentials"), "");
    let closed = Couch::start().await;
    let answer = closed.send(closed.request("GET", "/").header("origin", "https://any.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
}
