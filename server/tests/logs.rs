//! Contents of the log: never a password, cookie, token or key, at any level.

#![cfg(feature = "mem")]

#[path = "program/server.rs"]
mod process;

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use process::Process;
use reqwest::{Client, Method};
use serde_json::{Value, json};

/// A server as a process, and the secrets that were sent to it.
struct Told {
    server: Process,
    client: Client,
    secrets: Vec<String>,
}

impl Told {
    /// A text that appears nowhere else.
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
    let lines: Vec<_> = log.lines().filter(|line| line.contains("documents are left out of a view")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].ends_with('2'), "documents: {}", lines[0]);
    for part in ["\"db\"", "\"_design/d\"", "\"greedy\""] {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
}

/// `warn` of other crates, and all of their lines.
const LEVELS: [&str; 2] = ["trace", "trace,server=trace"];

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_the_log() {
    for level in LEVELS {
        let own = "geheim-own";
        let folder = tempfile::tempdir().unwrap();
        let files = ["audit", "access"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
        let logs = ["--audit-log", &files[0], "--access-log", &files[1]];
        let options = ["--engine", "mem:", "--log", level, "--user", "adm", "--password", own];
        let mut server = Process::start(&[&options[..], &logs].concat());
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

        // Correct and wrong logins, and their cookies.
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

        // Replications that succeed, that are refused, that reach nobody, and whose URL is invalid.
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
        assert!(!log.contains('\u{1b}'), "colours");
        for file in files {
            let lines = std::fs::read_to_string(file).unwrap();
            assert!(lines.lines().count() > 10, "{lines}");
            log.push_str(&lines);
        }
        assert!(log.contains("a login failed") && log.contains("PUT /_node/_local/_config/admins/x 200"), "{log}");
        assert!(log.contains("a replication failed") && log.contains("a job begins"), "{log}");
        for secret in secrets {
            let line = log.lines().find(|line| line.contains(&secret));
            assert!(line.is_none(), "{level}: {secret} is in {line:?}");
        }
        assert!(!log.contains("geheim"), "{log}");
    }
}

/// The server prints the token that names the first administrator, and writes it nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_the_first_administrator_reaches_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["audit", "access"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let logs = ["--audit-log", &files[0], "--access-log", &files[1]];
    let options = ["--engine", "mem:", "--log", "trace,server=trace,audit=info"];
    let mut server = Process::start(&[&options[..], &logs].concat());
    let token = server.setup_token();
    let mut stderr = server.child.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).map(|_| log)
    });
    let told = Told { server, client: Client::new(), secrets: Vec::new() };
    let path = "/_node/_local/_config/admins/anna";
    for (shown, status) in [(&token[1..], 401), (&token, 200), (&token, 401)] {
        let header = ("x-couch-layer-setup-token", shown);
        assert_eq!(told.send("PUT", path, header, json!("geheim").to_string()).await.0, status);
    }
    let anna = basic("anna", "geheim");
    let (status, tail) = told.send("GET", "/_couch_layer/log", ("authorization", &anna), String::new()).await;
    assert_eq!(status, 200, "{tail}");
    assert!(tail.contains("administrator_named"), "{tail}");
    let Told { mut server, .. } = told;
    let pid = server.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    server.child.wait().unwrap();
    let mut all = log.join().unwrap().unwrap() + &tail;
    server.out.read_to_string(&mut all).unwrap();
    for file in files {
        all += &std::fs::read_to_string(file).unwrap();
    }
    assert!(all.contains("admins/anna"), "{all}");
    let line = all.lines().find(|line| line.contains(&token[1..]) || line.contains("geheim"));
    assert!(line.is_none(), "{line:?}");
}

/// The lines of a log, without the parts that differ from run to run: the time, the client's address and milliseconds.
fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let read = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let members = line.as_object_mut().unwrap();
        let time = members.remove("time").unwrap();
        assert!(humantime::parse_rfc3339(time.as_str().unwrap()).is_ok(), "{time}");
        if let Some(ms) = members.remove("ms") {
            assert!(ms.is_u64());
        }
        line
    };
    text.lines().map(read).collect()
}

/// What a server with users writes to its two logs while it is used.
#[tokio::test(flavor = "multi_thread")]
async fn the_logs_say_who_did_what_from_where() {
    let folder = tempfile::tempdir().unwrap();
    let [audit, access] = ["audit", "access"].map(|name| folder.path().join(name));
    let server = Process::start(&[
        "--engine",
        "mem:",
        "--user",
        "adm",
        "--password",
        "geheim",
        "--audit-log",
        audit.to_str().unwrap(),
        "--access-log",
        access.to_str().unwrap(),
    ]);
    let client = Client::new();
    let adm = basic("adm", "geheim");
    let mut sent = 0;
    let mut send = async |method: &str, path: &str, authorization: &str, body: Value| {
        sent += 1;
        let request = client.request(Method::from_bytes(method.as_bytes()).unwrap(), server.url(path));
        let request = request.header("x-couch-request-id", format!("r{sent}")).header("authorization", authorization);
        let request = request.header("content-type", "application/json").body(body.to_string());
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null))
    };
    let config = |key: &str| format!("/_node/_local/_config/{key}");
    let no_member = json!({"members": {"roles": ["nobody"]}});
    let (_, wrote) = {
        assert_eq!(send("PUT", "/db", &adm, json!({})).await.0, 201); // r1
        assert_eq!(send("PUT", "/db", &adm, json!({})).await.0, 412);
        assert_eq!(send("PUT", "/db/_security", &adm, no_member).await.0, 200); // r3
        assert_eq!(send("PUT", &config("admins/anna"), &adm, json!("secret")).await.0, 200); // r4
        send("PUT", "/db/doc?token=x", &basic("anna", "secret"), json!({"a": 1})).await // r5
    };
    let purge = json!({"doc": [wrote["rev"]], "other": ["1-00000000000000000000000000000000"]});
    for (method, path, authorization, body, status) in [
        ("PUT", config("admins/anna"), adm.clone(), json!("other"), 200), // r6
        ("DELETE", config("admins/anna"), adm.clone(), json!({}), 200),
        ("PUT", config("log/level"), adm.clone(), json!("secret"), 200),
        ("DELETE", config("log/level"), adm.clone(), json!({}), 200),
        ("POST", config("_reload"), adm.clone(), json!({}), 200), // r10
        ("POST", "/db/_purge".to_owned(), adm.clone(), purge, 201),
        ("GET", "/db/doc".to_owned(), String::new(), json!({}), 401),
        ("GET", "/db/doc".to_owned(), basic("adm", "guess"), json!({}), 401),
        ("POST", "/_session".to_owned(), String::new(), json!({"name": "x\ny", "password": "guess"}), 401),
        ("POST", "/_session?fail=/f".to_owned(), String::new(), json!({"name": "z", "password": "guess"}), 404), // r15
        ("DELETE", "/db".to_owned(), adm.clone(), json!({}), 200),
    ] {
        assert_eq!(send(method, &path, &authorization, body).await.0, status, "{method} {path}");
    }
    assert!(server.stop("-TERM").success());

    let by = |user: Option<&str>, number: u32, event: &str, members: Value| {
        let mut line = json!({"user": user, "address": "127.0.0.1", "request": format!("r{number}"), "event": event});
        line.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        line
    };
    let setting = |section: &str, key: &str| json!({"section": section, "key": key});
    let refused = |method: &str, path: &str, status: u16| json!({"method": method, "path": path, "status": status});
    let login = |name: &str, method: &str, path: &str, status: u16| json!({"name": name, "method": method, "path": path, "status": status});
    let expected = [
        by(Some("adm"), 1, "database_created", json!({"db": "db"})),
        by(Some("adm"), 3, "security_changed", json!({"db": "db"})),
        by(Some("adm"), 4, "administrator_named", setting("admins", "anna")),
        by(Some("adm"), 6, "administrator_changed", setting("admins", "anna")),
        by(Some("adm"), 7, "administrator_removed", setting("admins", "anna")),
        by(Some("adm"), 8, "setting_changed", setting("log", "level")),
        by(Some("adm"), 9, "setting_removed", setting("log", "level")),
        by(Some("adm"), 10, "settings_reloaded", json!({})),
        by(Some("adm"), 11, "document_purged", json!({"db": "db", "id": "doc"})),
        by(None, 12, "refused", refused("GET", "/db/doc", 401)),
        by(None, 13, "login_refused", login("adm", "GET", "/db/doc", 401)),
        by(None, 14, "login_refused", login("x\ny", "POST", "/_session", 401)),
        by(None, 15, "login_refused", login("z", "POST", "/_session", 302)),
        by(Some("adm"), 16, "database_dropped", json!({"db": "db"})),
    ];
    let found = lines(&audit);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");

    let found = lines(&access);
    let of = |id: &str| found.iter().filter(|line| line["request"] == id).collect::<Vec<_>>();
    let written = json!({"user": "anna", "address": "127.0.0.1", "request": "r5", "method": "PUT", "path": "/db/doc", "status": 201,
                         "bytes": wrote.to_string().len() + 1});
    assert_eq!(of("r5"), [&written]);
    // Every request has one line, and a redirected login is two requests.
    assert_eq!(found.len(), sent + 1);
    assert_eq!(of("r12")[0]["status"], 401);
    assert_eq!(of("r12")[0]["user"], Value::Null);
}

/// A log that cannot be opened is refused at the start. One that cannot be written to stops nothing, and its lines are
/// in the server's log.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_disk_keeps_out_of_the_audit_log_is_in_the_log() {
    let refused = process::command(&["--engine", "mem:", "--audit-log", "/dev/null/none"]).output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("the log /dev/null/none cannot be opened"), "{complaint}");

    let mut server = Process::start(&["--engine", "mem:", "--audit-log", "/dev/full"]);
    for path in ["/a", "/b"] {
        assert_eq!(Client::new().put(server.url(path)).send().await.unwrap().status().as_u16(), 201);
    }
    let mut stderr = server.child.stderr.take().unwrap();
    assert!(server.stop("-TERM").success());
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    assert_eq!(log.matches("cannot write to a log").count(), 1, "{log}");
    for db in ["a", "b"] {
        let line = format!(r#""event":"database_created","db":"{db}"}}"#);
        assert!(log.lines().any(|one| one.contains("not in the audit log") && one.contains(&line)), "{log}");
    }
}

#[tokio::test]
async fn the_log_is_made_of_objects_and_names_slow_requests() {
    let mut server = Process::start(&["--engine", "mem:", "--log-format", "json", "--slow-request", "0s"]);
    let mut log = server.child.stderr.take().unwrap();
    let put = reqwest::Client::new().put(server.url("/db?secret=x")).header("x-couch-request-id", "mine").send();
    assert_eq!(put.await.unwrap().status(), 201);
    let asked = json!({"source": "none", "target": "db"});
    let post = reqwest::Client::new().post(server.url("/_replicate")).header("content-type", "application/json");
    let asked = post.body(asked.to_string()).send();
    assert_eq!(asked.await.unwrap().status(), 404);
    assert_eq!(server.stop("-TERM").code(), Some(0));
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let slow = lines.iter().find(|line| line["message"] == "a slow request").expect(&text);
    let found = ["level", "request", "method", "path"].map(|name| slow[name].as_str().unwrap());
    assert_eq!((found, &slow["status"]), (["WARN", "mine", "PUT", "/db"], &Value::from(201)));
    let ms = |name: &str| slow[name].as_u64().unwrap();
    assert!(ms("admission_ms") + ms("body_ms") + ms("work_ms") <= ms("ms"), "{slow}");
    assert!(!text.contains("secret"));
    // Each line names its part of the program, so a field may not have that name.
    let failed = text.lines().find(|line| line.contains("\"a replication failed\"")).expect(&text);
    assert!(failed.contains(r#""from":"none","to":"db""#), "{failed}");
    assert!(text.lines().all(|line| line.matches("\"target\":").count() == 1), "{text}");
}
