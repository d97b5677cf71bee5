//! Damaged and random cookies, tokens, headers and settings: they never admit anybody, and requests never fail because
//! of them.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use server::http::KNOWN_SETTINGS;

use crate::rights::{TOKEN, admin, cookie, set, with_users};
use crate::support::Couch;

const TRIES: usize = 300;

/// Another seed for each run. `SEED=… cargo test` repeats one.
pub(crate) fn dice() -> StdRng {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Changes one to three bytes of a text, cuts it off or makes it longer. Bytes are those that a header may have.
fn damaged(text: &str, dice: &mut StdRng) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..dice.random_range(1..4) {
        let at = dice.random_range(0..bytes.len());
        match dice.random_range(0..4) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes.insert(at, dice.random_range(0x21..0x7f)),
            _ => bytes[at] = dice.random_range(0x21..0x7f),
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_proofs_prove_nothing() {
    let dice = &mut dice();
    let couch = with_users(&[("anna", &["staff"])]).await;
    set(&couch, "jwt_keys/hmac:_default", "Z2VoZWlt").await;
    set(&couch, "chttpd_auth/secret", "geheim").await;
    let handlers = "{chttpd_auth, jwt_authentication_handler}, {chttpd_auth, proxy_authentication_handler}";
    set(&couch, "chttpd/authentication_handlers", handlers).await;
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    let proofs = [
        ("cookie", cookie(&login)),
        ("authorization", format!("Bearer {TOKEN}")),
        ("x-auth-couchdb-token", "c21542300dfb6ef706485c6a65912b3d1d0517ac811e3d114a07527b76207696".to_owned()),
    ];
    for (header, good) in &proofs {
        let mut refused = 0;
        for number in 0..=TRIES {
            let value = if number == 0 { good.clone() } else { damaged(good, dice) };
            let request = couch.request("GET", "/_session").header(*header, &value);
            let request = match *header {
                "x-auth-couchdb-token" => {
                    request.header("x-auth-couchdb-username", "anna").header("x-auth-couchdb-roles", "staff")
                }
                _ => request,
            };
            let answer = couch.send(request).await;
            assert!(answer.status.as_u16() < 500, "{header}: {value}: {}", answer.text);
            let name = if answer.status == 200 { answer.json()["userCtx"]["name"].clone() } else { Value::Null };
            match number {
                0 => assert_eq!(name, "anna", "{header}"),
                // Only the last letters of base64, the case of hexadecimal digits, and text after a complete cookie
                // have no meaning.
                _ => refused += usize::from(name.is_null()),
            }
            assert!(name.is_null() || name == "anna", "{header}: {value}: {name}");
        }
        assert!(refused > TRIES * 8 / 10, "{header}: only {refused} of {TRIES} were refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_settings_leave_a_server_that_answers() {
    let dice = &mut dice();
    let couch = with_users(&[]).await;
    let mut keys = Vec::new();
    for (section, names) in KNOWN_SETTINGS {
        for (name, _) in *names {
            let name = if name.ends_with(':') { format!("{name}_default") } else { (*name).to_owned() };
            keys.push(format!("{section}/{name}"));
        }
    }
    let words = [
        "true",
        "false",
        "",
        "0",
        "-1",
        "1e99",
        "18446744073709551616",
        "{a,\"b",
        "*",
        "{jwt_authentication_handler",
        "proxy_authentication_handler",
        "[{nodelay, ",
        "x.y\\",
        "é",
        "Ω",
        "sha512",
        "-----BEGIN PUBLIC KEY-----",
        "none",
        ", ,",
        "\u{0}",
        "a\r\nb",
    ];
    // Each key twice, then random keys.
    let mut tried = [keys.as_slice(), &keys].concat();
    tried.extend((0..TRIES).map(|_| keys[dice.random_range(0..keys.len())].clone()));
    for key in tried {
        let value: String = (0..dice.random_range(0..3)).map(|_| words[dice.random_range(0..words.len())]).collect();
        let path = format!("/_node/_local/_config/{key}");
        let put = admin(&couch, "PUT", &path, json!(value)).await;
        assert!(put.status == 200 || put.status == 400, "{key} {value:?}: {}", put.text);
        assert_eq!(couch.send(by_admin(&couch, "GET", "/_all_dbs")).await.status, 200, "{key} {value:?}");
        if key == "chttpd/max_http_request_size" {
            // Few bytes are too few for a login, and for another value.
            assert!(couch.send(by_admin(&couch, "DELETE", &path)).await.status.as_u16() < 500, "{key} {value:?}");
        }
        let login = couch.json("POST", "/_session", json!({"name": "adm", "password": "pass word"})).await;
        assert_eq!(login.status, 200, "{key} {value:?}: {}", login.text);
        let bearer = couch.send(couch.request("GET", "/_session").bearer_auth("a.b.c")).await;
        assert!(bearer.status.as_u16() < 500, "{key} {value:?}: {}", bearer.text);
        // It reads the settings of replications.
        let replication = admin(&couch, "POST", "/_replicate", json!({"source": "none", "target": "none"})).await;
        assert!(replication.status.as_u16() < 500, "{key} {value:?}: {}", replication.text);
    }
}

/// A request without a body.
fn by_admin(couch: &Couch, method: &str, path: &str) -> reqwest::RequestBuilder {
    couch.request(method, path).basic_auth("adm", Some("pass word"))
}
