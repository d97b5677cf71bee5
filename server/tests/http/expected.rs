//! Small things that clients of CouchDB, its own test suites and tools of its operators expect.

use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::rights::{admin, cookie, set, user, with_users};
use crate::support::Couch;

/// A header of any bytes.
fn header(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_beyond_ascii_spoils_no_other_header() {
    let couch = with_users(&[("anna", &[])]).await;
    let login = couch.json("POST", "/_session", json!({"name": "anna", "password": "pw anna"})).await;
    for strange in ["lang=\u{fc}; ".as_bytes(), b"lang=\xfc; "] {
        let cookies = [strange, cookie(&login).as_bytes()].concat();
        let seen = couch.send(couch.request("GET", "/_session").header("cookie", header(&cookies))).await;
        assert_eq!(seen.json()["userCtx"]["name"], "anna", "{strange:?}");
    }

    set(&couch, "chttpd_auth/proxy_use_secret", "false").await;
    set(&couch, "chttpd/authentication_handlers", "{chttpd_auth, proxy_authentication_handler}").await;
    for (roles, expected) in
        [("staff,k\u{fc}che".as_bytes(), json!(["staff", "k\u{fc}che"])), (b"a,\xfc", json!(["a", "\u{fc}"]))]
    {
        let request =
            couch.request("GET", "/_session").header("x-auth-couchdb-username", header("\u{fc}we".as_bytes()));
        let seen = couch.send(request.header("x-auth-couchdb-roles", header(roles))).await.json();
        assert_eq!((&seen["userCtx"]["name"], &seen["userCtx"]["roles"]), (&json!("\u{fc}we"), &expected));
    }

    admin(&couch, "PUT", "/db", json!({})).await;
    for (path, kind) in
        [("/db/a/x", "text/plain; name=\"\u{fc}.txt\"".as_bytes()), ("/db/b/x", b"text/plain; name=\"\xfc.txt\"")]
    {
        let request = couch.request("PUT", path).basic_auth("adm", Some("pass word"));
        assert_eq!(couch.send(request.header("content-type", header(kind)).body("x")).await.status, 201, "{path}");
        let (document, _) = path.rsplit_once('/').unwrap();
        let stored = admin(&couch, "GET", document, json!(null)).await.json();
        assert_eq!(stored["_attachments"]["x"]["content_type"], "text/plain; name=\"\u{fc}.txt\"", "{path}");
        let read = couch.send(couch.request("GET", path).basic_auth("adm", Some("pass word"))).await;
        assert_eq!(read.headers["content-type"].as_bytes(), "text/plain; name=\"\u{fc}.txt\"".as_bytes(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_indexes_of_a_design_document_are_views_too() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let index = |name: &str, index: Value| json!({"ddoc": "d", "name": name, "index": index});
    for (name, of) in [
        ("plain", json!({"fields": ["a", "b.c"]})),
        ("partial", json!({"fields": ["a"], "partial_filter_selector": {"a": {"$gt": 1}}})),
    ] {
        assert_eq!(couch.json("POST", "/db/_index", index(name, of)).await.status, 200);
    }
    for (id, document) in [
        ("1", json!({"a": 1, "b": {"c": "x"}})),
        ("2", json!({"a": 2, "b": {"c": null}})),
        ("3", json!({"a": 3})),
        ("4", json!({"b": {"c": 1}})),
    ] {
        couch.put(&format!("/db/{id}"), document).await;
    }
    let view = async |query: &str| couch.get(&format!("/db/_design/d/_view/{query}")).await.json();
    let rows = json!([
        {"id": "1", "key": [1, "x"], "value": null},
        {"id": "2", "key": [2, null], "value": null},
    ]);
    assert_eq!(view("plain?reduce=false").await["rows"], rows);
    assert_eq!(view("plain").await, json!({"rows": [{"key": null, "value": 2}]}));
    assert_eq!(view("partial?reduce=false&key=[3]").await["rows"], json!([{"id": "3", "key": [3], "value": null}]));
    let grouped = json!([{"key": [1], "value": 1}, {"key": [2], "value": 1}]);
    assert_eq!(view("plain?group_level=1").await["rows"], grouped);
    couch.get("/db/_design/d/_view/none").await.refused(404, "not_found", "missing_named_view");
    let info = couch.get("/db/_design/d/_info").await.json();
    assert_eq!((&info["name"], &info["view_index"]["language"]), (&json!("d"), &json!("query")));
    assert_eq!(info["view_index"]["collator_versions"].as_array().unwrap().len(), 1);
    // A cleanup knows them, and searches still work.
    assert_eq!(couch.call("POST", "/db/_view_cleanup").await.status, 202);
    let found = couch.json("POST", "/db/_find", json!({"selector": {"a": 3}, "use_index": ["d", "partial"]})).await;
    assert_eq!(found.json()["docs"][0]["_id"], "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn stubs_say_in_parts_how_their_contents_are_stored() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let rev = couch.put("/db/x", json!({"_attachments": {"a": {"content_type": "text/plain", "data": "YQ=="}}})).await;
    let bulk = async |accept: &'static str, doc: Value| {
        let request = couch.request("POST", "/db/_bulk_get").header("content-type", "application/json");
        couch.send(request.header("accept", accept).body(json!({"docs": [doc]}).to_string())).await
    };
    let attachment = async |doc: Value| {
        bulk("application/json", doc).await.json()["results"][0]["docs"][0]["ok"]["_attachments"]["a"].clone()
    };
    for doc in [json!({"id": "x", "atts_since": []}), json!({"id": "x"})] {
        assert_eq!(attachment(doc).await["stub"], true, "no revision asks for nothing");
    }
    assert_eq!(attachment(json!({"id": "x", "atts_since": ["1-abc"]})).await["data"], "YQ==");
    assert_eq!(attachment(json!({"id": "x", "atts_since": [rev]})).await["stub"], true);
    // The client has the attachment: there is one part, and it is JSON.
    let known = format!("[\"{rev}\"]");
    for text in [
        bulk("multipart/mixed", json!({"id": "x", "atts_since": [rev]})).await.text,
        couch.send(couch.request("GET", &format!("/db/x?open_revs=all&atts_since={known}"))).await.text,
        couch.send(couch.request("GET", &format!("/db/x?atts_since={known}"))).await.text,
    ] {
        assert!(text.contains(r#""stub":true,"encoding":"gzip","encoded_length":21"#), "{text}");
    }
    let plain = couch.request("GET", &format!("/db/x?atts_since={known}")).header("accept", "application/json");
    assert!(!couch.send(plain).await.text.contains("encoding"), "JSON has it where it is asked for");
}

fn ids(feed: &Value) -> Vec<&str> {
    feed["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_that_wait_list_in_descending_order_first() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ["a", "b", "c"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    let longpoll = couch.get("/db/_changes?feed=longpoll&descending=true").await.json();
    assert_eq!(ids(&longpoll), ["c", "b", "a"]);
    let limited = couch.get("/db/_changes?feed=longpoll&descending=true&limit=2").await.json();
    assert_eq!(ids(&limited), ["c", "b"]);
    let continuous = couch.get("/db/_changes?feed=continuous&descending=true&timeout=1").await.text;
    let rows: Vec<Value> = continuous.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[..3].iter().map(|row| row["id"].as_str().unwrap()).collect::<Vec<_>>(), ["c", "b", "a"]);
    assert_eq!(rows[3]["last_seq"], couch.get("/db").await.json()["update_seq"], "it goes on from the end");
    // Later ones are in the order of their arrival.
    let mut feed = couch.request("GET", "/db/_changes?feed=continuous&descending=true&limit=5").send().await.unwrap();
    let mut seen = String::new();
    while seen.lines().count() < 3 {
        seen.push_str(std::str::from_utf8(&feed.chunk().await.unwrap().unwrap()).unwrap());
    }
    for id in ["d", "e"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    while let Some(chunk) = feed.chunk().await.unwrap() {
        seen.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let order: Vec<Value> =
        seen.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(order[..5], ["c", "b", "a", "d", "e"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_listed_by_their_names() {
    let couch = Couch::start().await;
    for name in ["a", "b", "c"] {
        couch.database(name).await;
    }
    for (query, expected) in [
        (r#"keys=["c","none","a",1]"#, json!(["c", "a"])),
        (r#"keys=["a","b","c"]&descending=true&limit=2"#, json!(["c", "b"])),
        (r#"keys=["a","b","c"]&skip=1"#, json!(["b", "c"])),
        ("keys=[]", json!([])),
    ] {
        assert_eq!(couch.get(&format!("/_all_dbs?{query}")).await.json(), expected, "{query}");
        let infos = couch.get(&format!("/_dbs_info?{query}")).await.json();
        let names: Vec<&Value> = infos.as_array().unwrap().iter().map(|info| &info["key"]).collect();
        assert_eq!(json!(names), expected, "{query}");
    }
    assert_eq!(couch.get("/_all_dbs?keys=1").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_the_client_has_are_not_sent_again() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let unchanged = async |path: &str, tag: &str| {
        couch.send(couch.request("GET", path).header("if-none-match", tag.to_owned())).await.status.as_u16()
    };
    for path in ["/_all_dbs", "/_dbs_info", "/db/_changes", "/db/_changes?include_docs=true"] {
        let tag = couch.get(path).await.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() > 2, "{path}: {tag}");
        assert_eq!((unchanged(path, &tag).await, unchanged(path, "\"x\"").await), (304, 200), "{path}");
    }
    let tag = couch.get("/db/_changes").await.header("etag").to_owned();
    let rev = couch.put("/db/x", json!({})).await;
    assert_eq!(unchanged("/db/_changes", &tag).await, 200, "an edit");
    let tag = couch.get("/db/_changes").await.header("etag").to_owned();
    assert_eq!(couch.json("POST", "/db/_purge", json!({"x": [rev]})).await.status, 201);
    assert_eq!(unchanged("/db/_changes", &tag).await, 200, "a purge");
    let tag = couch.get("/db/_changes").await.header("etag").to_owned();
    couch.call("DELETE", "/db").await;
    couch.database("db").await;
    assert_eq!(unchanged("/db/_changes", &tag).await, 200, "another database of the name");
    assert_eq!(couch.get("/db/_changes?feed=longpoll&timeout=1").await.header("etag"), "", "it waits");
    let [one, two] =
        [couch.get("/_uuids").await, couch.get("/_uuids").await].map(|answer| answer.header("etag").to_owned());
    assert!(one != two && one.starts_with('"'));
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_search_of_text_and_nothing_to_clean_up() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/_design/d", json!({})).await;
    for (method, path) in [
        ("GET", "/db/_design/d/_search/i?q=x"),
        ("POST", "/db/_design/d/_search/i"),
        ("GET", "/db/_design/d/_search_info/i"),
        ("GET", "/db/_design/d/_search_disk_size/i"),
        ("POST", "/_search_analyze"),
    ] {
        couch.json(method, path, json!({})).await.refused(503, "service unavailable", "Search is not available");
    }
    for path in
        ["/db/_design/d/_nouveau/i?q=x", "/db/_design/d/_nouveau_info/i", "/db/_design/none/_search/i", "/db/_index/a"]
    {
        couch.get(path).await.refused(404, "not_found", "missing");
    }
    couch.call("DELETE", "/db/_index/a").await.refused(404, "not_found", "missing");
    for path in ["/db/_search_cleanup", "/db/_nouveau_cleanup"] {
        let cleaned = couch.json("POST", path, json!({})).await;
        assert_eq!((cleaned.status.as_u16(), cleaned.json()), (202, json!({"ok": true})), "{path}");
        assert_eq!(couch.json("POST", &path.replace("db", "none"), json!({})).await.status, 404, "{path}");
        assert_eq!(couch.get(path).await.status, 405, "{path}");
    }
    let reason = "Only GET,HEAD,POST allowed";
    couch.get("/db/_design/d/_view/v/extra").await.refused(405, "method_not_allowed", reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_says_how_long_its_body_took() {
    let couch = Couch::start().await;
    for (method, path) in [("GET", "/"), ("PUT", "/db"), ("GET", "/none"), ("PUT", "/db/x")] {
        let answer = couch.json(method, path, json!({})).await;
        answer.header("x-couchdb-body-time").parse::<u64>().unwrap();
    }
    assert_eq!(couch.get("/").await.header("x-couchdb-body-time"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_ids_and_lists_are_as_configured() {
    let couch = with_users(&[("anna", &[])]).await;
    admin(&couch, "PUT", "/db", json!({})).await;
    admin(&couch, "PUT", "/db/a+b", json!({})).await;
    set(&couch, "chttpd/decode_plus_to_space", "false").await;
    admin(&couch, "PUT", "/db/c+d", json!({})).await;
    let listed = admin(&couch, "GET", "/db/_all_docs", json!(null)).await.json();
    assert_eq!((&listed["rows"][0]["id"], &listed["rows"][1]["id"]), (&json!("a b"), &json!("c+d")));

    for (algorithm, is_right) in [
        ("utc_id", (|id| id.ends_with("-here") && id.len() == 19) as fn(&str) -> bool),
        ("uuid_v7", |id| &id[12..13] == "7"),
        ("random", |id| id.len() == 32),
    ] {
        set(&couch, "uuids/utc_id_suffix", "-here").await;
        set(&couch, "uuids/algorithm", algorithm).await;
        let posted = admin(&couch, "POST", "/db", json!({})).await.json();
        let listed = couch.get("/_uuids?count=2").await.json();
        for id in [&posted["id"], &listed["uuids"][0], &listed["uuids"][1]] {
            assert!(is_right(id.as_str().unwrap()), "{algorithm}: {id}");
        }
    }
    set(&couch, "uuids/max_count", "2").await;
    couch.get("/_uuids?count=3").await.refused(400, "bad_request", "count parameter too large");

    for path in ["/_all_dbs", "/_dbs_info"] {
        assert_eq!(user(&couch, "anna", "GET", path).await.status, 401, "{path}");
    }
    set(&couch, "chttpd/admin_only_all_dbs", "false").await;
    for path in ["/_all_dbs", "/_dbs_info"] {
        assert_eq!(user(&couch, "anna", "GET", path).await.status, 200, "{path}");
        assert_eq!(couch.get(path).await.status, 200, "{path}");
    }
    assert_eq!(couch.get("/_active_tasks").await.status, 401);

    set(&couch, "chttpd/x_forwarded_host", "X-Host").await;
    let created = couch.request("PUT", "/new").basic_auth("adm", Some("pass word")).header("x-host", "couch.example");
    assert_eq!(couch.send(created).await.header("location"), "http://couch.example/new");
    // The lockout knows its client by the address in the header.
    set(&couch, "chttpd/peer_header", "X-Peer").await;
    let login = async |peer: &str, password: &str| {
        let request = couch.request("GET", "/_session").header("x-peer", peer).basic_auth("anna", Some(password));
        couch.send(request).await.status.as_u16()
    };
    for _ in 0..5 {
        assert_eq!(login("192.0.2.1", "wrong").await, 401);
    }
    assert_eq!((login("192.0.2.1", "pw anna").await, login("192.0.2.2", "pw anna").await), (403, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_for_named_ids_reads_these_alone() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs: Vec<Value> = (0..300).map(|n| json!({"_id": format!("{n:03}"), "n": n % 2})).collect();
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    couch.put("/db/_design/x", json!({})).await;
    let find = async |body: Value| {
        let mut asked = json!({"fields": ["_id"], "execution_stats": true});
        asked.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        couch.json("POST", "/db/_find", asked).await.json()
    };
    let found = |answer: &Value| {
        let ids = answer["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>().join(" "), answer["execution_stats"]["total_docs_examined"].as_u64().unwrap())
    };
    let of = |ids: &str, examined| (ids.to_owned(), examined);
    for selector in [
        json!({"_id": {"$in": ["200", "100", "none", 7, "_design/x"]}}),
        json!({"$or": [{"_id": "200"}, {"_id": "100"}]}),
    ] {
        let answer = find(json!({"selector": selector})).await;
        let examined = if selector.get("$or").is_some() { 2 } else { 3 };
        assert_eq!(found(&answer), of("100 200", examined), "{selector}");
        let warning = answer["warning"].as_str().unwrap();
        assert!(!warning.contains("number of documents examined is high"), "{selector}: {warning}");
    }
    // As in CouchDB, a sort needs a condition that an index could serve.
    let some = json!({"_id": {"$in": ["010", "011", "012", "013", "014", "015"], "$gt": null}, "n": 0});
    assert_eq!(found(&find(json!({"selector": some})).await), of("010 012 014", 6));
    let backwards = json!({"selector": some, "sort": [{"_id": "desc"}], "limit": 2});
    let first = find(backwards.clone()).await;
    assert_eq!(found(&first).0, "014 012");
    let mut next = backwards.clone();
    next["bookmark"] = first["bookmark"].clone();
    assert_eq!(found(&find(next).await).0, "010");
    assert_eq!(found(&find(json!({"selector": {"_id": {"$in": ["011"]}}})).await), of("011", 1));
    let none = find(json!({"selector": {"_id": {"$in": []}}})).await;
    assert_eq!((found(&none), &none["bookmark"]), (of("", 0), &json!("nil")));
}
