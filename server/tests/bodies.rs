//! Bodies of millions of small entries, as a server program takes them: each in a few times its bytes, and the server answers
//! the next one.

#![cfg(feature = "mem")]

#[path = "program/server.rs"]
mod process;

use std::io::Write;
use std::time::Instant;

use process::Process;
use serde_json::json;

/// Size of a body.
const BYTES: usize = 2 << 20;

/// How many times its own bytes a body may take.
const MOST_TIMES: u64 = 12;

/// What a request may take beside that: buffers, threads, and lists with their greatest number of entries.
const MOST_BESIDE: u64 = 40 << 20;

/// A line of `/proc/PID/status` in bytes; `None` where the system has none.
fn memory(server: &Process, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).ok()?;
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// A body that repeats an entry between two texts, until it is large.
fn filled(before: &str, entry: &str, after: &str) -> String {
    let count = (BYTES - before.len() - after.len()) / (entry.len() + 1);
    format!("{before}{}{after}", vec![entry; count].join(","))
}

/// The same with a number in place of `#`, so that no two entries are equal.
fn numbered(before: &str, entry: &str, after: &str) -> String {
    let count = (BYTES - before.len() - after.len()) / (entry.len() + 7);
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

fn cases() -> Vec<Case> {
    let post = |path, body, status| ("POST", path, body, status);
    let mut cases = Vec::new();
    for entry in ["0", "{}", "[]", "\"\""] {
        cases.push(post("/pub/_bulk_docs", filled("{\"docs\":[", entry, "]}"), 413));
        cases.push(post("/pub/_bulk_get", filled("{\"docs\":[", entry, "]}"), 413));
    }
    let attachments = numbered("", r##""#":{"stub":true}"##, "");
    let within = numbered(r#"{"docs":[{"_attachments":{"#, r##""#":{"stub":true}"##, "}}]}");
    let histories = r#"{"new_edits":false,"docs":[{"_id":"a","_revisions":{"start":99999999,"ids":["#;
    cases.extend([
        post("/pub/_bulk_docs", within, 413),
        post("/pub/_bulk_docs", filled(histories, "\"a\"", "]}}]}"), 201),
        post("/pub/_bulk_docs", numbered("{\"docs\":[{", "\"_#\":0", "}]}"), 400),
        post("/pub/_bulk_docs", format!("{{\"docs\":{}", "[".repeat(BYTES)), 400),
        post("/pub/_bulk_get", filled(r#"{"docs":[{"id":"a","atts_since":["#, "\"1-a\"", "]}]}"), 200),
        post("/_transact", filled("{\"edits\":[", r#"{"db":"pub","doc":{}}"#, "]}"), 413),
        post("/pub/_revs_diff", numbered("{", "\"#\":[\"1-a\"]", "}"), 200),
        post("/pub/_missing_revs", numbered("{", "\"#\":[]", "}"), 200),
        post("/pub/_revs_diff", filled("{\"a\":[", "\"1-a\"", "]}"), 413),
        post("/pub/_purge", filled("{\"a\":[", "\"1-a\"", "]}"), 413),
        post("/pub/_all_docs", filled("{\"keys\":[", "0", "]}"), 200),
        post("/pub/_all_docs?descending=true", filled("{\"keys\":[", "\"a\"", "]}"), 200),
        post("/pub/_design_docs", filled("{\"keys\":[", "\"a\"", "]}"), 200),
        post("/pub/_local_docs", filled("{\"keys\":[", "\"_local/a\"", "]}"), 200),
        post("/pub/_all_docs/queries", filled("{\"queries\":[", "{}", "]}"), 413),
        post("/pub/_all_docs/queries", numbered("{\"queries\":[{", "\"#\":0", "}]}"), 413),
        post("/pub/_all_docs/queries", filled("{\"queries\":[{\"keys\":[", "0", "]}]}"), 200),
        post("/pub/_changes?filter=_doc_ids", filled("{\"doc_ids\":[", "0", "]}"), 400),
        post("/pub/_changes?filter=_doc_ids", numbered("{\"doc_ids\":[", "\"#\"", "]}"), 200),
        post("/pub/_changes?filter=_selector", filled(r#"{"selector":{"$or":["#, "{}", "]}}"), 400),
        post("/pub/_find", filled(r#"{"selector":{"n":{"$in":["#, "0", "]}}}"), 200),
        post("/pub/_find", filled(r#"{"selector":{"n":{"$all":["#, "0", "]}}}"), 200),
        post("/pub/_find", filled(r#"{"selector":{"$or":["#, r#"{"$and":[]}"#, "]}}"), 400),
        post("/pub/_find", filled(r#"{"selector":{"$nor":["#, r#"{"$and":[{"$and":[{"$and":[]}]}]}"#, "]}}"), 400),
        post("/pub/_find", format!(r#"{{"selector":{{"{}":1}}}}"#, "a.".repeat(BYTES / 2)), 400),
        post("/pub/_find", filled(r#"{"selector":{},"sort":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", filled(r#"{"selector":{},"fields":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", filled(r#"{"selector":{},"use_index":["#, "\"a\"", "]}"), 400),
        post("/pub/_find", format!(r#"{{"selector":{{}},"use_index":"{}"}}"#, "/".repeat(BYTES)), 400),
        post("/pub/_index", filled(r#"{"index":{"fields":["#, "\"a\"", "]}}"), 400),
        post("/pub/_index/_bulk_delete", filled("{\"docids\":[", "\"a\"", "]}"), 400),
        post("/_dbs_info", filled("{\"keys\":[", "\"a\"", "]}"), 400),
        post("/_cluster_setup", filled("{\"ensure_dbs_exist\":[", "\"A\"", "]}"), 413),
        ("PUT", "/pub/large", numbered("{", "\"#\":0", "}"), 201),
        ("PUT", "/pub/doubled", filled("{", "\"\":0", "}"), 201),
        ("PUT", "/pub/attached", format!("{{\"_attachments\":{{{attachments}}}}}"), 413),
        ("PATCH", "/pub/doc", filled("[", r#"{"op":"remove","path":""}"#, "]"), 409),
        ("PATCH", "/pub/doc", filled("[", &format!(r#"{{"op":"remove","path":"{}"}}"#, "/a".repeat(999)), "]"), 400),
    ]);
    #[cfg(feature = "javascript")]
    cases.extend([
        post("/pub/_design/d/_view/v", filled("{\"keys\":[", "0", "]}"), 200),
        post("/pub/_design/d/_view/v/queries", filled("{\"queries\":[", "{}", "]}"), 413),
        post("/pub/_design/d/_update/form", "a&".repeat(BYTES / 2), 413),
    ]);
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_takes_a_few_times_its_bytes() {
    let server = Process::start(&["--engine", "mem:"]);
    let client = reqwest::Client::new();
    let send = async |method: &str, path: &str, kind: &str, body: Vec<u8>, is_packed: bool| {
        let request = client.request(method.parse().unwrap(), server.url(path)).header("content-type", kind);
        let request = if is_packed { request.header("content-encoding", "gzip") } else { request };
        request.body(body).send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    };
    let put = async |path: &str, body: serde_json::Value| {
        let answer = send("PUT", path, "application/json", body.to_string().into_bytes(), false).await;
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
    };
    put("/pub", json!({})).await;
    put("/pub/_security", json!({})).await;
    put("/pub/doc", json!({"n": 0})).await;
    let views = json!({"v": {"map": "function (doc) { emit(doc.n, 1); }"}});
    let updates = json!({"form": "function (doc, req) { return [null, 'ok']; }"});
    put("/pub/_design/d", json!({"views": views, "updates": updates})).await;
    if cfg!(feature = "javascript") {
        let built = send("POST", "/pub/_design/d/_view/v", "application/json", b"{}".to_vec(), false).await;
        assert_eq!(built.status(), 200);
    }
    // What an earlier request took may still be there, so nothing else is compared with.
    let before = memory(&server, "VmRSS");
    let mut wrong = Vec::new();
    for (method, path, body, expected) in cases() {
        let kind = match (method, path.ends_with("/form")) {
            ("PATCH", _) => "application/json-patch+json",
            (_, true) => "application/x-www-form-urlencoded",
            _ => "application/json",
        };
        let (begun, bytes) = (Instant::now(), body.len() as u64);
        // From here on the peak counts anew.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5");
        let mut answer = send(method, path, kind, packed(&body), true).await;
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
