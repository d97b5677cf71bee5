//! Tests that walk the table.

#[cfg(all(feature = "mem", feature = "javascript"))]
mod audit;
#[cfg(all(feature = "mem", feature = "javascript"))]
mod writes;

use super::*;

/// A server, and a client of it.
#[cfg(feature = "mem")]
struct Walk {
    server: crate::http::Server,
    client: reqwest::Client,
}

#[cfg(feature = "mem")]
impl Walk {
    async fn begin(options: crate::http::Options) -> Walk {
        let engine = crate::engine::open(&"mem:".parse().unwrap(), crate::engine::IfMissing::Create).unwrap();
        let layer = model::Layer::open(engine, crate::layer_options()).await.unwrap();
        let server = crate::http::Server::start(layer, "127.0.0.1:0".parse().unwrap(), options).await.unwrap();
        Walk { server, client: reqwest::Client::new() }
    }

    async fn send(&self, method: &str, path: &str, who: Option<&str>) -> reqwest::Response {
        self.send_body(method, path, who, "{}").await
    }

    async fn send_body(&self, method: &str, path: &str, who: Option<&str>, body: &str) -> reqwest::Response {
        let url = format!("http://{}{}", self.server.address(), example(path));
        let request = self.client.request(method.parse().unwrap(), url).header("content-type", "application/json");
        let request = match who {
            Some(name) => request.basic_auth(name, Some("password")),
            None => request,
        };
        request.body(body.to_owned()).send().await.unwrap()
    }
}

/// The rows, grouped by pattern.
fn resources() -> impl Iterator<Item = &'static [Route]> {
    ROUTES.chunk_by(|one, next| one.path == next.path)
}

#[cfg(feature = "mem")]
#[tokio::test]
async fn each_endpoint_has_the_methods_of_its_rows_and_no_other() {
    let walk = Walk::begin(Default::default()).await;
    for rows in resources().filter(|rows| rows[0].methods != "*") {
        let path = rows[0].path;
        for method in rows.iter().flat_map(|row| row.methods.split(',')) {
            walk.send("PUT", "/db", None).await;
            let status = walk.send(method, path, None).await.status().as_u16();
            assert!(!matches!(status, 405 | 500 | 501), "{method} {path}: {status}");
        }
        walk.send("PUT", "/db", None).await;
        let refused = walk.send("LOCK", path, None).await;
        let allow = rows.iter().map(|row| row.methods).collect::<Vec<_>>().join(",");
        assert_eq!((refused.status().as_u16(), refused.headers()["allow"].to_str().unwrap()), (405, &*allow));
        if path.starts_with("/{db}") {
            walk.send("DELETE", "/db", None).await;
            assert_eq!(walk.send("LOCK", path, None).await.status(), 404, "{path}");
        }
    }
    walk.server.stop().await;
}

#[cfg(feature = "mem")]
#[tokio::test]
async fn strangers_get_what_is_public_and_nothing_else() {
    let administrator = crate::http::Administrator { name: "adm".into(), password: "password".into() };
    let options = crate::http::Options { administrator: Some(administrator), ..Default::default() };
    let walk = Walk::begin(options).await;
    walk.send("PUT", "/db", Some("adm")).await;
    for rows in resources() {
        let path = rows[0].path;
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "COPY"] {
            if path == "/_session" && method == "POST" {
                // Its body names no user.
                continue;
            }
            let status = walk.send(method, path, None).await.status().as_u16();
            let is_public = rows.iter().all(|row| row.who == Public);
            assert_eq!(status == 401, !is_public, "{method} {path}: {status}");
        }
    }
    assert_eq!(walk.send("GET", "/db", Some("adm")).await.status(), 200);
    walk.server.stop().await;
}

/// A path that a pattern matches.
fn example(pattern: &str) -> String {
    let path = pattern.replace("{ddoc}", "_design/x").replace("{local}", "_local/x").replace("{node}", "_local");
    path.replace(['{', '}'], "").replace('*', "rest")
}

/// The pattern of a path, and the values of its placeholders.
fn meaning(path: &str) -> (&'static str, String) {
    let segments = join_ids(crate::http::wire::params::segments(path, true).unwrap().0);
    let resource = find(&segments, &Method::GET).unwrap();
    (resource.path(), resource.names.join(" "))
}

#[test]
fn each_row_is_met_by_its_own_path() {
    for rows in resources() {
        let pattern = rows[0].path;
        let (found, names) = meaning(&example(&pattern.replace('*', "x/y")));
        assert_eq!(found, pattern, "an earlier row hides it");
        let rest = if pattern.ends_with('*') { 2 } else { 0 };
        assert_eq!(names.split_whitespace().count(), pattern.matches('{').count() + rest);
        // Also the path without the names of `*`, unless that has its own rows.
        let has_rows = |short: &str| short.ends_with('}') || ROUTES.iter().any(|row| row.path == short);
        if let Some(short) = pattern.strip_suffix("/*").filter(|short| !has_rows(short)) {
            assert_eq!(meaning(&example(short)).0, pattern);
        }
    }
}

#[test]
fn each_method_of_a_path_has_one_row() {
    let mut seen = std::collections::HashSet::new();
    for rows in resources() {
        let path = rows[0].path;
        assert!(seen.insert(path), "the rows of {path} do not follow each other");
        let methods: Vec<&str> = rows.iter().flat_map(|row| row.methods.split(',')).collect();
        let distinct: std::collections::HashSet<&&str> = methods.iter().collect();
        assert_eq!(distinct.len(), methods.len(), "{path}");
        assert!(!methods.contains(&"*") || methods.len() == 1, "{path}");
        // Only paths without a database may be public. All others without one are for an administrator.
        for row in rows {
            let names_a_database = path.starts_with("/{db}");
            assert!(
                if names_a_database { row.who != Public } else { matches!(row.who, Public | Metrics | ServerAdmin) },
                "{path}"
            );
        }
    }
}

/// The endpoints of a table of `docs/api.md`: state, method, path, and whether it includes all paths below it.
fn documented(page: &str) -> Vec<(&str, Method, &str, bool)> {
    let mut found = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (endpoints, state) = (cells.next().unwrap(), cells.next().unwrap());
        let texts: Vec<&str> = endpoints.split('`').collect();
        for (at, endpoint) in texts.iter().enumerate().skip(1).step_by(2) {
            if let Some((method, path)) = endpoint.split_once(" /") {
                let is_tree = texts[at + 1].starts_with(" and below");
                found.push((state, method.parse().unwrap(), path, is_tree));
            }
        }
    }
    found
}

/// The path up to its last name that begins with an underscore.
fn stem(path: &str) -> &str {
    let Some(begin) = path.rfind("/_") else { return path };
    &path[..path[begin + 1..].find('/').map_or(path.len(), |end| begin + 1 + end)]
}

/// The tables of endpoints in `docs/api.md` list each of our rows, and list nothing else as supported.
#[test]
fn every_endpoint_is_in_the_documentation() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md")).unwrap();
    let (_, page) = page.split_once("## CouchDB 3.5: databases").unwrap();
    let (mut exact, mut paths, mut trees) = (std::collections::HashSet::new(), Vec::new(), Vec::new());
    for (state, method, path, is_tree) in documented(page) {
        let path = path.replace("_design/{ddoc}", "{ddoc}");
        let example = format!("/{}", path.replace("{ddoc}", "_design/x").replace(['{', '}'], ""));
        let segments = join_ids(crate::http::wire::params::segments(&example, true).unwrap().0);
        let resource = find(&segments, &method).unwrap();
        // An unknown path would be a document or an attachment.
        let is_special = |part: &&str| part.starts_with('_') && *part != "_local";
        let is_known = path.split('/').filter(is_special).all(|part| resource.path().split('/').any(|own| own == part));
        let is_there = is_known && resource.row.is_some();
        assert!(matches!(state, "done" | "different" | "not"), "{state}");
        assert!(is_there || state == "not", "{method} /{path} is not there");
        exact.extend(resource.row.map(|row| (row.path, method)));
        paths.push(resource.path());
        if is_tree {
            trees.push(resource.path().trim_end_matches("/*"));
        }
    }
    for row in ROUTES {
        let is_below = |tree: &&str| row.path.strip_prefix(*tree).is_some_and(|rest| rest.starts_with('/'));
        for method in row.methods.split(',').filter(|method| *method != "HEAD") {
            let is_listed = match method {
                // It refuses unsupported paths.
                "*" => paths.iter().any(|path| path.starts_with(stem(row.path))),
                method => exact.iter().any(|(path, known)| *path == row.path && known == method),
            };
            assert!(is_listed || trees.iter().any(is_below), "{method} {} is not in a table of docs/api.md", row.path);
        }
    }
}

/// The description, by path and by method in capital letters.
fn described() -> Vec<(String, String, serde_json::Value)> {
    let description: serde_json::Value = serde_json::from_slice(&DESCRIPTION).unwrap();
    let mut all = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            all.push((path.clone(), method.trim_start_matches("x-").to_uppercase(), operation.clone()));
        }
    }
    all
}

#[test]
fn each_row_is_described_and_nothing_else() {
    let mut seen = std::collections::HashSet::new();
    let mut ids = std::collections::HashSet::new();
    for (path, method, operation) in described() {
        let path = path.replace("{docid}", "x").replace("{node}", "_local").replace(['{', '}'], "");
        let segments = join_ids(crate::http::wire::params::segments(&path, true).unwrap().0);
        let row = find(&segments, &method.parse().unwrap()).unwrap().row.unwrap();
        assert_eq!(operation["summary"], row.operation.summary, "{method} {path} is described as another row");
        assert_eq!(operation["x-rights"], row.who.text());
        assert!(ids.insert(operation["operationId"].to_string()), "{operation}");
        seen.insert((row.path, method));
    }
    for row in ROUTES {
        let methods = if row.methods == "*" { "GET,PUT,POST,DELETE" } else { row.methods };
        for method in methods.split(',') {
            assert!(seen.remove(&(row.path, method.to_owned())), "{method} {} is not described", row.path);
        }
    }
    assert!(seen.is_empty(), "{seen:?}");
}

/// The names in backticks of a cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The parameters in the tables of `docs/api.md` are those of the description: no parameter is missing in the tables.
#[test]
fn the_parameters_in_the_documentation_are_those_that_are_described() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md")).unwrap();
    let rows = || page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" | ").collect::<Vec<_>>());
    let cell_of = |endpoint: &str| rows().find(|cells| cells[0].contains(endpoint)).unwrap()[2].to_owned();
    let mut wrong = Vec::new();
    for cells in rows() {
        for (state, method, path, _) in documented(&cells.join(" | ")) {
            let path = path.replace("_design/{ddoc}", "{ddoc}");
            let example = format!("/{}", path.replace("{ddoc}", "_design/x").replace(['{', '}'], ""));
            let segments = join_ids(crate::http::wire::params::segments(&example, true).unwrap().0);
            let Some(row) = find(&segments, &method).unwrap().row.filter(|_| state != "not") else { continue };
            let mut names = cells[2].to_owned();
            for (word, endpoint) in [
                ("as `_all_docs`", "`GET /{db}/_all_docs`"),
                ("as `_all_dbs`", "`GET /_all_dbs`"),
                ("as `get`.", "`GET /{db}/{docid}`"),
                ("as `_find`", "`POST /{db}/_find`"),
                ("as views", "`GET /{db}/_design/{ddoc}/_view/{view}`"),
            ] {
                if cells[2].to_lowercase().contains(word) {
                    names += &cell_of(endpoint);
                }
            }
            for param in row.operation.parameters() {
                if !quoted(&names).any(|name| name.eq_ignore_ascii_case(param.name)) {
                    wrong.push(format!("{method} /{path}: `{}` is not in the tables", param.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[cfg(feature = "mem")]
#[tokio::test]
async fn everybody_may_read_the_description() {
    let administrator = crate::http::Administrator { name: "adm".into(), password: "password".into() };
    let options = crate::http::Options { administrator: Some(administrator), ..Default::default() };
    let walk = Walk::begin(options).await;
    let answer = walk.send_body("GET", "/_openapi.json", None, "").await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    let answer: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(answer["openapi"], "3.1.0");
    assert_eq!(answer["paths"]["/{db}/{docid}"]["x-copy"]["x-rights"], "members of the database, who may write");
    walk.server.stop().await;
}

#[test]
fn names_with_a_slash_are_one_document() {
    assert_eq!(meaning("/a%2Fb/c%2Fd/"), ("/{db}/{docid}", "a/b c/d".into()));
    assert_eq!(meaning("/db/_design/x"), ("/{db}/{docid}", "db _design/x".into()));
    assert_eq!(meaning("/db/_design%2Fx"), meaning("/db/_design/x"));
    assert_eq!(meaning("/db/_design%2Fx/_view/v"), meaning("/db/_design/x/_view/v"));
    assert_eq!(meaning("/db/_design/x/_view/v"), ("/{db}/{ddoc}/_view/{view}", "db _design/x v".into()));
    assert_eq!(meaning("/db/_local%2Fx%2Fy"), ("/{db}/{local}", "db _local/x/y".into()));
    assert_eq!(meaning("/db/_local/x/y"), ("/{db}/_local/*", "db x y".into()));
    assert_eq!(meaning("/db/_local%2Fx/y"), ("/{db}/{docid}/*", "db _local/x y".into()));
    assert_eq!(meaning("/db/_local%2F"), ("/{db}/_local", "db".into()));
    assert_eq!(meaning("/db/_local"), ("/{db}/_local", "db".into()));
    assert_eq!(meaning("/db/_design/x/a/b/c").0, "/{db}/{docid}/*");
    assert_eq!(meaning("/db/x/a/b/c").0, "/{db}/{docid}/*");
}

#[test]
fn requests_need_what_they_need_in_couchdb() {
    let who = |method: Method, path: &str| {
        let segments = join_ids(crate::http::wire::params::segments(path, true).unwrap().0);
        find(&segments, &method).unwrap().who()
    };
    for (method, path, expected) in [
        (Method::GET, "/", Public),
        (Method::POST, "/_session", Public),
        (Method::GET, "/_utils", Public),
        (Method::GET, "/_all_dbs", ServerAdmin),
        (Method::GET, "/_unknown", ServerAdmin),
        (Method::GET, "/_users/x", Reader),
        (Method::GET, "/_users/_all_docs", ServerAdmin),
        (Method::PUT, "/_users/x/a", ServerAdmin),
        (Method::GET, "/_replicator/x", Reader),
        (Method::PUT, "/_replicator/x", Writer),
        (Method::POST, "/_replicator/_bulk_docs", Writer),
        (Method::DELETE, "/_replicator", ServerAdmin),
        (Method::GET, "/_replicator/_all_docs", ServerAdmin),
        (Method::GET, "/_replicator/_changes", ServerAdmin),
        (Method::GET, "/_replicator/x/attachment", ServerAdmin),
        (Method::PUT, "/_replicator/_security", ServerAdmin),
        (Method::GET, "/a%2F_replicator/x", Reader),
        (Method::GET, "/a%2F_replicator/_changes", ServerAdmin),
        (Method::GET, "/db", Reader),
        (Method::POST, "/db", Writer),
        (Method::PUT, "/db", ServerAdmin),
        (Method::DELETE, "/db", ServerAdmin),
        (Method::GET, "/db/doc", Reader),
        (Method::PUT, "/db/doc", Writer),
        (Method::POST, "/db/_all_docs", Reader),
        (Method::POST, "/db/_bulk_docs", Writer),
        (Method::GET, "/db/_security", Reader),
        (Method::PUT, "/db/_security", DatabaseAdmin),
        (Method::PUT, "/db/_revs_limit", DatabaseAdmin),
        (Method::PUT, "/db/_keep_replaced", DatabaseAdmin),
        (Method::GET, "/db/_keep_replaced", Reader),
        (Method::POST, "/db/_compact", DatabaseAdmin),
        (Method::POST, "/db/_compact/d", DatabaseAdmin),
        (Method::POST, "/db/_purge", ServerAdmin),
        (Method::PUT, "/db/_purged_infos_limit", ServerAdmin),
        (Method::GET, "/db/_purged_infos", Reader),
        (Method::GET, "/db/_couch_layer/check", DatabaseAdmin),
        (Method::POST, "/db/_couch_layer/purge_tombstones", ServerAdmin),
        (Method::GET, "/db/_couch_layer/vault", DatabaseAdmin),
        (Method::POST, "/db/_couch_layer/vault", ServerAdmin),
        (Method::PUT, "/db/_couch_layer/vault", ServerAdmin),
        (Method::GET, "/db/_couch_layer/relocate", ServerAdmin),
        (Method::GET, "/_couch_layer/backup", ServerAdmin),
        (Method::POST, "/_couch_layer/backup", ServerAdmin),
        (Method::POST, "/_couch_layer/backup/runs", ServerAdmin),
        (Method::GET, "/_couch_layer/backup/verify", ServerAdmin),
        (Method::POST, "/_couch_layer/backup/verify", ServerAdmin),
        (Method::GET, "/_couch_layer/figures", ServerAdmin),
        (Method::POST, "/_couch_layer/promote", ServerAdmin),
        (Method::GET, "/_couch_layer/ship", ServerAdmin),
        (Method::POST, "/_couch_layer/snapshot", ServerAdmin),
    ] {
        assert_eq!(who(method.clone(), path), expected, "{method} {path}");
    }
}
