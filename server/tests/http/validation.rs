//! `validate_doc_update`: CouchDB's answers on every way to write.

use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::rights::{admin, as_user, with_users};
use crate::support::Couch;

const FUNCTION: &str = "function(newDoc, oldDoc, userCtx, secObj) {
    if (newDoc.who) throw({unauthorized: userCtx.db + ' ' + userCtx.roles[0] + ' ' + isArray(secObj.admins.roles)});
    if (newDoc.object) throw({forbidden: {a: 1}});
    if (newDoc.text) throw('broken');
    if (newDoc.list) throw(newDoc.list);
    if (newDoc.error) newDoc.no.member;
    if (newDoc.endless) for (;;);
    if (newDoc._deleted) throw({forbidden: 'Nothing goes.'});
    if (oldDoc && oldDoc.kind != newDoc.kind) throw({forbidden: 'A ' + oldDoc.kind + ' stays one.'});
    if (newDoc.bad || (newDoc._attachments || {}).bad) throw({forbidden: 'bad'});
}";

async fn with_validation() -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/_design/v", json!({"validate_doc_update": FUNCTION})).await;
    couch
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_function_throws_is_answered_as_couchdb_answers_it() {
    let couch = with_validation().await;
    let put = |document: Value| couch.json("PUT", "/db/x", document);
    put(json!({"bad": 1})).await.refused(403, "forbidden", "bad");
    // Any JSON is a reason.
    let object = put(json!({"object": 1})).await;
    assert_eq!((object.status.as_u16(), object.json()), (403, json!({"error": "forbidden", "reason": {"a": 1}})));
    put(json!({"who": 1})).await.refused(401, "unauthorized", "db _admin true");
    let reason = r#"_design/v: validate_doc_update: broken (document "x")"#;
    put(json!({"text": 1})).await.refused(500, "unknown_error", reason);
    // A list names an error, and CouchDB has a status for some names.
    for (list, status, error, reason) in [
        (json!(["error", "mine", "why"]), 500, "mine", "why"),
        (json!(["fatal", "forbidden", "why"]), 403, "forbidden", "why"),
        (json!(["error", "not_found", {"a": 1}]), 404, "not_found", r#"{"a":1}"#),
        (json!(["error", "conflict", "why"]), 409, "conflict", "Document update conflict."),
    ] {
        put(json!({ "list": list })).await.refused(status, error, reason);
        let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "x", "list": list}]})).await;
        assert_eq!(bulk.json(), json!([{"id": "x", "error": error, "reason": reason}]));
    }
    for list in [json!(["error", "mine"]), json!(["other", "mine", "why"]), json!([])] {
        let answer = put(json!({ "list": list })).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (500, &json!("unknown_error")), "{list}");
    }
    let answer = put(json!({"error": 1})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (500, &json!("TypeError")));
    let (endless, other) = tokio::join!(put(json!({"endless": 1})), couch.json("PUT", "/db/y", json!({})));
    let reason = r#"_design/v: validate_doc_update: the function took longer than 5s (document "x")"#;
    endless.refused(500, "os_process_error", reason);
    assert_eq!(other.status, 201, "{}", other.text);
    assert_eq!(couch.get("/db/x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_have_the_time() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let time = "if (!(Date.now() > 1.7e12 && new Date() > 1.7e12)) throw({forbidden: 'no time'});";
    let validate = format!("function(doc) {{ {time} if (doc.until < Date.now()) throw({{forbidden: 'too late'}}) }}");
    let filters = json!({"time": format!("function(doc) {{ {time} return doc.until > Date.now() }}")});
    couch.put("/db/_design/v", json!({"validate_doc_update": validate, "filters": filters})).await;
    couch.put("/db/a", json!({"until": 1e14})).await;
    couch.json("PUT", "/db/b", json!({"until": 1e12})).await.refused(403, "forbidden", "too late");
    let changes = couch.get("/db/_changes?filter=v/time").await.json();
    assert_eq!((changes["results"].as_array().unwrap().len(), &changes["results"][0]["id"]), (1, &json!("a")));
    couch.put("/db/_design/w", json!({"views": {"v": {"map": "function(doc) { emit(new Date()) }"}}})).await;
    assert_eq!(couch.get("/db/_design/w/_view/v").await.json()["total_rows"], 0);
    let info = couch.get("/db/_design/w/_info").await.text;
    assert!(info.contains("There is no current time in map and reduce functions"), "{info}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_no_function_can_be_given_is_refused_as_too_large() {
    let couch = with_validation().await;
    let nested = |open: &str, inner: &str, close: &str| {
        format!("{{\"a\":{}{inner}{}}}", open.repeat(900_000), close.repeat(900_000))
    };
    for document in
        [nested("[", "", "]"), nested("{\"\":", "1", "}"), format!("{{\"a\":[{}{{}}]}}", "{},".repeat(1_000_000))]
    {
        let answer = couch.raw("PUT", "/db/x", document.clone()).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (413, &json!("document_too_large")));
        assert!(
            answer.json()["reason"].as_str().unwrap().starts_with("_design/v: validate_doc_update: "),
            "{}",
            answer.text
        );
        let bulk = couch.raw("POST", "/db/_bulk_docs", format!("{{\"docs\":[{document},{{\"_id\":\"y\"}}]}}")).await;
        let rows = bulk.json();
        assert_eq!((&rows[0]["error"], &rows[1]["id"]), (&json!("document_too_large"), &json!("y")), "{rows}");
        let rev = rows[1]["rev"].as_str().unwrap_or_else(|| panic!("{rows}")).to_owned();
        let gone = json!({"y": [rev]});
        assert_eq!(couch.json("POST", "/db/_purge", gone).await.status, 201);
    }
    assert_eq!(couch.get("/db/x").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_design_document_whose_functions_are_too_deep_or_too_large_is_refused() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let braces = |count: usize| format!("function(doc) {{ {}{} }}", "{".repeat(count), "}".repeat(count));
    let list = format!("function(doc) {{ return [{}] }}", "{},".repeat(2_500_000));
    for function in [braces(200_000), format!("function(doc) {{ return {}1 }}", "-(".repeat(200_000)), list] {
        for design in [json!({"validate_doc_update": function}), json!({"views": {"v": {"map": function}}})] {
            let answer = couch.json("PUT", "/db/_design/d", design).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (400, &json!("compilation_error")));
        }
    }
    // These may be too deep, or not. Nothing breaks.
    for count in [1_000, 5_000, 20_000] {
        let answer =
            couch.json("PUT", &format!("/db/_design/{count}"), json!({"validate_doc_update": braces(count)})).await;
        assert!(matches!(answer.status.as_u16(), 201 | 400), "{count}: {:.500}", answer.text);
    }
    couch.put("/db/_design/d", json!({"views": {"v": {"map": braces(10)}}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_write_is_validated() {
    let couch = with_validation().await;
    let rev = couch.put("/db/a", json!({"kind": "song"})).await;
    couch.json("POST", "/db", json!({"bad": 1})).await.refused(403, "forbidden", "bad");
    let other = json!({"_rev": rev, "kind": "x"});
    couch.json("PUT", "/db/a", other).await.refused(403, "forbidden", "A song stays one.");
    couch.call("DELETE", &format!("/db/a?rev={rev}")).await.refused(403, "forbidden", "Nothing goes.");
    let replicated = json!({"_rev": "1-a", "bad": 1});
    couch.json("PUT", "/db/x?new_edits=false", replicated).await.refused(403, "forbidden", "bad");
    let patch = couch.request("PATCH", "/db/a").header(CONTENT_TYPE, "application/merge-patch+json");
    couch.send(patch.body(r#"{"bad":1}"#)).await.refused(403, "forbidden", "bad");
    couch.raw("PUT", &format!("/db/a/bad?rev={rev}"), "x").await.refused(403, "forbidden", "bad");
    couch.raw("PUT", "/db/new/bad", "x").await.refused(403, "forbidden", "bad");
    let related = "--b\r\ncontent-type: application/json\r\n\r\n\
        {\"_attachments\":{\"bad\":{\"follows\":true,\"length\":1,\"content_type\":\"x\"}}}\r\n--b\r\n\r\ny\r\n--b--";
    let multipart = couch.request("PUT", "/db/related").header(CONTENT_TYPE, "multipart/related;boundary=b");
    couch.send(multipart.body(related)).await.refused(403, "forbidden", "bad");

    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "b"}, {"_id": "c", "bad": 1}]})).await;
    assert_eq!((bulk.status.as_u16(), &bulk.json()[0]["ok"]), (201, &json!(true)));
    assert_eq!(bulk.json()[1], json!({"id": "c", "error": "forbidden", "reason": "bad"}));
    let docs = json!([{"_id": "d", "_rev": "1-d"}, {"_id": "e", "_rev": "1-e", "bad": 1}]);
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    let refused = json!([{"id": "e", "rev": "1-e", "error": "forbidden", "reason": "bad"}]);
    assert_eq!((bulk.status.as_u16(), bulk.json()), (201, refused));
    let many: Vec<Value> = (0..300).map(|n| json!({"_id": format!("many{n}"), "bad": n % 2})).collect();
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": many})).await.json();
    let written = bulk.as_array().unwrap().iter().filter(|row| row["ok"] == json!(true)).count();
    assert_eq!(written, 150, "0 is false");
    let edits = json!({"edits": [{"db": "db", "doc": {"_id": "f"}}, {"db": "db", "doc": {"_id": "g", "bad": 1}}]});
    let refused = couch.json("POST", "/_transact", edits).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["edits"][0]["reason"]), (403, &json!("bad")));
    for id in ["x", "c", "e", "f", "g", "new", "related"] {
        assert_eq!(couch.get(&format!("/db/{id}")).await.status, 404, "{id}");
    }
    // Local documents, design documents and purges are not validated.
    couch.json("PUT", "/db/_local/a", json!({"bad": 1})).await;
    couch.put("/db/_design/other", json!({"bad": 1})).await;
    assert_eq!(couch.json("POST", "/db/_purge", json!({"a": [rev]})).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_before_the_function_is_validated_when_it_changes_or_moves() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/bad", json!({"bad": 1})).await;
    let bad = couch.put("/db/too", json!({"bad": 1})).await;
    let attached = couch.raw("PUT", &format!("/db/too/file?rev={bad}"), "x").await.json();
    let attached = attached["rev"].as_str().unwrap();
    couch.put("/db/_design/v", json!({"validate_doc_update": FUNCTION})).await;
    let copy = couch.request("COPY", "/db/bad").header("destination", "copy");
    couch.send(copy).await.refused(403, "forbidden", "bad");
    let path = format!("/db/too/file?rev={attached}");
    couch.raw("PUT", &path, "y").await.refused(403, "forbidden", "bad");
    couch.call("DELETE", &path).await.refused(403, "forbidden", "bad");
    let updates = json!({"updates": {"u": "function() { return [{_id: 'u', bad: 1}, 'x'] }"}});
    couch.put("/db/_design/u", updates).await;
    couch.raw("POST", "/db/_design/u/_update/u", "").await.refused(403, "forbidden", "bad");
    assert_eq!(couch.get("/db/u").await.status, 404);

    // Replication by the server: failures are counted, and the rest arrives.
    couch.database("target").await;
    couch.put("/target/_design/v", json!({"validate_doc_update": FUNCTION})).await;
    couch.put("/db/_design/none", json!({})).await;
    let done = couch.json("POST", "/_replicate", json!({"source": "db", "target": "target"})).await.json();
    let history = &done["history"][0];
    assert_eq!((&history["doc_write_failures"], &history["docs_written"]), (&json!(2), &json!(2)), "{done}");
    for id in ["bad", "too"] {
        assert_eq!(couch.get(&format!("/target/{id}")).await.status, 404);
    }
    // A deleted function is no longer called.
    let rev = couch.get("/db/_design/v").await.json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(couch.call("DELETE", &format!("/db/_design/v?rev={rev}")).await.status, 200);
    couch.put("/db/later", json!({"bad": 1})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_cannot_run_blocks_every_write_but_its_repair() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let put = |design: Value| couch.json("PUT", "/db/_design/v", design);
    let answer = put(json!({"validate_doc_update": "function("})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (400, &json!("compilation_error")));
    let reason = "`validate_doc_update` field must have string type";
    put(json!({"validate_doc_update": 1})).await.refused(400, "invalid_design_doc", reason);
    let answer = put(json!({"language": "erlang", "validate_doc_update": "fun"})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (400, &json!("invalid_design_doc")));
    couch.put("/db/before", json!({})).await;

    let docs = json!([{"_id": "_design/v", "_rev": "1-a", "validate_doc_update": "function("}]);
    let replicated = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(replicated.json(), json!([]));
    let answer = couch.json("PUT", "/db/a", json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (500, &json!("compilation_error")));
    assert!(answer.json()["reason"].as_str().unwrap().starts_with("_design/v: "), "{}", answer.text);
    assert_eq!(couch.json("PUT", "/db/_local/a", json!({})).await.status, 201);
    couch.put("/db/_design/v", json!({"_rev": "1-a", "validate_doc_update": "function() {}"})).await;
    couch.put("/db/a", json!({})).await;
}

/// As in CouchDB's own test of them.
#[tokio::test(flavor = "multi_thread")]
async fn selectors_of_the_language_query_validate() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let design = |selector: Value| json!({"language": "query", "validate_doc_update": selector});
    let reason = "`validate_doc_update` field must have string type";
    let text = json!({"validate_doc_update": {"newDoc": {}}});
    couch.json("PUT", "/db/_design/v", text).await.refused(400, "invalid_design_doc", reason);
    let reason = "`validate_doc_update`: Selector error: expected a JSON object";
    couch.json("PUT", "/db/_design/v", design(json!("x"))).await.refused(400, "invalid_design_doc", reason);
    let rev = couch.put("/db/_design/v", design(json!({"newDoc": {"type": {"$exists": true}}}))).await;
    couch.put("/db/doc", json!({"type": "movie"})).await;
    couch.json("PUT", "/db/none", json!({"no": "type"})).await.refused(403, "forbidden", "document is not valid");
    let docs = json!({"docs": [{"_id": "a", "type": 1}, {"_id": "b"}]});
    let bulk = couch.json("POST", "/db/_bulk_docs", docs).await.json();
    assert_eq!(bulk[0]["ok"], true);
    assert_eq!(bulk[1], json!({"id": "b", "error": "forbidden", "reason": "document is not valid"}));

    // The documentation's second example.
    let either = json!({"newDoc": {
        "type": {"$in": ["movie", "actor"]},
        "$or": [
            {"type": "movie", "title": {"$type": "string"}, "year": {"$type": "number"}},
            {"type": "actor", "name": {"$type": "string"},
             "movies": {"$type": "array", "$not": {"$size": 0}, "$allMatch": {"$type": "string"}}}
        ]
    }});
    let mut changed = design(either);
    changed["_rev"] = json!(rev);
    let rev = couch.put("/db/_design/v", changed).await;
    for (id, valid, document) in [
        ("m", true, json!({"type": "movie", "title": "Z", "year": 1969})),
        ("n", false, json!({"type": "movie", "title": "Z", "year": "1969"})),
        ("o", true, json!({"type": "actor", "name": "Y", "movies": ["Z"]})),
        ("p", false, json!({"type": "actor", "name": "Y", "movies": []})),
        ("q", false, json!({"type": "actor", "name": "Y", "movies": ["Z", 1]})),
        ("r", false, json!({"type": "song"})),
    ] {
        let answer = couch.json("PUT", &format!("/db/{id}"), document).await;
        assert_eq!(answer.status.as_u16(), if valid { 201 } else { 403 }, "{id}: {}", answer.text);
    }
    // A function instead of the selector, and nothing.
    let rev = couch.put("/db/_design/v", json!({"_rev": rev, "validate_doc_update": FUNCTION})).await;
    couch.put("/db/song", json!({"type": "song"})).await;
    couch.json("PUT", "/db/s", json!({"bad": 1})).await.refused(403, "forbidden", "bad");
    assert_eq!(couch.call("DELETE", &format!("/db/_design/v?rev={rev}")).await.status, 200);
    couch.put("/db/s", json!({"bad": 1})).await;
}

/// Rules as those of CouchDB's documentation for `_users`: documents belong to those who wrote them.
const OWNERS: &str = "function(newDoc, oldDoc, userCtx, secObj) {
    var isAdmin = userCtx.roles.indexOf('_admin') !== -1 ||
        secObj.admins.names.indexOf(userCtx.name) !== -1;
    if (!userCtx.name) throw({unauthorized: 'Log in first.'});
    if (newDoc._deleted === true) {
        if (isAdmin || userCtx.name == oldDoc.owner) return;
        throw({forbidden: 'Only admins may delete other docs.'});
    }
    if ((oldDoc && oldDoc.type !== 'note') || newDoc.type !== 'note') throw({forbidden: 'doc.type must be note'});
    if (!newDoc.tags || !isArray(newDoc.tags)) throw({forbidden: 'doc.tags must be an array'});
    if (oldDoc && oldDoc.owner !== newDoc.owner) throw({forbidden: 'Owners can not be changed.'});
    if (!isAdmin && newDoc.owner !== userCtx.name) throw({forbidden: 'You may only write your own notes.'});
}";

#[tokio::test(flavor = "multi_thread")]
async fn the_users_function_of_the_documentation() {
    let couch = with_users(&[("anna", &[]), ("ben", &[]), ("chef", &[])]).await;
    admin(&couch, "PUT", "/db", json!({})).await;
    let security = json!({"admins": {"names": ["chef"], "roles": []}, "members": {"names": [], "roles": []}});
    assert_eq!(admin(&couch, "PUT", "/db/_security", security).await.status, 200);
    let design = json!({"validate_doc_update": OWNERS});
    assert_eq!(admin(&couch, "PUT", "/db/_design/owners", design).await.status, 201);
    let by = async |name: &str, method: &str, path: &str, body: Value| {
        as_user(&couch, name, &format!("pw {name}"), method, path, body).await
    };
    let note = |owner: &str| json!({"type": "note", "tags": [], "owner": owner});
    couch.json("PUT", "/db/a", note("anna")).await.refused(401, "unauthorized", "Log in first.");
    let written = by("anna", "PUT", "/db/a", note("anna")).await;
    assert_eq!(written.status, 201, "{}", written.text);
    let rev = written.json()["rev"].clone();
    by("anna", "PUT", "/db/b", json!({"type": "x"})).await.refused(403, "forbidden", "doc.type must be note");
    let untagged = json!({"type": "note", "owner": "anna"});
    by("anna", "PUT", "/db/b", untagged).await.refused(403, "forbidden", "doc.tags must be an array");
    by("ben", "PUT", "/db/b", note("anna")).await.refused(403, "forbidden", "You may only write your own notes.");
    let mut taken = note("ben");
    taken["_rev"] = rev.clone();
    by("ben", "PUT", "/db/a", taken).await.refused(403, "forbidden", "Owners can not be changed.");
    let path = format!("/db/a?rev={}", rev.as_str().unwrap());
    by("ben", "DELETE", &path, json!({})).await.refused(403, "forbidden", "Only admins may delete other docs.");
    // Functions are also called for server administrators, with their role, and for those of the database.
    admin(&couch, "PUT", "/db/c", json!({})).await.refused(403, "forbidden", "doc.type must be note");
    assert_eq!(by("chef", "DELETE", &path, json!({})).await.status, 200);
    assert_eq!(admin(&couch, "PUT", "/db/d", note("ben")).await.status, 201);
    // Replicated edits are those of their writer.
    let docs = json!([{"_id": "e", "_rev": "1-e", "type": "note", "tags": [], "owner": "anna"}]);
    let refused = by("ben", "POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs.clone()})).await.json();
    assert_eq!(refused[0]["error"], "forbidden");
    let taken = by("anna", "POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(taken.json(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_see_the_roles_of_an_administrators_document() {
    let couch = with_users(&[("adm", &["boss"])]).await;
    admin(&couch, "PUT", "/db", json!({})).await;
    let functions = json!({
        "validate_doc_update": "function(newDoc, oldDoc, userCtx) { if (newDoc.who) throw({forbidden: userCtx.roles.join()}); }",
        "updates": {"who": "function(doc, req) { return [null, req.userCtx.roles.join()]; }"},
    });
    assert_eq!(admin(&couch, "PUT", "/db/_design/f", functions).await.status, 201);
    admin(&couch, "PUT", "/db/x", json!({"who": 1})).await.refused(403, "forbidden", "_admin,boss");
    assert_eq!(admin(&couch, "POST", "/db/_design/f/_update/who", json!({})).await.text, "_admin,boss");
}
