//! The tables in `SECURITY.md`: what each kind of client gets for each request.
//!
//! Each request is one that the server administrator may send, with a body if it takes one. So the tables also show
//! rights that handlers check themselves, for example on design documents.

use super::*;

/// A request of a row.
struct Case {
    path: &'static str,
    method: &'static str,
    /// What it does, if a row has several requests.
    what: &'static str,
    /// The path to send, if it is not the row's.
    target: &'static str,
    body: &'static str,
}

const fn case(path: &'static str, method: &'static str, body: &'static str) -> Case {
    Case { path, method, what: "", target: "", body }
}

impl Case {
    const fn to(self, target: &'static str) -> Case {
        Case { target, ..self }
    }

    const fn of(self, what: &'static str) -> Case {
        Case { what, ..self }
    }

    /// What other requests need in addition: the target of a `COPY`.
    fn link(&self) -> &'static str {
        match (self.what, self.method) {
            ("", _) => "",
            (_, "COPY") => " to ",
            (_, "POST" | "PUT" | "PATCH" | "DELETE") => " of ",
            _ => " ",
        }
    }
}

const DOC: &str = "a document";
const DESIGN: &str = "a design document";

/// The documents of the database. Their revisions are `1-` followed by 32 ones.
const DOCUMENTS: &str = r#"{"new_edits":false,"docs":[
    {"_id":"docid","_rev":"1-11111111111111111111111111111111","_attachments":{"rest":{"data":"YQ=="}}},
    {"_id":"_design/x","_rev":"1-11111111111111111111111111111111","_attachments":{"rest":{"data":"YQ=="}},
        "views":{"view":{"map":"function (doc) { emit(1, 1); }"}},
        "updates":{"rest":"function (doc, req) { return [{_id: req.body || 'new'}, 'done']; }"}},
    {"_id":"_design/index","_rev":"1-11111111111111111111111111111111","language":"query",
        "views":{"n":{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count",
            "options":{"def":{"fields":["n"]}}}}},
    {"_id":"_local/x","_rev":"0-1"}]}"#;

pub(super) const SECURITY: &str = r#"{"members":{"names":["member"]},"admins":{"names":["chief"]}}"#;

/// The requests for each row that writes or takes a body. Other rows are sent as they are.
#[rustfmt::skip]
const CASES: &[Case] = &[
    case("/_session", "POST", r#"{"name":"member","password":"password"}"#),
    case("/_session", "DELETE", ""),
    case("/_dbs_info", "POST", r#"{"keys":["db"]}"#),
    case("/_replicate", "POST", r#"{"source":"db","target":"copy","create_target":true}"#),
    // A relative path is refused. Tests of the command send absolute ones.
    case("/_couch_layer/backup", "POST", r#"{"to":"folder"}"#),
    case("/_couch_layer/backup/runs", "POST", r#"{"to":"folder"}"#),
    case("/_couch_layer/backup/verify", "POST", r#"{"to":"folder"}"#),
    // A server that follows none refuses it. Tests of the program send it to a standby.
    case("/_couch_layer/promote", "POST", "{}"),
    case("/_couch_layer/snapshot", "POST", r#"{"to":"folder"}"#),
    case("/_scheduler/docs/*", "GET", "").to("/_scheduler/docs"),
    case("/_transact", "POST", r#"{"edits":[{"db":"db","doc":{"_id":"new"}}]}"#).of(DOC),
    case("/_transact", "POST", r#"{"edits":[{"db":"db","doc":{"_id":"_design/new"}}]}"#).of(DESIGN),
    case("/_node/{node}/_config/_reload", "POST", ""),
    case("/_node/{node}/_stats/*", "GET", "").to("/_node/_local/_stats"),
    case("/_node/*", "GET", "").to("/_node/_local/rest"),
    case("/_node/{node}/_config/{section}/{key}", "DELETE", ""),
    case("/_node/{node}/_config/{section}/{key}", "PUT", r#""value""#),
    case("/_cluster_setup", "POST", r#"{"action":"enable_single_node","username":"adm","password":"password"}"#),
    case("/{db}", "DELETE", ""),
    case("/{db}", "POST", r#"{"_id":"new"}"#).of(DOC),
    case("/{db}", "POST", r#"{"_id":"_design/new"}"#).of(DESIGN),
    case("/{db}", "PUT", "").to("/new"),
    case("/{db}/_bulk_docs", "POST", r#"{"docs":[{"_id":"new"}]}"#).of(DOC),
    case("/{db}/_bulk_docs", "POST", r#"{"docs":[{"_id":"_design/new"}]}"#).of(DESIGN),
    case("/{db}/_bulk_docs", "POST", r#"{"new_edits":false,"docs":[{"_id":"_design/new","_rev":"1-a"}]}"#)
        .of("a replicated design document"),
    case("/{db}/_bulk_get", "POST", r#"{"docs":[{"id":"docid"}]}"#),
    case("/{db}/_all_docs", "POST", r#"{"keys":["docid"]}"#),
    case("/{db}/_all_docs/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/_design_docs", "POST", r#"{"keys":["_design/x"]}"#),
    case("/{db}/_design_docs/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/_local_docs", "POST", r#"{"keys":["_local/x"]}"#),
    case("/{db}/_local_docs/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/_changes", "POST", r#"{"doc_ids":["docid"]}"#).to("/db/_changes?filter=_doc_ids"),
    case("/{db}/_couch_layer/format", "PUT", r#""packed""#),
    // A store in memory cannot be relocated. Tests of relocations send these to other stores.
    case("/{db}/_couch_layer/purge_tombstones", "POST", r#"{"older":"90d","dry_run":true}"#),
    case("/{db}/_couch_layer/try_view", "POST", r#"{"design":{"views":{"v":{"map":"doc => emit(1)"}}},"view":"v"}"#),
    case("/{db}/_couch_layer/vault", "POST", "{}"),
    case("/{db}/_couch_layer/vault", "PUT", r#"{"collect":null}"#),
    case("/{db}/_couch_layer/relocate", "DELETE", "").to("/db/_couch_layer/relocate?to=mem:"),
    case("/{db}/_couch_layer/relocate", "POST", r#"{"to":"mem:"}"#),
    case("/{db}/_revs_diff", "POST", r#"{"docid":["1-11111111111111111111111111111111"]}"#),
    case("/{db}/_missing_revs", "POST", r#"{"docid":["1-11111111111111111111111111111111"]}"#),
    case("/{db}/_keep_replaced", "PUT", "5"),
    case("/{db}/_revs_limit", "PUT", "100"),
    case("/{db}/_security", "PUT", SECURITY),
    case("/{db}/_compact", "POST", ""),
    case("/{db}/_view_cleanup", "POST", ""),
    case("/{db}/_search_cleanup", "POST", ""),
    case("/{db}/_nouveau_cleanup", "POST", ""),
    case("/{db}/_ensure_full_commit", "POST", ""),
    case("/{db}/_compact/{view}", "POST", "").to("/db/_compact/x"),
    case("/{db}/_find", "POST", r#"{"selector":{}}"#),
    case("/{db}/_partition/{partition}/_all_docs", "POST", "{}"),
    case("/{db}/_partition/{partition}/_all_docs/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/_partition/{partition}/_find", "POST", r#"{"selector":{}}"#),
    case("/{db}/_partition/{partition}/_explain", "POST", r#"{"selector":{}}"#),
    case("/{db}/_partition/{partition}/{ddoc}/_view/{view}", "POST", "{}"),
    case("/{db}/_partition/{partition}/{ddoc}/_view/{view}/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/_explain", "POST", r#"{"selector":{}}"#),
    case("/{db}/_index", "POST", r#"{"index":{"fields":["m"]}}"#),
    case("/{db}/_index/_bulk_delete", "POST", r#"{"docids":["_design/index"]}"#),
    case("/{db}/_index/{id}/json/{key}", "DELETE", "").to("/db/_index/index/json/n"),
    case("/{db}/_index/_design/{id}/json/{key}", "DELETE", "").to("/db/_index/_design/index/json/n"),
    case("/{db}/_purge", "POST", r#"{"docid":["1-11111111111111111111111111111111"]}"#),
    case("/{db}/_purged_infos_limit", "PUT", "1000"),
    case("/{db}/_auto_purge", "PUT", r#"{"deleted_document_ttl":"3_mon"}"#),
    case("/{db}/_time_seq", "DELETE", ""),
    case("/{db}/{local}", "DELETE", "").to("/db/_local/x?rev=0-1"),
    case("/{db}/{local}", "PUT", "{}").to("/db/_local/new"),
    case("/{db}/_local/*", "GET", "").to("/db/_local/x/rest"),
    case("/{db}/{ddoc}/_view/*", "GET", "").to("/db/_design/x/_view/view/rest"),
    case("/{db}/{ddoc}/_view/{view}", "POST", r#"{"keys":[1]}"#),
    case("/{db}/{ddoc}/_view/{view}/queries", "POST", r#"{"queries":[{}]}"#),
    case("/{db}/{ddoc}/_update/*", "POST", "").of(DOC),
    case("/{db}/{ddoc}/_update/*", "POST", "_design/new").of(DESIGN),
    case("/{db}/{docid}", "DELETE", "").to("/db/docid?rev=1-11111111111111111111111111111111").of(DOC),
    case("/{db}/{docid}", "DELETE", "").to("/db/_design/x?rev=1-11111111111111111111111111111111").of(DESIGN),
    case("/{db}/{docid}", "POST", ""),
    case("/{db}/{docid}", "PUT", "{}").to("/db/new").of(DOC),
    case("/{db}/{docid}", "PUT", "{}").to("/db/_design/new").of(DESIGN),
    case("/{db}/{docid}", "COPY", "new").of(DOC),
    case("/{db}/{docid}", "COPY", "_design/new").of(DESIGN),
    case("/{db}/{docid}", "PATCH", r#"{"n":1}"#).of(DOC),
    case("/{db}/{docid}", "PATCH", r#"{"n":1}"#).to("/db/_design/x").of(DESIGN),
    case("/{db}/{docid}/*", "DELETE", "").to("/db/docid/rest?rev=1-11111111111111111111111111111111").of(DOC),
    case("/{db}/{docid}/*", "DELETE", "").to("/db/_design/x/rest?rev=1-11111111111111111111111111111111").of(DESIGN),
    case("/{db}/{docid}/*", "PUT", "a").to("/db/docid/new?rev=1-11111111111111111111111111111111").of(DOC),
    case("/{db}/{docid}/*", "PUT", "a").to("/db/_design/x/new?rev=1-11111111111111111111111111111111").of(DESIGN),
];

/// The answers to the administrator's requests that do not succeed: nothing has that name, or this server, or its store
/// in memory, does not support it.
const UNSUCCESSFUL: &[(&str, &str, u16)] = &[
    ("/_utils/*", "GET,HEAD", 404),
    ("/favicon.ico", "*", 404),
    ("/_scheduler/jobs/{id}", "GET,HEAD", 404),
    ("/_couch_layer/backup", "POST", 400),
    ("/_couch_layer/backup/runs", "POST", 400),
    ("/_couch_layer/backup/verify", "POST", 400),
    ("/_couch_layer/promote", "POST", 412),
    ("/_couch_layer/snapshot", "POST", 400),
    ("/_node/*", "*", 501),
    ("/_reshard/*", "*", 501),
    ("/{db}/_couch_layer/relocate", "DELETE", 400),
    ("/{db}/_couch_layer/relocate", "POST", 400),
    ("/{db}/_couch_layer/vault", "POST", 412),
    ("/_search_analyze", "GET,HEAD,POST", 503),
    ("/{db}/_index/*", "*", 404),
    ("/{db}/{ddoc}/_view/*", "*", 405),
    ("/{db}/{ddoc}/_search/*", "GET,HEAD,POST", 503),
    ("/{db}/{ddoc}/_search_info/*", "GET,HEAD", 503),
    ("/{db}/{ddoc}/_search_disk_size/*", "GET,HEAD", 503),
    ("/{db}/{ddoc}/_nouveau/*", "GET,HEAD,POST", 404),
    ("/{db}/{ddoc}/_nouveau_info/*", "GET,HEAD", 404),
    ("/{db}/_temp_view", "*", 410),
    ("/{db}/_partition", "*", 400),
    ("/{db}/_partition/{partition}", "*", 400),
    ("/{db}/_partition/{partition}/_all_docs", "GET,HEAD", 400),
    ("/{db}/_partition/{partition}/_all_docs", "POST", 400),
    ("/{db}/_partition/{partition}/_all_docs/queries", "POST", 400),
    ("/{db}/_partition/{partition}/_find", "POST", 400),
    ("/{db}/_partition/{partition}/_explain", "POST", 400),
    ("/{db}/_partition/{partition}/{ddoc}/_view/{view}", "GET,HEAD", 400),
    ("/{db}/_partition/{partition}/{ddoc}/_view/{view}", "POST", 400),
    ("/{db}/_partition/{partition}/{ddoc}/_view/{view}/queries", "POST", 400),
    ("/{db}/_partition/{partition}/*", "*", 400),
    ("/{db}/_sync_shards/*", "*", 501),
    ("/{db}/_shards/*", "*", 501),
    ("/{db}/_local", "*", 400),
    ("/{db}/_local/*", "*", 400),
    ("/{db}/{ddoc}/_show/*", "*", 501),
    ("/{db}/{ddoc}/_list/*", "*", 501),
    ("/{db}/{ddoc}/_rewrite/*", "*", 501),
    ("/{db}/{docid}", "POST", 415),
];

/// The security of the database, and who sends the request. Each client may do what the clients before it may.
const CLIENTS: [(&str, Option<&str>); 6] = [
    (SECURITY, None),
    (SECURITY, Some("stranger")),
    ("{}", None),
    (SECURITY, Some("member")),
    (SECURITY, Some("chief")),
    (SECURITY, Some("adm")),
];

/// The status, and a document's error in a successful answer.
#[derive(PartialEq, Eq)]
struct Found {
    status: u16,
    inside: &'static str,
}

impl Walk {
    /// Sends a request that must be allowed to the administrator.
    pub(super) async fn prepare(&self, method: &str, path: &str, body: &str) {
        let status = self.send_body(method, path, Some("adm"), body).await.status().as_u16();
        assert!(matches!(status, 200..=202 | 404 | 412), "{method} {path}: {status}");
    }

    /// Creates the usual database with the usual documents again, and removes all others.
    async fn renew(&self) {
        for name in ["db", "new", "copy"] {
            self.prepare("DELETE", &format!("/{name}"), "").await;
        }
        self.prepare("PUT", "/db", "").await;
        self.prepare("POST", "/db/_bulk_docs", DOCUMENTS).await;
        // Notes the time, without which nothing is purged.
        self.prepare("POST", "/db/_couch_layer/purge_tombstones", r#"{"older":"90d"}"#).await;
        self.prepare("PUT", "/_node/_local/_config/section/key", r#""value""#).await;
    }

    async fn find(&self, case: &Case, (security, who): (&str, Option<&str>)) -> Found {
        self.prepare("PUT", "/db/_security", security).await;
        let path = if case.target.is_empty() { example(case.path) } else { case.target.to_owned() };
        let url = format!("http://{}{path}", self.server.address());
        let request = self.client.request(case.method.parse().unwrap(), url);
        let request = match (case.method, case.path) {
            ("COPY", _) => request.header("destination", case.body),
            ("PATCH", _) => request.header("content-type", "application/merge-patch+json").body(case.body),
            _ => request.header("content-type", "application/json").body(case.body),
        };
        let request = match who {
            Some(name) => request.basic_auth(name, Some("password")),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        if case.method != "GET" && status < 300 {
            self.renew().await;
        }
        let mut errors = ["unauthorized", "forbidden"].into_iter().filter(|_| status < 300);
        let inside = errors.find(|error| text.contains(&format!(r#""error":"{error}""#))).unwrap_or_default();
        Found { status, inside }
    }
}

/// The methods of a row, as the tables name them.
fn methods(row: &Route) -> String {
    row.methods.replace('*', "all")
}

/// A request of the table, and what each client gets.
struct Line {
    route: &'static Route,
    methods: String,
    cells: Vec<String>,
}

impl Line {
    /// Who may send it.
    fn who(&self) -> &'static str {
        match self.cells.iter().position(|cell| cell == "yes") {
            Some(0) => "everyone",
            Some(1) => "every user",
            Some(2 | 3) => "a member",
            Some(4) => "a database admin",
            _ => "a server admin",
        }
    }
}

/// Sends each request as each kind of client.
async fn walk() -> Vec<Line> {
    let administrator = crate::http::Administrator { name: "adm".into(), password: "password".into() };
    let options = crate::http::Options { administrator: Some(administrator), ..Default::default() };
    let walk = Walk::begin(options).await;
    walk.prepare("PUT", "/_node/_local/_config/chttpd_auth/iterations", r#""10""#).await;
    walk.prepare("PUT", "/_users", "").await;
    walk.prepare("PUT", "/_replicator", "").await;
    for name in ["stranger", "member", "chief"] {
        let user = format!(r#"{{"type":"user","name":"{name}","roles":[],"password":"password"}}"#);
        walk.prepare("PUT", &format!("/_users/org.couchdb.user:{name}"), &user).await;
    }
    walk.renew().await;
    let (mut lines, mut wrong) = (Vec::new(), Vec::new());
    for route in ROUTES {
        let unsuccessful =
            UNSUCCESSFUL.iter().find(|(path, methods, _)| (*path, *methods) == (route.path, route.methods));
        let is_of_route = |case: &&Case| {
            case.path == route.path
                && (route.methods == "*" || route.methods.split(',').any(|name| name == case.method))
        };
        let mut cases: Vec<&Case> = CASES.iter().filter(is_of_route).collect();
        let plain = case(route.path, "GET", "");
        if cases.is_empty() {
            let reads = matches!(route.methods, "GET" | "HEAD" | "GET,HEAD");
            assert!(reads || unsuccessful.is_some(), "{} {}: say in CASES what is sent", route.path, route.methods);
            cases.push(&plain);
        }
        for case in cases {
            let wanted = walk.find(case, (SECURITY, Some("adm"))).await;
            let what = format!("{} {} {}", case.method, case.path, case.what);
            match unsuccessful {
                Some((.., status)) if wanted.status == *status => {}
                Some((.., status)) => wrong.push(format!("{what}: {} instead of {status}", wanted.status)),
                None if wanted.status < 300 && wanted.inside.is_empty() => {}
                None => wrong.push(format!("{what}: {}", wanted.status)),
            }
            let mut cells = Vec::new();
            for client in CLIENTS {
                let found = walk.find(case, client).await;
                cells.push(match found.inside {
                    _ if found == wanted => "yes".to_owned(),
                    "" => found.status.to_string(),
                    inside => format!("{} {inside}", found.status),
                });
            }
            let methods = match case.what {
                "" => methods(route),
                what => format!("{}{}{what}", case.method, case.link()),
            };
            lines.push(Line { route, methods, cells });
        }
    }
    walk.server.stop().await;
    assert!(wrong.is_empty(), "the administrator's requests are to succeed: {wrong:#?}");
    lines
}

/// The rights that CouchDB 3.5's documentation requires ("401" in its API reference), if it names anybody.
const DOCUMENTED: &[(&str, &str, &str)] = &[
    ("/_active_tasks", "GET,HEAD", "a server admin"),
    ("/_db_updates", "GET,HEAD", "a server admin"),
    ("/_replicate", "POST", "a server admin"),
    ("/_scheduler/jobs", "GET,HEAD", "a server admin"),
    ("/_scheduler/docs/*", "GET,HEAD", "a server admin"),
    ("/_reshard/*", "all", "a server admin"),
    ("/_node/{node}/_config", "GET,HEAD", "a server admin"),
    ("/_node/{node}/_config/{section}", "GET,HEAD", "a server admin"),
    ("/_node/{node}/_config/{section}/{key}", "DELETE", "a server admin"),
    ("/_node/{node}/_config/{section}/{key}", "GET,HEAD", "a server admin"),
    ("/_node/{node}/_config/{section}/{key}", "PUT", "a server admin"),
    ("/{db}", "DELETE", "a server admin"),
    ("/{db}", "POST of a document", "a member"),
    ("/{db}", "PUT", "a server admin"),
    ("/{db}/_security", "PUT", "a server admin"),
    ("/{db}/_compact", "POST", "a server admin"),
    ("/{db}/_compact/{view}", "POST", "a server admin"),
    ("/{db}/_view_cleanup", "POST", "a server admin"),
    ("/{db}/_search_cleanup", "POST", "a server admin"),
    ("/{db}/_nouveau_cleanup", "POST", "a server admin"),
    ("/{db}/_find", "POST", "a member"),
    ("/{db}/_explain", "POST", "a member"),
    ("/{db}/_index", "GET,HEAD", "a member"),
    // "Admin permission required". Indexes are design documents.
    ("/{db}/_index", "POST", "a database admin"),
    ("/{db}/_purge", "POST", "a server admin"),
    ("/{db}/_sync_shards/*", "all", "a server admin"),
    ("/{db}/_shards/*", "all", "a member"),
    ("/{db}/{ddoc}/_view/{view}", "GET,HEAD", "a member"),
    ("/{db}/{ddoc}/_view/{view}/queries", "POST", "a member"),
    ("/{db}/{docid}", "DELETE of a document", "a member"),
    ("/{db}/{docid}", "GET,HEAD", "a member"),
    ("/{db}/{docid}", "PUT of a document", "a member"),
    ("/{db}/{docid}", "COPY to a document", "a member"),
    ("/{db}/{docid}/*", "DELETE of a document", "a member"),
    ("/{db}/{docid}/*", "GET,HEAD", "a member"),
    ("/{db}/{docid}/*", "PUT of a document", "a member"),
];

/// The rights that CouchDB 3.5.2 requires, if its documentation does not say and this server requires others. The test
/// `beside_rights` in `e2e` compares all of them.
const MEASURED: &[(&str, &str, &str)] = &[("/_replicate", "POST", "every user")];

/// The requests by who may send them: for each class what every client gets, and then its requests, a path on each line.
fn classes(lines: &[Line]) -> Vec<String> {
    let mut classes: Vec<&[String]> = Vec::new();
    for line in lines {
        let first = line.cells.iter().position(|cell| cell == "yes").unwrap();
        assert!(line.cells[first..].iter().all(|cell| cell == "yes"), "{} {}", line.route.path, line.methods);
        if !classes.contains(&line.cells.as_slice()) {
            classes.push(&line.cells);
        }
    }
    let table = |cells: &&[String]| {
        let mut table = "| anonymous | stranger | anonymous, public | member | database admin | server admin |\n\
                         |---|---|---|---|---|---|\n"
            .to_owned();
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
        let mut path = "";
        for line in lines.iter().filter(|line| line.cells == **cells) {
            let joined = if line.route.path == path { "; " } else { "\n- " };
            table.push_str(joined);
            if line.route.path != path {
                path = line.route.path;
                table.push_str(&format!("`{path}` "));
            }
            table.push_str(&line.methods);
        }
        table + "\n"
    };
    classes.iter().map(table).collect()
}

#[tokio::test]
async fn the_tables_in_the_documentation_are_what_the_server_does() {
    let lines = walk().await;
    let mut tables = classes(&lines);
    for (source, named) in [("CouchDB's documentation", DOCUMENTED), ("CouchDB", MEASURED)] {
        let mut table = format!("| path | methods | {source} | here |\n|---|---|---|---|\n");
        for (path, methods, there) in named {
            let line = lines.iter().find(|line| line.route.path == *path && line.methods == *methods);
            let here = line.unwrap_or_else(|| panic!("no request is {methods} {path}")).who();
            if here != *there {
                table.push_str(&format!("| `{path}` | {methods} | {there} | {here} |\n"));
            }
        }
        tables.push(table);
    }
    // `AUDIT=FILE` writes the tables to that file.
    if let Ok(file) = std::env::var("AUDIT") {
        std::fs::write(file, tables.join("\n")).unwrap();
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md")).unwrap();
    for table in tables {
        assert!(page.contains(&table), "SECURITY.md must have this table:\n\n{table}");
    }
}
