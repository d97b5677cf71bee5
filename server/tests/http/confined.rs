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
    assert!(policies(&couch.get("/db/doc").await).is_empty(), "JSON is not a page");

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
async fn a_page_of_another_site_changes_nothing_by_a_proof_that_a_browser_sends_unasked() {
    let couch = Couch::with_administrator().await;
    let login = couch.json("POST", "/_session", json!({ "name": "adm", "password": "pass word" })).await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)], body: &'static str| {
        let request = couch.request(method, path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        couch.send(request.body(body)).await
    };
    let session = ("cookie", cookie.as_str());
    let json_type = ("content-type", "application/json");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let make = json!({ "updates": { "make": "function (doc, req) { return [{ _id: req.uuid }, 'made'] }" } });
    assert_eq!(send("PUT", "/db", &[session, json_type], "").await.status, 201);
    let put = couch.request("PUT", "/db/_design/u").basic_auth("adm", Some("pass word"));
    assert_eq!(couch.send(put.header("content-type", "application/json").body(make.to_string())).await.status, 201);
    let make = "/db/_design/u/_update/make";
    let page = ("origin", "http://page.example");
    let reason = "pages of other sites may not do this with your login unless cors/origins names their origin and \
                  cors/credentials is true; or send JSON";
    // A browser remembers a password that was typed into its dialog.
    let typed = ("authorization", "Basic YWRtOnBhc3Mgd29yZA==");
    // To a server without TLS on another machine, a browser says only the origin.
    let places = [
        &[page, ("sec-fetch-site", "cross-site")][..],
        &[page, ("sec-fetch-site", "same-site")],
        &[page],
        &[("origin", "null")],
    ];
    for place in places {
        for proof in [session, typed] {
            for simple in [&[][..], &[form], &[("content-type", "text/plain; application/json")]] {
                let sent = [&[proof][..], place, simple].concat();
                send("POST", make, &sent, "a=1").await.refused(403, "forbidden", reason);
            }
            // For these a browser asks first. A proxy that answers it decides.
            let sent = [&[proof, json_type][..], place].concat();
            assert_eq!(send("POST", "/db", &sent, r#"{"_id":"posted"}"#).await.status, 201, "{sent:?}");
            assert_eq!(send("PUT", "/db/put", &sent, "{}").await.status, 201, "{sent:?}");
            for id in ["posted", "put"] {
                let rev =
                    send("GET", &format!("/db/{id}"), &sent, "").await.json()["_rev"].as_str().unwrap().to_owned();
                let path = format!("/db/{id}?rev={rev}");
                assert_eq!(send("DELETE", &path, &[&[proof][..], place].concat(), "").await.status, 200, "{sent:?}");
            }
        }
        // Signing a visitor in as somebody else, or out of a page's sight.
        let login = "name=adm&password=pass+word";
        send("POST", "/_session", &[place, &[form]].concat(), login).await.refused(403, "forbidden", reason);
        let login = r#"{"name":"adm","password":"pass word"}"#;
        assert_eq!(send("POST", "/_session", &[place, &[json_type]].concat(), login).await.status, 200);
    }
    let all = send("GET", "/db/_all_docs", &[session], "").await.json();
    assert_eq!(all["total_rows"], 1, "{all}");
    // Pages of this server, also behind a proxy that replaces the host; what a user types into the address bar; and
    // clients that are not browsers.
    for place in [
        &[("sec-fetch-site", "same-origin"), page][..],
        &[("sec-fetch-site", "none")],
        &[("origin", couch.base.as_str())],
        &[page, ("x-forwarded-host", "page.example")],
        &[],
    ] {
        assert_eq!(send("POST", make, &[&[session], place].concat(), "").await.status, 201, "{place:?}");
        let login = "name=adm&password=pass+word";
        assert_eq!(send("POST", "/_session", &[place, &[form]].concat(), login).await.status, 200, "{place:?}");
    }
    // A page whose origin is named may, if it may send credentials; `*` names nobody.
    let set = async |section_and_name: &str, value: &'static str| {
        let path = format!("/_node/_local/_config/{section_and_name}");
        let set = couch.request("PUT", &path).basic_auth("adm", Some("pass word")).body(value);
        assert_eq!(couch.send(set.header("content-type", "application/json")).await.status, 200, "{path}");
    };
    let from = [session, page, ("sec-fetch-site", "cross-site")];
    set("chttpd/enable_cors", "\"true\"").await;
    set("cors/credentials", "\"true\"").await;
    set("cors/origins", "\"*\"").await;
    send("POST", make, &from, "").await.refused(403, "forbidden", reason);
    set("cors/origins", "\"http://page.example\"").await;
    assert_eq!(send("POST", make, &from, "").await.status, 201);
    set("cors/credentials", "\"false\"").await;
    send("POST", make, &from, "").await.refused(403, "forbidden", reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_changes_nothing_where_everyone_is_an_administrator() {
    let couch = Couch::start().await;
    assert_eq!(couch.json("PUT", "/db", json!({})).await.status, 201);
    let send = async |headers: &[(&str, &str)]| {
        let request = couch.request("POST", "/db/_design/none/_update/none");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        couch.send(request).await.status.as_u16()
    };
    assert_eq!(send(&[("origin", "http://page.example"), ("sec-fetch-site", "cross-site")]).await, 403);
    assert_eq!(send(&[("sec-fetch-site", "same-origin")]).await, 404);
}
