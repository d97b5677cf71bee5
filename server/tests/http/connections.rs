//! Connections: keep-alive, cut-off, and the server's stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::http::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::Couch;

async fn connect(couch: &Couch) -> TcpStream {
    TcpStream::connect(couch.server.address()).await.unwrap()
}

/// Sends the text of a request, and reads one answer with a length.
async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let read = async {
        let mut answer = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    return text;
                }
            }
            if stream.read_buf(&mut answer).await.unwrap() == 0 {
                return String::from_utf8_lossy(&answer).into_owned();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.expect("no answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_outlives_refused_requests() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let mut stream = connect(&couch).await;
    let host = "host: localhost\r\n";
    for (request, status) in [
        (format!("PUT /db/x HTTP/1.1\r\n{host}content-length: 1\r\n\r\n{{"), 400),
        (
            format!("POST /db/_bulk_docs HTTP/1.1\r\n{host}content-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"),
            415,
        ),
        (format!("PATCH /db HTTP/1.1\r\n{host}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), 405),
        (format!("GET /none HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("DELETE /db/x HTTP/1.1\r\n{host}content-length: 70000\r\n\r\n{}", "x".repeat(70_000)), 404),
        (format!("GET /_up HTTP/1.1\r\n{host}\r\n"), 200),
    ] {
        let answer = exchange(&mut stream, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_quotes_in_a_query_are_taken_as_couchdb_takes_them() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ["a", "b", "c"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    let rows = |answer: &str| answer.matches("\"key\":").count();
    let host = "host: localhost\r\n";
    let list = format!("GET /db/_all_docs?startkey=\"a\"&endkey=\"b\" HTTP/1.1\r\n{host}\r\n");
    let mut stream = connect(&couch).await;
    // Twice on one connection.
    for _ in 0..2 {
        let answer = exchange(&mut stream, &list).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && rows(&answer) == 2, "{answer}");
    }
    // `<` and `>` are accepted as well.
    let answer = exchange(&mut stream, &format!("GET /db/_all_docs?key=\"<b>\" HTTP/1.1\r\n{host}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && rows(&answer) == 0, "{answer}");
    // A body that looks like a request is not taken for one: with a length, in chunks, and with `Expect: 100-continue`.
    let lookalike = json!({"a": list}).to_string();
    let length = format!("content-length: {}\r\n", lookalike.len());
    let chunked = "transfer-encoding: chunked\r\n";
    let (left, right) = lookalike.split_at(20);
    let chunks = format!("14\r\n{left}\r\n{:x}\r\n{right}\r\n0\r\n\r\n", right.len());
    for (id, header, body) in [("exact", length.as_str(), lookalike.as_str()), ("chunked", chunked, chunks.as_str())] {
        let put = format!("PUT /db/{id} HTTP/1.1\r\n{host}{header}\r\n{body}");
        let answer = exchange(&mut stream, &put).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        let answer = exchange(&mut stream, &list).await;
        assert!(rows(&answer) == 2, "{answer}");
        assert_eq!(couch.get(&format!("/db/{id}")).await.json()["a"], list);
    }
    let expecting = format!("PUT /db/late HTTP/1.1\r\n{host}{length}expect: 100-continue\r\n\r\n");
    assert!(exchange(&mut stream, &expecting).await.starts_with("HTTP/1.1 100 "));
    assert!(exchange(&mut stream, &lookalike).await.starts_with("HTTP/1.1 201 "));
    assert_eq!(couch.get("/db/late").await.json()["a"], list);
    // An answer that comes before the body was read.
    let early = format!("PATCH /db HTTP/1.1\r\n{host}{length}\r\n{lookalike}");
    assert!(exchange(&mut stream, &early).await.starts_with("HTTP/1.1 405 "));
    assert_eq!(rows(&exchange(&mut stream, &list).await), 2);
    // All requests at once.
    let put = format!("PUT /db/last HTTP/1.1\r\n{host}{length}\r\n{lookalike}");
    let end = format!("GET /db?\"<> HTTP/1.1\r\n{host}connection: close\r\n\r\n");
    stream.write_all([list.as_str(), &put, &list, &end].concat().as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!((answers.matches("HTTP/1.1 20").count(), rows(&answers)), (4, 4), "{answers}");
    assert_eq!(couch.get("/db/last").await.json()["a"], list);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_by_its_length_alone() {
    let couch = Couch::with(Options { max_request_size: 1000, ..Options::default() }).await;
    couch.database("db").await;
    let mut stream = connect(&couch).await;
    // No byte of the body is sent.
    let request = "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n";
    let answer = exchange(&mut stream, request).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("too_large"), "{answer}");
    let mut rest = [0; 1];
    assert_eq!(stream.read(&mut rest).await.unwrap(), 0, "the connection ends");
    assert_eq!(couch.get("/_up").await.status, 200);
}

/// Clients such as browsers read an answer only once they have sent everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_all_of_a_refused_body_gets_its_answer() {
    let couch = Couch::with(Options { max_request_size: 1000, ..Options::default() }).await;
    couch.database("db").await;
    let size = 40 << 20;
    let body = "x".repeat(size);
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n");
    let plain = format!("content-length: {size}\r\n\r\n{body}");
    for (line, status, is_kept) in
        [("PUT /db/x", 413, false), ("PUT /none/x/file", 404, true), ("PATCH /db", 405, true)]
    {
        for rest in [&plain, &chunked] {
            let mut stream = connect(&couch).await;
            let answer = exchange(&mut stream, &format!("{line} HTTP/1.1\r\nhost: localhost\r\n{rest}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
            if is_kept {
                let answer = exchange(&mut stream, "GET /_up HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
                assert!(answer.starts_with("HTTP/1.1 200 "), "{line}: {answer}");
            } else {
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the connection ends");
            }
        }
    }
}

/// A client that waits for `100 Continue` is not asked for a body that is not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_client_that_waits_to_send_is_answered_at_once() {
    let couch = Couch::start().await;
    let mut stream = connect(&couch).await;
    let request =
        "PUT /none/x/file HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\nexpect: 100-continue\r\n\r\n";
    let answer = exchange(&mut stream, request).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the connection ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_harms_nobody() {
    let couch = Couch::start().await;
    for garbage in [
        "\x16\x03\x01\x02\x00\x01\x00\x01",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(200_000)),
        &format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(200_000)),
        &format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000)),
        "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut stream = connect(&couch).await;
        // The server may close the connection before everything is sent.
        let _ = stream.write_all(garbage.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{garbage:.40?}: {answer:.200}");
        assert_eq!(couch.get("/_up").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_over_the_limits_are_refused_by_their_status() {
    let couch = Couch::start().await;
    let url = "x".repeat(70_000);
    for (head, status) in [
        (format!("GET /{url} HTTP/1.1\r\n\r\n"), 414),
        (format!("GET /db?key={url} HTTP/1.1\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(201)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(199)), 200),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)), 431),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000)), 200),
    ] {
        let mut stream = connect(&couch).await;
        let answer = exchange(&mut stream, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head:.40}: {answer:.200}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_do_not_come_end_their_connection() {
    let couch = Couch::with(Options { head_timeout: Duration::from_millis(50), ..Options::default() }).await;
    for begin in ["", "GET / HTTP/1.1\r\nhost: lo", "GET /_up HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut stream = connect(&couch).await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
        // A reset is an end too.
        let _ = ended.expect("the connection is still open");
        // The last one is idle behind its answer.
        assert_eq!(answer.starts_with(b"HTTP/1.1 200"), begin.ends_with("\r\n\r\n"), "{begin}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_come_or_trickle_are_refused() {
    let couch = Couch::with(Options { body_timeout: Duration::from_millis(100), ..Options::default() }).await;
    couch.database("db").await;
    for is_trickling in [false, true] {
        let (mut reading, mut writing) = connect(&couch).await.into_split();
        let put = "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{";
        writing.write_all(put.as_bytes()).await.unwrap();
        let trickle = async {
            // Each pause is shorter than the timeout, and the bytes earn a thousandth of a second each.
            if is_trickling {
                while writing.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            () = trickle => {}
            ended = tokio::time::timeout(Duration::from_secs(60), reading.read_to_end(&mut answer)) => {
                // A reset is an end too.
                let _ = ended.expect("the connection is still open");
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("too slowly"), "{is_trickling}: {answer}");
    }
    assert_eq!(couch.get("/db/x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_wait_until_one_ends() {
    let couch = Couch::with(Options { max_connections: 2, ..Options::default() }).await;
    let get = "GET /db/x HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut open = [connect(&couch).await, connect(&couch).await];
    exchange(&mut open[0], "PUT /db HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    exchange(&mut open[1], get).await;
    // The system accepts it, but the server does not.
    let mut third = connect(&couch).await;
    let put = "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    third.write_all(put.as_bytes()).await.unwrap();
    for n in 0..100 {
        let answer = exchange(&mut open[n % 2], get).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    let [first, mut second] = open;
    drop(first);
    let answer = exchange(&mut third, "").await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let answer = exchange(&mut second, get).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A full server stops like any other.
    let _fourth = connect(&couch).await;
    drop((second, third));
    tokio::time::timeout(Duration::from_secs(60), couch.server.stop()).await.expect("the server does not stop");
}

/// Connections that find the queue full are established a second later at the earliest, and may be reset.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_clients_may_connect_while_none_is_accepted() {
    let couch = Couch::with(Options { max_connections: 1, ..Options::default() }).await;
    let mut seated = connect(&couch).await;
    exchange(&mut seated, "PUT /db HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    // The system may allow fewer.
    let most: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    let mut waiting = Vec::new();
    for n in 0..most.min(300) {
        let connected = tokio::time::timeout(Duration::from_secs(60), connect(&couch)).await;
        let mut stream = connected.unwrap_or_else(|_| panic!("the queue is full after {n} clients"));
        stream.write_all(b"GET /db HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        waiting.push(stream);
    }
    drop(seated);
    for mut stream in waiting {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_block_nobody() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs: Vec<Value> = (0..2000).map(|n| json!({"_id": format!("{n}"), "pad": "x".repeat(2000)})).collect();
    couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    let mut slow = Vec::new();
    for n in 0..100 {
        let mut stream = connect(&couch).await;
        let request = match n % 3 {
            0 => "GET /db/_changes?include_docs=true HTTP/1.1\r\nhost: localhost\r\n\r\n",
            1 => "PUT /db/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
            _ => "GET /db HTTP/1.1\r\nhost: lo",
        };
        stream.write_all(request.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    for n in 0..50 {
        couch.put(&format!("/db/quick{n}"), json!({})).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(slow);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_override_stands_for_another_method() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let request = couch.request("POST", "/db/x").header("x-http-method-override", "PUT").body("{}");
    assert_eq!(couch.send(request).await.status, 201);
    let ignored = couch.request("GET", "/db/x").header("x-http-method-override", "DELETE");
    assert_eq!(couch.send(ignored).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_ends_feeds_with_their_last_sequence_and_finishes_requests() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let feed = async |path: &str| couch.request("GET", path).send().await.unwrap();
    let live = feed("/db/_changes?feed=continuous&heartbeat=5000").await;
    let poll = feed("/db/_changes?feed=longpoll&since=now&heartbeat=5000").await;
    let source = feed("/db/_changes?feed=eventsource&heartbeat=5000").await;
    // A half-sent request when the server stops.
    let mut half = connect(&couch).await;
    half.write_all(b"PUT /db/late HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{").await.unwrap();
    let idle = connect(&couch).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let begun = Instant::now();
    let address = couch.server.address();
    let stopping = tokio::spawn(couch.server.stop());
    let live = live.text().await.unwrap();
    let last: Value = serde_json::from_str(live.lines().last().unwrap()).unwrap();
    assert!(last["last_seq"].is_string(), "{live}");
    let poll: Value = serde_json::from_str(&poll.text().await.unwrap()).unwrap();
    assert_eq!((&poll["results"], &poll["last_seq"]), (&json!([]), &last["last_seq"]));
    assert!(source.text().await.unwrap().contains("data: "));
    half.write_all(b"}").await.unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    stopping.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "idle connections hold nothing up");
    assert!(TcpStream::connect(address).await.is_err());
    let database = couch.layer.database("db").await.unwrap();
    database.get("late", &model::GetOptions::default()).await.unwrap();
    drop(idle);
}

/// Whether the server has closed its side of the connection. The client cannot see that before it has read the data in
/// flight.
#[cfg(target_os = "linux")]
fn is_closed(stream: &TcpStream) -> bool {
    let port = format!(":{:04X}", stream.local_addr().unwrap().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_server = |line: &&str| line.split_whitespace().nth(2).is_some_and(|remote| remote.ends_with(&port));
    // 01 is an established connection.
    table.lines().find(of_server).is_none_or(|line| line.split_whitespace().nth(3) != Some("01"))
}

/// A client that reads nothing is cut off after a while, and its answer is dropped.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_is_cut_off() {
    let couch = Couch::with(Options { write_timeout: Duration::from_millis(100), ..Options::default() }).await;
    couch.database("db").await;
    // More than a connection's buffers hold.
    let content = vec![b'x'; 64 << 20];
    assert_eq!(couch.raw("PUT", "/db/doc/file", content).await.status, 201);
    let mut stream = connect(&couch).await;
    stream.write_all(b"GET /db/doc/file HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let closed = async {
        while !is_closed(&stream) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("the connection is still open");
}

/// A client may send its next requests while it reads a long answer.
#[tokio::test(flavor = "multi_thread")]
async fn long_answers_to_requests_sent_at_once_come_whole() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let content = vec![b'x'; 20 << 20];
    assert_eq!(couch.raw("PUT", "/db/doc/file", content.clone()).await.status, 201);
    let mut stream = connect(&couch).await;
    let request = "GET /db/doc/file HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(3) + "\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    while read < 3 * content.len() {
        let some = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await;
        let some = some.unwrap_or_else(|_| panic!("nothing comes behind {read} bytes")).unwrap();
        assert!(some > 0, "the connection ended behind {read} bytes");
        read += some;
    }
}
