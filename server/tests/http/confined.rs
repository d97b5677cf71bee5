//! Headers by which browsers confine what users store: such a page cannot act as a page of this server.

use reqwest::header::CONTENT_SECURITY_POLICY;
use serde_json::json;

use crate::support::{Answer, Couch};

fn policies(answer: &Answer) -> Vec<&str> {
    answer.headers.get_all(CONTENT_SECURITY_POLICY).iter().map(|policy| policy.to_str().unwrap()).collect()
}

async fn attached() -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    let page = couch.request("PUT", "/db/doc/page.html").header("content-type", "text/html").body("<script>…</script>");
    assert_eq!(couch.send(page).await.status, 201);
    couch
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_taken_for_what_it_does_not_say_it_is() {
    let couch = attached().await;
    for (method, path, status) in [
        ("GET", "/", 200),
        ("HEAD", "/db/doc", 200),
        ("GET", "/db/doc/page.html", 200),
        ("GET", "/db/_changes?feed=continuous&timeout=1", 200),
        ("GET", "/db/_all_docs", 200),
        ("GET", "/none", 404),
        ("GET", "/db/_design%2Fx/y", 301),
        ("POST", "/db/_bulk_docs", 415),
        ("DELETE", "/db/_all_docs", 405),
        ("OPTIONS", "/", 405),
    ] {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let answer = client.request(method.parse().unwrap(), format!("{}{path}", couch.base)).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_in_a_sandbox_in_whatever_form() {
    let couch = attached().await;
    let get = async |path: &str, header: (&str, &str)| {
        couch.send(couch.request("GET", path).header(header.0, header.1)).await
    };
    let whole = get("/db/doc/page.html", ("accept", "*/*")).await;
    let tag = whole.header("etag").to_owned();
    let forms = [
        whole,
        get("/db/doc/page.html", ("range", "bytes=0-3")).await,
        get("/db/doc/page.html", ("range", "bytes=0-1,3-4")).await,
        couch.call("HEAD", "/db/doc/page.html").await,
        get("/db/doc?attachments=true", ("accept", "multipart/related")).await,
        get("/db/doc?open_revs=all", ("accept", "multipart/mixed")).await,
        couch
            .send(
                couch
                    .request("POST", "/db/_bulk_get")
                    .header("accept", "multipart/mixed")
                    .header("content-type", "application/json")
                    .body(r#"{"docs":[{"id":"doc"}]}"#),
            )
            .await,
    ];
    for answer in &forms {
        assert!(answer.status.is_success(), "{answer:?}");
        assert_eq!(policies(answer), ["sandbox"], "{answer:?}");
    }
    assert_eq!(get("/db/doc/page.html", ("if-none-match", &tag)).await.status, 304);
    assert!(policies(&couch.get("/db/doc").await).is_empty(), "JSON is no page");

    let set = async |key: &str, value: &str| {
        let answer = couch.json("PUT", &format!("/_node/_local/_config/csp/{key}"), json!(value)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    set("attachments_header_value", "default-src 'none'").await;
    assert_eq!(policies(&couch.get("/db/doc/page.html").await), ["default-src 'none'"]);
    set("attachments_enable", "false").await;
    assert!(policies(&couch.get("/db/doc/page.html").await).is_empty());
}

#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_function_makes_is_in_a_sandbox_and_may_be_confined_further() {
    let couch = attached().await;
    let updates = json!({
        "page": "function () { return [null, '<script>…</script>'] }",
        "own": "function () { return [null, {body: 'x', headers: {'Content-Security-Policy': \"default-src 'none'\",
            'X-Content-Type-Options': 'none'}}] }",
    });
    couch.put("/db/_design/d", json!({"updates": updates})).await;
    let page = couch.raw("POST", "/db/_design/d/_update/page", "").await;
    assert_eq!((page.status.as_u16(), policies(&page)), (200, vec!["sandbox"]));
    let own = couch.raw("POST", "/db/_design/d/_update/own", "").await;
    assert_eq!(policies(&own), ["sandbox", "default-src 'none'"]);
    assert_eq!(own.header("x-content-type-options"), "nosniff");
    let answer = couch.json("PUT", "/_node/_local/_config/csp/showlist_enable", json!("false")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(policies(&couch.raw("POST", "/db/_design/d/_update/page", "").await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_changes_nothing_by_a_session() {
    let couch = Couch::with_administrator().await;
    let login = couch.json("POST", "/_session", json!({ "name": "adm", "password": "pass word" })).await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let request = couch.request(method, path).header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        couch.send(request.body(r#"{"a":1}"#)).await
    };
    let session = ("cookie", cookie.as_str());
    assert_eq!(send("PUT", "/db", &[session]).await.status, 201);
    let page = ("origin", "http://127.0.0.1:1");
    let reason = "pages of other origins may not do this with your session unless cors/origins names theirs";
    for site in ["cross-site", "same-site"] {
        let site = ("sec-fetch-site", site);
        send("POST", "/db", &[session, page, site]).await.refused(403, "forbidden", reason);
        // A browser remembers a password that was typed into its dialog.
        let typed = ("authorization", "Basic YWRtOnBhc3Mgd29yZA==");
        send("POST", "/db", &[typed, page, site]).await.refused(403, "forbidden", reason);
        send("DELETE", "/db", &[session, page, site]).await.refused(403, "forbidden", reason);
        assert_eq!(send("GET", "/db", &[session, page, site]).await.status, 200);
    }
    assert_eq!(send("GET", "/db/_all_docs", &[session]).await.json()["rows"], json!([]));
    // Pages of this server, clients that are no browsers, and what a user types into the address bar.
    for site in ["same-origin", "none"] {
        assert_eq!(send("POST", "/db", &[session, ("sec-fetch-site", site)]).await.status, 201, "{site}");
    }
    assert_eq!(send("POST", "/db", &[session]).await.status, 201);
    // Signing in needs no session.
    let site = ("sec-fetch-site", "cross-site");
    assert_ne!(send("POST", "/_session", &[page, site]).await.status, 403);
    // A page whose origin is named may use one.
    let origins = ("/_node/_local/_config/cors/origins", "\"http://127.0.0.1:1\"");
    let enable = ("/_node/_local/_config/chttpd/enable_cors", "\"true\"");
    for (path, value) in [origins, enable] {
        let set = couch.request("PUT", path).basic_auth("adm", Some("pass word")).body(value);
        assert_eq!(couch.send(set.header("content-type", "application/json")).await.status, 200, "{path}");
    }
    assert_eq!(send("POST", "/db", &[session, page, site]).await.status, 201);
}
