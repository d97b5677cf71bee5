//! Hostile functions and selectors, again and again on one server program: each gets an answer, the next one is served,
//! and the process does not keep their memory.
//!
//! `HOSTILE_ROUNDS` is the number of rounds, for long runs.

#![cfg(all(feature = "mem", feature = "javascript"))]

#[path = "program/server.rs"]
mod process;

use process::Process;
use serde_json::{Value, json};

/// Number of rounds.
fn rounds() -> usize {
    std::env::var("HOSTILE_ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number"))
}

/// Maximum growth of the process from the second round to the last: the allocator's noise is some megabytes, the heap
/// of one function that is not given back is 64.
const MAX_GROWTH: u64 = 100 << 20;

/// Maximum memory of the process. A build for tests took 160 MiB on two cores. Each core may have a thread that keeps
/// sandboxes.
fn max_peak() -> u64 {
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2) as u64;
    (300 << 20) + cores * (100 << 20)
}

struct Client<'s> {
    client: reqwest::Client,
    server: &'s Process,
}

impl Client<'_> {
    async fn send(&self, method: &str, path: &str, body: String) -> (u16, String) {
        let request = self.client.request(method.parse().unwrap(), self.server.url(path));
        let answer = request.header("content-type", "application/json").body(body).send().await;
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}")))
    }

    async fn json(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.send(method, path, body.to_string()).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {path}: {error} in {text}")))
    }

    async fn put(&self, path: &str, body: Value) {
        let (status, answer) = self.json("PUT", path, body).await;
        assert_eq!(status, 201, "{path}: {answer}");
    }
}

/// Map functions, with the number of rows, and of documents with a recorded error.
const VIEWS: [(&str, &str, u64, usize); 8] = [
    ("cycle", "var a = []; a[0] = a; emit(a, doc);", 0, 2),
    ("deep", "var a = 1; for (var i = 0; i < 1e5; i++) { a = [a]; } emit(a, 1);", 0, 2),
    ("huge", "for (var i = 0; ; i++) { emit(i, 'x'.repeat(1e6)); }", 0, 2),
    ("many", "for (var i = 0; i < 1e5; i++) { emit(i, null); }", 0, 2),
    ("key", "emit(Array(300000).join('k') + doc.n, null);", 2, 0),
    ("prototypes", "Array.prototype.push = JSON.stringify = null; Object.prototype.toJSON = 7; emit(doc.n, 1);", 2, 0),
    ("recursion", "(function f() { return f() + 1; })();", 0, 2),
    ("heap", "var a = []; for (;;) { a.push('x'.repeat(1e5) + a.length); }", 0, 2),
];

/// Bodies of update functions, with the status of their answer.
const UPDATES: [(&str, &str, u16); 8] = [
    ("string", "var s = 'x'; for (;;) { s += s; }", 500),
    ("repeat", "return [null, 'x'.repeat(1e9)];", 500),
    ("answer", "return [null, 'x'.repeat(20 << 20)];", 500),
    ("large", "return [null, 'x'.repeat(2 << 20)];", 200),
    ("nested", "var a = 1; for (var i = 0; i < 1e5; i++) { a = [a]; } return [null, {json: a}];", 500),
    ("recursion", "return (function f() { return f() + 1; })();", 500),
    ("thrown", "throw 'x'.repeat(1 << 20);", 500),
    ("array", "return [null, String(new Array(4294967295).fill(7).length)];", 500),
];

/// Functions that use all of their time. Only the first round has them.
const ENDLESS: [(&str, &str, u16); 2] =
    [("loop", "for (;;) {}", 500), ("expression", "return [null, String(/(a+)+$/.test('a'.repeat(40) + 'b'))];", 500)];

/// Bodies of validation functions.
const VALIDATIONS: [(&str, &str); 3] = [
    ("heap", "var a = []; for (;;) { a.push('x'.repeat(1e5) + a.length); }"),
    ("recursion", "(function f() { return f() + 1; })();"),
    ("thrown", "throw {forbidden: 'x'.repeat(1 << 20)};"),
];

/// Selectors, as text: some are too deep for a tool that reads JSON.
fn selectors() -> Vec<(&'static str, String)> {
    let regexes = |count| json!({"$or": vec![json!({"text": {"$regex": "(a|a)*b"}}); count]}).to_string();
    vec![
        ("10,000 parts", json!({"$or": vec![json!({"n": 2}); 10_000]}).to_string()),
        ("more parts than there may be", json!({"$or": vec![json!({"n": 2}); 50_000]}).to_string()),
        ("depth", format!("{}{{\"n\":1}}{}", "{\"$not\":".repeat(2_000), "}".repeat(2_000))),
        ("depth of lists", format!("{{\"n\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        ("depth of fields", format!("{{\"{}\":1}}", "a.".repeat(100_000))),
        ("a list", json!({"n": {"$in": (0..20_000).collect::<Vec<_>>()}}).to_string()),
        ("a list of a megabyte", json!({"n": {"$in": (0..200_000).collect::<Vec<_>>()}}).to_string()),
        ("lists of lists", json!({"n": {"$all": vec![(0..1_000).collect::<Vec<_>>(); 100]}}).to_string()),
        ("a catastrophic expression", json!({"text": {"$regex": "(a+)+$"}}).to_string()),
        ("an expression that grows", json!({"text": {"$regex": "((a{1,100}){1,100}){1,100}"}}).to_string()),
        ("100 expressions", regexes(100)),
        ("1,000 expressions", regexes(1_000)),
        ("a key over the limit", json!({"text": "a".repeat(300_000)}).to_string()),
        (
            "a range of keys over the limit",
            json!({"text": {"$gte": "a".repeat(300_000), "$lt": "b".repeat(300_000)}}).to_string(),
        ),
        ("a large number", format!("{{\"n\":{}}}", "9".repeat(100_000))),
    ]
}

/// Sends all of them once, with a number that makes the views of this round new.
async fn round(client: &Client<'_>, number: usize) {
    for (name, map, rows, errors) in VIEWS {
        let path = format!("/db/_design/{name}{number}");
        let map = format!("function (doc) {{ /* {number} */ {map} }}");
        client.put(&path, json!({"views": {"v": {"map": map}}})).await;
        let (status, found) = client.json("GET", &format!("{path}/_view/v?limit=10"), json!(null)).await;
        assert_eq!((status, &found["total_rows"]), (200, &json!(rows)), "{name}: {found}");
        let info = client.json("GET", &format!("{path}/_info"), json!(null)).await.1;
        let noted = info["view_index"]["errors"].as_array().map_or(0, Vec::len);
        assert_eq!(noted, errors, "{name}: {info}");
        let rev = client.json("GET", &path, json!(null)).await.1["_rev"].as_str().unwrap().to_owned();
        assert_eq!(client.json("DELETE", &format!("{path}?rev={rev}"), json!(null)).await.0, 200, "{name}");
    }
    assert_eq!(client.json("POST", "/db/_view_cleanup", json!({})).await.0, 202);
    let endless = ENDLESS.iter().filter(|_| number == 0);
    for (name, _, expected) in UPDATES.iter().chain(endless) {
        let (status, text) = client.send("POST", &format!("/db/_design/updates/_update/{name}"), "{}".to_owned()).await;
        assert_eq!(status, *expected, "{name}: {}", &text[..text.len().min(1_000)]);
        if status != 200 {
            let error: Value = serde_json::from_str(&text).unwrap();
            assert!(error["error"].is_string() && error["reason"].is_string(), "{name}: {error}");
        }
    }
    for (name, _) in VALIDATIONS {
        let (status, error) = client.json("PUT", &format!("/validated-{name}/doc"), json!({"n": number})).await;
        let expected = if name == "thrown" { (403, "forbidden") } else { (500, "os_process_error") };
        assert_eq!((status, error["error"].as_str().unwrap()), expected, "{name}");
    }
    for (what, selector) in selectors() {
        for path in ["/db/_find", "/db/_explain"] {
            let (status, text) = client.send("POST", path, format!("{{\"selector\":{selector}}}")).await;
            let said = || format!("{what}: {status} {}", &text[..text.len().min(1_000)]);
            let answer: Value = match serde_json::from_str(&text) {
                Ok(answer) => answer,
                // An explanation says how deep the selector is.
                Err(_) if path == "/db/_explain" && status == 200 => continue,
                Err(_) => panic!("{}", said()),
            };
            match status {
                200 => assert!(answer["docs"].is_array() || answer["index"].is_object(), "{}", said()),
                400 => assert!(answer["reason"].is_string(), "{}", said()),
                _ => panic!("{}", said()),
            }
        }
    }
    let query = json!({"selector": {"n": 2}, "fields": ["_id"]});
    assert_eq!(client.json("POST", "/db/_find", query).await.1["docs"], json!([{"_id": "b"}]));
    let view = client.json("GET", "/db/_design/good/_view/v", json!(null)).await.1;
    assert_eq!(view["total_rows"], 2, "{view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_functions_and_selectors_leave_a_server_that_answers_in_bounded_memory() {
    let server = Process::start(&["--engine", "mem:", "--log", "error"]);
    let client = Client { client: reqwest::Client::new(), server: &server };
    client.put("/db", json!({})).await;
    let index = json!({"index": {"fields": ["text"]}, "ddoc": "i", "name": "text"});
    assert_eq!(client.json("POST", "/db/_index", index).await.0, 200);
    client.put("/db/a", json!({"n": 1, "text": "a".repeat(20_000)})).await;
    client.put("/db/b", json!({"n": 2, "text": "b"})).await;
    let functions = |all: &[(&str, &str, u16)]| -> serde_json::Map<String, Value> {
        let function = |body| json!(format!("function (doc, req) {{ {body} }}"));
        all.iter().map(|(name, body, _)| ((*name).to_owned(), function(body))).collect()
    };
    let updates = functions(&[&UPDATES[..], &ENDLESS[..]].concat());
    client.put("/db/_design/updates", json!({ "updates": updates })).await;
    client.put("/db/_design/good", json!({"views": {"v": {"map": "function (doc) { emit(doc.n, 1); }"}}})).await;
    for (name, body) in VALIDATIONS {
        client.put(&format!("/validated-{name}"), json!({})).await;
        let function = format!("function (new_doc, old_doc, user, security) {{ {body} }}");
        client.put(&format!("/validated-{name}/_design/v"), json!({"validate_doc_update": function})).await;
    }
    let mut first = None;
    for number in 0..rounds() {
        let began = std::time::Instant::now();
        round(&client, number).await;
        let now = server.memory("VmRSS");
        let megabytes = |bytes: Option<u64>| bytes.map_or(0, |bytes| bytes >> 20);
        let peak = server.memory("VmHWM");
        println!("round {number}, {:?}: {} MiB, at most {} MiB", began.elapsed(), megabytes(now), megabytes(peak));
        // The first rounds fill caches and start threads.
        if number == 1 {
            first = now;
        }
        if let (Some(first), Some(now)) = (first, now) {
            let grown = now.saturating_sub(first);
            assert!(grown < MAX_GROWTH, "round {number}: {} MiB more than after the second", grown >> 20);
        }
        assert!(peak.is_none_or(|peak| peak < max_peak()), "round {number}: {} MiB", megabytes(peak));
    }
    assert_eq!(server.stop("-TERM").code(), Some(0));
}
