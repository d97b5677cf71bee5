//! `/_utils`: the console in the binary, and another one from a folder.

use reqwest::header::CONTENT_SECURITY_POLICY;
use reqwest::redirect::Policy;
use serde_json::json;
use server::http::Options;

use crate::support::{Answer, Couch};

/// The files of the console.
fn files() -> Vec<String> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/console")).unwrap();
    folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[track_caller]
fn is_console(answer: &Answer) {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                  frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
    assert_eq!(answer.header("content-security-policy"), policy);
    assert_eq!(answer.headers.get_all(CONTENT_SECURITY_POLICY).iter().count(), 1);
    assert_eq!(answer.header("x-frame-options"), "DENY");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("vary"), "accept-encoding");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_served_with_a_strict_policy() {
    // Nobody needs a password to load it.
    let couch = Couch::with_administrator().await;
    let first = couch.get("/_utils/").await;
    assert_eq!((first.status.as_u16(), first.header("content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(first.text, couch.get("/_utils/index.html").await.text);
    is_console(&first);

    let mut bytes = 0;
    for name in files() {
        let path = format!("/_utils/{name}");
        let whole = couch.get(&path).await;
        assert_eq!(whole.status, 200, "{name}");
        is_console(&whole);
        let packed = couch.send(couch.request("GET", &path).header("accept-encoding", "gzip")).await;
        is_console(&packed);
        assert_eq!(packed.header("content-encoding"), "gzip", "{name}");
        assert_ne!(packed.header("etag"), whole.header("etag"), "{name}");
        bytes += packed.header("content-length").parse::<usize>().unwrap();
        for (answer, coding) in [(&whole, "identity"), (&packed, "gzip")] {
            let tag = answer.header("etag");
            let again = couch.request("GET", &path).header("accept-encoding", coding).header("if-none-match", tag);
            let again = couch.send(again).await;
            assert_eq!((again.status.as_u16(), again.header("etag")), (304, tag), "{name}");
            is_console(&again);
        }
    }
    assert!(bytes < 150_000, "{bytes} bytes");

    // Inline code would be refused by the policy, so there is none.
    for name in files().iter().filter(|name| name.ends_with(".html")) {
        let text = couch.get(&format!("/_utils/{name}")).await.text;
        assert!(!text.contains("style=") && !text.contains("onclick") && !text.contains("<style"), "{name}");
        assert_eq!(text.matches("<script").count(), text.matches("<script type=\"module\" src=").count(), "{name}");
    }
    for none in ["/_utils/none", "/_utils/main.js/x", "/_utils/..%2fCargo.toml"] {
        assert_eq!(couch.get(none).await.status, 404, "{none}");
    }
    couch.call("POST", "/_utils/").await.refused(405, "method_not_allowed", "Only GET,HEAD allowed");
    assert_eq!(couch.call("HEAD", "/_utils/").await.header("content-length"), first.text.len().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_led_to_the_console_and_gets_json_elsewhere() {
    let couch = Couch::start().await;
    let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    let led = client.get(format!("{}/_utils", couch.base)).send().await.unwrap();
    assert_eq!((led.status().as_u16(), led.headers()["location"].to_str().unwrap()), (301, "_utils/"));
    assert_eq!(couch.get("/_utils").await.header("content-type"), "text/html; charset=utf-8");
    // Clients rely on it, whatever they say they accept.
    let root = couch.send(couch.request("GET", "/").header("accept", "text/html")).await;
    assert_eq!((root.header("content-type"), root.json()["couchdb"].as_str()), ("application/json", Some("Welcome")));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_console_is_served_from_a_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pages");
    std::fs::create_dir_all(folder.join("sub dir")).unwrap();
    std::fs::write(folder.join("index.html"), "<title>another</title>").unwrap();
    let script = "x".repeat(200_000);
    std::fs::write(folder.join("sub dir/a.js"), &script).unwrap();
    std::fs::write(place.path().join("secret"), "secret").unwrap();
    let couch = Couch::with(Options { utils: Some(folder.clone()), ..Options::default() }).await;

    let first = couch.get("/_utils/").await;
    assert_eq!(
        (first.text.as_str(), first.header("content-type")),
        ("<title>another</title>", "text/html; charset=utf-8")
    );
    assert!(first.header("content-security-policy").contains("script-src 'self' 'unsafe-eval'"));
    assert_eq!(first.header("x-frame-options"), "DENY");
    let large = couch.get("/_utils/sub%20dir/a.js").await;
    assert!(large.text == script && large.header("content-length") == "200000");
    assert_eq!(large.header("content-type"), "text/javascript; charset=utf-8");
    let known = couch.request("GET", "/_utils/").header("if-none-match", first.header("etag"));
    assert_eq!(couch.send(known).await.status, 304);
    assert_eq!(couch.call("HEAD", "/_utils/").await.text, "");
    let outside = ["..%2fsecret", "sub%20dir/..%2f..%2fsecret", "sub%20dir", "main.js", "sub%20dir%2fa.js", "x%00y"];
    for path in outside {
        couch.get(&format!("/_utils/{path}")).await.refused(404, "not_found", "missing");
    }
    // A changed file has another tag.
    std::fs::write(folder.join("index.html"), "<title>changed there</title>").unwrap();
    let known = couch.request("GET", "/_utils/").header("if-none-match", first.header("etag"));
    assert_eq!(couch.send(known).await.text, "<title>changed there</title>");

    let set = async |key: &str, value: &str| {
        couch.json("PUT", &format!("/_node/_local/_config/csp/{key}"), json!(value)).await;
        couch.get("/_utils/").await.header("content-security-policy").to_owned()
    };
    assert_eq!(set("utils_header_value", "default-src 'self'").await, "default-src 'self'");
    assert_eq!(set("utils_enable", "false").await, "");
}
