//! Walks the table.

use super::*;

/// A server of its own, and a client of it.
#[cfg(feature = "mem")]
struct Walk {
    server: crate::http::Server,
    client: reqwest::Client,
}

#[cfg(feature = "mem")]
impl Walk {
    async fn begin(options: crate::http::Options) -> Walk {
        let engine = crate::engine::open(&"mem:".parse().unwrap(), crate::engine::IfMissing::Create).unwrap();
        let layer = model::Layer::open(engine, model::LayerOptions::default()).await.unwrap();
        let server = crate::http::Server::start(layer, "127.0.0.1:0".parse().unwrap(), options).await.unwrap();
        Walk { server, client: reqwest::Client::new() }
    }

    async fn send(&self, method: &str, path: &str, admin: Option<&str>) -> reqwest::Response {
        let path = path.replace("/*", "").replace(['{', '}'], "");
        let url = format!("http://{}{path}", self.server.address());
        let request = self.client.request(method.parse().unwrap(), url).header("content-type", "application/json");
        let request = match admin {
            Some(name) => request.basic_auth(name, Some("password")),
            None => request,
        };
        request.body("{}").send().await.unwrap()
    }
}

#[cfg(feature = "mem")]
#[tokio::test]
async fn each_endpoint_has_the_methods_of_its_row_and_no_other() {
    let walk = Walk::begin(Default::default()).await;
    for row in ROUTES.iter().filter(|row| !row.methods.is_empty()) {
        for method in row.methods.split(',') {
            walk.send("PUT", "/db", None).await;
            let status = walk.send(method, row.path, None).await.status().as_u16();
            assert!(!matches!(status, 405 | 500 | 501), "{method} {}: {status}", row.path);
        }
        walk.send("PUT", "/db", None).await;
        let refused = walk.send("PATCH", row.path, None).await;
        assert_eq!((refused.status().as_u16(), refused.headers()["allow"].to_str().unwrap()), (405, row.methods));
        if row.path.starts_with("/{db}") {
            walk.send("DELETE", "/db", None).await;
            assert_eq!(walk.send("PATCH", row.path, None).await.status(), 404, "{}", row.path);
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
    for row in ROUTES {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "COPY"] {
            if row.path == "/_session" && method == "POST" {
                // Its body has no name.
                continue;
            }
            let status = walk.send(method, row.path, None).await.status().as_u16();
            let is_public = row.who(&method.parse().unwrap(), &["db"]) == Public;
            assert_eq!(status == 401, !is_public, "{method} {}: {status}", row.path);
        }
    }
    assert_eq!(walk.send("GET", "/db", Some("adm")).await.status(), 200);
    walk.server.stop().await;
}

fn route(path: &str) -> (&'static Route, Vec<String>) {
    let (segments, _) = crate::http::wire::params::segments(path).unwrap();
    let (route, names) = find(&segments).unwrap();
    (route, names.into_iter().map(str::to_owned).collect())
}

#[test]
fn each_row_is_met_by_its_own_path() {
    for row in ROUTES {
        let (found, names) = route(&row.path.replace('*', "x/y").replace('{', "<").replace('}', ">"));
        assert_eq!(found.path, row.path, "a row above hides it");
        assert_eq!(names.len(), row.path.matches('{').count());
        // Without what `*` stands for as well.
        if let Some(short) = row.path.strip_suffix("/*").filter(|short| !short.ends_with('}')) {
            assert_eq!(route(short).0.path, row.path);
        }
    }
}

#[test]
fn methods_are_listed_once_and_every_method_has_somebody_who_may() {
    for row in ROUTES {
        let methods: Vec<&str> = row.methods.split(',').filter(|method| !method.is_empty()).collect();
        let distinct: std::collections::HashSet<&&str> = methods.iter().collect();
        assert_eq!(distinct.len(), methods.len(), "{}", row.path);
        assert_eq!(row.may.last().map(|(name, _)| *name), Some("*"), "{}", row.path);
        assert!(row.may.iter().all(|(name, _)| *name == "*" || methods.is_empty() || methods.contains(name)));
        // Only what names no database may be for everyone, and only an administrator's may be without one.
        let is_public = row.may.iter().any(|(_, who)| *who == Public);
        assert!(!(is_public && row.path.starts_with("/{db}")), "{}", row.path);
        assert!(row.path.starts_with("/{db}") || row.may == EVERYONE || row.may == SERVER, "{}", row.path);
    }
}

#[test]
fn names_with_a_slash_are_one_document() {
    let names = |path: &str| {
        let (route, names) = route(path);
        (route.path, names.join(" "))
    };
    assert_eq!(names("/a%2Fb/c%2Fd/"), ("/{db}/{docid}", "a/b c/d".into()));
    assert_eq!(names("/db/_design%2Fx"), names("/db/_design/x"));
    assert_eq!(names("/db/_design%2Fx/_view/v"), names("/db/_design/x/_view/v"));
    assert_eq!(names("/db/_local%2Fx%2Fy"), ("/{db}/_local/{name}", "db x/y".into()));
    assert_eq!(names("/db/_local%2Fx/y"), ("/{db}/{docid}/*", "db _local/x".into()));
    assert_eq!(names("/db/_local%2F"), ("/{db}/_local", "db".into()));
    assert_eq!(names("/db/_design/x/a/b/c").0, "/{db}/_design/{name}/{part}/*");
    assert_eq!(names("/db/x/a/b/c").0, "/{db}/{docid}/*");
}

#[test]
fn requests_need_what_they_need_in_couchdb() {
    let who = |method: Method, path: &str| {
        let (segments, _) = crate::http::wire::params::segments(path).unwrap();
        let (route, names) = find(&segments).unwrap();
        route.who(&method, &names)
    };
    for (method, path, expected) in [
        (Method::GET, "/", Public),
        (Method::POST, "/_session", Public),
        (Method::GET, "/_utils", Public),
        (Method::GET, "/_all_dbs", ServerAdmin),
        (Method::GET, "/_unknown", ServerAdmin),
        (Method::GET, "/_users/x", ServerAdmin),
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
        (Method::POST, "/db/_compact", DatabaseAdmin),
        (Method::POST, "/db/_compact/d", DatabaseAdmin),
        (Method::POST, "/db/_purge", ServerAdmin),
        (Method::GET, "/db/_couch_layer/check", Reader),
        (Method::GET, "/db/_couch_layer/relocate", ServerAdmin),
    ] {
        assert_eq!(who(method.clone(), path), expected, "{method} {path}");
    }
}
