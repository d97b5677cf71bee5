//! TLS: the listener's, and the TLS of servers that replications reach.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use peer::{Address, ErrorKind, Http, Method, Trust};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use server::http::{Administrator, Options, Tls};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http2::Client;
use crate::support::Couch;

/// A certificate and its key in files.
struct Certificate {
    folder: TempDir,
    pem: String,
}

impl Certificate {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Self-signed, with these parameters.
    fn with(change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = Certificate { folder: TempDir::new().unwrap(), pem: params.self_signed(&key).unwrap().pem() };
        certificate.write(&certificate.pem, &key);
        certificate
    }

    fn new() -> Certificate {
        Certificate::with(|_| {})
    }

    fn write(&self, pem: &str, key: &KeyPair) {
        fs::write(self.path("key"), key.serialize_pem()).unwrap();
        fs::write(self.path("cert"), pem).unwrap();
    }

    fn tls(&self) -> Tls {
        Tls::from_files(&self.path("cert"), &self.path("key")).unwrap()
    }

    fn trust(&self) -> Trust {
        Trust::with_roots(self.pem.as_bytes()).unwrap()
    }

    async fn serve(&self, options: Options) -> Couch {
        let mut couch = Couch::with(Options { tls: Some(self.tls()), ..options }).await;
        couch.base = format!("{}://{}", couch.server.scheme(), couch.server.address());
        couch.client = reqwest::Client::builder().tls_backend_preconfigured(trusting(&self.pem)).build().unwrap();
        couch
    }
}

/// The configuration of a client that trusts this certificate.
fn trusting(pem: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth()
}

async fn connect(couch: &Couch, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(couch.server.address()).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

fn administrator() -> Option<Administrator> {
    Some(Administrator { name: "adm".into(), password: "geheim".into() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_certificate_speaks_tls() {
    let certificate = Certificate::new();
    let couch = certificate.serve(Options { administrator: administrator(), ..Options::default() }).await;
    let base = couch.base.clone();
    assert!(base.starts_with("https://"), "{base}");
    let send = async |method: &str, path: &str, body: Vec<u8>| {
        let request = couch.request(method, path).basic_auth("adm", Some("geheim"));
        couch.send(request.header("content-type", "application/json").body(body)).await
    };
    assert_eq!(send("PUT", "/db", Vec::new()).await.header("location"), format!("{base}/db"));
    assert_eq!(send("PUT", "/db/a", br#"{"x":1}"#.to_vec()).await.status, 201);
    assert_eq!(send("GET", "/db/a", Vec::new()).await.json()["x"], 1);
    // More than any buffer holds, there and back.
    let large: Vec<u8> = (0..4 << 20).map(|n: u32| b'a' + (n % 23) as u8).collect();
    assert_eq!(send("PUT", "/db/b/file", large.clone()).await.status, 201);
    assert_eq!(send("GET", "/db/b/file", Vec::new()).await.text.as_bytes(), large);
    // Cookies are for TLS only.
    let login = couch.json("POST", "/_session", json!({"name": "adm", "password": "geheim"})).await;
    assert!(login.header("set-cookie").contains("; Secure; HttpOnly"), "{}", login.header("set-cookie"));
    let ended = couch.call("DELETE", "/_session").await;
    assert!(ended.header("set-cookie").contains("; Secure; HttpOnly"), "{}", ended.header("set-cookie"));

    // HTTP/2 by ALPN.
    let mut config = trusting(&certificate.pem);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = connect(&couch, config).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let client = Client::over(stream, 65_535).await;
    assert_eq!(client.call("GET", "/db/b/file", b"").await.1, large);
    // HTTP/1.1 by ALPN, raw quotes as without TLS, and several requests at once.
    let mut config = trusting(&certificate.pem);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut stream = connect(&couch, config).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let login = "host: localhost\r\nauthorization: Basic YWRtOmdlaGVpbQ==\r\n";
    let list = format!("GET /db/_all_docs?startkey=\"b\" HTTP/1.1\r\n{login}\r\n");
    let end = format!("GET /db/_all_docs?key=\"a\" HTTP/1.1\r\n{login}connection: close\r\n\r\n");
    stream.write_all([list.as_str(), &end].concat().as_bytes()).await.unwrap();
    let mut answers = String::new();
    // Without `close_notify` this would be an error.
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!((answers.matches("HTTP/1.1 200").count(), answers.matches("\"key\":").count()), (2, 2), "{answers}");

    // A feed ends with its last sequence when the server stops.
    let feed = couch.request("GET", "/db/_changes?feed=continuous&heartbeat=5000").basic_auth("adm", Some("geheim"));
    let feed = feed.send().await.unwrap();
    couch.server.stop().await;
    let text = feed.text().await.unwrap();
    assert!(text.lines().last().unwrap().contains("last_seq"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_administrator_only_the_servers_own_pages_reach_what_is_closed() {
    let couch = Certificate::new().serve(Options::default()).await;
    for (origin, status) in [(couch.base.clone(), 200), (couch.base.replace("https", "http"), 403)] {
        let asked = couch.request("GET", "/_node/_local/_config").header("origin", origin);
        assert_eq!(couch.send(asked).await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_behind_tls_are_trusted_by_their_certificates() {
    let right = Certificate::new();
    let couch = right.serve(Options { administrator: administrator(), ..Options::default() }).await;
    let address: Address = couch.base.replace("//", "//adm:geheim@").parse().unwrap();
    let ask = async |name: &str, trust: &Trust| {
        let peer = Http::trusting(address.clone().database(name).unwrap(), trust).unwrap();
        peer.create(&[]).await?;
        peer.ask(Method::PUT, &["x"], &[], Some(b"{\"a\":1}".to_vec())).await?;
        peer.ask(Method::GET, &["x"], &[], None).await
    };
    let found = ask("db", &right.trust()).await.unwrap();
    assert_eq!(found.get("a").and_then(|a| a.as_u64()), Some(1));
    let refused = ask("other", &Certificate::new().trust()).await.unwrap_err();
    let sentence = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{sentence}");
    assert!(sentence.starts_with(&format!("the certificate of {} is not trusted: ", couch.base)), "{sentence}");
    assert!(!sentence.contains("geheim"), "{sentence}");
    assert_eq!(ask("other", &right.trust()).await.unwrap().get("a").and_then(|a| a.as_u64()), Some(1));

    for (certificate, sentence) in [
        // As `openssl req -x509` makes them: a server's own certificate, marked as an authority's.
        (Certificate::with(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), None),
        (
            Certificate::with(|params| {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            }),
            Some("expired"),
        ),
        (
            Certificate::with(|params| {
                *params = CertificateParams::new(["other.example".to_owned()]).unwrap();
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }),
            Some("not valid for name"),
        ),
        (
            Certificate::with(|params| *params = CertificateParams::new(["other.example".to_owned()]).unwrap()),
            Some("not valid for name"),
        ),
    ] {
        let couch = certificate.serve(Options::default()).await;
        let peer = Http::trusting(couch.base.parse().unwrap(), &certificate.trust()).unwrap();
        let asked = peer.ask(Method::GET, &["_up"], &[], None).await;
        match sentence {
            None => drop(asked.unwrap()),
            Some(sentence) => {
                let error = asked.unwrap_err().to_string();
                assert!(error.contains("is not trusted") && error.contains(sentence), "{error}");
            }
        }
    }

    // A certificate signed by a private root.
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let (signed, key) = (Certificate::new(), KeyPair::generate().unwrap());
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    signed.write(&params.signed_by(&key, &Issuer::new(root, root_key)).unwrap().pem(), &key);
    let couch = signed.serve(Options::default()).await;
    let trust = Trust::with_roots(format!("{}{root_pem}", right.pem).as_bytes()).unwrap();
    let peer = Http::trusting(couch.base.parse().unwrap(), &trust).unwrap();
    peer.ask(Method::GET, &["_up"], &[], None).await.unwrap();
    // That port does not speak TLS.
    let plain = Couch::start().await;
    let peer = Http::trusting(plain.base.replace("http", "https").parse().unwrap(), &trust).unwrap();
    assert_eq!(peer.ask(Method::GET, &["_up"], &[], None).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_replicate_over_tls() {
    let (near_certificate, far_certificate) = (Certificate::new(), Certificate::new());
    let trust = Trust::with_roots(format!("{}{}", near_certificate.pem, far_certificate.pem).as_bytes()).unwrap();
    let options = || Options { administrator: administrator(), trust: trust.clone(), ..Options::default() };
    let (near, far) = (near_certificate.serve(options()).await, far_certificate.serve(options()).await);
    let send = async |couch: &Couch, method: &str, path: &str, body: Value| {
        couch.send(couch.request(method, path).basic_auth("adm", Some("geheim")).json_body(&body)).await
    };
    for path in ["/here", "/_replicator"] {
        assert_eq!(send(&near, "PUT", path, json!({})).await.status, 201);
    }
    for n in 0..20 {
        let body = json!({"n": n, "_attachments": {"a": {"data": "YWJj"}}});
        assert_eq!(send(&near, "PUT", &format!("/here/{n}"), body).await.status, 201);
    }
    let [here, there] = [(&near, "here"), (&far, "there")]
        .map(|(couch, name)| format!("{}/{name}", couch.base.replace("//", "//adm:geheim@")));
    // Both sides over TLS, then pulled, then by a document.
    let push = json!({"source": here, "target": there, "create_target": true});
    let answer = send(&near, "POST", "/_replicate", push).await;
    assert_eq!(answer.json()["history"][0]["docs_written"], 20, "{}", answer.text);
    assert!(!answer.text.contains("geheim"), "{}", answer.text);
    assert_eq!(send(&far, "GET", "/there/7/a", json!({})).await.text, "abc");
    let pull = json!({"source": there, "target": "back", "create_target": true});
    assert_eq!(send(&near, "POST", "/_replicate", pull.clone()).await.json()["docs_written"], json!(null));
    assert_eq!(send(&near, "GET", "/back", json!({})).await.json()["doc_count"], 20);
    let document = json!({"source": there, "target": "third", "create_target": true});
    assert_eq!(send(&near, "PUT", "/_replicator/x", document).await.status, 201);
    let ended = async {
        while send(&near, "GET", "/_replicator/x", json!({})).await.json()["_replication_state"] != "completed" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the replication does not end");
    assert_eq!(send(&near, "GET", "/third", json!({})).await.json()["doc_count"], 20);

    // A server that does not trust the other's certificate.
    let stranger = Couch::with(Options { trust: Certificate::new().trust(), ..Options::default() }).await;
    let refused = stranger.json("POST", "/_replicate", pull).await;
    assert_eq!(refused.status, 500, "{}", refused.text);
    assert!(refused.text.contains("is not trusted") && !refused.text.contains("geheim"), "{}", refused.text);
}

trait JsonBody {
    fn json_body(self, body: &Value) -> Self;
}

impl JsonBody for reqwest::RequestBuilder {
    fn json_body(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_shown_without_a_restart() {
    let certificate = Certificate::new();
    let tls = certificate.tls().reread_every(Duration::from_millis(5));
    let couch = Couch::with(Options { tls: Some(tls), ..Options::default() }).await;
    let mut old = connect(&couch, trusting(&certificate.pem)).await.unwrap();
    let next = Certificate::new();
    assert!(connect(&couch, trusting(&next.pem)).await.is_err());
    // First a broken one.
    fs::write(certificate.path("cert"), "broken").unwrap();
    connect(&couch, trusting(&certificate.pem)).await.unwrap();
    for name in ["key", "cert"] {
        fs::copy(next.path(name), certificate.path(name)).unwrap();
    }
    let shown = async {
        while connect(&couch, trusting(&next.pem)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), shown).await.expect("the old certificate is still shown");
    assert!(connect(&couch, trusting(&certificate.pem)).await.is_err());
    // A connection keeps the certificate that it started with.
    old.write_all(b"GET /_up HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_hold_nobody_up_and_end() {
    let certificate = Certificate::new();
    let slow = async |couch: &Couch, hello: &[u8]| {
        let mut stream = TcpStream::connect(couch.server.address()).await.unwrap();
        stream.write_all(hello).await.unwrap();
        stream
    };
    // Nothing, and the start of a record that never ends.
    let hellos: [&[u8]; 2] = [b"", b"\x16\x03\x01\x02\x00\x01"];
    let patient = Options { handshake_timeout: Duration::from_secs(3600), ..Options::default() };
    let couch = certificate.serve(patient).await;
    let mut waiting = Vec::new();
    for n in 0..60 {
        waiting.push(slow(&couch, hellos[n % 2]).await);
    }
    assert_eq!(couch.get("/_up").await.status, 200);
    // They do not hold up the server's stop either.
    tokio::time::timeout(Duration::from_secs(60), couch.server.stop()).await.expect("the server does not stop");
    drop(waiting);

    let hasty = Options { handshake_timeout: Duration::from_millis(50), ..Options::default() };
    let couch = certificate.serve(hasty).await;
    for hello in hellos {
        let mut stream = slow(&couch, hello).await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        // A reset is an end too.
        let _ = ended.expect("the connection is still open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_tls_are_told_so_and_harm_nobody() {
    let couch = Certificate::new().serve(Options::default()).await;
    let answer = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(couch.server.address()).await.unwrap();
        // The server may close the connection before everything is sent.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let end = async {
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut answer).await;
        };
        tokio::time::timeout(Duration::from_secs(60), end).await.expect("the connection is still open");
        answer
    };
    for request in ["GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), format!("PUT /db/{} ", "x".repeat(9_000))] {
        let told = String::from_utf8(answer(request.as_bytes()).await).unwrap();
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{told}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["error"], body["reason"].as_str().unwrap().contains("https")), (&json!("bad_request"), true));
    }
    for garbage in [&b"\x00\x01\x02"[..], b"\x16\x03\x01\x00\x05hello", b"\x16garbage that is not a record at all"] {
        assert!(!answer(garbage).await.starts_with(b"HTTP"), "{garbage:?}");
    }
    assert_eq!(couch.get("/_up").await.status, 200);
}
