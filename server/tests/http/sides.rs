//! How replications reach their sides: credentials, and options that only matter in a run.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::owners::{TIMEOUT, until};
use crate::rights::{TOKEN, admin, as_user, cookie, set, with_users};
use crate::support::Couch;

/// A server whose database `closed` is anna's. It knows sessions, tokens and passwords.
async fn far() -> Couch {
    let far = with_users(&[("anna", &["staff"])]).await;
    set(&far, "jwt_keys/hmac:_default", "Z2VoZWlt").await;
    let handlers = "{chttpd_auth, cookie_authentication_handler}, {chttpd_auth, jwt_authentication_handler}, {chttpd_auth, default_authentication_handler}";
    set(&far, "chttpd/authentication_handlers", handlers).await;
    assert_eq!(admin(&far, "PUT", "/closed", json!({})).await.status, 201);
    let security = json!({"members": {"names": ["anna"]}});
    assert_eq!(admin(&far, "PUT", "/closed/_security", security).await.status, 200);
    assert_eq!(admin(&far, "PUT", "/closed/a", json!({})).await.status, 201);
    far
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_reach_a_server_that_asks_for_them_and_nobody_else() {
    let (far, near) = (far().await, with_users(&[("berta", &[])]).await);
    assert_eq!(admin(&near, "PUT", "/_replicator", json!({})).await.status, 201);
    let security = json!({"members": {"names": ["berta"]}});
    assert_eq!(admin(&near, "PUT", "/_replicator/_security", security).await.status, 200);
    let login = far.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    let session = cookie(&login);
    let forged = format!("{}AAAA", &session[..session.len() - 4]);
    let basic = |password: &str| json!({"auth": {"basic": {"username": "anna", "password": password}}});
    let header = |name: &str, value: &str| json!({"headers": {name: value}});
    let forged_token = format!("{}AAAA", &TOKEN[..TOKEN.len() - 4]);
    let unauthorized = "unauthorized to access or create database";
    let ways = [
        ("session", header("Cookie", &session), header("Cookie", &forged), unauthorized),
        (
            "token",
            header("Authorization", &format!("Bearer {TOKEN}")),
            header("Authorization", &format!("Bearer {forged_token}")),
            "Bad HMAC",
        ),
        ("basic", basic("pw anna"), basic("pw wrong"), unauthorized),
    ];
    let secrets = [
        session.strip_prefix("AuthSession=").unwrap(),
        TOKEN,
        "pw anna",
        "pw wrong",
        &forged[12..],
        &forged_token,
        &BASE64_STANDARD.encode("anna:pw anna"),
        &BASE64_STANDARD.encode("anna:pw wrong"),
    ]
    .map(str::to_owned);
    let shows_nothing =
        |text: &str| secrets.iter().for_each(|secret| assert!(!text.contains(secret), "{secret}: {text}"));
    let closed = format!("{}/closed", far.base);
    let side = |credentials: &Value| {
        let mut side = credentials.clone();
        side["url"] = json!(closed);
        side
    };
    for (name, good, bad, why) in &ways {
        // At once, in both directions.
        let copy = format!("{name}-copy");
        let pull = json!({"source": side(good), "target": copy, "create_target": true});
        let pulled = admin(&near, "POST", "/_replicate", pull).await;
        assert_eq!(pulled.status, 200, "{name} {}", pulled.text);
        assert_eq!(admin(&near, "GET", &format!("/{copy}/a"), json!(null)).await.status, 200);
        shows_nothing(&pulled.text);
        assert_eq!(admin(&near, "PUT", &format!("/{copy}/of-{name}"), json!({})).await.status, 201);
        let push = json!({"source": copy, "target": side(good)});
        let pushed = admin(&near, "POST", "/_replicate", push).await;
        assert_eq!(pushed.status, 200, "{name} {}", pushed.text);
        assert_eq!(admin(&far, "GET", &format!("/closed/of-{name}"), json!(null)).await.status, 200);
        let refused = admin(&near, "POST", "/_replicate", json!({"source": side(bad), "target": copy})).await;
        shows_nothing(&refused.text);
        let body = refused.json();
        let reason = format!("{}: {}", body["error"].as_str().unwrap(), body["reason"].as_str().unwrap());
        assert!(refused.status != 200 && reason.contains(why), "{name}: {reason}");

        // By a document that continues, and one that cannot.
        let document = json!({"source": side(good), "target": format!("{name}-followed"), "create_target": true,
            "continuous": true});
        assert_eq!(admin(&near, "PUT", &format!("/_replicator/{name}"), document).await.status, 201);
        until(&near, name, "running").await;
        let document = json!({"source": side(bad), "target": copy});
        let wrong = format!("{name}-wrong");
        assert_eq!(admin(&near, "PUT", &format!("/_replicator/{wrong}"), document).await.status, 201);
        let row = until(&near, &wrong, "crashing").await;
        assert_eq!(row["info"], json!({"error": reason}), "{name}");
    }
    let followed = async {
        for (name, ..) in &ways {
            while admin(&near, "GET", &format!("/{name}-followed/of-basic"), json!(null)).await.status != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, followed).await.expect("they go on");
    for path in ["/_active_tasks", "/_scheduler/jobs", "/_scheduler/docs"] {
        let answer = admin(&near, "GET", path, json!(null)).await;
        assert!(answer.text.contains(&closed), "{path}: {}", answer.text);
        shows_nothing(&answer.text);
    }
    for (name, ..) in &ways {
        for id in [(*name).to_owned(), format!("{name}-wrong")] {
            shows_nothing(&admin(&near, "GET", &format!("/_scheduler/docs/_replicator/{id}"), json!(null)).await.text);
            let seen = as_user(&near, "berta", "pw berta", "GET", &format!("/_replicator/{id}"), json!(null)).await;
            assert_eq!((seen.status.as_u16(), &seen.json()["source"]), (200, &json!(closed)), "{}", seen.text);
            shows_nothing(&seen.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_begins_after_the_sequence_that_it_is_given() {
    let couch = Couch::start().await;
    couch.database("here").await;
    for id in ["a", "b"] {
        couch.put(&format!("/here/{id}"), json!({})).await;
    }
    let since = couch.get("/here").await.json()["update_seq"].clone();
    couch.put("/here/c", json!({})).await;
    let sources = [json!("here"), json!(format!("{}/here", couch.base))];
    for (number, source) in sources.iter().enumerate() {
        let target = format!("there{number}");
        let asked = json!({"source": source, "target": target, "create_target": true, "since_seq": since});
        let done = couch.json("POST", "/_replicate", asked).await.json();
        let session = &done["history"][0];
        assert_eq!((&session["docs_written"], &session["start_last_seq"]), (&json!(1), &since), "{done}");
        assert_eq!(
            (couch.get(&format!("/{target}/a")).await.status, couch.get(&format!("/{target}/c")).await.status),
            (reqwest::StatusCode::NOT_FOUND, reqwest::StatusCode::OK)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_created_with_the_parameters_that_are_given() {
    let (near, far) = (Couch::start().await, Couch::start().await);
    near.database("here").await;
    near.put("/here/a", json!({})).await;
    let targets = [json!("near"), json!(format!("{}/far", far.base))];
    for target in &targets {
        let asked = |parameters: Value| json!({"source": "here", "target": target, "create_target": true, "create_target_params": parameters});
        // The creating server refuses each of them, so it arrived there.
        for (wrong, why) in [
            (json!({"partitioned": "x"}), "Invalid `partitioned` parameter"),
            (json!({"q": 0}), "The `q` value should be a positive integer."),
            (json!({"n": "x"}), "The `n` value should be a positive integer."),
        ] {
            let refused = near.json("POST", "/_replicate", asked(wrong.clone())).await;
            let reason = refused.json()["reason"].as_str().unwrap().to_owned();
            assert!(refused.status != 200 && reason.contains(why), "{target} {wrong}: {reason}");
        }
        assert_eq!(
            (near.get("/near").await.status, far.get("/far").await.status),
            (reqwest::StatusCode::NOT_FOUND, reqwest::StatusCode::NOT_FOUND)
        );
    }
    for target in &targets {
        let asked = json!({"source": "here", "target": target, "create_target": true,
            "create_target_params": {"q": 2, "n": 1, "partitioned": false}});
        let done = near.json("POST", "/_replicate", asked).await;
        assert_eq!(
            (done.status.as_u16(), &done.json()["history"][0]["docs_written"]),
            (200, &json!(1)),
            "{}",
            done.text
        );
    }
    let asked = json!({"source": "here", "target": "near", "create_target_params": []});
    near.json("POST", "/_replicate", asked).await.refused(
        400,
        "bad_request",
        "parameter `create_target_params` must be a JSON object",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_for_too_long_ends_a_replication() {
    let couch = Couch::start().await;
    couch.database("there").await;
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source = format!("http://{}/x", silent.local_addr().unwrap());
    let asked = json!({"source": source, "target": "there", "connection_timeout": 200, "retries_per_request": 0});
    let begun = std::time::Instant::now();
    let refused = couch.json("POST", "/_replicate", asked).await;
    let took = begun.elapsed();
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]),
        (500, &json!("replication_failed")),
        "{}",
        refused.text
    );
    // Without the option it waits for two minutes.
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(60), "{took:?}");
}
