//! Connections of HTTP/2.

use std::time::Duration;

use h2::RecvStream;
use h2::client::SendRequest;
use hyper::{Request, Response};
use serde_json::Value;
use server::http::{Administrator, Options};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::{Couch, wait_for};

/// A client of one connection, and how the connection ended.
pub(crate) struct Client {
    requests: SendRequest<&'static [u8]>,
    ended: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, window: u32) -> Client {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(16 << 20);
        let (requests, connection) = builder.handshake(stream).await.unwrap();
        Client { requests, ended: tokio::spawn(connection) }
    }

    /// Without TLS.
    async fn of(couch: &Couch, window: u32) -> Client {
        Client::over(TcpStream::connect(couch.server.address()).await.unwrap(), window).await
    }

    /// Sends a request to this host, and returns the head of the answer.
    async fn send(&self, host: &str, method: &str, path: &str, body: &'static [u8]) -> Response<RecvStream> {
        let request = Request::builder().method(method).uri(format!("http://{host}{path}"));
        let request = request.header("content-type", "application/json").header("cookie", "a=b");
        let request = request.header("authorization", "Basic YWRtOmdlaGVpbQ==").body(()).unwrap();
        let mut ready = self.requests.clone().ready().await.unwrap();
        let (answer, mut sending) = ready.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            sending.send_data(body, true).unwrap();
        }
        tokio::time::timeout(Duration::from_secs(60), answer).await.expect("no answer").unwrap()
    }

    /// The whole answer: status and body.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &'static [u8]) -> (u16, Vec<u8>) {
        let answer = self.send("localhost", method, path, body).await;
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        let mut all = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            all.extend_from_slice(&data);
        }
        (status, all)
    }

    async fn json(&self, method: &str, path: &str, body: &'static [u8]) -> (u16, Value) {
        let (status, body) = self.call(method, path, body).await;
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }
}

fn options() -> Options {
    let administrator = Administrator { name: "adm".into(), password: "geheim".into() };
    Options { administrator: Some(administrator), ..Options::default() }
}

/// The next line of a feed.
async fn line(feed: &mut RecvStream) -> String {
    let data = tokio::time::timeout(Duration::from_secs(60), feed.data()).await.expect("no row").unwrap().unwrap();
    feed.flow_control().release_capacity(data.len()).unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_and_writes_share_one_connection() {
    // With one seat, whatever needs a second connection waits for ever.
    let couch = Couch::with(Options { max_connections: 1, ..options() }).await;
    let client = Client::of(&couch, 65_535).await;
    assert_eq!(client.call("PUT", "/db", b"").await.0, 201);
    let mut feeds = Vec::new();
    for _ in 0..8 {
        let answer = client.send("localhost", "GET", "/db/_changes?feed=continuous&heartbeat=60000", b"").await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["server"].to_str().unwrap().split_once('/').unwrap().0, "CouchDB");
        feeds.push(answer.into_body());
    }
    for n in 0..3 {
        assert_eq!(client.json("POST", "/db", b"{\"x\":1}").await.1["ok"], true);
        for feed in &mut feeds {
            assert!(line(feed).await.contains("\"seq\":"), "write {n}");
        }
    }
    assert_eq!(client.call("HEAD", "/db/none", b"").await, (404, Vec::new()));
    let head = client.send("localhost", "HEAD", "/db", b"").await;
    assert!(head.status() == 200 && head.headers()["content-length"] != "0", "{:?}", head.headers());
    // A client that leaves a feed leaves the connection.
    drop(feeds.pop());
    assert_eq!(client.json("GET", "/db", b"").await.1["doc_count"], 3);

    // Feeds end with their last sequence when the server stops, and then the connection ends.
    let stopping = tokio::spawn(couch.server.stop());
    for feed in &mut feeds {
        assert!(line(feed).await.contains("last_seq"));
    }
    drop(feeds);
    client.ended.await.unwrap().unwrap();
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_go_both_ways() {
    let couch = Couch::with(options()).await;
    let client = Client::of(&couch, 65_535).await;
    assert_eq!(client.call("PUT", "/db", b"").await.0, 201);
    let large: &'static [u8] = Vec::leak((0..3 << 20).map(|n: u32| b'a' + (n % 23) as u8).collect());
    let (one, other) = tokio::join!(client.call("PUT", "/db/a/file", large), client.call("PUT", "/db/b/file", large));
    assert_eq!((one.0, other.0), (201, 201));
    for (status, body) in
        <[_; 2]>::from(tokio::join!(client.call("GET", "/db/a/file", b""), client.call("GET", "/db/b/file", b"")))
    {
        assert!(status == 200 && body == large, "{status}, {} bytes", body.len());
    }
    // Bodies that nobody wants.
    assert_eq!(client.call("PUT", "/none/a/file", large).await.0, 404);
    assert_eq!(client.call("GET", "/db", b"").await.0, 200);
}

/// Without an administrator, pages of other hosts must not reach the server by a name that points at it.
#[tokio::test(flavor = "multi_thread")]
async fn the_authority_of_a_request_is_its_host() {
    let couch = Couch::start().await;
    let client = Client::of(&couch, 65_535).await;
    let ask = async |host: &str| {
        let request = Request::builder().uri(format!("http://{host}/_all_dbs")).body(()).unwrap();
        let answer = client.requests.clone().ready().await.unwrap().send_request(request, true).unwrap().0;
        answer.await.unwrap().status().as_u16()
    };
    assert_eq!(ask("localhost").await, 200);
    assert_eq!(ask("evil.example").await, 403);
    // The header is not what counts: the authority is.
    let request = Request::builder().uri("http://evil.example/_all_dbs").header("host", "localhost").body(()).unwrap();
    let answer = client.requests.clone().ready().await.unwrap().send_request(request, true).unwrap().0;
    assert_eq!(answer.await.unwrap().status(), 403);
    // A new document's address is where the client is.
    let request = Request::builder().method("PUT").uri("http://localhost:8080/db").body(()).unwrap();
    let created = client.requests.clone().ready().await.unwrap().send_request(request, true).unwrap().0.await.unwrap();
    assert_eq!(created.headers()["location"], "http://localhost:8080/db");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_off_and_gives_its_memory_back() {
    let couch = Couch::with(Options { write_timeout: Duration::from_millis(400), ..options() }).await;
    let client = Client::of(&couch, 65_535).await;
    assert_eq!(client.call("PUT", "/db", b"").await.0, 201);
    let large: &'static [u8] = Vec::leak(vec![b'x'; 1 << 20]);
    assert_eq!(client.call("PUT", "/db/a/file", large).await.0, 201);
    // A feed that waits is the server's to continue, however long it lasts.
    let mut feed = client.send("localhost", "GET", "/db/_changes?feed=continuous&since=now", b"").await.into_body();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(client.json("PUT", "/db/b", b"{}").await.0, 201);
    assert!(line(&mut feed).await.contains("\"id\":\"b\""));
    let used = async || {
        let figures = couch.request("GET", "/_node/_local/_prometheus").basic_auth("adm", Some("geheim"));
        let text = couch.send(figures).await.text;
        let line = text.lines().find_map(|line| line.strip_prefix("couch_layer_memory_used_bytes ").map(str::to_owned));
        line.expect("no figure").parse::<f64>().unwrap()
    };
    let before = used().await;
    let unread = client.send("localhost", "GET", "/db/a/file", b"").await;
    assert_eq!(unread.status(), 200);
    // The connection breaks, and takes all its requests along.
    tokio::time::timeout(Duration::from_secs(60), client.ended).await.expect("it is not cut off").unwrap().ok();
    drop((unread, feed));
    wait_for("its memory is still counted", async || (used().await + 1e6 < before).then_some(())).await;
    let idle = Couch::with(Options { head_timeout: Duration::from_millis(300), ..options() }).await;
    let client = Client::of(&idle, 65_535).await;
    assert_eq!(client.call("GET", "/", b"").await.0, 200);
    // An idle one ends in order.
    tokio::time::timeout(Duration::from_secs(60), client.ended).await.expect("it is not closed").unwrap().unwrap();
    // So do those that begin, and then send nothing or no request, though no library answers for them.
    for begin in [&b"PRI * HTTP/2.0\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
        let mut stream = TcpStream::connect(idle.server.address()).await.unwrap();
        stream.write_all(begin).await.unwrap();
        let mut answers = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answers)).await;
        // It may be reset.
        drop(ended.expect("it is not cut off"));
    }
    // One that never sends a byte ends too.
    let silent = TcpStream::connect(idle.server.address()).await.unwrap();
    wait_for("the silent one is not closed", async || {
        let mut byte = [0];
        (silent.try_read(&mut byte).ok()? == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_streams_are_bounded() {
    let couch = Couch::with(options()).await;
    let client = Client::of(&couch, 65_535).await;
    assert_eq!(client.call("PUT", "/db", b"").await.0, 201);
    let request = Request::builder().uri("http://localhost/").header("x-long", "x".repeat(20_000)).body(()).unwrap();
    let answer = client.requests.clone().ready().await.unwrap().send_request(request, true).unwrap().0.await;
    let refused = answer.map(|answer| answer.status().as_u16());
    assert!(refused.as_ref().map_or_else(|error| error.reason().is_some(), |status| *status == 431), "{refused:?}");
    // As many feeds as may run. The next request waits in the client until one ends.
    let client = Client::of(&couch, 65_535).await;
    let mut feeds = Vec::new();
    while client.requests.current_max_send_streams() > 1_000 {
        assert_eq!(client.call("GET", "/", b"").await.0, 200);
    }
    for _ in 0..client.requests.current_max_send_streams() {
        feeds.push(client.send("localhost", "GET", "/db/_changes?feed=continuous&since=now", b"").await);
    }
    assert_eq!(feeds.len(), 64);
    let next = client.call("GET", "/db", b"");
    tokio::pin!(next);
    let waited = tokio::time::timeout(Duration::from_millis(300), next.as_mut()).await;
    assert!(waited.is_err(), "{waited:?}");
    // A browser that leaves a page drops its feed.
    drop(feeds.pop());
    assert_eq!(next.await.0, 200);
}
