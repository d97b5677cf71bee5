//! Bad input gets CouchDB's answer. The server and the connection stay open, and nothing is written.

use hyper::body::Frame;
use serde_json::{Value, json};
use server::http::Options;

use crate::support::Couch;

/// A bad request and its answer.
struct Case {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
    status: u16,
    error: &'static str,
    /// Part of the reason.
    reason: &'static str,
}

fn case(
    (method, path): (&'static str, &str),
    body: impl AsRef<[u8]>,
    (status, error, reason): (u16, &'static str, &'static str),
) -> Case {
    let body = body.as_ref().to_vec();
    Case { method, path: path.into(), content_type: "application/json", body, status, error, reason }
}

const INVALID: (u16, &str, &str) = (400, "bad_request", "invalid UTF-8 JSON");

fn cases() -> Vec<Case> {
    let long_id = "x".repeat(2049);
    let bad_doc = |body: &str, reason| case(("PUT", "/db/new"), body, (400, "doc_validation", reason));
    let mut cases = vec![
        // Bodies.
        case(("PUT", "/db/new"), "{", INVALID),
        case(("PUT", "/db/new"), "", INVALID),
        case(("PUT", "/db/new"), "{\"a\":1}}", INVALID),
        case(("PUT", "/db/new"), "{'a':1}", INVALID),
        case(("PUT", "/db/new"), b"{\"a\":\"\xff\"}", INVALID),
        case(("PUT", "/db/new"), b"{\"a\":\"\xed\xa0\x80\"}", INVALID),
        case(("PUT", "/db/new"), "{\"a\":\"\\ud800\"}", INVALID),
        case(("PUT", "/db/new"), "{\"a\":01}", INVALID),
        case(("PUT", "/db/new"), "{\"a\":NaN}", INVALID),
        case(("PUT", "/db/new"), "[".repeat(100_000), INVALID),
        case(("PUT", "/db/new"), "[1]", (400, "bad_request", "Document must be a JSON object")),
        case(("PUT", "/db/new"), "null", (400, "bad_request", "Document must be a JSON object")),
        case(("POST", "/db"), "{", INVALID),
        case(("POST", "/db"), "3", (400, "bad_request", "Document must be a JSON object")),
        bad_doc(r#"{"_foo":1}"#, "Bad special document member: _foo"),
        bad_doc(r#"{"_deleted":"yes"}"#, "_deleted"),
        bad_doc(r#"{"_revisions":{"start":"x","ids":[]}}"#, "_revisions.start isn't an integer."),
        case(("PUT", "/db/new"), r#"{"_rev":"nonsense"}"#, (400, "bad_request", "Invalid rev format")),
        case(("PUT", "/db/new"), r#"{"_rev":7}"#, (400, "bad_request", "Invalid rev format")),
        case(("PUT", "/db/new?rev=x"), "{}", (400, "bad_request", "Invalid rev format")),
        case(("PUT", "/db/new?new_edits=false"), "{}", (400, "bad_request", "needs `_rev` or `_revisions`")),
        // Ids and names.
        case(
            ("PUT", "/db/_new"),
            "{}",
            (400, "illegal_docid", "Only reserved document ids may start with underscore."),
        ),
        case(("PUT", &format!("/db/{long_id}")), "{}", (400, "illegal_docid", "")),
        case(("POST", "/db"), format!(r#"{{"_id":"{long_id}"}}"#), (400, "illegal_docid", "")),
        case(("POST", "/db"), r#"{"_id":1}"#, (400, "illegal_docid", "Document id must be a string")),
        case(("PUT", "/db/%ff"), "{}", (400, "bad_request", "UTF-8")),
        case(("PUT", "/db/%zz"), "{}", (400, "bad_request", "invalid_url_encoding")),
        case(("PUT", "/db/a%"), "{}", (400, "bad_request", "invalid_url_encoding")),
        case(("GET", "/db/x?rev=%ff"), "", (400, "bad_request", "UTF-8")),
        case(("PUT", "/Capital"), "", (400, "illegal_database_name", "Only lowercase characters")),
        case(("PUT", "/1digit"), "", (400, "illegal_database_name", "Only lowercase characters")),
        case(("PUT", "/_hidden"), "", (400, "illegal_database_name", "Only lowercase characters")),
        case(("PUT", &format!("/{}", "d".repeat(239))), "", (400, "database_name_too_long", "too long")),
        // Bulk.
        case(("POST", "/db/_bulk_docs"), "{", INVALID),
        case(("POST", "/db/_bulk_docs"), "[]", (400, "bad_request", "Request body must be a JSON object")),
        case(("POST", "/db/_bulk_docs"), "{}", (400, "bad_request", "POST body must include `docs` parameter.")),
        case(("POST", "/db/_bulk_docs"), r#"{"docs":{}}"#, (400, "bad_request", "`docs` parameter must be an array.")),
        case(
            ("POST", "/db/_bulk_docs"),
            r#"{"docs":[{"_id":"n"},1]}"#,
            (400, "bad_request", "Document must be a JSON object"),
        ),
        case(("POST", "/db/_bulk_docs"), r#"{"docs":[{"_id":"n"},{"_id":"_x"}]}"#, (400, "illegal_docid", "")),
        case(
            ("POST", "/db/_bulk_docs"),
            r#"{"docs":[{"_id":"n"}],"new_edits":0}"#,
            (400, "bad_request", "`new_edits` parameter must be a boolean."),
        ),
        case(
            ("POST", "/db/_bulk_docs"),
            r#"{"docs":[{"_id":"n"}],"new_edits":false}"#,
            (400, "bad_request", "needs `_rev` or `_revisions`"),
        ),
        case(("POST", "/db/_bulk_get"), "{}", (400, "bad_request", "Missing JSON list of 'docs'.")),
        case(("POST", "/db/_bulk_get?rev=1-a"), r#"{"docs":[]}"#, (400, "bad_request", "\"rev\" query parameter")),
        case(("POST", "/db/_revs_diff"), r#"{"x":{}}"#, (400, "bad_request", "")),
        case(("POST", "/db/_revs_diff"), r#"{"x":["y"]}"#, (400, "bad_request", "Invalid rev format")),
        case(("POST", "/db/_revs_diff"), "[]", (400, "bad_request", "Request body must be a JSON object")),
        // Parameters.
        case(("GET", "/db/x?rev=y"), "", (400, "bad_request", "Invalid rev format")),
        case(("GET", "/db/x?open_revs=y"), "", INVALID),
        case(("GET", "/db/x?open_revs=%7B%7D"), "", (400, "bad_request", "")),
        case(("GET", "/db/x?open_revs=%5B1%5D"), "", (400, "bad_request", "Invalid rev format")),
        case(("GET", "/db/_all_docs?limit=x"), "", (400, "query_parse_error", "Invalid value for integer")),
        case(("GET", "/db/_all_docs?limit=-1"), "", (400, "query_parse_error", "positive integer")),
        case(("GET", "/db/_all_docs?skip=-1"), "", (400, "query_parse_error", "positive integer")),
        case(("GET", "/db/_all_docs?include_docs=maybe"), "", (400, "query_parse_error", "Invalid boolean parameter")),
        case(("GET", "/db/_all_docs?startkey=x"), "", INVALID),
        case(("GET", "/db/_all_docs?keys=%7B%7D"), "", (400, "bad_request", "must be an array")),
        case(("POST", "/db/_all_docs"), r#"{"keys":{}}"#, (400, "bad_request", "must be an array")),
        case(("POST", "/db/_all_docs"), r#"{"limit":"x"}"#, (400, "query_parse_error", "")),
        case(("GET", "/db/_changes?since=17-g1AAAA"), "", (400, "bad_request", "since")),
        case(("GET", "/db/_changes?since=-1"), "", (400, "bad_request", "since")),
        case(("GET", "/db/_changes?limit=x"), "", (400, "bad_request", "limit")),
        case(("GET", "/db/_changes?feed=live-ish"), "", (400, "bad_request", "Supported `feed` types")),
        case(("GET", "/db/_changes?style=none"), "", (400, "query_parse_error", "style")),
        case(("GET", "/db/_changes?heartbeat=0"), "", (400, "bad_request", "heartbeat")),
        case(("GET", "/db/_changes?heartbeat=-99999999999999999999"), "", (400, "bad_request", "positive integer")),
        case(("GET", "/db/_changes?timeout=x"), "", (400, "bad_request", "timeout")),
        case(("GET", "/db/_changes?seq_interval=0"), "", (400, "bad_request", "invalid_seq_interval")),
        case(("GET", "/db/_changes?filter=_unknown"), "", (400, "bad_request", "unknown builtin filter name")),
        case(("GET", "/db/_changes?filter=x"), "", (400, "bad_request", "designname/filtername")),
        case(("GET", "/db/_changes?filter=_doc_ids"), "", (400, "bad_request", "doc_ids")),
        case(("GET", "/db/_changes?filter=_doc_ids&doc_ids=%5B1%5D"), "", (400, "bad_request", "doc_ids")),
        case(
            ("GET", "/db/_changes?filter=_selector"),
            "",
            (400, "bad_request", "Selector must be specified in POST payload"),
        ),
        case(("POST", "/db/_changes?filter=_selector"), "{}", (400, "bad_request", "")),
        case(("POST", "/db/_changes?filter=_selector"), r#"{"selector":{"a":{"$no":1}}}"#, (400, "bad_request", "$no")),
        case(("POST", "/_dbs_info"), "{}", (400, "bad_request", "`keys` member must exist.")),
        // Methods.
        case(("PATCH", "/"), "", (405, "method_not_allowed", "Only GET,HEAD allowed")),
        case(("POST", "/_all_dbs"), "", (405, "method_not_allowed", "Only GET,HEAD allowed")),
        case(("PATCH", "/db"), "", (405, "method_not_allowed", "Only DELETE,GET,HEAD,POST")),
        case(("LOCK", "/db/x"), "", (405, "method_not_allowed", "Only DELETE,GET,HEAD,POST,PUT,COPY,PATCH allowed")),
        case(("GET", "/db/_bulk_docs"), "", (405, "method_not_allowed", "Only POST allowed")),
        case(("GET", "/db/_bulk_get"), "", (405, "method_not_allowed", "Only POST allowed")),
        case(("GET", "/db/_revs_diff"), "", (405, "method_not_allowed", "Only POST allowed")),
        case(("PUT", "/db/_all_docs"), "", (405, "method_not_allowed", "Only GET,HEAD,POST allowed")),
        case(("PUT", "/db/_changes"), "", (405, "method_not_allowed", "Only GET,POST,HEAD allowed")),
        case(("DELETE", "/db/_security"), "", (405, "method_not_allowed", "Only PUT,GET allowed")),
        case(("GET", "/db/_compact"), "", (405, "method_not_allowed", "Only POST allowed")),
        case(("PUT", "/_session"), "", (405, "method_not_allowed", "Only GET,HEAD,POST,DELETE allowed")),
        case(("OPTIONS", "/db"), "", (405, "method_not_allowed", "")),
    ];
    let paths = ["/db", "/db/_bulk_docs", "/db/_bulk_get", "/db/_revs_diff", "/db/_missing_revs", "/db/_compact"];
    for path in paths.into_iter().chain(["/db/_ensure_full_commit", "/db/_changes", "/db/_all_docs"]) {
        let reason = "Content-Type must be application/json";
        let wrong = case(("POST", path), r#"{"docs":[{"_id":"n"}]}"#, (415, "bad_content_type", reason));
        cases.push(Case { content_type: "text/plain", ..wrong });
    }
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_and_nothing_is_written() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/x", json!({"a": 1})).await;
    let before = couch.contents("db").await;
    for case in cases() {
        let request = couch.request(case.method, &case.path).header("content-type", case.content_type);
        let answer = couch.send(request.body(case.body)).await;
        let about = format!("{} {:.60}: {:.200}", case.method, case.path, answer.text);
        assert_eq!(answer.status, case.status, "{about}");
        let json = answer.json();
        assert_eq!(json["error"], case.error, "{about}");
        assert!(json["reason"].as_str().unwrap().contains(case.reason), "{about}, not {:?}", case.reason);
        if case.status == 405 {
            assert!(json["reason"].as_str().unwrap().contains(answer.header("allow")), "{about}");
        }
        assert_eq!(couch.contents("db").await, before, "{about}");
    }
    assert_eq!(couch.get("/_all_dbs").await.json(), json!(["db"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_limited_to_the_byte_as_in_couchdb() {
    let couch = Couch::start().await;
    couch.database("db").await;
    // {"a":"…"} is eight bytes and the text.
    let of = |size: usize| json!({"a": "x".repeat(size - 8)});
    let over = couch.json("PUT", "/db/x", of(8_000_001)).await;
    over.refused(413, "document_too_large", "x");
    assert_eq!(couch.get("/db/x").await.status, 404);
    couch.put("/db/x", of(8_000_000)).await;
    // The special members do not count.
    let rev = couch.get("/db/x").await.json()["_rev"].as_str().unwrap().to_owned();
    let mut whole = of(8_000_000);
    whole["_rev"] = Value::String(rev);
    whole["_id"] = "x".into();
    couch.put("/db/x", whole).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_nesting_is_a_document_like_any_other() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let depth = 100_000;
    let body = format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    let answer = couch.raw("PUT", "/db/deep", body.clone()).await;
    // Exploded paths of this length do not fit into a key. The answer may be a refusal, but there must be an answer.
    if answer.status == 201 {
        let read = couch.get("/db/deep").await;
        assert!(read.text.contains(&body[1..]), "{:.100}", read.text);
    } else {
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    let bulk = couch.raw("POST", "/db/_bulk_docs", format!("{{\"docs\":[{body}]}}")).await;
    assert_eq!(bulk.status, 201, "{:.200}", bulk.text);
    assert_eq!(couch.get("/_up").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_limited_before_they_are_read() {
    let couch = Couch::with(Options { max_request_size: 100_000, ..Options::default() }).await;
    couch.database("db").await;
    let large = json!({"a": "x".repeat(100_000)}).to_string();
    let answer = couch.raw("PUT", "/db/x", large.clone()).await;
    answer.refused(413, "too_large", "the request entity is too large");
    let pieces: Vec<_> = large.into_bytes().chunks(1000).map(|piece| Frame::data(piece.to_vec().into())).collect();
    let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<Frame<bytes::Bytes>, std::io::Error>));
    let chunked = reqwest::Body::wrap(http_body_util::StreamBody::new(pieces));
    couch.raw("PUT", "/db/x", chunked).await.refused(413, "too_large", "the request entity is too large");
    assert_eq!(couch.get("/db/x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_is_unpacked_within_the_limit() {
    use std::io::Write;
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let couch = Couch::with(Options { max_request_size: 1_000_000, ..Options::default() }).await;
    couch.database("db").await;
    let put = async |encoding: &str, body: Vec<u8>| {
        let request = couch.request("PUT", "/db/x").header("content-type", "application/json");
        couch.send(request.header("content-encoding", encoding).body(body)).await
    };
    let bomb = format!("{{\"a\":\"{}\"}}", "x".repeat(5_000_000));
    put("gzip", gzip(bomb.as_bytes())).await.refused(413, "too_large", "the request entity is too large");
    put("gzip", b"{}".to_vec()).await.refused(400, "bad_request", "Request body is not properly gzipped.");
    put("br", b"{}".to_vec()).await.refused(415, "bad_content_type", "br is not a supported content encoding.");
    put("gzip", gzip(b"{")).await.refused(400, "bad_request", "invalid UTF-8 JSON");
    assert_eq!(couch.get("/db/x").await.status, 404);
    assert_eq!(put("gzip", gzip(br#"{"a":"packed"}"#)).await.status, 201);
    assert_eq!(couch.get("/db/x").await.json()["a"], "packed");
}
