//! Every row of the table that writes documents, checked against the rules of who may write what.

use super::audit::SECURITY;
use super::*;

/// The databases with their own rules, and the id of an administrator's document in each.
const DATABASES: [(&str, &str); 3] =
    [("_users", "org.couchdb.user:other"), ("_replicator", "other"), ("a%2F_replicator", "other")];

/// A request that writes a document of a database with its own rules: row, method, path, and what is sent. `DB` is the
/// database, `ID` the id of an administrator's document, `REV` its revision, and `BODY` its contents.
#[rustfmt::skip]
const WRITES: &[(&str, &str, &str, &str)] = &[
    ("/{db}", "POST", "/DB", r#"{"_id":"ID","_rev":"REV",BODY}"#),
    ("/{db}", "POST", "/DB", r#"{"_id":"_local/x"}"#),
    ("/{db}", "POST", "/DB", r#"{"_id":"_design/x"}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"docs":[{"_id":"ID","_rev":"REV",BODY}]}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"docs":[{"_id":"ID","_rev":"REV","_deleted":true}]}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"docs":[{"_id":"_local/x"}]}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"docs":[{"_id":"_design/x"}]}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"new_edits":false,"docs":[{"_id":"ID","_rev":"9-a",BODY}]}"#),
    ("/{db}/_bulk_docs", "POST", "/DB/_bulk_docs", r#"{"new_edits":false,"docs":[{"_id":"ID","_rev":"9-a","_deleted":true}]}"#),
    ("/{db}/_index", "POST", "/DB/_index", r#"{"index":{"fields":["m"]}}"#),
    ("/{db}/_index/_bulk_delete", "POST", "/DB/_index/_bulk_delete", r#"{"docids":["_design/index"]}"#),
    ("/{db}/_index/{id}/json/{key}", "DELETE", "/DB/_index/index/json/n", ""),
    ("/{db}/_index/_design/{id}/json/{key}", "DELETE", "/DB/_index/_design/index/json/n", ""),
    ("/{db}/{local}", "DELETE", "/DB/_local/own?rev=0-1", ""),
    ("/{db}/{local}", "PUT", "/DB/_local/x", "{}"),
    ("/{db}/{ddoc}/_update/*", "POST", "/DB/_design/u/_update/f", ""),
    ("/{db}/{ddoc}/_update/*", "PUT", "/DB/_design/u/_update/f/ID", ""),
    ("/{db}/{docid}", "DELETE", "/DB/ID?rev=REV", ""),
    ("/{db}/{docid}", "DELETE", "/DB/_design/u?rev=1-a", ""),
    ("/{db}/{docid}", "PUT", "/DB/ID?rev=REV", r#"{BODY}"#),
    ("/{db}/{docid}", "PUT", "/DB/ID?rev=REV", r#"{"_deleted":true}"#),
    ("/{db}/{docid}", "PUT", "/DB/ID?new_edits=false", r#"{"_rev":"9-a",BODY}"#),
    ("/{db}/{docid}", "PUT", "/DB/ID?rev=REV", "multipart"),
    ("/{db}/{docid}", "PUT", "/DB/_design/x", "{}"),
    ("/{db}/{docid}", "COPY", "/DB/ID", "x"),
    ("/{db}/{docid}", "COPY", "/DB/ID", "ID?rev=REV"),
    ("/{db}/{docid}", "PATCH", "/DB/ID", r#"{"roles":["x"]}"#),
    ("/{db}/{docid}/*", "DELETE", "/DB/ID/a?rev=REV", ""),
    ("/{db}/{docid}/*", "PUT", "/DB/ID/a?rev=REV", "x"),
    ("/{db}/_purge", "POST", "/DB/_purge", r#"{"ID":["REV"]}"#),
    ("/_transact", "POST", "/_transact", r#"{"edits":[{"db":"DB","doc":{"_id":"ID","_rev":"REV",BODY}}]}"#),
    ("/_transact", "POST", "/_transact", r#"{"edits":[{"db":"db","doc":{"_id":"x"}},{"db":"DB","doc":{"_id":"_design/x"}}]}"#),
    ("/_replicate", "POST", "/_replicate", r#"{"source":"db","target":"DB"}"#),
];

/// Rows that change something, but do not write documents on a client's request.
const NO_WRITES: &[&str] = &[
    "/_session",
    "/favicon.ico",
    "/_dbs_info",
    "/_node/{node}/_config/_reload",
    "/_node/{node}/_config/{section}/{key}",
    "/_node/*",
    "/_reshard/*",
    "/_search_analyze",
    "/_cluster_setup",
    "/_couch_layer/backup",
    "/_couch_layer/backup/runs",
    "/_couch_layer/backup/verify",
    "/_couch_layer/promote",
    "/_couch_layer/snapshot",
    "/{db}/_couch_layer/format",
    "/{db}/_couch_layer/relocate",
    "/{db}/_couch_layer/purge_tombstones",
    "/{db}/_couch_layer/try_view",
    "/{db}/_couch_layer/vault",
    "/{db}/_keep_replaced",
    "/{db}/_revs_limit",
    "/{db}/_security",
    "/{db}/_compact",
    "/{db}/_compact/{view}",
    "/{db}/_view_cleanup",
    "/{db}/_search_cleanup",
    "/{db}/_nouveau_cleanup",
    "/{db}/_ensure_full_commit",
    "/{db}/_purged_infos_limit",
    "/{db}/_auto_purge",
    "/{db}/_time_seq",
    "/{db}/_sync_shards/*",
    "/{db}/_local/*",
    "/{db}/{ddoc}/_rewrite/*",
];

/// The same for rows of which only another method writes documents.
const NO_WRITES_BY: &[(&str, &str)] = &[("/{db}", "DELETE"), ("/{db}", "PUT"), ("/{db}/{docid}", "POST")];

/// The members of a document that is valid in both kinds of databases.
const BODY: &str = r#""type":"user","name":"other","roles":[],"source":"http://a/b","target":"http://a/c""#;

const BOUNDARY: &str = "multipart/related;boundary=b";

/// A document followed by its attachment.
const MULTIPART: &str = "--b\r\ncontent-type: application/json\r\n\r\n{\"type\":\"user\",\"name\":\"other\",\"roles\":[],\
    \"source\":\"http://a/b\",\"target\":\"http://a/c\",\"_attachments\":{\"a\":{\"follows\":true,\"length\":1,\"content_type\":\"text/plain\"}}}\r\n--b\r\n\r\nx\r\n--b--";

/// A server with these databases, a stranger, and a member whom each `_security` names.
async fn prepared(databases: &[(&str, &str)], pause_jobs: bool) -> Walk {
    let administrator = crate::http::Administrator { name: "adm".into(), password: "password".into() };
    let options = crate::http::Options { administrator: Some(administrator), pause_jobs, ..Default::default() };
    let walk = Walk::begin(options).await;
    for (key, value) in [("chttpd_auth/iterations", r#""10""#), ("couchdb/users_db_security_editable", r#""true""#)] {
        walk.prepare("PUT", &format!("/_node/_local/_config/{key}"), value).await;
    }
    for (db, id) in databases {
        walk.prepare("PUT", &format!("/{db}"), "").await;
        walk.prepare("PUT", &format!("/{db}/{id}"), &format!("{{{BODY}}}")).await;
        walk.prepare("PUT", &format!("/{db}/_local/own"), "{}").await;
        let design =
            r#"{"_id":"_design/u","updates":{"f":"function (doc, req) { return [{_id: req.id || 'new'}, 'done']; }"}}"#;
        walk.prepare("PUT", &format!("/{db}/_design/u"), design).await;
        walk.prepare("PUT", &format!("/{db}/_security"), SECURITY).await;
    }
    walk.prepare("PUT", "/db", "").await;
    walk.prepare("PUT", "/db/_security", "{}").await;
    for name in ["stranger", "member"] {
        let user = format!(r#"{{"type":"user","name":"{name}","roles":[],"password":"password"}}"#);
        walk.prepare("PUT", &format!("/_users/org.couchdb.user:{name}"), &user).await;
    }
    walk
}

/// All documents.
async fn state(walk: &Walk, databases: &[(&str, &str)]) -> String {
    let mut state = String::new();
    for (db, _) in databases {
        for path in ["_all_docs?include_docs=true", "_local_docs?include_docs=true"] {
            state += &walk.send_body("GET", &format!("/{db}/{path}"), Some("adm"), "").await.text().await.unwrap();
        }
    }
    state + &walk.send_body("GET", "/db/_all_docs", Some("adm"), "").await.text().await.unwrap()
}

/// The documents of users.
async fn documents(walk: &Walk) -> String {
    walk.send_body("GET", "/_users/_all_docs?include_docs=true", Some("adm"), "").await.text().await.unwrap()
}

/// Sends a request, and returns its answer.
async fn send(walk: &Walk, who: Option<&str>, method: &str, path: &str, sent: &str) -> (u16, String) {
    let request = walk.client.request(method.parse().unwrap(), format!("http://{}{path}", walk.server.address()));
    let request = match (method, sent) {
        ("COPY", target) => request.header("destination", target),
        ("PATCH", _) => request.header("content-type", "application/merge-patch+json").body(sent.to_owned()),
        (_, "multipart") => request.header("content-type", BOUNDARY).body(MULTIPART),
        _ => request.header("content-type", "application/json").body(sent.to_owned()),
    };
    let request = match who {
        Some(name) => request.basic_auth(name, Some("password")),
        None => request,
    };
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Whether the table has this row for a method that may change something.
fn changes(route: &Route, method: &str) -> bool {
    // A reader's request changes nothing.
    route.who != Reader && !matches!(method, "GET" | "HEAD") && !NO_WRITES.contains(&route.path)
}

/// The tests below must send each new row that writes.
#[test]
fn each_way_to_write_is_sent() {
    let is_sent = |path: &str, method: &str| {
        WRITES.iter().any(|(known, sent, ..)| *known == path && (method == "*" || *sent == method))
    };
    for route in ROUTES {
        for method in route.methods.split(',').filter(|method| changes(route, method)) {
            let is_none = NO_WRITES_BY.contains(&(route.path, method));
            assert!(is_none != is_sent(route.path, method), "{method} {}: say in WRITES, or in NO_WRITES", route.path);
        }
    }
    for path in NO_WRITES {
        assert!(ROUTES.iter().any(|route| route.path == *path), "{path} is not in the table");
    }
}

/// A client that is not an administrator cannot change others' documents in `_users` and in databases of replications,
/// by any request: an anonymous client, a stranger, and a member named in `_security`.
#[tokio::test]
async fn each_way_to_write_knows_the_rules_of_users_and_of_replications() {
    let walk = prepared(&DATABASES, true).await;
    let before = state(&walk, &DATABASES).await;
    assert_eq!(
        before.matches(r#""id":"other""#).count() + before.matches(r#""id":"org.couchdb.user:other""#).count(),
        3
    );
    for (db, id) in DATABASES {
        let document = walk.send_body("GET", &format!("/{db}/{id}"), Some("adm"), "").await.text().await.unwrap();
        let rev = document.split(r#""_rev":""#).nth(1).unwrap().split('"').next().unwrap();
        for (_, method, path, sent) in WRITES {
            for who in [None, Some("stranger"), Some("member")] {
                let path = path.replace("DB", db).replace("ID", id).replace("REV", rev);
                let sent = sent.replace("BODY", BODY).replace("DB", &db.replace("%2F", "/"));
                let sent = sent.replace("ID", id).replace("REV", rev);
                let (status, text) = send(&walk, who, method, &path, &sent).await;
                let is_inside = status == 201
                    && (text.contains(r#""error":"forbidden""#)
                        || text.contains(r#""error":"not_found""#)
                        || text.contains(r#""error":"unauthorized""#));
                let what = format!("{who:?}: {method} {path} {sent:.80}: {status} {text}");
                assert!(matches!(status, 401 | 403 | 404) || is_inside, "{what}");
                assert_eq!(state(&walk, &DATABASES).await, before, "{what}");
            }
        }
    }
    walk.server.stop().await;
}

/// Documents that not even an administrator may write to `_users`, by every path: they do not belong to a user.
#[rustfmt::skip]
const WRONG: &[(&str, &str, &str, &str)] = &[
    ("/{db}", "POST", "/_users", r#"{"_id":"org.couchdb.user:new","type":"user"}"#),
    ("/{db}/_bulk_docs", "POST", "/_users/_bulk_docs", r#"{"docs":[{"_id":"org.couchdb.user:new"}]}"#),
    ("/{db}/_bulk_docs", "POST", "/_users/_bulk_docs", r#"{"new_edits":false,"docs":[{"_id":"x","_rev":"1-a"}]}"#),
    ("/{db}/{ddoc}/_update/*", "POST", "/_users/_design/u/_update/f", ""),
    ("/{db}/{ddoc}/_update/*", "PUT", "/_users/_design/u/_update/f/x", ""),
    ("/{db}/{docid}", "PUT", "/_users/x", "{}"),
    ("/{db}/{docid}", "PUT", "/_users/x?new_edits=false", r#"{"_rev":"1-a"}"#),
    ("/{db}/{docid}", "PUT", "/_users/x", "multipart"),
    ("/{db}/{docid}", "COPY", "/_users/_design/u", "x"),
    ("/{db}/{docid}", "COPY", "/_users/ID", "ID?rev=REV"),
    ("/{db}/{docid}", "PATCH", "/_users/ID", r#"{"password":"clear"}"#),
    ("/{db}/{docid}/*", "PUT", "/_users/x/a", "x"),
    ("/_transact", "POST", "/_transact", r#"{"edits":[{"db":"_users","doc":{"_id":"x"}}]}"#),
    ("/_replicate", "POST", "/_replicate", r#"{"source":"db","target":"_users"}"#),
];

/// Writes that an administrator may make of any document: deletions, purges, local documents, indexes.
const OF_ADMINISTRATORS: &[(&str, &str)] = &[
    ("/{db}/_index", "POST"),
    ("/{db}/_index/_bulk_delete", "POST"),
    ("/{db}/_index/{id}/json/{key}", "DELETE"),
    ("/{db}/_index/_design/{id}/json/{key}", "DELETE"),
    ("/{db}/{local}", "DELETE"),
    ("/{db}/{local}", "PUT"),
    ("/{db}/{docid}", "DELETE"),
    ("/{db}/{docid}/*", "DELETE"),
    ("/{db}/_purge", "POST"),
];

/// The route admits an administrator, so the rules at the model's hook must refuse.
#[tokio::test]
async fn no_way_to_write_passes_the_rules() {
    for (path, method, ..) in WRITES {
        let is_wrong = WRONG.iter().any(|(known, sent, ..)| (known, sent) == (path, method));
        assert!(is_wrong != OF_ADMINISTRATORS.contains(&(*path, *method)), "{method} {path}: say in WRONG");
    }
    let walk = prepared(&DATABASES[..1], false).await;
    walk.prepare("PUT", "/db/org.couchdb.user:new", r#"{"type":"user"}"#).await;
    let (_, id) = DATABASES[0];
    let document = walk.send_body("GET", &format!("/_users/{id}"), Some("adm"), "").await.text().await.unwrap();
    let rev = document.split(r#""_rev":""#).nth(1).unwrap().split('"').next().unwrap();
    let before = documents(&walk).await;
    for (_, method, path, sent) in WRONG {
        let (path, sent) = (path.replace("ID", id), sent.replace("ID", id).replace("REV", rev));
        let (status, text) = send(&walk, Some("adm"), method, &path, &sent).await;
        let what = format!("{method} {path} {sent}: {status} {text}");
        match *method {
            "POST" if path == "/_replicate" => assert!(text.contains(r#""doc_write_failures":1"#), "{what}"),
            "POST" if path.ends_with("/_bulk_docs") => assert!(text.contains(r#""error":"forbidden""#), "{what}"),
            _ => assert_eq!(status, 403, "{what}"),
        }
        assert_eq!(documents(&walk).await, before, "{what}");
    }
    walk.server.stop().await;
}
