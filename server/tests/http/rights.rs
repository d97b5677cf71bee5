//! Administrators, users, sessions, `_security` and the configuration in the store.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use server::http::{CorsOptions, Options, Server};

use crate::support::{Answer, Couch};

/// `{"alg":"HS256"} {"sub":"anna","exp":4102444800,"_couchdb.roles":["staff"]}`, with the secret "geheim".
pub(crate) const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjo0MTAyNDQ0ODAwLCJfY291Y2hkYi5yb2xlcyI6WyJzdGFmZiJdfQ.699XLJTIryxA6Gen6pMDEMuykZXJ1BH6vShUXu5rGtE";

/// A token with the secret "geheim".
pub(crate) fn token(name: &str, roles: &[&str], until: Option<u64>) -> String {
    let mut claims = json!({"sub": name, "_couchdb.roles": roles});
    if let Some(until) = until {
        claims["exp"] = json!(until);
    }
    let signed =
        [r#"{"alg":"HS256"}"#.to_owned(), claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let mac = <Hmac<sha2::Sha256> as KeyInit>::new_from_slice(b"geheim").unwrap().chain_update(&signed);
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// Switches on tokens with the secret "geheim", and proxies without one.
pub(crate) async fn with_tokens(couch: &Couch) {
    set(couch, "jwt_keys/hmac:_default", "Z2VoZWlt").await;
    set(couch, "chttpd_auth/proxy_use_secret", "false").await;
    let handlers = ["proxy", "jwt"].map(|name| format!("{{chttpd_auth, {name}_authentication_handler}}"));
    set(couch, "chttpd/authentication_handlers", &handlers.join(", ")).await;
}

/// A server with the administrator "adm", passwords that are quick to hash, and users.
pub(crate) async fn with_users(users: &[(&str, &[&str])]) -> Couch {
    let couch = Couch::with_administrator().await;
    set(&couch, "chttpd_auth/iterations", "10").await;
    assert_eq!(admin(&couch, "PUT", "/_users", json!({})).await.status, 201);
    for (name, roles) in users {
        let user = json!({"type": "user", "name": name, "roles": roles, "password_scheme": "pbkdf2",
            "pbkdf2_prf": "sha256", "salt": format!("salt of {name}"), "iterations": 10, "derived_key": key(name)});
        let written = admin(&couch, "PUT", &format!("/_users/org.couchdb.user:{name}"), user).await;
        assert_eq!(written.status, 201, "{}", written.text);
    }
    couch
}

/// The derived key of the password "pw NAME".
fn key(name: &str) -> String {
    let mut key = [0; 32];
    let (password, salt) = (format!("pw {name}"), format!("salt of {name}"));
    kdf::pbkdf2_sha256(password.as_bytes(), salt.as_bytes(), 10, &mut key);
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) async fn as_user(
    couch: &Couch,
    name: &str,
    password: &str,
    method: &str,
    path: &str,
    body: Value,
) -> Answer {
    let request = couch.request(method, path).basic_auth(name, Some(password));
    couch.send(request.header("content-type", "application/json").body(body.to_string())).await
}

pub(crate) async fn admin(couch: &Couch, method: &str, path: &str, body: Value) -> Answer {
    as_user(couch, "adm", "pass word", method, path, body).await
}

pub(crate) async fn user(couch: &Couch, name: &str, method: &str, path: &str) -> Answer {
    as_user(couch, name, &format!("pw {name}"), method, path, json!({})).await
}

pub(crate) async fn set(couch: &Couch, key: &str, value: &str) -> Value {
    let answer = admin(couch, "PUT", &format!("/_node/_local/_config/{key}"), json!(value)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

pub(crate) fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_is_set_read_and_removed() {
    let couch = Couch::with_administrator().await;
    let config = "/_node/_local/_config";
    assert_eq!(set(&couch, "cors/origins", "  * ").await, "");
    assert_eq!(set(&couch, "cors/origins", "a,b").await, "*");
    assert_eq!(admin(&couch, "GET", &format!("{config}/cors/origins"), json!({})).await.json(), "a,b");
    assert_eq!(admin(&couch, "GET", &format!("{config}/cors"), json!({})).await.json()["origins"], "a,b");
    assert_eq!(admin(&couch, "GET", &format!("{config}/nothing"), json!({})).await.json(), json!({}));
    let all = admin(&couch, "GET", "/_node/nonode@nohost/_config", json!({})).await.json();
    assert_eq!(all["cors"]["origins"], "a,b");
    let unknown = "unknown_config_value";
    admin(&couch, "GET", &format!("{config}/cors/x"), json!({})).await.refused(404, "not_found", unknown);
    admin(&couch, "DELETE", &format!("{config}/cors/x"), json!({})).await.refused(404, "not_found", unknown);
    assert_eq!(admin(&couch, "DELETE", &format!("{config}/cors/origins"), json!({})).await.json(), "a,b");
    assert_eq!(admin(&couch, "GET", config, json!({})).await.json()["cors"].get("origins"), None);
    for wrong in [json!(1), json!({}), json!(null), json!("two\nlines")] {
        assert_eq!(admin(&couch, "PUT", &format!("{config}/a/b"), wrong.clone()).await.status, 400, "{wrong}");
    }
    assert_eq!(admin(&couch, "GET", "/_node/other@host/_config", json!({})).await.status, 404);
    assert_eq!(admin(&couch, "POST", &format!("{config}/_reload"), json!({})).await.status, 200);
    for path in [config.to_owned(), format!("{config}/admins")] {
        couch.get(&path).await.refused(401, "unauthorized", "You are not a server admin.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_lie_hashed_in_the_store_for_all_its_servers() {
    let couch = Couch::start().await;
    let other = Couch::over(couch.layer.engine().clone(), Options::default()).await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    assert_eq!(couch.json("PUT", "/_node/_local/_config/admins/anna", json!("geheim")).await.json(), "");
    // From now on, neither server is open to everyone.
    couch.get("/_all_dbs").await.refused(401, "unauthorized", "You are not a server admin.");
    while other.get("/_all_dbs").await.status == 200 {
        tokio::task::yield_now().await;
    }
    let anna = |couch: &Couch, path: &str| couch.request("GET", path).basic_auth("anna", Some("geheim"));
    let stored = couch.send(anna(&couch, "/_node/_local/_config/admins/anna")).await.json();
    assert!(stored.as_str().unwrap().starts_with("-pbkdf2:sha256-"), "{stored}");
    assert_eq!(other.send(anna(&other, "/_all_dbs")).await.status, 200);
    let login = json!({"name": "anna", "password": "geheim"});
    let login = couch.json("POST", "/_session", login).await;
    assert_eq!(login.json(), json!({"ok": true, "name": "anna", "roles": ["_admin"]}));
    let session = other.request("GET", "/_all_dbs").header("cookie", cookie(&login));
    assert_eq!(other.send(session.try_clone().unwrap()).await.status, 200, "one server's session is every server's");

    // A second one, and a changed password, which ends the sessions of the old one.
    for (name, password) in [("berta", "b"), ("anna", "neu")] {
        let put =
            couch.request("PUT", &format!("/_node/_local/_config/admins/{name}")).basic_auth("anna", Some("geheim"));
        assert_eq!(couch.send(put.body(json!(password).to_string())).await.status, 200);
    }
    assert_eq!(couch.send(anna(&couch, "/_all_dbs")).await.status, 401);
    assert_eq!(couch.send(couch.request("GET", "/_all_dbs").basic_auth("berta", Some("b"))).await.status, 200);
    while other.send(session.try_clone().unwrap()).await.status == 200 {
        tokio::task::yield_now().await;
    }

    // Kept over a restart; such a server may listen to everyone.
    let engine = couch.layer.engine().clone();
    couch.server.stop().await;
    let again = Couch::over(engine, Options::default()).await;
    assert_eq!(again.get("/_all_dbs").await.status, 401);
    let everywhere = "0.0.0.0:0".parse().unwrap();
    Server::start(again.layer.clone(), everywhere, Options::default()).await.unwrap().stop().await;
    let delete = async |name: &str| {
        let path = format!("/_node/_local/_config/admins/{name}");
        again.send(again.request("DELETE", &path).basic_auth("berta", Some("b"))).await.status
    };
    assert_eq!(delete("anna").await, 200);
    assert_eq!(delete("berta").await, 409, "she is the last one");
    assert_eq!(delete("anna").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_administration_that_has_ended_begins_again_with_the_next_start_only() {
    let couch = Couch::with_administrator().await;
    let own = Couch::over(couch.layer.engine().clone(), Options::default()).await;
    set(&couch, "chttpd_auth/iterations", "10").await;
    assert_eq!(own.get("/_all_dbs").await.status, 200);
    set(&couch, "admins/anna", "geheim").await;
    while own.get("/_all_dbs").await.status == 200 {
        tokio::task::yield_now().await;
    }
    // This server has its own administrator, so it may remove the last one of the store.
    assert_eq!(admin(&couch, "DELETE", "/_node/_local/_config/admins/anna", json!({})).await.status, 200);
    let anna = || own.request("GET", "/_all_dbs").basic_auth("anna", Some("geheim"));
    while own.send(anna()).await.status == 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(own.get("/_all_dbs").await.status, 401);
    let again = Couch::over(couch.layer.engine().clone(), Options::default()).await;
    assert_eq!(again.get("/_all_dbs").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_has_a_hash_that_can_match() {
    let couch = Couch::start().await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    let key = "4b007901b765489abead49d926f721d065a429c1";
    for wrong in [
        format!("-pbkdf2-{key},salt,4000000000"),
        format!("-pbkdf2:md5-{key},salt,10"),
        format!("-pbkdf2-{key},{},10", "s".repeat(257)),
        "-hashed-00,salt".to_owned(),
        "two\nlines".to_owned(),
    ] {
        let put = couch.json("PUT", "/_node/_local/_config/admins/anna", json!(wrong)).await;
        assert_eq!(put.status, 400, "{wrong}");
        let setup = json!({"action": "enable_single_node", "username": "anna", "password": wrong});
        assert_eq!(couch.json("POST", "/_cluster_setup", setup).await.status, 400, "{wrong}");
        assert_eq!(couch.get("/_all_dbs").await.status, 200, "nobody is locked out");
    }
    let put = couch.json("PUT", "/_node/_local/_config/admins/anna", json!(format!("-pbkdf2-{key},salt,4096"))).await;
    assert_eq!(put.status, 200);
    assert_eq!(as_user(&couch, "anna", "password", "GET", "/_all_dbs", json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_makes_itself_no_administrator() {
    let cors = CorsOptions { origins: vec!["*".into()], credentials: false };
    let couch = Couch::with(Options { cors, ..Options::default() }).await;
    let sent = async |origin: &str, method: &str, path: &str, body: Value| {
        let request = couch.request(method, path).header("origin", origin).header("content-type", "application/json");
        couch.send(request.body(body.to_string())).await.status.as_u16()
    };
    let setup = json!({"action": "enable_single_node", "username": "evil", "password": "x"});
    let job = json!({"source": "a", "target": "http://evil.example/a"});
    let edits = |db: &str| json!({"edits": [{"db": db, "doc": {"_id": "x", "source": "a", "target": "b"}}]});
    for db in ["_replicator", "a"] {
        couch.database(db).await;
    }
    for origin in ["https://evil.example", "null"] {
        for (method, path, body) in [
            ("PUT", "/_node/_local/_config/admins/evil", json!("x")),
            ("GET", "/_node/_local/_config", json!({})),
            ("POST", "/_cluster_setup", setup.clone()),
            ("POST", "/_replicate", job.clone()),
            ("PUT", "/_replicator/x", job.clone()),
            ("PUT", "/_users", json!({})),
            ("POST", "/_transact", edits("_replicator")),
        ] {
            assert_eq!(sent(origin, method, path, body).await, 403, "{origin} {path}");
        }
        // Documents are open on such a server.
        assert_eq!(sent(origin, "PUT", &format!("/a/{}", origin.len()), json!({})).await, 201);
    }
    assert_eq!(couch.get("/_node/_local/_config").await.json()["admins"], json!({}));
    let own = couch.base.clone();
    assert_eq!(sent(&own, "PUT", "/_node/_local/_config/admins/anna", json!("x")).await, 200, "a page of the server");
    assert_eq!(sent("https://evil.example", "PUT", "/_node/_local/_config/a/b", json!("x")).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_acts_with_the_servers_rights_is_closed_to_pages_that_only_a_star_admits() {
    let couch = Couch::with_administrator().await;
    couch.send(couch.request("PUT", "/a").basic_auth("adm", Some("pass word"))).await;
    for (key, value) in
        [("chttpd/enable_cors", "true"), ("cors/origins", "*, https://console.example"), ("cors/credentials", "true")]
    {
        set(&couch, key, value).await;
    }
    let status = async |origin: &str, path: &str| {
        let request = couch.request("GET", path).basic_auth("adm", Some("pass word"));
        couch.send(request.header("origin", origin)).await.status.as_u16()
    };
    for path in ["/_node/_local/_config", "/_users/_all_docs", "/_replicator/_all_docs"] {
        assert_eq!(status("https://any.example", path).await, 403, "{path}");
        assert_ne!(status("https://console.example", path).await, 403, "{path}");
        assert_ne!(status(&couch.base, path).await, 403, "{path}: a page of the server itself");
    }
    assert_eq!(status("https://any.example", "/a").await, 200, "databases are what such a server is open for");
    set(&couch, "cors/credentials", "false").await;
    assert_ne!(status("https://any.example", "/_users/_all_docs").await, 403, "such a page sends no password");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_for_everyone_stays_closed_when_its_last_administrator_goes() {
    let couch = Couch::start().await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    couch.json("PUT", "/_node/_local/_config/admins/anna", json!("geheim")).await;
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let open = Server::start(couch.layer.clone(), everywhere, Options::default()).await.unwrap();
    let base = format!("http://127.0.0.1:{}/_all_dbs", open.address().port());
    let listed = async |named: bool| {
        let request = couch.client.get(&base);
        let request = if named { request.basic_auth("anna", Some("geheim")) } else { request };
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!((listed(true).await, listed(false).await), (200, 401));
    // As a server does that was started with an administrator.
    couch.layer.configure("admins", "anna", None).await.unwrap();
    while listed(true).await == 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(listed(false).await, 401);
    open.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_scripts_run_to_their_end() {
    let couch = Couch::start().await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    assert_eq!(couch.get("/_cluster_setup").await.json(), json!({"state": "single_node_disabled"}));
    let setup = json!({"action": "enable_single_node", "username": "adm", "password": "pass word",
        "bind_address": "0.0.0.0", "port": 5984, "singlenode": true});
    let no_admin = json!({"action": "enable_single_node"});
    assert_eq!(couch.json("POST", "/_cluster_setup", no_admin).await.status, 400);
    assert_eq!(couch.json("POST", "/_cluster_setup", setup.clone()).await.json(), json!({"ok": true}));
    assert_eq!(admin(&couch, "POST", "/_cluster_setup", setup).await.status, 201, "once more");
    for (key, value) in [
        ("chttpd/require_valid_user", "true"),
        ("chttpd_auth/require_valid_user", "true"),
        ("httpd/WWW-Authenticate", "Basic realm=\"couchdb\""),
        ("httpd/enable_cors", "true"),
        ("chttpd/enable_cors", "true"),
        ("chttpd/max_http_request_size", "4294967296"),
        ("couchdb/max_document_size", "50000000"),
        ("cors/credentials", "true"),
        ("cors/origins", "app://obsidian.md,capacitor://localhost,http://localhost"),
    ] {
        set(&couch, key, value).await;
    }
    assert_eq!(admin(&couch, "GET", "/_cluster_setup", json!({})).await.json()["state"], "single_node_enabled");
    assert_eq!(admin(&couch, "GET", "/_membership", json!({})).await.json()["all_nodes"], json!(["nonode@nohost"]));
    assert_eq!(admin(&couch, "GET", "/_node/_local", json!({})).await.json(), json!({"name": "nonode@nohost"}));
    let dbs = admin(&couch, "GET", "/_all_dbs", json!({})).await.json();
    assert_eq!(dbs, json!(["_replicator", "_users"]));
    let page = couch.request("OPTIONS", "/db").header("origin", "app://obsidian.md");
    let page = couch.send(page.header("access-control-request-method", "PUT")).await;
    assert_eq!((page.status.as_u16(), page.header("access-control-allow-origin")), (204, "app://obsidian.md"));
    assert_eq!(page.header("access-control-allow-credentials"), "true");
    couch.get("/").await.refused(401, "unauthorized", "Authentication required.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_is_not_to_persist_ends_with_the_server() {
    let couch = Couch::with_administrator().await;
    let path = "/_node/_local/_config/chttpd_auth/timeout";
    set(&couch, "chttpd_auth/timeout", "60").await;
    let send = async |method: &str, value: &str| {
        let request = couch.request(method, path).basic_auth("adm", Some("pass word"));
        couch.send(request.header("x-couch-persist", "false").body(json!(value).to_string())).await
    };
    let shown = async |couch: &Couch| admin(couch, "GET", path, json!({})).await;
    let seconds = async || {
        let login = json!({"name": "adm", "password": "pass word"});
        let answer = couch.json("POST", "/_session", login).await;
        answer.header("set-cookie").split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().to_owned()
    };
    assert_eq!(send("PUT", "70").await.json(), "60");
    assert_eq!((shown(&couch).await.json(), seconds().await), (json!("70"), "70".to_owned()));
    // Another server of the store does not know it, nor does this one when it starts again.
    let administrator = server::http::Administrator { name: "adm".into(), password: "pass word".into() };
    let options = Options { administrator: Some(administrator), ..Options::default() };
    let other = Couch::over(couch.layer.engine().clone(), options).await;
    assert_eq!(shown(&other).await.json(), "60");
    assert_eq!(send("DELETE", "").await.json(), "70");
    assert_eq!(shown(&couch).await.json(), "600", "the default");
    assert_eq!(seconds().await, "600");
    // The stored value applies again: after it is read again, and after it is set again.
    assert_eq!(admin(&couch, "POST", "/_node/_local/_config/_reload", json!({})).await.status, 200);
    assert_eq!(shown(&couch).await.json(), "60");
    assert_eq!(send("PUT", "70").await.json(), "60");
    assert_eq!(set(&couch, "chttpd_auth/timeout", "80").await, "70");
    assert_eq!((shown(&couch).await.json(), seconds().await), (json!("80"), "80".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_are_not_to_persist_are_as_few_and_as_short_as_stored_ones() {
    let couch = Couch::start().await;
    let send = async |method: &str, key: &str, value: &str| {
        let request = couch.request(method, &format!("/_node/_local/_config/a/{key}"));
        couch.send(request.header("x-couch-persist", "false").body(json!(value).to_string())).await
    };
    send("PUT", "b", &"x".repeat(20_001)).await.refused(400, "bad_request", "A value has at most 20000 bytes.");
    for key in 0..305 {
        assert_eq!(send("DELETE", &key.to_string(), "").await.status, 404);
    }
    for key in 0..300 {
        assert_eq!(send("PUT", &key.to_string(), "x").await.status, 200);
    }
    send("PUT", "300", "x").await.refused(400, "bad_request", "There are 300 such settings already.");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_administrator_of_the_store_stays() {
    let couch = Couch::start().await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    // As `b`, whose password is `b` wherever there is such an administrator.
    let send = async |method: &str, path: &str, is_kept: bool| {
        let request = couch.request(method, &format!("/_node/_local/_config/{path}")).basic_auth("b", Some("b"));
        let request = request.header("x-couch-persist", if is_kept { "true" } else { "false" });
        couch.send(request.body(json!("b").to_string())).await.status.as_u16()
    };
    let put = async |name: &str| {
        couch.json("PUT", &format!("/_node/_local/_config/admins/{name}"), json!("b")).await.status.as_u16()
    };
    let as_nobody = couch.request("PUT", "/_node/_local/_config/admins/b").header("x-couch-persist", "false");
    let reason = "This would remove the last administrator: store another one first.";
    couch.send(as_nobody.body("\"b\"")).await.refused(409, "conflict", reason);
    assert_eq!(couch.call("DELETE", "/_node/_local/_config/admins/none").await.status, 404);
    assert_eq!(put("b").await, 200);
    assert_eq!(send("PUT", "admins/c", false).await, 200);
    for is_kept in [true, false] {
        assert_eq!(send("DELETE", "admins/b", is_kept).await, 409, "{is_kept}");
        assert_eq!(send("DELETE", "admins/none", is_kept).await, 404, "{is_kept}");
    }
    assert_eq!(send("PUT", "admins/d", true).await, 200);
    // `d` no longer applies at this server, so `b` is the last one.
    assert_eq!(send("DELETE", "admins/d", false).await, 200);
    assert_eq!(send("DELETE", "admins/b", true).await, 409);
    assert_eq!(send("POST", "_reload", true).await, 200);
    assert_eq!(send("GET", "admins/c", true).await, 404);
    assert_eq!(send("DELETE", "admins/d", true).await, 200);
    // Another server, which was started with an administrator, removes the last one of the store.
    assert_eq!(send("PUT", "admins/d", true).await, 200);
    assert_eq!(send("PUT", "admins/b", false).await, 200);
    for name in ["b", "d"] {
        couch.layer.configure("admins", name, None).await.unwrap();
    }
    while send("GET", "admins/d", true).await == 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(send("POST", "_reload", true).await, 409);
    assert_eq!(send("GET", "admins/b", true).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_valid_user_is_required_where_it_is_configured() {
    let couch = with_users(&[("anna", &[])]).await;
    set(&couch, "chttpd/require_valid_user", "true").await;
    for path in ["/", "/_up", "/_session", "/none"] {
        let refused = couch.get(path).await;
        refused.refused(401, "unauthorized", "Authentication required.");
        assert_eq!(refused.header("www-authenticate"), "Basic realm=\"server\"");
    }
    assert_eq!(user(&couch, "anna", "GET", "/_up").await.status, 200);
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    assert_eq!(login.status, 200);
    set(&couch, "chttpd/require_valid_user_except_for_up", "true").await;
    assert_eq!(couch.get("/_up").await.status, 200, "with both settings too");
    set(&couch, "chttpd/require_valid_user", "false").await;
    assert_eq!((couch.get("/_up").await.status.as_u16(), couch.get("/").await.status.as_u16()), (200, 401));
    // The challenge of a 401 is configured, or chosen by the client.
    assert_eq!(couch.get("/").await.header("www-authenticate"), "");
    let asked = couch.send(couch.request("GET", "/").header("x-couchdb-www-authenticate", "Cookie")).await;
    assert_eq!(asked.header("www-authenticate"), "Cookie");
    set(&couch, "httpd/WWW-Authenticate", "Basic realm=\"couchdb\"").await;
    assert_eq!(couch.get("/").await.header("www-authenticate"), "Basic realm=\"couchdb\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_log_in_and_a_changed_document_counts_at_once() {
    let couch = with_users(&[("anna", &["staff"])]).await;
    let session = user(&couch, "anna", "GET", "/_session").await.json();
    assert_eq!(session["userCtx"], json!({"name": "anna", "roles": ["staff"]}));
    assert_eq!(session["info"]["authenticated"], "default");
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    assert_eq!(login.json(), json!({"ok": true, "name": "anna", "roles": ["staff"]}));
    let with_cookie = || couch.request("GET", "/_session").header("cookie", cookie(&login));
    assert_eq!(couch.send(with_cookie()).await.json()["info"]["authenticated"], "cookie");
    let wrong = as_user(&couch, "anna", "pw Anna", "GET", "/", json!({})).await;
    wrong.refused(401, "unauthorized", "Name or password is incorrect.");

    // Other roles, and then another salt.
    let path = "/_users/org.couchdb.user:anna";
    let mut document = admin(&couch, "GET", path, json!({})).await.json();
    document["roles"] = json!(["chief"]);
    assert_eq!(admin(&couch, "PUT", path, document).await.status, 201);
    assert_eq!(couch.send(with_cookie()).await.json()["userCtx"]["roles"], json!(["chief"]));
    let mut document = admin(&couch, "GET", path, json!({})).await.json();
    document["salt"] = json!("another");
    assert_eq!(admin(&couch, "PUT", path, document.clone()).await.status, 201);
    assert_eq!(couch.send(with_cookie()).await.json()["userCtx"]["name"], Value::Null);
    assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 401);

    // Passwords stored by an old CouchDB are stored again at a login.
    let sha = "4b007901b765489abead49d926f721d065a429c1";
    let mut document = admin(&couch, "GET", path, json!({})).await.json();
    document["salt"] = json!("salt");
    document["derived_key"] = json!(sha);
    document["iterations"] = json!(4096);
    document.as_object_mut().unwrap().remove("pbkdf2_prf");
    assert_eq!(admin(&couch, "PUT", path, document).await.status, 201);
    assert_eq!(as_user(&couch, "anna", "password", "GET", "/_session", json!({})).await.status, 200);
    let upgraded = admin(&couch, "GET", path, json!({})).await.json();
    assert_eq!((&upgraded["pbkdf2_prf"], &upgraded["iterations"]), (&json!("sha256"), &json!(10)));
    assert_eq!((&upgraded["salt"], upgraded["derived_key"] != json!(sha)), (&json!("salt"), true));
    assert_eq!(as_user(&couch, "anna", "password", "GET", "/_session", json!({})).await.status, 200);

    // Users with a second factor, which is not supported, cannot log in.
    let mut document = admin(&couch, "GET", path, json!({})).await.json();
    document["totp"] = json!({"key": "JBSWY3DPEHPK3PXP"});
    admin(&couch, "PUT", path, document).await;
    assert_eq!(as_user(&couch, "anna", "password", "GET", "/_session", json!({})).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_five_failures_the_sixth_login_is_refused() {
    let couch = with_users(&[("anna", &[]), ("berta", &[])]).await;
    for name in ["anna", "adm"] {
        for _ in 0..5 {
            assert_eq!(as_user(&couch, name, "wrong", "GET", "/", json!({})).await.status, 401);
        }
    }
    let locked = "Account is temporarily locked due to multiple authentication failures";
    user(&couch, "anna", "GET", "/").await.refused(403, "forbidden", locked);
    admin(&couch, "GET", "/", json!({})).await.refused(403, "forbidden", locked);
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    login.refused(403, "forbidden", locked);
    assert_eq!(login.header("set-cookie"), "", "an existing session goes on");
    assert_eq!(user(&couch, "berta", "GET", "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn security_names_members_and_administrators() {
    let users: [(&str, &[&str]); 5] =
        [("anna", &[]), ("berta", &["staff"]), ("chef", &[]), ("dora", &["lead"]), ("emil", &[])];
    let couch = with_users(&users).await;
    admin(&couch, "PUT", "/db", json!({})).await;
    user(&couch, "anna", "GET", "/db").await.refused(403, "forbidden", "You are not allowed to access this db.");
    let security =
        json!({"members": {"names": ["anna"], "roles": ["staff"]}, "admins": {"names": ["chef"], "roles": ["lead"]}});
    assert_eq!(admin(&couch, "PUT", "/db/_security", security.clone()).await.status, 200);
    for name in ["anna", "berta", "chef", "dora"] {
        assert_eq!(user(&couch, name, "GET", "/db").await.status, 200, "{name}");
        assert_eq!(user(&couch, name, "PUT", &format!("/db/{name}")).await.status, 201, "{name}");
        let is_admin = matches!(name, "chef" | "dora");
        let design = user(&couch, name, "PUT", &format!("/db/_design/{name}")).await;
        let docs = json!({"docs": [{"_id": format!("_design/b{name}")}], "new_edits": true});
        let bulk = as_user(&couch, name, &format!("pw {name}"), "POST", "/db/_bulk_docs", docs).await.json();
        let settings = as_user(&couch, name, &format!("pw {name}"), "PUT", "/db/_security", security.clone()).await;
        if is_admin {
            assert_eq!((design.status.as_u16(), settings.status.as_u16()), (201, 200));
            assert_eq!(bulk[0]["ok"], true);
        } else {
            let reason = "You are not a db or server admin.";
            design.refused(403, "forbidden", reason);
            assert_eq!((&bulk[0]["error"], &bulk[0]["reason"]), (&json!("forbidden"), &json!(reason)));
            settings.refused(403, "forbidden", reason);
            let limit = as_user(&couch, name, &format!("pw {name}"), "PUT", "/db/_revs_limit", json!(5)).await;
            limit.refused(403, "forbidden", reason);
            // As CouchDB refuses maintenance.
            let compact = user(&couch, name, "POST", "/db/_compact").await;
            compact.refused(401, "unauthorized", "You are not a server or db admin.");
        }
        let purge = user(&couch, name, "POST", "/db/_purge").await;
        purge.refused(401, "unauthorized", "You are not a server admin.");
        let drop = user(&couch, name, "DELETE", "/db").await;
        drop.refused(401, "unauthorized", "You are not a server admin.");
    }
    for (method, path) in [("GET", "/db/anna"), ("PUT", "/db/_security"), ("POST", "/db/_compact")] {
        let stranger = user(&couch, "emil", method, path).await;
        stranger.refused(403, "forbidden", "You are not allowed to access this db.");
    }
    couch.get("/db/anna").await.refused(401, "unauthorized", "You are not authorized to access this db.");
    user(&couch, "emil", "GET", "/none").await.refused(404, "not_found", "Database does not exist.");
    // An edit of several databases needs the rights of each.
    let edits = |db: &str, id: &str| json!({"edits": [{"db": db, "doc": {"_id": id}}]});
    for (name, id, status) in
        [("anna", "t", 201), ("emil", "u", 403), ("anna", "_design/t", 403), ("chef", "_design/t", 201)]
    {
        let sent = as_user(&couch, name, &format!("pw {name}"), "POST", "/_transact", edits("db", id)).await;
        assert_eq!(sent.status, status, "{name} {id} {}", sent.text);
    }
    // Requests that act with the server's rights are for its administrators, whatever `_security` says.
    for db in ["x%2F_replicator", "_replicator", "_users"] {
        admin(&couch, "PUT", &format!("/{db}"), json!({})).await;
        set(&couch, "couchdb/users_db_security_editable", "true").await;
        assert_eq!(admin(&couch, "PUT", &format!("/{db}/_security"), json!({})).await.status, 200);
        for path in ["_all_docs", "_changes"] {
            let sent = user(&couch, "anna", "GET", &format!("/{db}/{path}")).await;
            sent.refused(401, "unauthorized", "You are not a server admin.");
        }
        // Browsers' clients log out on a 401.
        for path in ["x/attachment", "_find", "_local/x"] {
            let sent = user(&couch, "anna", "GET", &format!("/{db}/{path}")).await;
            sent.refused(403, "forbidden", "You are not allowed to access this db.");
            let anonymous = couch.get(&format!("/{db}/{path}")).await;
            anonymous.refused(401, "unauthorized", "You are not authorized to access this db.");
        }
        let name = db.replace("%2F", "/");
        let sent = as_user(&couch, "anna", "pw anna", "POST", "/_transact", edits(&name, "x")).await;
        sent.refused(403, "forbidden", "You are not allowed to access this db.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_databases_are_closed_or_open_as_configured() {
    let couch = with_users(&[("anna", &[])]).await;
    admin(&couch, "PUT", "/closed", json!({})).await;
    set(&couch, "couchdb/default_security", "everyone").await;
    admin(&couch, "PUT", "/open", json!({})).await;
    admin(&couch, "PUT", "/_other", json!({})).await;
    set(&couch, "couchdb/default_security", "admin_local").await;
    admin(&couch, "PUT", "/local", json!({})).await;
    assert_eq!(user(&couch, "anna", "GET", "/local").await.status, 200, "as in CouchDB, whose shards it closes");
    let status = async |path: &str| user(&couch, "anna", "GET", path).await.status.as_u16();
    assert_eq!((status("/closed").await, status("/open").await, status("/_other").await), (403, 200, 401));
    let editing = admin(&couch, "PUT", "/_users/_security", json!({})).await;
    editing.refused(403, "forbidden", "You can't edit the security object of the user database.");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_proxies_name_clients_where_they_are_switched_on() {
    let couch = with_users(&[]).await;
    let by_token = || couch.request("GET", "/_session").bearer_auth(TOKEN);
    let by_proxy = || {
        let request = couch.request("GET", "/_session").header("x-auth-couchdb-username", "anna");
        request
            .header("x-auth-couchdb-roles", "staff")
            .header("x-auth-couchdb-token", "c21542300dfb6ef706485c6a65912b3d1d0517ac811e3d114a07527b76207696")
    };
    set(&couch, "jwt_keys/hmac:_default", "Z2VoZWlt").await;
    set(&couch, "chttpd_auth/secret", "geheim").await;
    for request in [by_token(), by_proxy()] {
        assert_eq!(couch.send(request).await.json()["userCtx"]["name"], Value::Null);
    }
    for (handler, request, proof) in
        [("jwt_authentication_handler", by_token(), "jwt"), ("proxy_authentication_handler", by_proxy(), "proxy")]
    {
        let handlers = format!("{{chttpd_auth, cookie_authentication_handler}}, {{chttpd_auth, {handler}}}");
        set(&couch, "chttpd/authentication_handlers", &handlers).await;
        let session = couch.send(request).await.json();
        assert_eq!(session["userCtx"], json!({"name": "anna", "roles": ["staff"]}));
        assert_eq!(session["info"]["authenticated"], proof);
    }
    // The signature of a session is not accepted as a proxy's token, even with the same key, as for users without a
    // salt.
    let anna = json!({"type": "user", "name": "anna", "roles": [], "password_scheme": "simple", "salt": "",
        "password_sha": "5baa61e4c9b93f3f0682250b6cf8331b7ee68fd8"});
    assert_eq!(admin(&couch, "PUT", "/_users/org.couchdb.user:anna", anna).await.status, 201);
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "password"})).await;
    let signed = URL_SAFE_NO_PAD.decode(cookie(&login).strip_prefix("AuthSession=").unwrap()).unwrap();
    let (name, signature) = signed.split_at(signed.len() - 32);
    let name = std::str::from_utf8(name).unwrap().trim_end_matches(':');
    let token: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = couch.request("GET", "/_session").header("x-auth-couchdb-username", name);
    let request = request.header("x-auth-couchdb-roles", "_admin").header("x-auth-couchdb-token", token);
    assert_eq!(couch.send(request).await.json()["userCtx"], json!({"name": null, "roles": []}));
}
