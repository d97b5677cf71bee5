//! Attachments: one at a time, in documents, and in parts. The expected answers were measured on CouchDB 3.5.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kv_api::{Database, RangeRequest, Read, TransactionExt};
use md5::{Digest, Md5};
use serde_json::json;

use crate::support::{Answer, Couch};

/// MD5 of `hello`, which is stored without compression.
const HELLO: &str = "XUFAKrxLKna5cZ2REBfFkg==";

impl Couch {
    /// Writes an attachment. Returns the document's revision.
    async fn attach(&self, path: &str, content_type: &str, body: &'static [u8]) -> String {
        let request = self.request("PUT", path).header("content-type", content_type).body(body);
        let answer = self.send(request).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.text);
        answer.json()["rev"].as_str().unwrap().to_owned()
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request =
            headers.iter().fold(self.request("GET", path), |request, (name, value)| request.header(*name, *value));
        self.send(request).await
    }

    /// A `PUT` of a document in parts: the document, then contents.
    async fn put_parts(&self, path: &str, document: serde_json::Value, contents: &[&str]) -> Answer {
        let mut body = format!("--b\r\nContent-Type: application/json\r\n\r\n{document}");
        for content in contents {
            body.push_str(&format!("\r\n--b\r\n\r\n{content}"));
        }
        body.push_str("\r\n--b--");
        self.put_body(path, "multipart/related; boundary=\"b\"", body).await
    }

    pub(crate) async fn put_body(&self, path: &str, content_type: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(self.request("PUT", path).header("content-type", content_type).body(body)).await
    }
}

async fn start() -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_is_written_read_and_removed() {
    let couch = start().await;
    let request = couch.request("PUT", "/db/doc/a%2Fb/c.bin").header("content-type", "x/y").body("hello");
    let written = couch.send(request).await;
    assert_eq!(written.status, 201, "{}", written.text);
    assert!(written.header("location").ends_with("/db/doc/a%2Fb%2Fc.bin"), "{}", written.header("location"));
    let rev = written.json()["rev"].as_str().unwrap().to_owned();
    assert!(rev.starts_with("1-"));

    for path in ["/db/doc/a/b/c.bin", "/db/doc/a%2Fb//c.bin/", &format!("/db/doc/a/b/c.bin?rev={rev}")] {
        let read = couch.get(path).await;
        assert_eq!((read.status.as_u16(), &*read.text), (200, "hello"), "{path}");
        let headers =
            ["content-type", "content-length", "etag", "accept-ranges", "cache-control", "content-security-policy"];
        let found = headers.map(|name| read.header(name).to_owned());
        assert_eq!(found, ["x/y", "5", &format!("\"{HELLO}\""), "bytes", "must-revalidate", "sandbox"]);
        assert_eq!((read.header("content-encoding"), read.header("content-md5")), ("", ""));
    }
    let head = couch.call("HEAD", "/db/doc/a/b/c.bin").await;
    assert_eq!((head.status.as_u16(), head.header("content-length"), &*head.text), (200, "5", ""));

    assert_eq!(couch.send(couch.request("PUT", "/db/empty/a").header("content-type", "x/y")).await.status, 201);
    let head = couch.call("HEAD", "/db/empty/a").await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "0"));

    let document = couch.get("/db/doc").await.json();
    let stub = json!({"content_type": "x/y", "revpos": 1, "digest": format!("md5-{HELLO}"), "length": 5, "stub": true});
    assert_eq!(document["_attachments"], json!({"a/b/c.bin": stub}));

    couch.call("DELETE", "/db/doc/none").await.refused(404, "not_found", "Document is missing attachment");
    couch.call("DELETE", "/db/doc/a/b/c.bin").await.refused(409, "conflict", "Document update conflict.");
    let removed = couch.call("DELETE", &format!("/db/doc/a/b/c.bin?rev={rev}")).await;
    assert_eq!(removed.status, 200, "{}", removed.text);
    couch.get("/db/doc/a/b/c.bin").await.refused(404, "not_found", "Document is missing attachment");
    assert_eq!(couch.get(&format!("/db/doc/a/b/c.bin?rev={rev}")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_do_not_match_their_content_md5_are_refused() {
    let couch = start().await;
    // Some that one edit writes, some that are staged, and some that are compressed before they are stored.
    let bytes = [b"hello".to_vec(), (0..3_000_000u64).map(|n| ((n * n) >> 9) as u8).collect(), vec![b'a'; 100_000]];
    for (n, bytes) in bytes.into_iter().enumerate() {
        let put = async |coding: &str, bytes: &[u8], md5: &str| {
            let path = format!("/db/doc-{n}-{coding}/a");
            let request = couch.request("PUT", &path).header("content-type", "text/plain").header("content-md5", md5);
            couch.send(request.header("content-encoding", coding).body(bytes.to_vec())).await
        };
        for (coding, bytes) in [("identity", bytes.clone()), ("gzip", gzip(&bytes))] {
            let md5 = STANDARD.encode(Md5::digest(&bytes));
            let mut damaged = bytes.clone();
            damaged.push(0);
            if coding == "identity" {
                put(coding, &damaged, &md5).await.refused(400, "content_md5_mismatch", "Possible message corruption.");
            }
            let other = STANDARD.encode(Md5::digest(b"other"));
            put(coding, &bytes, &other).await.refused(400, "content_md5_mismatch", "Possible message corruption.");
            couch.get(&format!("/db/doc-{n}-{coding}")).await.refused(404, "not_found", "missing");
            let written = put(coding, &bytes, &md5).await;
            assert_eq!(written.status, 201, "{}", written.text);
            for no_md5 in ["", "hello", "bm9uZQ==", &md5[1..]] {
                let rev = couch.get(&format!("/db/doc-{n}-{coding}")).await.json()["_rev"].as_str().unwrap().to_owned();
                let path = format!("/db/doc-{n}-{coding}/a?rev={rev}");
                let request = couch.request("PUT", &path).header("content-md5", no_md5);
                assert_eq!(couch.send(request.body(bytes.clone())).await.status, 201, "{no_md5}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_are_refused_as_couchdb_refuses_them() {
    let couch = start().await;
    let rev = couch.attach("/db/doc/a", "x/y", b"hello").await;
    let next = couch.attach(&format!("/db/doc/a?rev={rev}"), "x/y", b"again").await;
    let put = async |path: &str| couch.put_body(path, "x/y", "hello").await;
    put("/db/doc/a").await.refused(409, "conflict", "Document update conflict.");
    // Clients reread the document and retry only if the error is a conflict.
    put(&format!("/db/doc/a?rev={rev}")).await.refused(409, "conflict", "Document update conflict.");
    put("/db/doc/a?rev=7-abc").await.refused(409, "not_found", "missing_rev");
    put("/db/doc/a?rev=").await.refused(400, "bad_request", "Invalid rev format");
    put("/db/doc/_x").await.refused(400, "bad_request", "Attachment name '_x' starts with prohibited character '_'");
    put("/db/doc/%FF").await.refused(400, "bad_request", "Attachment name is not UTF-8 encoded");
    put("/db/_local/x/a").await.refused(400, "bad_request", "_local documents do not accept attachments.");
    put("/db/_local%2Fx/a").await.refused(400, "bad_request", "_local documents do not accept attachments.");
    assert_eq!(put("/db/_bad/a").await.json()["error"], "illegal_docid");
    put("/none/doc/a").await.refused(404, "not_found", "Database does not exist.");
    for path in ["/db/none/a", "/db/_design/none/a", "/db/doc/a?rev=7-abc"] {
        couch.get(path).await.refused(404, "not_found", "missing");
    }
    couch.get("/db/doc/b").await.refused(404, "not_found", "Document is missing attachment");
    couch.get("/db/doc/a?rev=x").await.refused(400, "bad_request", "Invalid rev format");
    let posted = couch.call("POST", "/db/doc/a").await;
    posted.refused(405, "method_not_allowed", "Only DELETE,GET,HEAD,PUT allowed");

    let coded = couch.request("PUT", "/db/new/a").header("content-encoding", "br").body("x");
    let reason = "Only gzip and identity content-encodings are supported";
    couch.send(coded).await.refused(415, "bad_content_type", reason);
    let no_gzip = couch.request("PUT", "/db/new/a").header("content-encoding", "gzip").body("no gzip");
    assert_eq!(couch.send(no_gzip).await.status, 400);
    let both = couch.request("PUT", &format!("/db/doc/a?rev={next}")).header("if-match", &rev).body("x");
    couch.send(both).await.refused(400, "bad_request", "Document rev and etag have different values");
    // Quoted or bare.
    let quoted = couch.request("PUT", "/db/doc/a").header("if-match", format!("\"{next}\"")).body("third");
    let third = couch.send(quoted).await;
    assert_eq!(third.status, 201, "{}", third.text);
    let bare = couch.request("DELETE", "/db/doc/a").header("if-match", third.json()["rev"].as_str().unwrap());
    let gone = couch.send(bare).await;
    assert_eq!(gone.status, 200, "{}", gone.text);
    // On a deleted document.
    let rev = gone.json()["rev"].as_str().unwrap().to_owned();
    couch.call("DELETE", &format!("/db/doc?rev={rev}")).await;
    couch.get("/db/doc/a").await.refused(404, "not_found", "deleted");
    let again = couch.attach("/db/doc/a", "x/y", b"hello").await;
    assert!(again.starts_with("6-"), "{again}");
    assert_eq!(couch.get("/db/doc").await.json()["_attachments"]["a"]["revpos"], 1);
    assert!(couch.get("/db/new").await.status == 404, "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_packed_and_goes_out_as_the_client_takes_it() {
    let couch = start().await;
    let text: &'static str = Box::leak("many words and more ".repeat(1000).into_boxed_str());
    couch.attach("/db/doc/t", "text/plain; charset=utf-8", text.as_bytes()).await;
    let stub = couch.get("/db/doc?att_encoding_info=true").await.json()["_attachments"]["t"].clone();
    assert_eq!((stub["length"].as_u64(), stub["encoding"].as_str()), (Some(text.len() as u64), Some("gzip")));
    let packed = stub["encoded_length"].as_u64().unwrap();
    assert!(packed < text.len() as u64 / 10);

    let plain = couch.get("/db/doc/t").await;
    assert_eq!((&*plain.text, plain.header("content-length")), (text, &*text.len().to_string()));
    assert_eq!((plain.header("content-encoding"), plain.header("accept-ranges")), ("", "none"));
    let response = couch.request("GET", "/db/doc/t").header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["content-length"], packed.to_string().as_str());
    let mut unpacked = String::new();
    let bytes = response.bytes().await.unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*bytes), &mut unpacked).unwrap();
    assert_eq!(unpacked, text);
    assert_eq!(couch.get_with("/db/doc/t", &[("accept-encoding", "identity;q=0")]).await.status, 406);
    // A satisfiable range is ignored, any other is refused.
    let ranged = couch.get_with("/db/doc/t", &[("range", "bytes=0-3")]).await;
    assert_eq!((ranged.status.as_u16(), ranged.text.len()), (200, text.len()));
    assert_eq!(couch.get_with("/db/doc/t", &[("range", "bytes=99999-")]).await.status, 416);

    // Contents sent as gzip are stored as gzip. The unpacked length is not sent.
    let packed = gzip(b"packed at home");
    let put = couch.request("PUT", "/db/two/g").header("content-type", "x/y").header("content-encoding", "GZIP");
    assert_eq!(couch.send(put.body(packed.clone())).await.status, 201);
    let plain = couch.get("/db/two/g").await;
    assert_eq!((&*plain.text, plain.header("content-length")), ("packed at home", ""));
    assert_eq!(couch.get("/db/two").await.json()["_attachments"]["g"]["length"], packed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_and_tags() {
    let couch = start().await;
    couch.attach("/db/doc/a", "x/y", b"0123456789").await;
    let part = couch.get_with("/db/doc/a", &[("range", "bytes=2-4")]).await;
    assert_eq!((part.status.as_u16(), &*part.text, part.header("content-range")), (206, "234", "bytes 2-4/10"));
    assert_eq!((part.header("content-length"), part.header("content-type")), ("3", "x/y"));
    let head = couch.send(couch.request("HEAD", "/db/doc/a").header("range", "bytes=-4")).await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (206, "4"));
    let parts = couch.get_with("/db/doc/a", &[("range", "bytes=0-1,8-")]).await;
    let boundary = parts.header("content-type").strip_prefix("multipart/byteranges; boundary=\"").unwrap();
    let boundary = boundary.trim_end_matches('"');
    let part = |range: &str, data: &str| {
        format!("\r\nContent-Type: x/y\r\nContent-Range: bytes {range}/10\r\n\r\n{data}\r\n--{boundary}")
    };
    assert_eq!(parts.status, 206);
    assert_eq!(parts.text, format!("--{boundary}{}{}--", part("0-1", "01"), part("8-9", "89")));
    let outside = couch.get_with("/db/doc/a", &[("range", "bytes=0-1,10-")]).await;
    outside.refused(416, "requested_range_not_satisfiable", "Requested range not satisfiable");
    assert_eq!(couch.get_with("/db/doc/a", &[("range", "bytes=0-")]).await.status, 200);

    let tag = couch.get("/db/doc/a").await.header("etag").to_owned();
    let same = couch.get_with("/db/doc/a", &[("if-none-match", &format!("\"x\", W/{tag}"))]).await;
    assert_eq!((same.status.as_u16(), &*same.text, same.header("etag")), (304, "", &*tag));
    for other in [tag.trim_matches('"'), "*", "\"x\""] {
        assert_eq!(couch.get_with("/db/doc/a", &[("if-none-match", other)]).await.status, 200, "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inline_data_and_stubs() {
    let couch = start().await;
    let data = |data: &str| json!({"_attachments": {"a": {"content_type": "x/y", "data": data}}});
    let rev = couch.put("/db/doc", data("aGVs\nbG8=")).await;
    assert_eq!(couch.get("/db/doc/a").await.text, "hello");
    for wrong in ["aGVsbG8", "aGVsbG8==", "a-b_", "*"] {
        let refused = couch.json("PUT", "/db/x", data(wrong)).await;
        refused.refused(400, "bad_request", "Invalid attachment data for a");
    }
    let whole = couch.get_with("/db/doc?attachments=true", &[("accept", "application/json")]).await.json();
    let attachment = json!({"content_type": "x/y", "revpos": 1, "digest": format!("md5-{HELLO}"), "data": "aGVsbG8="});
    assert_eq!(whole["_attachments"]["a"], attachment);

    // A stub keeps an attachment; leaving it out removes it.
    let kept = couch.put("/db/doc", json!({"_rev": rev, "n": 2, "_attachments": {"a": {"stub": true}}})).await;
    assert_eq!(couch.get("/db/doc").await.json()["_attachments"]["a"]["revpos"], 1);
    let stub = json!({"_rev": kept, "_attachments": {"b": {"stub": true}}});
    couch.json("PUT", "/db/doc", stub.clone()).await.refused(
        412,
        "missing_stub",
        "Invalid attachment stub in doc for b",
    );
    let mut named = stub;
    named["_id"] = json!("doc");
    let before = couch.contents("db").await;
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "ok"}, named]})).await;
    bulk.refused(412, "missing_stub", "Invalid attachment stub in doc for b");
    assert_eq!(couch.contents("db").await, before);
    let copied = couch.send(couch.request("COPY", "/db/doc").header("destination", "copy")).await;
    assert_eq!(copied.status, 201, "{}", copied.text);
    assert_eq!(couch.get("/db/copy/a").await.text, "hello");
    couch.put("/db/doc", json!({"_rev": kept})).await;
    assert_eq!(couch.get("/db/doc/a").await.status, 404);

    // A local document has no attachments.
    couch.put("/db/_local/x", json!({"n": 1, "_attachments": {"a": {"data": "aGVsbG8="}}})).await;
    assert_eq!(couch.get("/db/_local/x").await.json(), json!({"_id": "_local/x", "_rev": "0-1", "n": 1}));

    // Listings and feeds.
    for path in [
        "/db/_all_docs?include_docs=true&attachments=true&key=\"copy\"",
        "/db/_changes?include_docs=true&attachments=true&descending=true",
    ] {
        assert!(couch.get(path).await.text.contains("\"data\":\"aGVsbG8=\""), "{path}");
    }
    let stubs = couch.get("/db/_all_docs?include_docs=true").await.text;
    assert!(stubs.contains("\"stub\":true") && !stubs.contains("\"data\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_go_out_in_parts() {
    let couch = start().await;
    let first = couch.attach("/db/doc/a", "x/y", b"hello").await;
    couch.attach(&format!("/db/doc/b?rev={first}"), "text/plain", b"text").await;
    let json = couch.get_with("/db/doc?attachments=true", &[("accept", "application/json")]).await;
    assert_eq!(json.header("content-type"), "application/json");

    for accept in ["*/*", "multipart/*", "application/json, multipart/related"] {
        let response = couch.request("GET", "/db/doc?attachments=true").header("accept", accept).send().await.unwrap();
        let header = response.headers()["content-type"].to_str().unwrap().to_owned();
        let length: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
        let body = response.bytes().await.unwrap();
        assert_eq!(body.len(), length);
        let boundary = header.strip_prefix("multipart/related; boundary=\"").unwrap().trim_end_matches('"');
        let text = String::from_utf8_lossy(&body).into_owned();
        let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
        assert_eq!((parts.len(), parts[0], parts[4]), (5, "", "--"), "{text}");
        let document = parts[1].strip_prefix("\r\nContent-Type: application/json\r\n\r\n").unwrap();
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        // The newest attachment is the first one.
        let names: Vec<&String> = document["_attachments"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(document["_attachments"]["a"]["follows"], true);
        assert_eq!(document["_attachments"]["b"]["encoding"], "gzip");
        assert!(parts[2].contains("filename=\"b\"") && parts[2].contains("\r\nContent-Encoding: gzip\r\n"));
        assert!(parts[3].ends_with("\r\n\r\nhello\r\n") && parts[3].contains("\r\nContent-Length: 5\r\n"));
    }
    // Only attachments newer than a known revision.
    let newer = couch.get(&format!("/db/doc?atts_since=[%22{first}%22]")).await;
    assert!(newer.header("content-type").starts_with("multipart/related"));
    assert!(newer.text.contains("filename=\"b\"") && !newer.text.contains("filename=\"a\""));

    let whole = couch.send(couch.request("GET", "/db/doc?attachments=true")).await;
    let head = couch.call("HEAD", "/db/doc?attachments=true").await;
    assert_eq!((head.status.as_u16(), &*head.text), (200, ""));
    assert_eq!(head.header("content-length"), whole.header("content-length"));

    let mixed = couch.get("/db/doc?open_revs=all").await;
    let outer = mixed.header("content-type").strip_prefix("multipart/mixed; boundary=\"").unwrap().to_owned();
    let outer = outer.trim_end_matches('"');
    assert!(mixed.text.starts_with(&format!("--{outer}\r\nContent-Type: multipart/related; boundary=\"")));
    assert!(mixed.text.contains("\r\n\r\nhello\r\n--") && mixed.text.ends_with(&format!("\r\n--{outer}--")));
    let request = couch.request("POST", "/db/_bulk_get").header("content-type", "application/json");
    let body = json!({"docs": [{"id": "doc"}, {"id": "none"}]}).to_string();
    let mixed = couch.send(request.header("accept", "multipart/mixed").body(body)).await;
    assert!(mixed.header("content-type").starts_with("multipart/mixed; boundary="));
    assert!(mixed.text.contains("\r\nX-Doc-Id: doc\r\nX-Rev-Id: 2-") && mixed.text.contains("hello\r\n--"));
    assert!(mixed.text.contains("Content-Type: application/json; error=\"true\"\r\n\r\n{\"id\":\"none\""));
    let plain = couch.json("POST", "/db/_bulk_get?attachments=true", json!({"docs": [{"id": "doc"}]})).await.json();
    assert_eq!(plain["results"][0]["docs"][0]["ok"]["_attachments"]["a"]["data"], "aGVsbG8=");
    // Only attachments newer than the client's revisions.
    let known = json!({"docs": [{"id": "none"}, {"id": "doc", "atts_since": [first]}, {"id": "x", "atts_since": [1]}]});
    let newer = couch.json("POST", "/db/_bulk_get", known).await.json();
    let attachments = &newer["results"][1]["docs"][0]["ok"]["_attachments"];
    assert_eq!((&attachments["a"]["stub"], &attachments["b"]["data"]), (&json!(true), &json!("dGV4dA==")));
    assert_eq!(newer["results"][2]["docs"][0]["error"]["reason"], "Invalid rev format");
    let wrong = json!({"docs": [{"id": "doc", "atts_since": ["1-a", "x"]}, {"id": "doc", "atts_since": "1-a"}]});
    let wrong = couch.json("POST", "/db/_bulk_get", wrong).await.json();
    let error = |of: usize| wrong["results"][of]["docs"][0]["error"].clone();
    assert_eq!((&error(0)["rev"], &error(0)["reason"]), (&json!("x"), &json!("Invalid rev format")));
    assert_eq!(error(1)["reason"], "att_since value must be array of revs.");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_in_parts() {
    let couch = start().await;
    let follows = |length: u64| json!({"follows": true, "content_type": "x/y", "length": length});
    let two = json!({"_attachments": {"a": follows(5), "b": follows(3)}});
    // In the document's order. The headers of parts are ignored.
    let written = couch.put_parts("/db/doc", two.clone(), &["hello", "\r\n-"]).await;
    assert_eq!(written.status, 201, "{}", written.text);
    assert_eq!(couch.get("/db/doc/a").await.text, "hello");
    assert_eq!(couch.get("/db/doc/b").await.text, "\r\n-");
    // The same revision as with the data inline.
    let data = |data: &str| json!({"content_type": "x/y", "data": data});
    let inline = couch.put("/db/inline", json!({"_attachments": {"a": data("aGVsbG8="), "b": data("DQot")}})).await;
    assert_eq!(written.json()["rev"], inline);

    let before = couch.contents("db").await;
    for (contents, reason) in [
        (&["hello!", "abc"], "attachment longer than expected"),
        (&["hell", "abc"], "attachment shorter than expected"),
    ] {
        couch.put_parts("/db/x", two.clone(), contents).await.refused(400, "bad_request", reason);
    }
    let refused = couch.put_parts("/db/x", two.clone(), &["hello"]).await;
    refused.refused(400, "bad_request", "attachment shorter than expected");
    let wrong = json!({"follows": true, "content_type": "x/y", "length": 5, "digest": "md5-AAAAAAAAAAAAAAAAAAAAAA=="});
    let refused = couch.put_parts("/db/x", json!({"_attachments": {"a": wrong}}), &["hello"]).await;
    refused.refused(400, "content_md5_mismatch", "Possible message corruption.");
    let without = json!({"_attachments": {"a": {"follows": true, "content_type": "x/y"}}});
    assert_eq!(couch.put_parts("/db/x", without, &["hello"]).await.status, 400);
    for (content_type, body) in [
        ("multipart/related", "--b\r\n\r\n{}\r\n--b--"),
        ("multipart/mixed; boundary=b", "--b\r\n\r\n{}\r\n--b--"),
        ("multipart/related; boundary=c", "--b\r\n\r\n{}\r\n--b--"),
        ("multipart/related; boundary=b", ""),
        ("multipart/related; boundary=b", "--b\r\n\r\n{}"),
    ] {
        let status = couch.put_body("/db/x", content_type, body).await.status;
        assert!(status == 400 || body.ends_with("{}"), "{content_type}: {status}");
    }
    couch.call("DELETE", &format!("/db/x?rev={}", couch.get("/db/x").await.json()["_rev"].as_str().unwrap())).await;
    assert_eq!(couch.contents("db").await.contains("\"id\":\"doc\""), before.contains("\"id\":\"doc\""));

    // Extra parts, preamble and epilogue are ignored, and a document without attachments needs no parts.
    let lenient = "preamble\r\n--b\r\n\r\n{\"n\":1}\r\n--b\r\n\r\nextra\r\n--b--\r\nepilogue";
    assert_eq!(couch.put_body("/db/y", "multipart/related; boundary=b", lenient).await.status, 201);
    assert_eq!(couch.get("/db/y").await.json()["n"], 1);
    // A part in gzip.
    let packed = gzip(b"hello");
    let document = json!({"_attachments": {"t": {"follows": true, "content_type": "text/plain", "encoding": "gzip",
        "length": 5, "encoded_length": packed.len()}}});
    let body = [format!("--b\r\n\r\n{document}\r\n--b\r\n\r\n").as_bytes(), &packed, b"\r\n--b--"].concat();
    let written = couch.put_body("/db/z", "multipart/related; boundary=b", body).await;
    assert_eq!(written.status, 201, "{}", written.text);
    assert_eq!(couch.get("/db/z/t").await.text, "hello");
    // The length is the unpacked one. CouchDB also accepts the packed length.
    for (length, status) in [(4, 400), (packed.len(), 201)] {
        let document = json!({"_attachments": {"t": {"follows": true, "content_type": "text/plain", "encoding": "gzip",
            "length": length, "encoded_length": packed.len()}}});
        let body = [format!("--b\r\n\r\n{document}\r\n--b\r\n\r\n").as_bytes(), &packed, b"\r\n--b--"].concat();
        let written = couch.put_body(&format!("/db/z{length}"), "multipart/related; boundary=b", body).await;
        assert_eq!(written.status, status, "{}", written.text);
    }
    // Many small parts are more than a request holds in memory.
    let parts: Vec<String> = (0..5).map(|n| format!("{n}").repeat(900_000)).collect();
    let names = parts.iter().map(|part| (part[..1].to_owned(), json!({"follows": true, "length": part.len()})));
    let document = json!({"_attachments": names.collect::<serde_json::Map<_, _>>()});
    let parts: String = parts.iter().map(|part| format!("\r\n--b\r\n\r\n{part}")).collect();
    let body = format!("--b\r\n\r\n{document}{parts}\r\n--b--");
    let written = couch.put_body("/db/many", "multipart/related; boundary=b", body).await;
    assert_eq!(written.status, 201, "{}", written.text);
    assert_eq!(couch.get("/db/many/3").await.text, "3".repeat(900_000));
    // An invalid revision is refused before the body is read.
    let refused = couch.put_body("/db/many?rev=x", "multipart/related; boundary=b", "--b").await;
    refused.refused(400, "bad_request", "Invalid rev format");
}

#[tokio::test(flavor = "multi_thread")]
async fn design_documents_have_attachments() {
    let couch = start().await;
    couch.attach("/db/_design%2Fd/a/b", "x/y", b"hello").await;
    assert_eq!(couch.get("/db/_design/d/a/b").await.text, "hello");
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let moved = client.get(format!("{}/db/_design%2Fd/a/b?x=y", couch.base)).send().await.unwrap();
    assert_eq!(moved.status(), 301);
    assert_eq!(moved.headers()["location"], format!("{}/db/_design/d/a/b?x=y", couch.base));
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_have_a_limit_of_their_own() {
    let options = server::http::Options { max_request_size: 1024, ..Default::default() };
    let couch = Couch::with(options).await;
    couch.layer.limit_attachments(Some(5));
    couch.database("db").await;
    couch.attach("/db/doc/a", "x/y", b"hello").await;
    let before = couch.contents("db").await;
    couch.put_body("/db/doc2/a", "x/y", "hello!").await.refused(413, "attachment_too_large", "a");
    let data = json!({"_attachments": {"a": {"content_type": "x/y", "data": "aGVsbG8h"}}});
    couch.json("PUT", "/db/doc2", data).await.refused(413, "attachment_too_large", "a");
    let follows = json!({"_attachments": {"a": {"follows": true, "content_type": "x/y", "length": 6}}});
    couch.put_parts("/db/doc2", follows, &["hello!"]).await.refused(413, "attachment_too_large", "a");
    assert_eq!(couch.contents("db").await, before);
    // The document of a multipart body is held in memory, like any request.
    let long = json!({"long": "x".repeat(2000)});
    assert_eq!(couch.put_parts("/db/doc2", long, &[]).await.status, 413);
}

/// Large contents pass in pieces, in both directions, and every byte arrives.
#[tokio::test(flavor = "multi_thread")]
async fn large_attachments_are_streamed() {
    let couch = start().await;
    let large: Vec<u8> = (0..20_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let written = couch.put_body("/db/doc/large", "application/octet-stream", large.clone()).await;
    assert_eq!(written.status, 201, "{}", written.text);
    let read = couch.request("GET", "/db/doc/large").send().await.unwrap().bytes().await.unwrap();
    assert!(read == large);
    let range = couch.request("GET", "/db/doc/large").header("range", "bytes=9999990-10000009").send().await.unwrap();
    assert!(range.bytes().await.unwrap() == large[9_999_990..10_000_010]);
    // A client that disconnects within its request has written nothing.
    let mut stream = tokio::net::TcpStream::connect(couch.server.address()).await.unwrap();
    let head = "PUT /db/cut/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nsome";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    drop(stream);
    couch.attach("/db/other/a", "x/y", b"hello").await;
    assert_eq!(couch.get("/db/cut").await.status, 404);
}

/// Number of rows with parts of contents.
async fn parts(couch: &Couch) -> usize {
    let transaction = couch.layer.engine().begin().unwrap();
    let all = transaction.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot).await.unwrap();
    all.iter().filter(|row| row.value.len() > 80_000).count()
}

/// A client leaves in the middle of an upload, by itself or in parts of a document: the space comes back, without
/// further requests.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_client_left_gives_its_space_back() {
    let couch = start().await;
    let alone = "PUT /db/cut/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n".to_owned();
    let document = r#"{"_attachments": {"a": {"follows": true, "content_type": "x/y", "length": 9000000}}}"#;
    let parts_of = format!(
        "PUT /db/cut HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/related; boundary=b\r\n\
         Content-Length: 9100000\r\n\r\n--b\r\nContent-Type: application/json\r\n\r\n{document}\r\n--b\r\n\r\n"
    );
    for head in [alone, parts_of] {
        let mut stream = tokio::net::TcpStream::connect(couch.server.address()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
        let noise: Vec<u8> = (0..5_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &noise).await.unwrap();
        let are_there = async |some: bool| {
            while (parts(&couch).await > 0) != some {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        // Only a faulty server takes this long.
        let minute = std::time::Duration::from_secs(60);
        tokio::time::timeout(minute, are_there(true)).await.unwrap();
        drop(stream);
        tokio::time::timeout(minute, are_there(false)).await.unwrap();
        assert_eq!(couch.get("/db/cut").await.status, 404);
    }
}

/// An answer with contents is sent in pieces. A server that held all of them would need as much memory as the database.
#[tokio::test(flavor = "multi_thread")]
async fn contents_in_answers_are_sent_as_they_are_read() {
    let couch = start().await;
    let content = vec![b'x'; 4_000_000].leak();
    let ids = ["a", "b", "c", "d"];
    for id in ids {
        couch.attach(&format!("/db/{id}/file"), "x/y", content).await;
    }
    let [left, right] = ["1-00", "1-ff"].map(|rev| {
        let file = json!({"content_type": "x/y", "data": "eHh4".repeat(1_000_000)});
        json!({"_id": "two", "_rev": rev, "_attachments": {"file": file}})
    });
    for leaf in [left, right] {
        couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [leaf]})).await;
    }

    let has_all = |documents: &[&serde_json::Value], size: usize| {
        for document in documents {
            assert_eq!(document["_attachments"]["file"]["data"].as_str().unwrap().len(), size.div_ceil(3) * 4);
        }
    };
    let is_streamed = |answer: &Answer| {
        assert_eq!((answer.status.as_u16(), answer.header("content-length")), (200, ""), "{:.200}", answer.text);
    };
    let listed = couch.get("/db/_all_docs?include_docs=true&attachments=true&limit=4").await;
    is_streamed(&listed);
    let listed = listed.json();
    assert_eq!((&listed["total_rows"], &listed["offset"]), (&json!(5), &json!(0)));
    let rows = listed["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    has_all(&rows.iter().map(|row| &row["doc"]).collect::<Vec<_>>(), content.len());

    let keys = json!({"keys": ["d", "none", "a", "c", "b"]});
    let keyed = couch.json("POST", "/db/_all_docs?include_docs=true&attachments=true", keys.clone()).await;
    is_streamed(&keyed);
    let rows = keyed.json()["rows"].as_array().unwrap().clone();
    assert_eq!(
        rows.iter().map(|row| &row["key"]).collect::<Vec<_>>(),
        keys["keys"].as_array().unwrap().iter().collect::<Vec<_>>()
    );
    has_all(&[0, 2, 3, 4].map(|place: usize| &rows[place]["doc"]), content.len());

    let docs: Vec<_> = ids.iter().map(|id| json!({"id": id})).collect();
    let got = couch.json("POST", "/db/_bulk_get?attachments=true", json!({"docs": docs})).await;
    is_streamed(&got);
    let got = got.json();
    let results = got["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|result| result["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    has_all(&results.iter().map(|result| &result["docs"][0]["ok"]).collect::<Vec<_>>(), content.len());

    let revs = couch.get_with("/db/two?open_revs=all&attachments=true", &[("accept", "application/json")]).await;
    is_streamed(&revs);
    let revs = revs.json();
    has_all(&[&revs[0]["ok"], &revs[1]["ok"]], 3_000_000);
}
