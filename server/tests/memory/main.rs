//! Bodies of millions of small entries, as a server program takes them: each in a few times its bytes, and the server
//! answers the next one. All of them at once, and clients that stop, stay within `--memory`, and others are answered
//! meanwhile.

#![cfg(feature = "mem")]

#[path = "program/server.rs"]
mod process;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use process::Process;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Size of a body.
const BYTES: usize = 2 << 20;

/// How many times its own bytes a body may take.
const MOST_TIMES: u64 = 12;

/// What a request may take beside that: buffers, threads, and lists with their greatest number of entries. On a busy
/// machine the allocator gives memory back later, some MiB more than on an idle one.
const MOST_BESIDE: u64 = 48 << 20;

/// A line of `/proc/PID/status` in bytes; `None` where the system has none.
fn memory(server: &Process, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).ok()?;
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// A body that repeats an entry between two texts, until it is large.
fn filled(bytes: usize, before: &str, entry: &str, after: &str) -> String {
    let count = (bytes - before.len() - after.len()) / (entry.len() + 1);
    format!("{before}{}{after}", vec![entry; count].join(","))
}

/// The same with a number in place of `#`, so that no two entries are equal.
fn numbered(bytes: usize, before: &str, entry: &str, after: &str) -> String {
    let count = (bytes - before.len() - after.len()) / (entry.len() + 7);
    let entries: Vec<String> = (0..count).map(|number| entry.replace('#', &number.to_string())).collect();
    format!("{before}{}{after}", entries.join(","))
}

fn packed(body: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A request: its method, path and body, and the status of its answer.
type Case = (&'static str, &'static str, String, u16);

fn cases(bytes: usize) -> Vec<Case> {
    let post = |path, body, status| ("POST", path, body, status);
    let mut cases = Vec::new();
    for entry in ["0", "{}", "[]", "\"\""] {
        cases.push(post("/pub/_bulk_docs", filled(bytes, "{\"docs\":[", entry, "]}"), 413));
        cases.push(post("/pub/_bulk_get", filled(bytes, "{\"docs\":[", entry, "]}"), 413));
    }
    let attachments = numbered(bytes, "", r##""#":{"stub":true}"##, "");
    let within = numbered(bytes, r#"{"docs":[{"_attachments":{"#, r##""#":{"stub":true}"##, "}}]}");
    let histories = r#"{"new_edits":false,"docs":[{"_id":"a","_revisions":{"start":99999999,"ids":["#;
    cases.extend([
        post("/pub/_bulk_docs", within, 413),
        post("/pub/_bulk_docs", filled(bytes, histories, "\"a\"", "]}}]}"), 201),
        post("/pub/_bulk_docs", numbered(bytes, "{\"docs\":[{", "\"_#\":0", "}]}"), 400),
        post("/pub/_bulk_docs", format!("{{\"docs\":{}", "[".repeat(bytes)), 400),
        post("/pub/_bulk_get", filled(bytes, r#"{"docs":[{"id":"a","atts_since":["#, "\"1-a\"", "]}]}"), 200),
        post("/_transact", filled(bytes, "{\"edits\":[", r#"{"db":"pub","doc":{}}"#, "]}"), 413),
        post("/pub/_revs_diff", numbered(bytes, "{", "\"#\":[\"1-a\"]", "}"), 200),
        post("/pub/_missing_revs", numbered(bytes, "{", "\"#\":[]", "}"), 200),
        post("/pub/_revs_diff", filled(bytes, "{\"a\":[", "\"1-a\"", "]}"), 413),
        post("/pub/_purge", filled(bytes, "{\"a\":[", "\"1-a\"", "]}"), 413),
        post("/pub/_all_docs", filled(bytes, "{\"keys\":[", "0", "]}"), 200),
        post("/pub/_all_docs?descending=true", filled(bytes, "{\"keys\":[", "\"a\"", "]}"), 200),
        post("/pub/_design_docs", filled(bytes, "{\"keys\":[", "\"a\"", "]}"), 200),
        post("/pub/_local_docs", filled(bytes, "{\"keys\":[", "\"_local/a\"", "]}"), 200),
        post("/pub/_all_docs/queries", filled(bytes, "{\"queries\":[", "{}", "]}"), 413),
        post("/pub/_all_docs/queries", numbered(bytes, "{\"queries\":[{", "\"#\":0", "}]}"), 413),
        post("/pub/_all_docs/queries", filled(bytes, "{\"queries\":[{\"keys\":[", "0", "]}]}"), 200),
        post("/pub/_changes?filter=_doc_ids", filled(bytes, "{\"doc_ids\":[", "0", "]}"), 400),
        post("/pub/_changes?filter=_doc_ids", numbered(bytes, "{\"doc_ids\":[", "\"#\"", "]}"), 200),
        post("/pub/_changes?filter=_selector", filled(bytes, r#"{"selector":{"$or":["#, "{}", "]}}"), 400),
        post("/pub/_find", filled(bytes, r#"{"selector":{"n":{"$in":["#, "0", "]}}}"), 200),
        post("/pub/_find", filled(bytes, r#"{"selector":{"n":{"$all":["#, "0", "]}}}"), 200),
        post("/pub/_find", filled(bytes, r#"{"selector":{"$or":["#, r#"{"$and":[]}"#, "]}}"), 400),
        post(
            "/pub/_find",
            filled(bytes, r#"{"selector":{"$nor":["#, r#"{"$and":[{"$and":[{"$and":[]}]}]}"#, "]}}"),
            400,
        ),
        post("/pub/_find", format!(r#"{{"selector":{{"{}":1}}}}"#, "a.".repeat(bytes / 2)), 400),
        post("/pub/_find", filled(bytes, r#"{"selector":{},"sort":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", filled(bytes, r#"{"selector":{},"fields":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", filled(bytes, r#"{"selector":{},"use_index":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", format!(r#"{{"selector":{{}},"use_index":"{}"}}"#, "/".repeat(bytes)), 400),
        post("/pub/_index", filled(bytes, r#"{"index":{"fields":["#, "\"a\"", "]}}"), 400),
        post("/pub/_index/_bulk_delete", filled(bytes, "{\"docids\":[", "\"a\"", "]}"), 400),
        post("/_dbs_info", filled(bytes, "{\"keys\":[", "\"a\"", "]}"), 400),
        post("/_cluster_setup", filled(bytes, "{\"ensure_dbs_exist\":[", "\"A\"", "]}"), 413),
        ("PUT", "/pub/large", numbered(bytes, "{", "\"#\":0", "}"), 201),
        ("PUT", "/pub/doubled", filled(bytes, "{", "\"\":0", "}"), 201),
        ("PUT", "/pub/attached", format!("{{\"_attachments\":{{{attachments}}}}}"), 413),
        ("PATCH", "/pub/doc", filled(bytes, "[", r#"{"op":"remove","path":""}"#, "]"), 409),
        (
            "PATCH",
            "/pub/doc",
            filled(bytes, "[", &format!(r#"{{"op":"remove","path":"{}"}}"#, "/a".repeat(999)), "]"),
            400,
        ),
    ]);
    #[cfg(feature = "javascript")]
    cases.extend([
        post("/pub/_design/d/_view/v", filled(bytes, "{\"keys\":[", "0", "]}"), 200),
        post("/pub/_design/d/_view/v/queries", filled(bytes, "{\"queries\":[", "{}", "]}"), 413),
        post("/pub/_design/d/_update/form", "a&".repeat(bytes / 2), 413),
    ]);
    cases
}

/// The media type of a case.
fn kind(method: &str, path: &str) -> &'static str {
    match (method, path.ends_with("/form")) {
        ("PATCH", _) => "application/json-patch+json",
        (_, true) => "application/x-www-form-urlencoded",
        _ => "application/json",
    }
}

fn with_json(request: reqwest::RequestBuilder, body: &serde_json::Value) -> reqwest::RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

/// Makes the database that the cases need.
async fn prepare(server: &Process, client: &reqwest::Client) {
    let put = async |path: &str, body: serde_json::Value| {
        let answer = with_json(client.put(server.url(path)), &body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
    };
    put("/pub", json!({})).await;
    put("/pub/_security", json!({})).await;
    put("/pub/doc", json!({"n": 0})).await;
    let views = json!({"v": {"map": "function (doc) { emit(doc.n, 1); }"}});
    let updates = json!({"form": "function (doc, req) { return [null, 'ok']; }"});
    put("/pub/_design/d", json!({"views": views, "updates": updates})).await;
    if cfg!(feature = "javascript") {
        let built = with_json(client.post(server.url("/pub/_design/d/_view/v")), &json!({})).send().await.unwrap();
        assert_eq!(built.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_takes_a_few_times_its_bytes() {
    let server = Process::start(&["--engine", "mem:"]);
    let client = reqwest::Client::new();
    let send = async |method: &str, path: &str, body: Vec<u8>| {
        let request = client.request(method.parse().unwrap(), server.url(path));
        let request = request.header("content-type", kind(method, path)).header("content-encoding", "gzip");
        request.body(body).send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    };
    prepare(&server, &client).await;
    // What an earlier request took may still be there, so nothing else is compared with.
    let before = memory(&server, "VmRSS");
    let mut wrong = Vec::new();
    for (method, path, body, expected) in cases(BYTES) {
        let (begun, bytes) = (Instant::now(), body.len() as u64);
        // From here on the peak counts anew.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5");
        let mut answer = send(method, path, packed(&body)).await;
        let status = answer.status().as_u16();
        // Long answers are sent while they are made.
        let (mut text, mut length) = (Vec::new(), 0);
        while length < 2 * BYTES
            && let Some(piece) = answer.chunk().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
        {
            length += piece.len();
            text.extend_from_slice(&piece[..piece.len().min(200)]);
        }
        drop(answer);
        let what = format!("{method} {path} {:.60}", body);
        if status != expected {
            text.truncate(300);
            wrong.push(format!("{what}: {status}, not {expected}: {}", String::from_utf8_lossy(&text)));
        }
        let took = before.zip(memory(&server, "VmHWM")).map(|(before, peak)| peak.saturating_sub(before));
        if let Some(took) = took {
            println!("{:5} KB of {:5} KB, {:4.1} s: {what}", took >> 10, bytes >> 10, begun.elapsed().as_secs_f64());
            if took > MOST_TIMES * bytes + MOST_BESIDE {
                wrong.push(format!("{what}: {took} bytes for a body of {bytes}"));
            }
        }
        assert_eq!(client.get(server.url("/pub/doc")).send().await.unwrap().status(), 200, "{what}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `--memory` of the tests below.
const MEMORY: u64 = 480 << 20;

fn start(memory: u64) -> Process {
    Process::start(&["--engine", "mem:", "--memory", &memory.to_string()])
}

/// A client at another address of this machine.
fn at(address: [u8; 4]) -> reqwest::Client {
    reqwest::Client::builder().local_address(std::net::IpAddr::from(address)).build().unwrap()
}

/// Asks for a small document again and again while `work` runs. Each answer must be there. Returns the longest time of
/// one.
async fn beside<T>(server: &Process, client: &reqwest::Client, work: impl Future<Output = T>) -> (T, Duration) {
    let mut longest = Duration::ZERO;
    let asking = async {
        loop {
            let begun = Instant::now();
            let answer = client.get(server.url("/pub/doc")).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
            longest = longest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = asking => unreachable!("it never ends"),
    };
    (done, longest)
}

fn assert_within(server: &Process, memory: u64) {
    if let Some(peak) = memory_line(server) {
        println!("peak: {} of {} MiB", peak >> 20, memory >> 20);
        assert!(peak <= memory, "the peak is {peak} bytes, and {memory} are allowed");
    }
}

fn memory_line(server: &Process) -> Option<u64> {
    memory(server, "VmHWM")
}

/// Sends all bodies of this size, many at a time.
async fn all_at_once(memory: u64, bytes: usize) {
    let server = start(memory);
    let client = reqwest::Client::new();
    prepare(&server, &client).await;
    let (refused, base) = (AtomicUsize::new(0), server.base.clone());
    let one = async |(method, path, body, _): Case| {
        let packed = packed(&body);
        drop(body);
        for _ in 0..200 {
            let request = client.request(method.parse().unwrap(), format!("{base}{path}")).body(packed.clone());
            let request = request.header("content-type", kind(method, path)).header("content-encoding", "gzip");
            let mut answer = request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
            let status = answer.status().as_u16();
            let mut length = 0;
            while length < 2 * BYTES
                && let Some(piece) = answer.chunk().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
            {
                length += piece.len();
            }
            if status != 503 {
                assert!(status < 500, "{method} {path}: {status}");
                return;
            }
            assert!(answer.headers().contains_key("retry-after"), "{method} {path}");
            refused.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{method} {path} was never served");
    };
    let work = stream::iter(cases(bytes)).for_each_concurrent(24, one);
    let ((), longest) = beside(&server, &at([127, 0, 0, 2]), work).await;
    println!("{} refusals; another client waited {longest:?} at most", refused.load(Ordering::Relaxed));
    assert_within(&server, memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_come_at_once_stay_within_the_memory() {
    all_at_once(MEMORY, BYTES / 2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: the largest bodies that are accepted"]
async fn the_largest_bodies_stay_within_the_memory() {
    all_at_once(2 << 30, 60 << 20).await;
}

/// A connection from an address of this machine.
async fn connect(server: &Process, from: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.bind((std::net::Ipv4Addr::from(from), 0).into()).unwrap();
    socket.connect(server.base.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap()
}

/// The status of an answer that comes soon, if any.
async fn status(connection: &mut TcpStream) -> Option<u16> {
    let mut head = [0; 12];
    tokio::time::timeout(Duration::from_millis(100), connection.read_exact(&mut head)).await.ok()?.ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_that_stop_take_their_part_of_the_memory() {
    let server = start(MEMORY);
    prepare(&server, &reqwest::Client::new()).await;
    let work = async {
        let mut all = Vec::new();
        for _ in 0..100 {
            let mut connection = connect(&server, [127, 0, 0, 3]).await;
            let head = format!("POST /pub/_bulk_docs HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", 9 << 20);
            let head = format!("{head}content-type: application/json\r\n\r\n");
            // Where the server does not read, this ends all the same.
            let sending = async {
                connection.write_all(head.as_bytes()).await?;
                connection.write_all(&vec![b' '; 8 << 20]).await
            };
            let _ = tokio::time::timeout(Duration::from_millis(300), sending).await;
            all.push(connection);
        }
        tokio::time::sleep(Duration::from_secs(12)).await;
        let mut refused = 0;
        for connection in &mut all {
            refused += usize::from(status(connection).await == Some(503));
        }
        refused
    };
    let other = at([127, 0, 0, 2]);
    let (refused, longest) = beside(&server, &other, work).await;
    println!("{refused} of 100 are refused; another client waited {longest:?} at most");
    assert!(refused > 0);
    // Another client sends while they hold what they have.
    let documents = json!({"docs": vec![json!({"text": "x".repeat(1_000)}); 1_000]});
    let written = with_json(other.post(server.url("/pub/_bulk_docs")), &documents).send().await.unwrap();
    assert_eq!(written.status(), 201);
    assert_within(&server, MEMORY);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stop_take_their_part_of_the_memory() {
    let server = start(MEMORY);
    let client = reqwest::Client::new();
    prepare(&server, &client).await;
    for number in 0..4 {
        let large = client.put(server.url(&format!("/pub/large{number}")));
        let large = with_json(large, &json!({"text": "x".repeat(7_000_000)}));
        assert_eq!(large.send().await.unwrap().status(), 201);
    }
    let work = async {
        let mut all = Vec::new();
        for number in 0..200 {
            let mut connection = connect(&server, [127, 0, 0, 3]).await;
            let path =
                ["/pub/large1", "/pub/_all_docs?include_docs=true", "/pub/_changes?include_docs=true"][number % 3];
            let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let _ = connection.write_all(head.as_bytes()).await;
            all.push(connection);
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
        let mut statuses = Vec::new();
        for connection in &mut all {
            statuses.push(status(connection).await);
        }
        statuses
    };
    let (statuses, longest) = beside(&server, &at([127, 0, 0, 2]), work).await;
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    println!(
        "{} begun, {} refused, {} without an answer; another client waited {longest:?} at most",
        count(Some(200)),
        count(Some(503)),
        count(None)
    );
    assert!(count(Some(200)) > 0 && count(Some(503)) + count(None) > 0);
    assert_within(&server, MEMORY);
}

/// Contents in JSON are reserved before they are read.
#[cfg(feature = "lsm")]
#[tokio::test(flavor = "multi_thread")]
async fn attachments_in_json_stay_within_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let engine = format!("lsm:{}", folder.path().join("data").display());
    let server = Process::start(&["--engine", &engine, "--memory", &MEMORY.to_string()]);
    let client = reqwest::Client::new();
    prepare(&server, &client).await;
    for (name, bytes) in [("small", 8 << 20), ("large", 64 << 20)] {
        let put = client.put(server.url(&format!("/pub/{name}/a"))).body(vec![7; bytes]).send().await.unwrap();
        assert_eq!(put.status(), 201);
    }
    let get = async |path: &str| {
        let request = client.get(server.url(path)).header("accept", "application/json");
        let mut answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        while let Ok(Some(_)) = answer.chunk().await {}
        status
    };
    let small = stream::iter(0..20).map(|_| get("/pub/small?attachments=true")).buffer_unordered(20);
    let work = async { (small.collect::<Vec<u16>>().await, get("/pub/large?attachments=true").await) };
    let ((small, large), _) = beside(&server, &at([127, 0, 0, 2]), work).await;
    assert!(small.contains(&200) && small.iter().all(|status| matches!(status, 200 | 503)), "{small:?}");
    assert_eq!((large, get("/pub/large/a").await), (413, 200));
    assert_within(&server, MEMORY);
}

#[test]
fn too_little_memory_is_refused_with_the_least_that_works() {
    let output = process::command(&["--engine", "mem:", "--memory", "1000000"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    let least = text.split_whitespace().rfind(|word| word.parse::<u64>().is_ok()).unwrap_or_else(|| panic!("{text}"));
    drop(Process::start(&["--engine", "mem:", "--memory", least]));
}
