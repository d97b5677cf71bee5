//! Settings of `_config` that change answers to requests.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{KeyInit, Mac};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use server::http::Options;

use crate::rights::{admin, cookie, set, with_users};
use crate::support::{Answer, Couch};

const LIMIT: &str = "/_node/_local/_config/couchdb/max_document_size";

/// A document of `bytes` as compact JSON.
fn document(bytes: usize) -> Value {
    json!({"a": "x".repeat(bytes - r#"{"a":""}"#.len())})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document_is_configured() {
    let couch = Couch::start().await;
    let other = Couch::over(couch.layer.engine().clone(), Options::default()).await;
    couch.database("db").await;
    let limit = async |value: &str| assert_eq!(couch.json("PUT", LIMIT, json!(value)).await.status, 200);
    couch.put("/db/early", document(2_000)).await;

    limit("1000").await;
    couch.put("/db/fits", document(1_000)).await;
    let refused = async |couch: &Couch, path: &str, bytes: usize| {
        couch.json("PUT", path, document(bytes)).await.refused(
            413,
            "document_too_large",
            path.rsplit('/').next().unwrap(),
        );
    };
    refused(&couch, "/db/large", 1_001).await;
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": [document(1_001), document(1_000)]})).await;
    assert_eq!((&bulk.json()[0]["error"], &bulk.json()[1]["ok"]), (&json!("document_too_large"), &json!(true)));
    assert_eq!(couch.get("/db/early").await.status, 200, "what is stored stays");
    couch.database("new").await;
    refused(&couch, "/new/large", 1_001).await;
    // It applies at the other servers of the store too.
    let mut tries = 0;
    while other.json("PUT", &format!("/db/there{tries}"), document(1_001)).await.status != 413 {
        tries += 1;
    }

    // Set-up scripts set more than a transaction can hold.
    limit("50000000").await;
    couch.put("/new/large", document(1_001)).await;
    couch.put("/new/largest", document(8_000_000)).await;
    refused(&couch, "/new/larger", 8_000_001).await;
    refused(&couch, "/new/larger", 12_000_000).await;
    assert_eq!(couch.get(LIMIT).await.json(), "50000000");

    for value in ["many", "-1", ""] {
        limit(value).await;
        couch.put(&format!("/new/with{value}"), document(1_001)).await;
    }
    limit("1000").await;
    assert_eq!(couch.call("DELETE", LIMIT).await.json(), "1000");
    couch.put("/new/larger", document(1_001)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document_survives_a_restart_and_precedes_the_option() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    for turn in 0..2 {
        let options = model::LayerOptions { max_document_size: 500, ..model::LayerOptions::default() };
        let layer = model::Layer::open(engine.clone(), options).await.unwrap();
        let couch = Couch::serving(layer, Options::default()).await;
        let put = async |name: &str, bytes| {
            couch.json("PUT", &format!("/db/{name}{turn}"), document(bytes)).await.status.as_u16()
        };
        if turn == 0 {
            couch.database("db").await;
            assert_eq!((put("a", 500).await, put("b", 501).await), (201, 413));
            assert_eq!(couch.json("PUT", LIMIT, json!("1000")).await.json(), "500");
        }
        assert_eq!((put("c", 1_000).await, put("d", 1_001).await), (201, 413));
        if turn == 1 {
            assert_eq!(couch.call("DELETE", LIMIT).await.json(), "1000");
            assert_eq!((put("e", 500).await, put("f", 501).await), (201, 413));
        }
        couch.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_attachment_is_configured() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let options = model::LayerOptions { max_attachment_size: 5, ..model::LayerOptions::default() };
    let couch = Couch::serving(model::Layer::open(engine, options).await.unwrap(), Options::default()).await;
    couch.database("db").await;
    let key = "/_node/_local/_config/couchdb/max_attachment_size";
    let limited = async |at: &str, bytes: usize| {
        for (name, bytes, status) in [("fits", bytes, 201), ("large", bytes + 1, 413)] {
            let data = base64::engine::general_purpose::STANDARD.encode("x".repeat(bytes));
            let inline = json!({"_attachments": {"a": {"content_type": "x/y", "data": data}}});
            let answer = couch.json("PUT", &format!("/db/{name} inline at {at}"), inline).await;
            assert_eq!(answer.status, status, "{name} at {at}: {}", answer.text);
            let answer = couch.put_body(&format!("/db/{name} at {at}/a"), "x/y", "x".repeat(bytes)).await;
            assert_eq!(answer.status, status, "{name} at {at}: {}", answer.text);
        }
    };
    limited("first", 5).await;
    for (value, bytes) in [("10", 10), ("0", 0), ("many", 5), ("-1", 5), ("", 5)] {
        assert_eq!(couch.json("PUT", key, json!(value)).await.status, 200);
        limited(&format!("value {value}"), bytes).await;
    }
    assert_eq!(couch.json("PUT", key, json!("infinity")).await.status, 200);
    assert_eq!(couch.put_body("/db/unlimited/a", "x/y", "x".repeat(1_000)).await.status, 201);
    assert_eq!(couch.call("DELETE", key).await.json(), "infinity");
    limited("last", 5).await;
}

/// The listing of `_config`, with the administrator of the options.
async fn listed(couch: &Couch, path: &str) -> Value {
    let answer = admin(couch, "GET", &format!("/_node/_local/_config{path}"), json!(null)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_server_lists_its_sections_defaults_and_administrators() {
    let couch = with_users(&[]).await;
    let all = listed(&couch, "").await;
    let port = couch.base.rsplit_once(':').unwrap().1;
    for (section, name, value) in [
        ("chttpd", "port", port),
        ("chttpd", "bind_address", "127.0.0.1"),
        ("chttpd", "require_valid_user", "false"),
        ("chttpd", "enable_cors", "false"),
        ("chttpd", "max_http_request_size", "67108864"),
        ("chttpd_auth", "timeout", "600"),
        ("couch_httpd_auth", "authentication_db", "_users"),
        ("couchdb", "uuid", couch.get("/").await.json()["uuid"].as_str().unwrap()),
        ("couchdb", "max_document_size", "8000000"),
        ("couchdb", "max_attachment_size", "infinity"),
        ("cors", "max_age", "600"),
        ("httpd", "port", port),
        ("log", "writer", "stderr"),
        ("replicator", "max_jobs", "2000"),
    ] {
        assert_eq!(all[section][name], value, "{section}/{name}");
        assert_eq!(listed(&couch, &format!("/{section}")).await[name], value, "{section}/{name}");
        assert_eq!(listed(&couch, &format!("/{section}/{name}")).await, value, "{section}/{name}");
    }
    for (section, name) in [("chttpd_auth", "secret"), ("replicator", "retries_per_request"), ("cors", "origins")] {
        assert_eq!(all[section].get(name), None, "{section}/{name}");
    }
    // The value hashes the password, and nothing but the password.
    let hash = all["admins"]["adm"].as_str().unwrap().to_owned();
    assert!(hash.starts_with("-pbkdf2:sha256-") && !all.to_string().contains("pass word"), "{hash}");
    assert_eq!(
        (listed(&couch, "/admins").await, listed(&couch, "/admins/adm").await),
        (json!({"adm": hash}), json!(hash))
    );
    let second = Couch::start().await;
    assert_eq!(second.json("PUT", "/_node/_local/_config/admins/eve", json!(hash)).await.status, 200);
    let login = async |password: &str| {
        second.send(second.request("GET", "/_session").basic_auth("eve", Some(password))).await.status.as_u16()
    };
    assert_eq!((login("pass word").await, login("another").await), (200, 401));

    // A setting replaces the default, and removing it restores the default.
    set(&couch, "chttpd_auth/timeout", "60").await;
    assert_eq!(listed(&couch, "/chttpd_auth").await["timeout"], "60");
    let key = "/_node/_local/_config/chttpd_auth/timeout";
    assert_eq!(admin(&couch, "PUT", key, json!("70")).await.json(), "60", "the old value");
    assert_eq!(admin(&couch, "DELETE", key, json!(null)).await.json(), "70");
    assert_eq!(listed(&couch, "/chttpd_auth/timeout").await, "600");
    admin(&couch, "DELETE", key, json!(null)).await.refused(404, "not_found", "unknown_config_value");
    assert_eq!(admin(&couch, "PUT", key, json!("70")).await.json(), "600", "the old value is the default");
}

#[tokio::test(flavor = "multi_thread")]
async fn sections_that_couchdb_closes_are_closed() {
    let couch = Couch::start().await;
    for section in ["native_query_servers", "os_daemons", "feature_flags", "query_servers", "daemons", "external"] {
        let key = format!("/_node/_local/_config/{section}/x");
        for method in ["PUT", "DELETE"] {
            let reason = "Config section blacklisted for modification over HTTP API.";
            couch.json(method, &key, json!("y")).await.refused(403, "forbidden", reason);
        }
        assert_eq!(couch.get(&format!("/_node/_local/_config/{section}")).await.json(), json!({}));
    }
}

const PAGE: &str = "https://App.example";

/// A server that pages of [`PAGE`] may use.
async fn with_cors() -> Couch {
    let couch = Couch::with_administrator().await;
    set(&couch, "chttpd/enable_cors", "true").await;
    set(&couch, "cors/origins", &format!("http://localhost, {PAGE}")).await;
    couch
}

fn preflight(couch: &Couch, origin: &str, method: &str) -> RequestBuilder {
    let request = couch.request("OPTIONS", "/db/x").header("origin", origin);
    request.header("access-control-request-method", method)
}

fn allowed_origin(answer: &Answer) -> (u16, &str) {
    (answer.status.as_u16(), answer.header("access-control-allow-origin"))
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_see_errors_and_origins_have_a_case() {
    let couch = with_cors().await;
    let asked = |method: &str, path: &str, origin: &str| couch.request(method, path).header("origin", origin);
    for (method, path, status) in
        [("GET", "/_all_dbs", 401), ("GET", "/none", 404), ("PUT", "/", 405), ("GET", "/%ff/x", 400)]
    {
        let seen = couch.send(asked(method, path, PAGE)).await;
        assert_eq!(allowed_origin(&seen), (status, PAGE), "{path}");
        assert!(seen.header("access-control-expose-headers").contains("x-couch-request-id"), "{path}");
        assert_eq!(seen.headers.get_all("vary").iter().count(), 1, "{path}");
        let unseen = couch.send(asked(method, path, "https://app.example")).await;
        assert_eq!(allowed_origin(&unseen), (status, ""), "{path}");
    }
    set(&couch, "cors/exposed_headers", "X-Own").await;
    let seen = couch.send(asked("GET", "/", PAGE)).await;
    assert_eq!(seen.header("access-control-expose-headers"), "content-type, cache-control, x-own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_preflight_is_a_request_like_others() {
    let couch = with_cors().await;
    let strange = || preflight(&couch, PAGE, "PUT").header("access-control-request-headers", "x-strange");
    for (refused, origin) in [
        (preflight(&couch, PAGE, "LOCK"), PAGE),
        (preflight(&couch, PAGE, "put"), PAGE),
        (strange(), PAGE),
        (couch.request("OPTIONS", "/db/x").header("origin", PAGE), PAGE),
        (preflight(&couch, "https://app.example", "PUT"), ""),
    ] {
        let answer = couch.send(refused).await;
        assert_eq!(allowed_origin(&answer).1, origin);
        assert!(matches!(answer.status.as_u16(), 401 | 404 | 405), "{}", answer.status);
        for header in ["allow-methods", "allow-headers", "max-age"] {
            assert_eq!(answer.headers.get(format!("access-control-{header}")), None, "{header}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_is_told_what_is_configured() {
    let couch = with_cors().await;
    let told = async |request: RequestBuilder| {
        let answer = couch.send(request).await;
        (answer.status == 204).then(|| {
            assert_eq!(answer.headers.get_all("vary").iter().count(), 1);
            assert_eq!(answer.headers.get("access-control-expose-headers"), None);
            let headers = answer.headers.get("access-control-allow-headers").expect("always there");
            let [methods, age] = ["allow-methods", "max-age"].map(|name| format!("access-control-{name}"));
            (headers.to_str().unwrap().to_owned(), answer.header(&methods).to_owned(), answer.header(&age).to_owned())
        })
    };
    let asking = |method: &str, headers: &str| {
        preflight(&couch, PAGE, method).header("access-control-request-headers", headers.to_owned())
    };
    let usual = "GET, HEAD, POST, PUT, DELETE, COPY, PATCH, OPTIONS";
    let (none, all, age) = (String::new(), usual.to_owned(), "600".to_owned());
    assert_eq!(told(preflight(&couch, PAGE, "PUT")).await, Some((none.clone(), all.clone(), age.clone())));
    assert_eq!(told(asking("PUT", "")).await, Some((none.clone(), all.clone(), age.clone())));
    let names = "Content-Type, If-Match,x-couchdb-vhost-path".to_owned();
    assert_eq!(told(asking("PUT", &names)).await, Some((names, all.clone(), age.clone())));
    assert_eq!(told(asking("PUT", "x-own")).await, None);

    set(&couch, "cors/headers", "X-Own , authorization").await;
    let names = "x-own, Authorization".to_owned();
    assert_eq!(told(asking("PUT", &names)).await, Some((names, all.clone(), age.clone())));
    assert_eq!(told(asking("PUT", "content-type")).await, None, "they replace the usual ones");
    assert_eq!(told(preflight(&couch, PAGE, "PUT")).await, Some((none.clone(), all.clone(), age)));

    set(&couch, "cors/max_age", "3600").await;
    set(&couch, "cors/methods", "GET,PUT").await;
    let few = Some((none, "GET, PUT".to_owned(), "3600".to_owned()));
    assert_eq!(told(preflight(&couch, PAGE, "PUT")).await, few);
    assert_eq!(told(preflight(&couch, PAGE, "POST")).await, None);
    let posted = couch.request("POST", "/_session").header("origin", PAGE).header("content-type", "application/xml");
    assert_eq!(allowed_origin(&couch.send(posted.body("")).await), (415, PAGE), "methods are those of preflights");

    admin(&couch, "DELETE", "/_node/_local/_config/cors/methods", json!({})).await;
    assert_eq!(told(preflight(&couch, PAGE, "POST")).await.unwrap().1, all);
}

/// The cookie of a session of the user that started `seconds` ago.
fn aged(name: &str, seconds: u64) -> String {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - seconds;
    let claim = format!("{name}:{begun:X}");
    let key = format!("a secretsalt of {name}");
    let mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).unwrap();
    let signature = mac.chain_update(&claim).finalize().into_bytes();
    let cookie = [claim.as_bytes(), b":", &signature].concat();
    format!("AuthSession={}", URL_SAFE_NO_PAD.encode(cookie))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_renewed_end_and_have_attributes_as_configured() {
    let couch = with_users(&[("anna", &[])]).await;
    set(&couch, "chttpd_auth/secret", "a secret").await;
    let of = async |cookie: &str| {
        let answer = couch.send(couch.request("GET", "/_session").header("cookie", cookie)).await;
        let name = answer.json()["userCtx"]["name"].as_str().map(str::to_owned);
        (name, answer.header("set-cookie").to_owned(), cookie == self::cookie(&answer))
    };
    let anna = Some("anna".to_owned());
    let (name, renewed, _) = of(&aged("anna", 30)).await;
    assert_eq!((name, renewed), (anna.clone(), String::new()), "most of its time is left");

    let old = aged("anna", 120);
    let (name, renewed, is_same) = of(&old).await;
    assert_eq!((&name, is_same), (&anna, false));
    assert!(renewed.starts_with("AuthSession=") && renewed.contains("; Max-Age=600; "), "{renewed}");
    assert!(!renewed.contains("SameSite"), "{renewed}");
    // An error renews it too.
    let error = couch.send(couch.request("GET", "/none").header("cookie", &old)).await;
    assert!(error.status == 404 && error.header("set-cookie").starts_with("AuthSession="), "{}", error.status);

    set(&couch, "chttpd_auth/same_site", "strict").await;
    set(&couch, "chttpd_auth/timeout", "3600").await;
    assert_eq!(of(&old).await.1, "", "of an hour, most is left");
    set(&couch, "chttpd_auth/timeout", "60").await;
    assert_eq!(of(&old).await.0, None, "its time is over");
    let renewed = renewed.split(';').next().unwrap();
    assert_eq!(of(renewed).await.0, anna, "the renewed one began later");
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    let ends = login.header("set-cookie");
    assert!(ends.contains("; Max-Age=60; ") && ends.ends_with("; HttpOnly; SameSite=Strict"), "{ends}");
}
