//! `serve --otlp-endpoint`: spans for a collector.
//!
//! `cargo test -p couch-layer-server --no-default-features --features mem,otlp --test otlp`

#![cfg(all(feature = "otlp", feature = "mem"))]

#[path = "program/server.rs"]
mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use process::{Process, command};
use prost::Message;

/// A trace that a client began, and its span.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector that keeps what it gets, and answers with this status.
fn collector(status: &'static str) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (got, all) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if got.send(request(stream.unwrap(), status)).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}"), all)
}

/// Reads a request. Returns its head, and its body.
fn request(stream: TcpStream, status: &str) -> (String, Vec<u8>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.get_mut().write_all(answer.as_bytes()).unwrap();
    (head, body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(list: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    list.iter().map(|pair| (pair.key.as_str(), text(pair))).collect()
}

#[tokio::test]
async fn a_collector_gets_the_spans_of_a_request_and_its_commits() {
    let (endpoint, all) = collector("200 OK");
    let server = Process::with_administrator("mem:", &["--otlp-endpoint", &endpoint]);
    let client = reqwest::Client::new();
    let send = async |method: &str, path: &str, body: &'static str| {
        let request = client.request(method.parse().unwrap(), server.url(path)).basic_auth("anna", Some("secret"));
        let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01")).body(body);
        request.header("x-couch-request-id", "one-request").send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("PUT", "/geheimraum", "").await, 201);
    assert_eq!(send("PUT", "/geheimraum/akte", "{\"wort\":\"geheimnis\"}").await, 201);
    assert_eq!(send("PUT", "/geheimraum/akte", "{\"wort\":\"geheimnis\"}").await, 409);
    // Of no trace, and not the client's own words.
    let strange = client.request("GEHEIM".parse().unwrap(), server.url("/geheimraum")).send().await.unwrap();
    assert!(strange.status().is_client_error(), "{}", strange.status());
    // The last spans are sent when the server ends.
    assert_eq!(server.stop("-TERM").code(), Some(0));

    let (mut spans, mut bytes) = (Vec::<Span>::new(), Vec::new());
    for (head, body) in all.try_iter() {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
        for group in ExportTraceServiceRequest::decode(&body[..]).unwrap().resource_spans {
            let resource = group.resource.unwrap();
            let resource = attributes(&resource.attributes);
            assert_eq!(resource["service.name"], "couch-layer");
            assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
            spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        bytes.extend(body);
    }
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let [put, conflict] = named("PUT /{db}/{docid}")[..] else { panic!("{spans:#?}") };
    for (span, status) in [(put, "201"), (conflict, "409")] {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!(span.kind, SpanKind::Server as i32);
        let attributes = attributes(&span.attributes);
        assert_eq!(attributes["http.request.method"], "PUT");
        assert_eq!(attributes["http.route"], "/{db}/{docid}");
        assert_eq!(attributes["http.response.status_code"], status);
        assert_eq!(attributes["couch.request_id"], "one-request");
        assert!(attributes["couch.admission_ms"].starts_with("DoubleValue("), "{attributes:?}");
        let failed = span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32);
        assert!(!failed, "a conflict is no error of the server");
    }
    let commits = |of: &Span| named("commit").into_iter().filter(|span| span.parent_span_id == of.span_id).count();
    assert_eq!(commits(put), 1);
    for commit in named("commit") {
        let parent = spans.iter().find(|span| span.span_id == commit.parent_span_id);
        let parent = parent.expect("a commit is a part of a request");
        assert_eq!(commit.trace_id, parent.trace_id);
        assert!(parent.start_time_unix_nano <= commit.start_time_unix_nano);
        assert!(commit.end_time_unix_nano <= parent.end_time_unix_nano);
    }
    assert_eq!(named("PUT /{db}").len(), 1);
    let [strange] = named("_OTHER")[..] else { panic!("{spans:#?}") };
    assert_ne!(hex(&strange.trace_id), TRACE);
    assert_eq!(strange.parent_span_id, b"");
    // No paths, names, contents or passwords.
    let text = String::from_utf8_lossy(&bytes).to_lowercase();
    for secret in ["geheim", "akte", "anna", "secret"] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn a_collector_that_takes_nothing_hinders_nobody_and_is_named_in_the_log() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (endpoint, reason) in [(collector("503 Busy").0, "503"), (format!("http://a:geheim@{closed}"), "refused")] {
        let mut server =
            Process::of(&mut command(&["--engine", "mem:", "--listen", "127.0.0.1:0", "--otlp-endpoint", &endpoint]));
        let client = reqwest::Client::new();
        for _ in 0..100 {
            assert_eq!(client.get(server.url("/_up")).send().await.unwrap().status(), 200);
        }
        let mut log = server.child.stderr.take().unwrap();
        assert_eq!(server.stop("-TERM").code(), Some(0));
        let mut said = String::new();
        log.read_to_string(&mut said).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("spans are lost")).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(reason)), "{said}");
        assert!(!said.contains("geheim"), "{said}");
    }
}

#[test]
fn a_collector_has_a_url() {
    for endpoint in ["127.0.0.1:4318", "grpc://127.0.0.1:4317", ""] {
        let output = command(&["--engine", "mem:", "--otlp-endpoint", endpoint]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("begins with http"), "{said}");
    }
}
