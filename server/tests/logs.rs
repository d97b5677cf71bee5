//! What is in the log, and what is not: no password, cookie, token or key, whatever level it has.

#![cfg(feature = "mem")]

#[path = "program/server.rs"]
mod process;

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use process::Process;
use reqwest::{Client, Method};
use serde_json::json;

/// A server as a process, and what was sent to it that nobody may read.
struct Told {
    server: Process,
    client: Client,
    secrets: Vec<String>,
}

impl Told {
    /// A text that is nowhere else.
    fn secret(&mut self, what: &str) -> String {
        let secret = format!("geheim-{what}-{}", self.secrets.len());
        self.secrets.push(secret.clone());
        secret
    }

    async fn send(&self, method: &str, path: &str, header: (&str, &str), body: String) -> (u16, String) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.client.request(method, self.server.url(path)).header("content-type", "application/json");
        let answer = request.header(header.0, header.1).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// The header with a name and a password. Its encoding is a secret too.
fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_each_view_that_lacks_documents_which_emit_too_much() {
    let server = Process::start(&["--engine", "mem:", "--log", "warn"]);
    let told = Told { server, client: Client::new(), secrets: Vec::new() };
    let none = ("accept", "*/*");
    let put = async |path: &str, body: serde_json::Value| {
        let (status, text) = told.send("PUT", path, none, body.to_string()).await;
        assert_eq!(status, 201, "{path}: {text}");
    };
    put("/db", json!({})).await;
    let greedy = "function (doc) { for (var n = 0; n < doc.n; n++) emit(n, new Array(1000).join('x')) }";
    let views = json!({"greedy": {"map": greedy}, "small": {"map": "function (doc) { emit(doc.n, 1) }"}});
    put("/db/_design/d", json!({ "views": views })).await;
    for (id, n) in [("a", 1), ("b", 4_000), ("c", 5_000)] {
        put(&format!("/db/{id}"), json!({ "n": n })).await;
    }
    for (view, rows) in [("small", 3), ("greedy", 1), ("small", 3)] {
        let (_, found) = told.send("GET", &format!("/db/_design/d/_view/{view}"), none, String::new()).await;
        assert!(found.contains(&format!("\"total_rows\":{rows},")), "{view}: {found:.200}");
    }
    let (_, info) = told.send("GET", "/db/_design/d/_info", none, String::new()).await;
    assert_eq!(info.matches("emitted_too_much").count(), 2, "{info}");
    assert!(info.contains(r#"It has no rows in: \"greedy\""#), "{info}");
    let Told { mut server, .. } = told;
    let pid = server.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    server.child.wait().unwrap();
    let mut log = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("documents emit too much")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].ends_with('2'), "documents: {}", lines[0]);
    for part in ["\"db\"", "\"_design/d\"", "\"greedy\""] {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
}

/// `warn` of other crates, and every word that they say.
const LEVELS: [&str; 2] = ["trace", "trace,server=trace"];

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_the_log() {
    for level in LEVELS {
        let own = "geheim-own";
        let mut server = Process::start(&["--engine", "mem:", "--log", level, "--user", "adm", "--password", own]);
        let mut stderr = server.child.stderr.take().unwrap();
        // It is read while the server runs, so that a full pipe does not stop the server.
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).map(|_| log)
        });
        let mut told = Told { server, client: Client::new(), secrets: vec![own.to_owned()] };
        let right = basic("adm", own);
        let adm = ("authorization", right.as_str());
        told.secrets.push(right.replace("Basic ", ""));
        let config = |key: &str| format!("/_node/_local/_config/{key}");
        assert_eq!(told.send("PUT", &config("chttpd_auth/iterations"), adm, json!("10").to_string()).await.0, 200);

        // Logins, right and wrong, and what they leave at the client.
        let wrong = basic("adm", &told.secret("wrong"));
        told.secrets.push(wrong.replace("Basic ", ""));
        assert_eq!(told.send("GET", "/_session", ("authorization", &wrong), String::new()).await.0, 401);
        let wrong = json!({"name": "adm", "password": told.secret("login")});
        assert_eq!(told.send("POST", "/_session", ("accept", "*/*"), wrong.to_string()).await.0, 401);
        let login = told.client.post(told.server.url("/_session")).body(format!("name=adm&password={own}"));
        let login = login.header("content-type", "application/x-www-form-urlencoded").send().await.unwrap();
        let cookie = login.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap();
        let cookie = cookie.strip_prefix("AuthSession=").unwrap().to_owned();
        assert!(cookie.len() > 20);
        told.secrets.push(cookie.clone());
        assert_eq!(
            told.send("GET", "/_all_dbs", ("cookie", &format!("AuthSession={cookie}")), String::new()).await.0,
            200
        );
        for (forged, status) in [(format!("{cookie}AAAA"), 401), (told.secret("cookie") + "!", 400)] {
            let header = ("cookie", &*format!("AuthSession={forged}"));
            assert_eq!(told.send("GET", "/_all_dbs", header, String::new()).await.0, status);
        }

        // Settings, administrators and users.
        let value = STANDARD.encode(told.secret("key"));
        told.secrets.push(value.clone());
        assert_eq!(told.send("PUT", &config("jwt_keys/hmac:_default"), adm, json!(value).to_string()).await.0, 200);
        let handlers = json!("{chttpd_auth, jwt_authentication_handler}").to_string();
        assert_eq!(told.send("PUT", &config("chttpd/authentication_handlers"), adm, handlers).await.0, 200);
        // {"alg":"HS256"} {"sub":"anna"}, and no signature of that key.
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIn0.Z2VoZWlt";
        told.secrets.push(token.to_owned());
        let bearer = format!("Bearer {token}");
        assert!(told.send("GET", "/_session", ("authorization", &bearer), String::new()).await.0 >= 400);
        let other = told.secret("administrator");
        for (value, status) in [(json!(other), 200), (json!(format!("-pbkdf2-{}", told.secret("hash"))), 400)] {
            assert_eq!(told.send("PUT", &config("admins/x"), adm, value.to_string()).await.0, status);
        }
        let damaged = format!("{{\"name\": \"adm\", \"password\": \"{}\"", told.secret("damaged"));
        for (method, path) in
            [("POST", "/_session"), ("PUT", &*config("admins/y")), ("PUT", "/db/x"), ("POST", "/_replicate")]
        {
            let (status, _) = told.send(method, path, adm, damaged.clone()).await;
            assert!(matches!(status, 400 | 404), "{path}: {status}");
        }
        for name in ["_users", "_replicator", "db", "copy"] {
            assert_eq!(told.send("PUT", &format!("/{name}"), adm, String::new()).await.0, 201);
        }
        let user = json!({"type": "user", "name": "anna", "roles": [], "password": told.secret("user")}).to_string();
        assert_eq!(told.send("PUT", "/_users/org.couchdb.user:anna", adm, user).await.0, 201);
        let user =
            json!({"type": "nobody", "name": "berta", "roles": [], "password": told.secret("nobody")}).to_string();
        assert_eq!(told.send("PUT", "/_users/org.couchdb.user:berta", adm, user).await.0, 403);

        // Replications that succeed, that are refused, that reach nobody, and whose URL is none.
        let address = told.server.base.replace("http://", "");
        let wrong = told.secret("replication");
        let url = |password: &str, rest: &str| format!("http://x:{password}@{rest}");
        let unknown = json!({"source": url(&other, &format!("{address}/db")), "target": "copy", "filter": "no/filter"});
        assert_ne!(told.send("POST", "/_replicate", adm, unknown.to_string()).await.0, 200);
        let apart =
            json!({"url": format!("http://{address}/db"), "auth": {"basic": {"username": "x", "password": wrong}}});
        let headers = json!({"url": format!("http://{address}/db"), "headers": {"Authorization": basic("x", &wrong)}});
        told.secrets.push(STANDARD.encode(format!("x:{wrong}")));
        for (number, source) in [
            json!(url(&other, &format!("{address}/db"))),
            json!(url(&wrong, &format!("{address}/db"))),
            apart,
            headers,
            json!(url(&wrong, "127.0.0.1:1/db")),
            json!(url(&wrong, "[::1/db")),
        ]
        .into_iter()
        .enumerate()
        {
            // One target would make these one replication, which runs once.
            let target = format!("copy{number}");
            assert_eq!(told.send("PUT", &format!("/{target}"), adm, String::new()).await.0, 201);
            let asked = json!({"source": source, "target": target, "retries_per_request": 0}).to_string();
            let (status, _) = told.send("POST", "/_replicate", adm, asked.clone()).await;
            assert_eq!(status == 200, number == 0, "{source}: {status}");
            let (status, _) = told.send("PUT", &format!("/_replicator/{number}"), adm, asked).await;
            assert!(matches!(status, 201 | 403), "{source}: {status}");
        }

        // One of a document has failed.
        let begun = std::time::Instant::now();
        while !told.send("GET", "/_scheduler/docs/_replicator/4", adm, String::new()).await.1.contains("crashing") {
            assert!(begun.elapsed().as_secs() < 60, "the replication does not fail");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let Told { mut server, secrets, .. } = told;
        let pid = server.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        server.child.wait().unwrap();
        let mut log = log.join().unwrap().unwrap();
        server.out.read_to_string(&mut log).unwrap();
        assert!(log.contains("a login failed") && log.contains("PUT /_node/_local/_config/admins/x 200"), "{log}");
        assert!(log.contains("a replication failed") && log.contains("a job begins"), "{log}");
        for secret in secrets {
            let line = log.lines().find(|line| line.contains(&secret));
            assert!(line.is_none(), "{level}: {secret} is in {line:?}");
        }
        assert!(!log.contains("geheim"), "{log}");
    }
}
