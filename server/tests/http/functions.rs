//! Functions of design documents over HTTP.

use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::support::Couch;

fn ids(answer: &Value) -> Vec<&str> {
    answer["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

async fn with_filters() -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch
        .put(
            "/db/_design/d",
            json!({
                "helpers": {"kind": "exports.of = function(doc) { return doc.kind }"},
                "filters": {
                    "kind": "function(doc, req) { return require('helpers/kind').of(doc) == req.query.kind }",
                    "gone": "function(doc) { return doc._deleted }",
                    "design": "function(doc) { return doc._id.indexOf('_design/') == 0 }",
                    "asked": "function(doc, req) { return doc.kind == JSON.parse(req.body).kind && req.method == 'POST' && req.info.db_name == 'db' && req.userCtx.roles[0] == '_admin' && req.path[1] == '_changes' && isArray(req.secObj.admins.roles) }",
                    "broken": "function(doc) { return doc.x.y }",
                    "endless": "function(doc) { for (;;) {} }",
                    "no": "function f(doc) {}"
                },
                "views": {"red": {"map": "function(doc) { if (doc.kind == 'red') emit(doc._id, null) }"}}
            }),
        )
        .await;
    for (id, kind) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        couch.put(&format!("/db/{id}"), json!({"kind": kind})).await;
    }
    couch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_function_selects_changes() {
    let couch = with_filters().await;
    let changes = |query: &'static str| {
        let couch = &couch;
        async move { couch.get(&format!("/db/_changes?{query}")).await.json() }
    };
    assert_eq!(ids(&changes("filter=d/kind&kind=red").await), ["a", "c"]);
    assert_eq!(ids(&changes("filter=d/kind&kind=blue&include_docs=true").await), ["b"]);
    assert_eq!(ids(&changes("filter=d/kind&kind=red&limit=1").await), ["a"]);
    assert_eq!(ids(&changes("filter=d/kind&kind=red&descending=true").await), ["c", "a"]);
    assert_eq!(ids(&changes("filter=d/design").await), ["_design/d"]);
    assert_eq!(ids(&changes("filter=d/gone").await), [""; 0]);
    let rev = couch.get("/db/a").await.json()["_rev"].as_str().unwrap().to_owned();
    couch.call("DELETE", &format!("/db/a?rev={rev}")).await;
    assert_eq!(ids(&changes("filter=d/gone").await), ["a"]);
    let posted = couch.json("POST", "/db/_changes?filter=d/asked", json!({"kind": "blue"})).await.json();
    assert_eq!(ids(&posted), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_is_asked_about_each_leaf() {
    let couch = with_filters().await;
    for (rev, kind) in [("1-a", "red"), ("1-b", "blue"), ("1-c", "red")] {
        let docs = json!({"new_edits": false, "docs": [{"_id": "many", "_rev": rev, "kind": kind}]});
        couch.json("POST", "/db/_bulk_docs", docs).await;
    }
    let changes = couch.get("/db/_changes?filter=d/kind&kind=blue&style=all_docs").await.json();
    assert_eq!(ids(&changes), ["b", "many"]);
    assert_eq!(changes["results"][1]["changes"], json!([{"rev": "1-b"}]));
    // The winner alone.
    assert_eq!(ids(&couch.get("/db/_changes?filter=d/kind&kind=blue").await.json()), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_a_filter() {
    let couch = with_filters().await;
    assert_eq!(ids(&couch.get("/db/_changes?filter=_view&view=d/red").await.json()), ["a", "c"]);
    let reason = "`view` filter parameter is not provided.";
    couch.get("/db/_changes?filter=_view").await.refused(400, "bad_request", reason);
    couch.get("/db/_changes?filter=_view&view=d/none").await.refused(404, "not_found", "missing json key: none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_filter_is_an_error() {
    let couch = with_filters().await;
    couch.get("/db/_changes?filter=d/none").await.refused(404, "not_found", "missing json key: none");
    couch.get("/db/_changes?filter=none/none").await.refused(404, "not_found", "missing");
    let reason = "`filter` must be of the form `designname/filtername`";
    couch.get("/db/_changes?filter=d").await.refused(400, "bad_request", reason);
    let answer = couch.get("/db/_changes?filter=d/no").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (500, &json!("compilation_error")));
    let reason = "filters/broken: TypeError: cannot read property 'y' of undefined (document \"_design/d\")";
    couch.get("/db/_changes?filter=d/broken").await.refused(500, "TypeError", reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_filter_ends_and_harms_nobody() {
    let couch = with_filters().await;
    let endless = couch.get("/db/_changes?filter=d/endless");
    let (endless, other) = tokio::join!(endless, couch.get("/db/_changes?filter=d/kind&kind=red"));
    let reason = "filters/endless: the function took longer than 5s (document \"_design/d\")";
    endless.refused(500, "os_process_error", reason);
    assert_eq!(ids(&other.json()), ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_function_keeps_stays_in_its_database() {
    let couch = Couch::start().await;
    let keep = "function(doc, req) { globalThis.kept = (globalThis.kept || 0) + 1; return true }";
    let design = json!({
        "filters": {"keep": keep, "kept": "function() { return globalThis.kept > 0 }"},
        "validate_doc_update": "function(doc) { if (doc.ask) throw({forbidden: String(globalThis.seen)}); globalThis.seen = doc._id }",
        "views": {"v": {"map": "function(doc) { emit(globalThis.last); globalThis.last = doc._id }"}}
    });
    for db in ["private", "public"] {
        couch.database(db).await;
        couch.put(&format!("/{db}/_design/d"), design.clone()).await;
    }
    let read_public = async || {
        assert_eq!(ids(&couch.get("/public/_changes?filter=d/kept").await.json()), [""; 0]);
        couch.json("PUT", "/public/x", json!({"ask": 1})).await.refused(403, "forbidden", "undefined");
    };
    // Repeated, since each thread has its own sandboxes.
    for n in 0..12 {
        couch.get("/private/_changes?filter=d/keep").await;
        couch.put(&format!("/private/a{n}"), json!({})).await;
        read_public().await;
    }
    assert_eq!(couch.get("/private/_design/d/_view/v").await.json()["total_rows"], 12);
    // A new database with the name of an old one is another one.
    assert_eq!(couch.call("DELETE", "/private").await.status, 200);
    couch.database("private").await;
    couch.put("/private/_design/d", design).await;
    for _ in 0..12 {
        assert_eq!(ids(&couch.get("/private/_changes?filter=d/kept").await.json()), [""; 0]);
        couch.json("PUT", "/private/x", json!({"ask": 1})).await.refused(403, "forbidden", "undefined");
    }
    couch.put("/public/one", json!({})).await;
    let rows = couch.get("/public/_design/d/_view/v").await.json();
    assert_eq!(rows["rows"][0]["key"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_that_wait_are_filtered() {
    let couch = with_filters().await;
    let last = couch.get("/db/_changes").await.json()["last_seq"].as_str().unwrap().to_owned();
    let path = format!("/db/_changes?feed=longpoll&filter=d/kind&kind=red&timeout=60000&since={last}");
    let (changes, ()) = tokio::join!(couch.get(&path), async {
        couch.put("/db/d", json!({"kind": "blue"})).await;
        couch.put("/db/e", json!({"kind": "red"})).await;
    });
    assert_eq!(ids(&changes.json()), ["e"]);
    let path = format!("/db/_changes?feed=continuous&filter=d/kind&kind=red&timeout=10&since={last}");
    let lines = couch.get(&path).await.text;
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["id"]), (2, &json!("e")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_function_writes_and_answers() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let updates = json!({
        "bump": "function(doc, req) { if (!doc) return [null, 'none']; doc.n = (doc.n || 0) + 1; return [doc, {json: {n: doc.n}, headers: {'X-More': 'yes'}}] }",
        "make": "function(doc, req) { return [{_id: req.id || req.uuid, body: req.body, form: req.form.a, at: new Date().getTime() > 0}, 'made'] }",
        "nameless": "function() { return [{}, 'x'] }",
        "code": "function() { return [null, {code: 418, base64: 'AAE=', headers: {'Content-Security-Policy': 'script-src *'}}] }",
        "broken": "function(doc) { return doc.x }",
        "nothing": "function() {}",
        "bad": "function(doc, req) { return [{_id: 'unsaved'}, {code: 'x'}] }",
        "lines": "function() { return [{_id: 'lines'}, {body: 'x', headers: {'X-A': 'a\\nX-B: b', 'X\\nC': 'c', 'X-D': 'd'}}] }",
        "seen": "function(doc, req) { return [null, {json: [req.headers['X-Mine-Too'], doc._revisions.start]}] }",
        "text": "function() { return [false, {code: '404', headers: {}}] }",
        "throws": "function() { throw ['error', 'not_found', 'no such thing'] }",
        "throws_other": "function() { throw ['fatal', 'mine', {a: 1}] }"
    });
    couch.put("/db/_design/u", json!({"updates": updates})).await;
    couch.put("/db/a", json!({})).await;
    let update = |path: &str| {
        let (couch, path) = (&couch, format!("/db/_design/u/_update/{path}"));
        async move { couch.raw("PUT", &path, "").await }
    };
    let answer = update("bump/a").await;
    assert_eq!((answer.status.as_u16(), answer.json(), answer.header("x-more")), (201, json!({"n": 1}), "yes"));
    let document = couch.get("/db/a").await.json();
    assert_eq!(answer.header("x-couch-update-newrev"), document["_rev"].as_str().unwrap());
    assert_eq!((answer.header("x-couch-id"), &document["n"]), ("a", &json!(1)));
    assert_eq!(answer.header(CONTENT_TYPE.as_str()), "application/json");
    let none = update("bump/none").await;
    assert_eq!((none.status.as_u16(), none.text.as_str()), (200, "none"));
    assert_eq!(none.header(CONTENT_TYPE.as_str()), "text/html; charset=utf-8");
    let form = couch.request("POST", "/db/_design/u/_update/make/made/twice");
    let form = form.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body("a=1%202");
    let answer = couch.send(form).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-couch-id")), (201, "made%2Ftwice"));
    let made = couch.get("/db/made%2Ftwice").await.json();
    assert_eq!((&made["body"], &made["form"], &made["at"]), (&json!("a=1%202"), &json!("1 2"), &json!(true)));
    let made = couch.raw("POST", "/db/_design/u/_update/make", "").await;
    assert_eq!(couch.get(&format!("/db/{}", made.header("x-couch-id"))).await.status, 200);
    let code = update("code").await;
    assert_eq!((code.status.as_u16(), code.text.as_bytes()), (418, &[0, 1][..]));
    for page in [&none, &code] {
        assert_eq!(page.header("content-security-policy"), "sandbox");
    }
    update("nameless").await.refused(400, "illegal_docid", "Document id must not be empty");
    update("none").await.refused(404, "not_found", "missing json key: none");
    update("nothing").await.refused(500, "render_error", "undefined response from update function");
    update("bad").await.refused(500, "external_response_error", "invalid code");
    assert_eq!(couch.get("/db/unsaved").await.status, 404, "an edit that nobody is told of");
    let lines = update("lines").await;
    assert_eq!((lines.status.as_u16(), lines.header("x-couch-id"), lines.header("x-d")), (201, "lines", "d"));
    assert_eq!([lines.header("x-a"), lines.header("x-b")], ["", ""]);
    // Only a document is written, and an answer without a body is not a page.
    let text = update("text").await;
    assert_eq!((text.status.as_u16(), text.header(CONTENT_TYPE.as_str())), (404, "application/json"));
    let seen = couch.request("POST", "/db/_design/u/_update/seen/a").header("x-mine-TOO", "m");
    assert_eq!(couch.send(seen).await.json(), json!(["m", 2]));
    update("throws").await.refused(404, "not_found", "no such thing");
    update("throws_other").await.refused(500, "mine", "{\"a\":1}");
    let broken = update("broken").await;
    assert_eq!((broken.status.as_u16(), &broken.json()["error"]), (500, &json!("render_error")));
    couch.get("/db/_design/u/_update/bump").await.refused(
        405,
        "method_not_allowed",
        "Update functions do not allow GET",
    );
}
