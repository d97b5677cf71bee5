//! The memory of a server program under any request to any endpoint: bodies of millions of small entries, senders and
//! readers that stop. It must stay within `--memory`, and other clients must be served meanwhile.
//!
//! The [cases] follow the table of endpoints: a row that nobody thought of fails here. `cargo test` sends a sample, by
//! `SEED`. `MEMORY_CASES=all` sends all of them in their largest size, which is for builds with optimisation, and any
//! other text those whose line has it. `MEMORY_BYTES` is another size, and `MEMORY_MIB` the memory of the server.

#![cfg(feature = "lsm")]

mod cases;
#[path = "../program/server.rs"]
mod process;

use std::io::Write;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cases::{ANYWHERE, Case, cases, example, rows};
use futures_util::{StreamExt, stream};
use process::Process;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Reservation for a body: a multiple of its bytes, and an amount for up to ten thousand values.
const MOST_TIMES: u64 = 12;
const VALUES: u64 = 10_000 * 2_560;

/// Further memory of a request: buffers, threads, the row that it writes. The allocator gives memory back later
/// on a busy machine, some MiB more than on an idle one.
const MOST_BESIDE: u64 = 24 << 20;

/// Number of cases in a sample.
const SAMPLE: usize = 20;

/// The largest document, with what is around it.
const DOCUMENT: usize = 7_990_000;

fn packed(body: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn with_json(request: reqwest::RequestBuilder, body: &serde_json::Value) -> reqwest::RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

/// Creates the databases that the cases need, unless they exist.
async fn prepare(server: &Process, client: &reqwest::Client) {
    let views = json!({"v": {"map": "function (doc) { emit(doc.n, 1); }"}});
    let updates = json!({"form": "function (doc, req) { return [null, 'ok']; }"});
    for (path, body) in [
        ("/pub", json!({})),
        ("/steady", json!({})),
        ("/parts?partitioned=true", json!({})),
        ("/_users", json!({})),
        ("/_replicator", json!({})),
        ("/steady/doc", json!({})),
        ("/parts/p:doc", json!({})),
        ("/pub/doc", json!({"n": 0})),
        ("/pub/_design/d", json!({"views": views, "updates": updates})),
        ("/parts/_design/d", json!({"views": views})),
    ] {
        let answer = with_json(client.put(server.url(path)), &body).send().await.unwrap();
        let status = answer.status().as_u16();
        assert!(matches!(status, 201 | 409 | 412), "{path}: {}", answer.text().await.unwrap());
    }
    if cfg!(feature = "javascript") {
        for view in ["/pub/_design/d/_view/v", "/parts/_partition/p/_design/d/_view/v"] {
            assert_eq!(client.get(server.url(view)).send().await.unwrap().status(), 200, "{view}");
        }
    }
}

/// Sends a body, packed, and reads the start of the answer. Returns the status and that start.
async fn send(client: &reqwest::Client, base: &str, case: &Case, packed: &[u8]) -> (u16, String) {
    let request = client.request(case.method.parse().unwrap(), format!("{base}{}", case.path));
    let request = request.header("content-type", case.kind()).header("content-encoding", "gzip");
    let answer = request.header("destination", "copy").body(packed.to_vec()).send().await;
    let mut answer = answer.unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let (status, waits) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    let is_known = status == 501 || (status == 503 && (waits || case.is_search()));
    assert!(status < 500 || is_known, "{case}: {status}");
    // Long answers are sent while they are generated.
    let (mut text, mut length) = (Vec::new(), 0);
    while length < 4 << 20
        && let Some(piece) = answer.chunk().await.unwrap_or_else(|error| panic!("{case}: {error:?}"))
    {
        length += piece.len();
        text.extend_from_slice(&piece[..piece.len().min(200)]);
    }
    text.truncate(200);
    (status, String::from_utf8_lossy(&text).into_owned())
}

fn seeded() -> StdRng {
    let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_body_takes_a_few_times_its_bytes_at_each_endpoint() {
    let mut random = seeded();
    let cases: Vec<Case> = match std::env::var("MEMORY_CASES") {
        Ok(text) => {
            cases().concat().into_iter().filter(|case| text == "all" || case.to_string().contains(&text)).collect()
        }
        // Most cases are of rows that read a body.
        Err(_) => {
            let (own, other): (Vec<_>, Vec<_>) = cases().into_iter().partition(|row| row.len() > ANYWHERE.len());
            let other = other.concat();
            let own = own.iter().filter_map(|row| row.choose(&mut random)).cloned().collect::<Vec<_>>();
            own.sample(&mut random, SAMPLE - 4).chain(other.sample(&mut random, 4)).cloned().collect()
        }
    };
    let memory = memory_mib();
    let (mut table, mut wrong) = (Vec::new(), Vec::new());
    for case in &cases {
        for bytes in sizes(memory) {
            // The allocator keeps memory of a case, which would count for the next one.
            let server = Server::start(memory);
            let (client, other) = (reqwest::Client::new(), at([127, 0, 0, 2]));
            prepare(&server, &client).await;
            let packed = packed(&case.body(bytes));
            // Resets the peak.
            let _ = std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5");
            let before = server.memory("VmRSS");
            let (status, text) = beside(&server, &other, send(&client, &server.base, case, &packed)).await;
            let took = before.zip(server.memory("VmHWM")).map(|(before, peak)| peak.saturating_sub(before));
            let line = format!("{:5} MiB of {:2} MiB: {case}: {status}", took.unwrap_or(0) >> 20, bytes >> 20);
            println!("{line} {}", text.replace('\n', " "));
            if (status == 503 && !case.is_search())
                || took.is_some_and(|took| took > MOST_TIMES * bytes as u64 + VALUES + MOST_BESIDE)
            {
                wrong.push(line.clone());
            }
            table.push((took.unwrap_or(0) as usize / bytes, line));
            assert_within(&server, memory);
        }
    }
    table.sort();
    println!("The largest:");
    table.iter().rev().take(25).for_each(|(times, line)| println!("{times:3} times, {line}"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sizes of the bodies: a megabyte in a sample; otherwise the largest that the server accepts, and the largest
/// document.
fn sizes(memory: u64) -> Vec<usize> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = server::memory::Asked { cache: None, request: None, threads, in_folder: true };
    let largest = server::memory::Memory::of(Some(memory), &asked).unwrap().request;
    match (std::env::var("MEMORY_BYTES"), std::env::var("MEMORY_CASES")) {
        (Ok(bytes), _) => vec![bytes.parse::<usize>().unwrap().min(largest)],
        (_, Ok(_)) => vec![largest, DOCUMENT.min(largest)],
        _ => vec![1 << 20],
    }
}

/// `--memory` of the servers.
fn memory_mib() -> u64 {
    std::env::var("MEMORY_MIB").map_or(480, |mib| mib.parse::<u64>().unwrap()) << 20
}

/// A server on a folder: in memory, what a request stores would count as memory that it takes.
struct Server {
    process: Process,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(memory: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = format!("lsm:{}", folder.path().join("data").display());
        Server { process: Process::start(&["--engine", &engine, "--memory", &memory.to_string()]), _folder: folder }
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A client at another address of this machine.
fn at(address: [u8; 4]) -> reqwest::Client {
    reqwest::Client::builder().local_address(std::net::IpAddr::from(address)).build().unwrap()
}

/// Asks for a small document again and again while `work` runs. Each request must be answered.
async fn beside<T>(server: &Process, client: &reqwest::Client, work: impl Future<Output = T>) -> T {
    let asking = async {
        loop {
            let answer = client.get(server.url("/steady/doc")).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = asking => unreachable!("it never ends"),
    }
}

fn assert_within(server: &Process, memory: u64) {
    if let Some(peak) = server.memory("VmHWM") {
        println!("peak: {} of {} MiB", peak >> 20, memory >> 20);
        assert!(peak <= memory, "the peak is {peak} bytes, and {memory} are allowed");
    }
}

/// Bodies of some megabytes, many at a time. All are served in the end.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_come_at_once_stay_within_the_memory() {
    let mut random = seeded();
    let memory = memory_mib();
    let server = Server::start(memory);
    let client = reqwest::Client::new();
    prepare(&server, &client).await;
    let refused = AtomicUsize::new(0);
    let one = async |case: Case| {
        let packed = packed(&case.body(1 << 20));
        for _ in 0..200 {
            if send(&client, &server.base, &case, &packed).await.0 != 503 || case.is_search() {
                return;
            }
            refused.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{case} was never served");
    };
    // Requests that drop the database would make the other answers short.
    let others = cases().concat().into_iter().filter(|case| case.method != "DELETE").collect::<Vec<_>>();
    let some: Vec<Case> = others.sample(&mut random, 40).cloned().collect();
    let work = stream::iter(some).for_each_concurrent(24, one);
    beside(&server, &at([127, 0, 0, 2]), work).await;
    println!("{} refusals", refused.load(Ordering::Relaxed));
    assert_within(&server, memory);
}

/// A connection from an address of this machine.
async fn connect(server: &Process, from: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.bind((std::net::Ipv4Addr::from(from), 0).into()).unwrap();
    socket.connect(server.base.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap()
}

/// The status of an answer that comes soon, if one does.
async fn status(connection: &mut TcpStream) -> Option<u16> {
    let mut head = [0; 12];
    tokio::time::timeout(Duration::from_millis(20), connection.read_exact(&mut head)).await.ok()?.ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_that_stop_take_their_part_of_the_memory() {
    let memory = memory_mib();
    let server = Server::start(memory);
    prepare(&server, &reqwest::Client::new()).await;
    let work = async {
        let mut all = Vec::new();
        // A list of documents first, often enough to fill the memory.
        let bulk = std::iter::repeat_n(("POST", "/{db}/_bulk_docs"), 40);
        for (method, path) in bulk.chain(rows().filter(|(method, _)| *method != "HEAD")) {
            let mut connection = connect(&server, [127, 0, 0, 3]).await;
            let method = if method == "*" { "POST" } else { method };
            let head = format!("{method} {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}", example(path), 9 << 20);
            let head = format!("{head}\r\ncontent-type: application/json\r\n\r\n");
            // If the server does not read, this ends anyway.
            let sending = async {
                connection.write_all(head.as_bytes()).await?;
                connection.write_all(&vec![b' '; 8 << 20]).await
            };
            let _ = tokio::time::timeout(Duration::from_millis(100), sending).await;
            all.push(connection);
        }
        tokio::time::sleep(Duration::from_secs(12)).await;
        let mut refused = 0;
        for connection in &mut all {
            refused += usize::from(status(connection).await == Some(503));
        }
        println!("{refused} of {} are refused", all.len());
        assert!(refused > 0);
        // A row may have dropped the database.
        prepare(&server, &at([127, 0, 0, 4])).await;
        // Another client sends while these hold their memory.
        let documents = json!({"docs": vec![json!({"text": "x".repeat(1_000)}); 1_000]});
        let written = with_json(at([127, 0, 0, 4]).post(server.url("/pub/_bulk_docs")), &documents);
        assert_eq!(written.send().await.unwrap().status(), 201);
    };
    beside(&server, &at([127, 0, 0, 2]), work).await;
    assert_within(&server, memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stop_take_their_part_of_the_memory() {
    let memory = memory_mib();
    let server = Server::start(memory);
    let client = reqwest::Client::new();
    prepare(&server, &client).await;
    for path in ["/pub/0", "/pub/1", "/pub/2", "/pub/3", "/parts/p:1"] {
        let large = with_json(client.put(server.url(path)), &json!({"text": "x".repeat(7_000_000)}));
        assert_eq!(large.send().await.unwrap().status(), 201);
    }
    let work = async {
        let mut all = Vec::new();
        // A large document first, often enough to fill the memory. Only reads: others might drop the documents.
        let rows: Vec<_> = rows().filter(|(method, path)| *method == "GET" || path.ends_with("/_find")).collect();
        let large = std::iter::repeat_n(("GET", "/{db}/1"), 40);
        for (method, path) in large.chain(rows.iter().copied().cycle().take(2 * rows.len())) {
            let mut connection = connect(&server, [127, 0, 0, 3]).await;
            let (query, body) = ("?include_docs=true&attachments=true", r#"{"selector":{"_id":{"$gt":null}}}"#);
            let head = format!("{method} {}{query} HTTP/1.1\r\nhost: localhost\r\n", example(path));
            let head = format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
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
    let statuses = beside(&server, &at([127, 0, 0, 2]), work).await;
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    println!("{} begun, {} refused, {} without an answer", count(Some(200)), count(Some(503)), count(None));
    assert!(count(Some(200)) > 0 && count(Some(503)) + count(None) > 0);
    assert!(statuses.iter().flatten().all(|status| *status < 500 || matches!(status, 501 | 503)), "{statuses:?}");
    assert_within(&server, memory);
}

/// Contents of attachments in JSON are reserved before they are read.
#[tokio::test(flavor = "multi_thread")]
async fn attachments_in_json_stay_within_the_memory() {
    let server = Server::start(memory_mib());
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
    let (small, large) = beside(&server, &at([127, 0, 0, 2]), work).await;
    assert!(small.contains(&200) && small.iter().all(|status| matches!(status, 200 | 503)), "{small:?}");
    assert_eq!((large, get("/pub/large/a").await), (413, 200));
    assert_within(&server, memory_mib());
}

#[test]
fn too_little_memory_is_refused_with_the_least_that_works() {
    let output = process::command(&["--engine", "mem:", "--memory", "1000000"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    let least = text.split_whitespace().rfind(|word| word.parse::<u64>().is_ok()).unwrap_or_else(|| panic!("{text}"));
    drop(Process::start(&["--engine", "mem:", "--memory", least]));
}
