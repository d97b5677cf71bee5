//! Random heads of requests: methods, paths, parameters and headers that each make sense, combined at random. Each
//! request gets an answer, never a fault of the server.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;

use crate::hostile::dice;
use crate::support::Couch;

const TRIES: usize = 2_000;

const METHODS: &[&str] = &["GET", "GET", "GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "PATCH", "OPTIONS", "BREW"];

const PATHS: &[&str] = &[
    "/",
    "/_all_dbs",
    "/_dbs_info",
    "/_up",
    "/_uuids",
    "/_session",
    "/_active_tasks",
    "/_membership",
    "/_cluster_setup",
    "/_db_updates",
    "/_replicate",
    "/_transact",
    "/_scheduler/jobs",
    "/_scheduler/docs",
    "/_scheduler/docs/_replicator/x",
    "/_node/_local/_stats/couchdb/x",
    "/_node/_local/_system",
    "/_node/other/_config/a/b",
    "/_utils/x",
    "/db",
    "/DB",
    "/a%2fb",
    "/db/_all_docs",
    "/db/_all_docs/queries",
    "/db/_design_docs",
    "/db/_local_docs",
    "/db/_bulk_docs",
    "/db/_bulk_get",
    "/db/_changes",
    "/db/_conflicts",
    "/db/_revs_diff",
    "/db/_missing_revs",
    "/db/_find",
    "/db/_explain",
    "/db/_index",
    "/db/_index/_design/i/json/n",
    "/db/_index/_bulk_delete",
    "/db/_purge",
    "/db/_purged_infos",
    "/db/_purged_infos_limit",
    "/db/_keep_replaced",
    "/db/_revs_limit",
    "/db/_security",
    "/db/_compact",
    "/db/_compact/d",
    "/db/_view_cleanup",
    "/db/_ensure_full_commit",
    "/db/_partition/p/_find",
    "/db/_couch_layer/check",
    "/_couch_layer/log",
    "/db/_couch_layer/vault",
    "/db/_couch_layer/format",
    "/db/_design/d",
    "/db/_design/d/_info",
    "/db/_design/d/_view/v",
    "/db/_design/d/_view/v/queries",
    "/db/_design/d/_view/gone",
    "/db/_design/d/_update/u/doc",
    "/db/_design/d/_show/s",
    "/db/_design%2Fd/file",
    "/db/_local/l",
    "/db/_local/l/file",
    "/db/doc",
    "/db/doc",
    "/db/doc/file",
    "/db/doc/file/in/a/folder",
    "/db/%00%ff",
    "/db/gone",
    "/db/_unknown",
    "/db//",
];

/// Half of the requests go to these.
const DOCUMENTS: &[&str] =
    &["/db/doc", "/db/doc/file", "/db/_local/l", "/db/_design/d", "/db/_all_docs", "/db/_changes"];

const NAMES: &[&str] = &[
    "rev",
    "revs",
    "revs_info",
    "open_revs",
    "conflicts",
    "deleted_conflicts",
    "local_seq",
    "meta",
    "latest",
    "atts_since",
    "att_encoding_info",
    "attachments",
    "fields",
    "new_edits",
    "batch",
    "startkey",
    "endkey",
    "start_key",
    "end_key",
    "key",
    "keys",
    "startkey_docid",
    "endkey_docid",
    "limit",
    "skip",
    "descending",
    "inclusive_end",
    "include_docs",
    "update_seq",
    "group",
    "group_level",
    "reduce",
    "stable",
    "update",
    "sorted",
    "bookmark",
    "page_size",
    "since",
    "style",
    "filter",
    "view",
    "doc_ids",
    "seq_interval",
    "last-event-id",
    "timeout",
    "heartbeat",
    "count",
    "q",
    "n",
    "partitioned",
    "next",
    "basic",
    "conflict-policy",
    "format",
    "unheard_of",
];

/// `REV` is the revision of the document.
const VALUES: &[&str] = &[
    "",
    "true",
    "false",
    "null",
    "0",
    "1",
    "-1",
    "3",
    "1e9",
    "18446744073709551616",
    "0.5",
    "\"\"",
    "\"doc\"",
    "doc",
    "[]",
    "{}",
    "[1,{}]",
    "[\"doc\",\"gone\"]",
    "[\"REV\"]",
    "{\"a\":[",
    "REV",
    "1-",
    "0-0",
    "1-abc",
    "99999999999999999999-a",
    "all",
    "all_docs",
    "now",
    "main_only",
    "_view",
    "_selector",
    "_doc_ids",
    "_design",
    "d/v",
    "d/gone",
    "lazy",
    "a.b,c",
    "a\\.b.,",
    "%ff",
    "%00",
    "%",
    "%zz",
    "\u{e9}",
    "ok",
    "exploded",
    "last-write-wins",
    "1-g1AAAA",
    "0-0000",
    "9999",
];

const HEADERS: &[&str] = &[
    "if-match",
    "if-none-match",
    "range",
    "if-range",
    "accept",
    "accept-encoding",
    "content-type",
    "content-encoding",
    "content-md5",
    "destination",
    "origin",
    "access-control-request-method",
    "access-control-request-headers",
    "authorization",
    "cookie",
    "host",
    "referer",
    "x-couch-full-commit",
    "x-couch-id",
    "x-couch-persist",
    "x-couch-request-id",
    "x-couchdb-www-authenticate",
    "x-http-method-override",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-requested-with",
    "last-event-id",
    "user-agent",
];

/// The headers that decide most, and values that are not text or invalid: random combinations would rarely contain
/// these.
const COMMON: &[&str] = &["if-match", "if-none-match", "range", "content-type", "authorization", "destination"];
const ODD: &[&str] = &["", "\"", "\u{e9}"];

const HEADER_VALUES: &[&str] = &[
    "",
    " ",
    "*",
    "\"",
    "\"REV\"",
    "REV",
    "W/\"REV\"",
    "\"REV\", \"x\"",
    "1-",
    "bytes=0-",
    "bytes=-1",
    "bytes=5-2",
    "bytes=0-0,2-3",
    "bytes=18446744073709551615-18446744073709551616",
    "bytes=",
    "lines=1-2",
    "application/json",
    "multipart/mixed",
    "multipart/related",
    "multipart/related; boundary=b",
    "multipart/related; boundary=\"",
    "text/html",
    "text/plain; charset=\"",
    "*/*;q=0.5, text/*;q=x",
    "gzip",
    "identity",
    "br, gzip;q=0",
    "aes",
    "AAAAAAAAAAAAAAAAAAAAAA==",
    "gone",
    "gone?rev=REV",
    "http://[::1",
    "https://example.org",
    "null",
    "POST",
    "DELETE",
    "x, y",
    "Basic",
    "Basic !!",
    "Basic OnB3",
    "Bearer a.b.c",
    "Negotiate",
    "AuthSession=",
    "AuthSession=YQ; AuthSession=%",
    "true",
    "false",
    "localhost:1",
    "\u{e9}",
    "application/merge-patch+json",
    "application/json-patch+json",
];

const BODIES: &[&str] = &[
    "",
    "null",
    "7",
    "[]",
    "{}",
    "\"REV\"",
    "{\"n\":",
    "\u{0}",
    "{\"_rev\":\"REV\",\"n\":2}",
    "{\"docs\":[{\"_id\":\"doc\"},{\"id\":\"doc\",\"rev\":\"REV\"},7]}",
    "{\"keys\":[\"doc\",1]}",
    "{\"queries\":[{\"limit\":1},{}]}",
    "{\"selector\":{\"n\":{\"$gt\":0}},\"use_index\":[1]}",
    "{\"index\":{\"fields\":[\"n\"]}}",
    "{\"doc\":[\"REV\",\"1-abc\"]}",
    "{\"doc_ids\":[\"doc\"]}",
    "[{\"op\":\"add\",\"path\":\"/m\",\"value\":1}]",
    "{\"source\":\"db\",\"target\":\"gone\"}",
    "{\"edits\":[{\"db\":\"db\",\"id\":\"doc\"}]}",
    "--b\r\n\r\n{\"_attachments\":{\"a\":{\"follows\":true,\"length\":1}}}\r\n--b\r\n\r\nx\r\n--b--",
    "name=adm&password=%zz",
];

fn one<'a>(of: &[&'a str], dice: &mut StdRng) -> &'a str {
    of[dice.random_range(0..of.len())]
}

/// A value as in a URL: a valid one, but its escapes may not be decodable.
fn escaped(value: &str) -> String {
    let bytes = value.bytes().map(|byte| match byte {
        b'%' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => (byte as char).to_string(),
        _ => format!("%{byte:02x}"),
    });
    bytes.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_heads_are_answered() {
    let dice = &mut dice();
    let couch = Couch::start().await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let (mut refused, mut fine) = (0, 0);
    for number in 0..TRIES {
        // Restores the database and its documents for the next requests.
        if number % 100 == 0 {
            couch.call("DELETE", "/db").await;
            couch.database("db").await;
            let design = json!({"_id": "_design/d", "views": {"v": {"map": "function (doc) { emit(doc.n, 1); }", "reduce": "_sum"}},
                "updates": {"u": "function (doc, req) { return [doc, req.id]; }"},
                "_attachments": {"file": {"data": "YWJj", "content_type": "text/plain"}}});
            let doc = json!({"_id": "doc", "n": 1, "_attachments": {"file": {"data": "YWJj"}}});
            let docs = json!({"docs": [design, doc, {"_id": "_local/l", "n": 1}]});
            assert_eq!(couch.json("POST", "/db/_bulk_docs", docs).await.status, 201);
        }
        let doc = couch.get("/db/doc").await;
        let rev = if doc.status == 200 { doc.json()["_rev"].as_str().unwrap().to_owned() } else { "1-abc".into() };
        let method = one(METHODS, dice);
        let path = if dice.random() { one(PATHS, dice) } else { one(DOCUMENTS, dice) };
        let mut url = format!("{}{path}", couch.base);
        for part in 0..dice.random_range(0..4) {
            let separator = if part == 0 { '?' } else { '&' };
            let value = escaped(&one(VALUES, dice).replace("REV", &rev));
            url += &format!("{separator}{}={value}", one(NAMES, dice));
        }
        let mut request = client.request(method.parse().unwrap(), &url).timeout(Duration::from_secs(60));
        let mut said = String::new();
        for _ in 0..dice.random_range(0..4) {
            let name = one(if dice.random() { COMMON } else { HEADERS }, dice);
            let value = one(if dice.random_ratio(1, 4) { ODD } else { HEADER_VALUES }, dice).replace("REV", &rev);
            said += &format!("\n{name}: {value}");
            request = request.header(name, value);
        }
        let body = one(BODIES, dice).replace("REV", &rev);
        let what = format!("{method} {url}{said}\n\n{body}");
        let answer = match request.body(body).send().await {
            Ok(answer) => answer,
            Err(error) => panic!("{error:?}: {what}"),
        };
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap_or_else(|error| panic!("{error:?}: {what}"));
        assert!(status < 500 || status == 501, "{status} {text}: {what}");
        *if status < 400 { &mut fine } else { &mut refused } += 1;
    }
    println!("{fine} done, {refused} refused");
    assert!(fine > TRIES / 20 && refused > TRIES / 20, "the dice try only one kind: {fine} done, {refused} refused");
}
