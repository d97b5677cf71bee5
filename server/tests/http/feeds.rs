//! The changes feed in all its forms.

use std::time::{Duration, Instant};

use conformance::chaos::Chaos;
use kv_api::{AnyDatabase, Counted};
use reqwest::Response;
use serde_json::{Value, json};
use server::http::Options;

use crate::support::Couch;

/// A feed in progress.
pub(crate) struct Feed {
    response: Response,
    read: String,
}

impl Feed {
    pub(crate) async fn open(couch: &Couch, path: &str) -> Feed {
        let response = couch.request("GET", path).send().await.unwrap();
        assert_eq!(response.status(), 200);
        Feed { response, read: String::new() }
    }

    /// Reads until the text so far satisfies `enough`. Returns the text.
    pub(crate) async fn until(&mut self, enough: impl Fn(&str) -> bool) -> &str {
        let deadline = tokio::time::sleep(Duration::from_secs(10));
        tokio::pin!(deadline);
        while !enough(&self.read) {
            tokio::select! {
                chunk = self.response.chunk() => match chunk.unwrap() {
                    Some(chunk) => self.read.push_str(std::str::from_utf8(&chunk).unwrap()),
                    None => panic!("the feed ended with {:?}", self.read),
                },
                () = &mut deadline => panic!("nothing more came than {:?}", self.read),
            }
        }
        &self.read
    }

    /// Reads to the end.
    pub(crate) async fn end(mut self) -> String {
        let rest = tokio::time::timeout(Duration::from_secs(10), self.response.text()).await;
        self.read.push_str(&rest.expect("the feed did not end").unwrap());
        self.read
    }
}

fn ids(results: &Value) -> Vec<&str> {
    results["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_has_each_document_once_in_order() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let empty = couch.get("/db/_changes").await.json();
    assert_eq!((&empty["results"], &empty["pending"]), (&json!([]), &json!(0)));
    let rev = couch.put("/db/a", json!({"v": 1})).await;
    couch.put("/db/b", json!({})).await;
    couch.put("/db/a", json!({"_rev": rev, "v": 2})).await;
    let gone = couch.put("/db/c", json!({})).await;
    couch.call("DELETE", &format!("/db/c?rev={gone}")).await;

    let all = couch.get("/db/_changes").await.json();
    assert_eq!(ids(&all), ["b", "a", "c"]);
    assert_eq!((&all["results"][2]["deleted"], &all["pending"]), (&json!(true), &json!(0)));
    assert_eq!(all["last_seq"], all["results"][2]["seq"]);
    assert_eq!(all["last_seq"], couch.get("/db").await.json()["update_seq"]);

    let first = couch.get("/db/_changes?limit=1").await.json();
    assert_eq!((ids(&first), &first["pending"]), (vec!["b"], &json!(2)));
    let since = first["last_seq"].as_str().unwrap();
    assert_eq!(ids(&couch.get(&format!("/db/_changes?since={since}")).await.json()), ["a", "c"]);
    assert_eq!(ids(&couch.get("/db/_changes?descending=true").await.json()), ["c", "a", "b"]);
    assert_eq!(ids(&couch.get("/db/_changes?descending=true&limit=1").await.json()), ["c"]);
    assert!(ids(&couch.get("/db/_changes?since=now").await.json()).is_empty());
    let docs = couch.get("/db/_changes?include_docs=true").await.json();
    assert_eq!((&docs["results"][1]["doc"]["v"], &docs["results"][2]["doc"]["_deleted"]), (&json!(2), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_feed_is_sent_page_by_page() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for batch in 0..10 {
        let docs: Vec<Value> = (0..700).map(|n| json!({"_id": format!("{batch}-{n:04}"), "n": n})).collect();
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    }
    let whole = couch.get("/db/_changes?include_docs=true").await;
    assert_eq!(whole.header("transfer-encoding"), "chunked");
    let whole = whole.json();
    let rows = whole["results"].as_array().unwrap();
    let expected: Vec<String> = (0..7000).map(|n| format!("{}-{:04}", n / 700, n % 700)).collect();
    assert_eq!(ids(&whole), expected);
    assert!(
        rows.is_sorted_by_key(|row| (number(&row["seq"]), row["seq"].as_str().unwrap().split_once('-').unwrap().1))
    );
    assert_eq!(rows[6999]["doc"]["n"], 699);
    let some = couch.get("/db/_changes?limit=5000").await.json();
    assert_eq!(ids(&some), expected[..5000]);
    let backwards = couch.get("/db/_changes?descending=true").await.json();
    assert!(ids(&backwards).iter().rev().eq(expected.iter()));
    let mut live = Feed::open(&couch, "/db/_changes?feed=continuous&limit=7000").await;
    let lines = live.until(|text| text.contains("last_seq")).await.lines().count();
    assert_eq!(lines, 7001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longpoll_wakes_at_the_first_change() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let now = couch.get("/db/_changes?feed=longpoll").await.json();
    assert_eq!(ids(&now), ["a"]);
    let since = now["last_seq"].as_str().unwrap();

    let mut waiting = Feed::open(&couch, &format!("/db/_changes?feed=longpoll&since={since}&heartbeat=50")).await;
    waiting.until(|text| text.matches('\n').count() > 4).await;
    couch.put("/db/b", json!({"v": 1})).await;
    let answer: Value = serde_json::from_str(&waiting.end().await).unwrap();
    assert_eq!(ids(&answer), ["b"]);

    let begun = Instant::now();
    let since = answer["last_seq"].as_str().unwrap();
    let silent = couch.get(&format!("/db/_changes?feed=longpoll&since={since}&timeout=200")).await.json();
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!((&silent["results"], silent["last_seq"].as_str()), (&json!([]), Some(since)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longpoll_goes_on_where_the_store_has_no_watch_left() {
    let store = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let store = AnyDatabase::new(Chaos::without_watches(store));
    let couch = Couch::over(store, Options::default()).await;
    couch.database("db").await;
    let mut waiting = Feed::open(&couch, "/db/_changes?feed=longpoll&heartbeat=50").await;
    waiting.until(|text| text.matches('\n').count() > 4).await;
    couch.put("/db/a", json!({})).await;
    let answer: Value = serde_json::from_str(&waiting.end().await).unwrap();
    assert_eq!(ids(&answer), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_longpoll_sleeps_through_what_does_not_pass() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let body = r#"{"selector":{"wanted":true}}"#;
    let request = couch.request("POST", "/db/_changes?feed=longpoll&since=now&filter=_selector&heartbeat=50");
    let request = request.header("content-type", "application/json").body(body);
    let response = request.send().await.unwrap();
    couch.put("/db/no", json!({"wanted": false})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    couch.put("/db/yes", json!({"wanted": true})).await;
    let answer: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(ids(&answer), ["yes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_feed_goes_on() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let mut feed = Feed::open(&couch, "/db/_changes?feed=continuous&heartbeat=40&include_docs=true").await;
    feed.until(|text| text.contains("\"a\"")).await;
    feed.until(|text| text.contains("\n\n\n")).await;
    for n in 0..20 {
        couch.put(&format!("/db/n{n}"), json!({"n": n})).await;
    }
    let text = feed.until(|text| text.contains("\"n19\"")).await;
    let rows: Vec<Value> =
        text.lines().filter(|line| line.ends_with('}')).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 21);
    assert_eq!(rows[20]["doc"]["n"], 19);
    let limited = Feed::open(&couch, "/db/_changes?feed=continuous&limit=3").await.end().await;
    assert_eq!(limited.lines().count(), 4);
    let last: Value = serde_json::from_str(limited.lines().last().unwrap()).unwrap();
    assert_eq!(last["last_seq"], rows[2]["seq"]);
    let timed = Feed::open(&couch, "/db/_changes?feed=live&since=now&timeout=100").await.end().await;
    assert!(timed.starts_with("{\"last_seq\":"), "{timed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_source_names_where_to_go_on() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let mut feed = Feed::open(&couch, "/db/_changes?feed=eventsource&heartbeat=40").await;
    assert_eq!(feed.response.headers()["content-type"], "text/event-stream");
    assert_eq!(feed.response.headers()["cache-control"], "no-cache");
    let text = feed.until(|text| text.contains("event: heartbeat\ndata: \n\n")).await;
    let event = text.split("\n\n").next().unwrap();
    let (data, id) = event.split_once("\nid: ").unwrap();
    let row: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&row["id"], row["seq"].as_str()), (&json!("a"), Some(id)));
    let request = couch.request("GET", "/db/_changes?feed=eventsource&since=0&timeout=50");
    let again = couch.send(request.header("last-event-id", id)).await;
    assert_eq!(again.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_let_through_what_they_name() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ["a", "b", "c", "_design/d"] {
        couch.put(&format!("/db/{id}"), json!({"n": id.len()})).await;
    }
    let filtered = async |query: &str, body: Value| {
        let answer = couch.json("POST", &format!("/db/_changes?{query}"), body).await.json();
        ids(&answer).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(filtered("filter=_doc_ids", json!({"doc_ids": ["c", "a", "x"]})).await, ["a", "c"]);
    let many: Vec<String> = (0..200).map(|n| format!("x{n}")).chain(["b".into()]).collect();
    assert_eq!(filtered("filter=_doc_ids", json!({"doc_ids": many})).await, ["b"]);
    assert_eq!(filtered("filter=_design", json!({})).await, ["_design/d"]);
    assert_eq!(filtered("filter=_selector&limit=2", json!({"selector": {"n": 1}})).await, ["a", "b"]);
    assert_eq!(filtered("filter=_selector", json!({"selector": {"_id": {"$gt": "b"}}})).await, ["c"]);
    // The body may ask for fields, as in a search.
    let select = async |fields: Value| {
        let body = json!({"selector": {"_id": "a"}, "fields": fields});
        couch.json("POST", "/db/_changes?filter=_selector&include_docs=true", body).await
    };
    assert_eq!(select(json!(["n"])).await.json()["results"][0]["doc"], json!({"n": 1}));
    assert_eq!(select(json!([])).await.json()["results"][0]["doc"]["_id"], "a");
    select(json!("n")).await.refused(400, "bad_request", "Selector error: fields must be JSON array");
    assert_eq!(select(json!([1])).await.status, 400);
    assert_eq!(filtered("", json!({"doc_ids": ["c"]})).await.len(), 4);
    let by_query = couch.get("/db/_changes?filter=_doc_ids&doc_ids=%5B%22b%22%5D").await.json();
    assert_eq!(ids(&by_query), ["b"]);
    // The documents that the selector reads are not sent unless they are requested.
    let row = couch.json("POST", "/db/_changes?filter=_selector", json!({"selector": {}})).await.json();
    assert!(row["results"][0].get("doc").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_takes_a_filter_too_long_is_left_out() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/before", json!({"text": "aa"})).await;
    let long = "a".repeat(100_000) + "!";
    let leaves =
        json!([{"_id": "leaves", "_rev": "1-aa", "text": long}, {"_id": "leaves", "_rev": "1-bb", "text": "a"}]);
    couch.json("POST", "/db/_bulk_docs", json!({"docs": leaves, "new_edits": false})).await;
    couch.put("/db/long", json!({"text": long})).await;
    couch.put("/db/behind", json!({"text": "a"})).await;
    let selector = json!({"text": {"$regex": "^(?=a)(a+)+$"}});
    let filtered = async |query: &str| {
        couch.json("POST", &format!("/db/_changes?filter=_selector{query}"), json!({"selector": selector})).await.json()
    };
    assert_eq!(ids(&filtered("").await), ["before", "leaves", "behind"]);
    let all = filtered("&style=all_docs").await;
    assert_eq!(all["results"][1]["changes"], json!([{"rev": "1-bb"}]));
    assert_eq!(all["last_seq"], couch.get("/db").await.json()["update_seq"], "the feed has an end");
    let searched = couch.json("POST", "/db/_find", json!({"selector": selector})).await;
    assert!(searched.text.contains("bad_arg"), "a search says so: {}", searched.text);
    let target = json!({"source": "db", "target": "copy", "create_target": true, "selector": selector});
    assert_eq!(couch.json("POST", "/_replicate", target).await.json()["ok"], true);
    let copied = couch.get("/copy/_all_docs").await.json();
    assert_eq!(copied["total_rows"], 3, "a replication is filtered alike: {copied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_leaves_are_named_on_request_and_filtered_one_by_one() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs = json!([{"_id": "x", "_rev": "1-aa", "v": 1}, {"_id": "x", "_rev": "1-bb", "v": 2}]);
    couch.json("POST", "/db/_bulk_docs", json!({"docs": docs, "new_edits": false})).await;
    let revs = |answer: Value| answer["results"][0]["changes"].clone();
    assert_eq!(revs(couch.get("/db/_changes").await.json()), json!([{"rev": "1-bb"}]));
    let all = couch.get("/db/_changes?style=all_docs").await.json();
    assert_eq!(revs(all), json!([{"rev": "1-bb"}, {"rev": "1-aa"}]));
    let path = "/db/_changes?style=all_docs&filter=_selector";
    let ones = couch.json("POST", path, json!({"selector": {"v": 1}})).await.json();
    assert_eq!(revs(ones), json!([{"rev": "1-aa"}]));
    let conflicts = couch.get("/db/_changes?include_docs=true&conflicts=true").await.json();
    assert_eq!(conflicts["results"][0]["doc"]["_conflicts"], json!(["1-aa"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_database_ends_its_feeds() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let mut live = Feed::open(&couch, "/db/_changes?feed=continuous&heartbeat=5000").await;
    live.until(|text| text.contains("\"a\"")).await;
    let poll = Feed::open(&couch, "/db/_changes?feed=longpoll&since=now&heartbeat=5000").await;
    couch.call("DELETE", "/db").await;
    // A new database of the same name is another one.
    couch.database("db").await;
    couch.put("/db/stranger", json!({})).await;
    let (live, poll) = (live.end().await, poll.end().await);
    assert!(live.lines().last().unwrap().starts_with("{\"last_seq\":") && !live.contains("stranger"), "{live}");
    assert!(serde_json::from_str::<Value>(&poll).is_ok() && !poll.contains("stranger"), "{poll}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_feeds_share_a_database() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let counted = Counted::new(engine);
    let couch = Couch::over(AnyDatabase::new(counted.clone()), Options::default()).await;
    couch.database("db").await;
    let mut feeds = Vec::new();
    for n in 0..60 {
        let options = ["", "&style=all_docs", "&include_docs=true"][n % 3];
        let kind = ["continuous", "eventsource"][n % 2];
        let path = format!("/db/_changes?feed={kind}&since=now&heartbeat=10000{options}");
        feeds.push((options, Feed::open(&couch, &path).await));
    }
    let mut fewest = usize::MAX;
    for n in 0..6 {
        counted.take();
        couch.put(&format!("/db/doc-{n}"), json!({"n": n})).await;
        for (options, feed) in &mut feeds {
            let text = feed.until(|text| text.contains(&format!("\"doc-{n}\""))).await;
            let rows = |of: &str| text.matches(of).count();
            assert_eq!(rows("\"changes\":"), n + 1, "{text}");
            assert_eq!(rows(&format!("\"doc\":{{\"_id\":\"doc-{n}\"")), usize::from(options.contains("include_docs")));
        }
        fewest = fewest.min(counted.take().len());
    }
    // One writes, one arms the watch, and one reads for each of the three options. The rest is the server's own work.
    assert!(fewest < 15, "60 feeds and a write took {fewest} transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_nothing_gives_no_rows_and_a_negative_one_is_none() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ["a", "b"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    let first = couch.get("/db/_changes?limit=1").await.json();
    let since = first["last_seq"].as_str().unwrap();
    for feed in ["normal", "longpoll"] {
        let none = couch.get(&format!("/db/_changes?limit=0&feed={feed}&since={since}")).await.json();
        assert_eq!(none, json!({"results": [], "last_seq": since, "pending": 1}), "{feed}");
    }
    let from_zero = couch.get("/db/_changes?limit=0").await.json();
    assert_eq!((&from_zero["results"], &from_zero["pending"]), (&json!([]), &json!(2)));
    assert!(from_zero["last_seq"].as_str().unwrap().bytes().all(|byte| b"-0".contains(&byte)), "{from_zero}");
    let live = Feed::open(&couch, &format!("/db/_changes?limit=0&feed=continuous&since={since}")).await.end().await;
    assert_eq!(serde_json::from_str::<Value>(&live).unwrap(), json!({"last_seq": since, "pending": 1}));
    assert_eq!(ids(&couch.get("/db/_changes?limit=-1").await.json()), ["a", "b"]);
    assert_eq!(couch.get("/db/_changes?limit=0&descending=true").await.json()["pending"], 2);
    // A stale handle of the dropped database does not make the new one look empty.
    couch.call("DELETE", "/db").await;
    couch.get("/db/_changes?limit=0").await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_says_how_much_is_pending() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs: Vec<Value> = (0..50).map(|n| json!({"_id": format!("{n:02}"), "n": n % 2})).collect();
    couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    let feed = couch.get("/db/_changes").await.json();
    let seq = |n: usize| feed["results"][n]["seq"].as_str().unwrap();
    let pending = async |query: String| couch.get(&format!("/db/_changes?{query}")).await.json()["pending"].clone();
    assert_eq!(pending(format!("since={}&limit=10", seq(9))).await, 30);
    assert_eq!(pending(format!("since={}&limit=40", seq(9))).await, 0);
    assert_eq!(pending(format!("since={}&limit=10&feed=longpoll", seq(9))).await, 30);
    assert_eq!(pending("descending=true&limit=10".into()).await, 40);
    assert_eq!(pending("since=now".into()).await, 0);
    let selector = json!({"selector": {"n": 1}});
    let path = format!("/db/_changes?filter=_selector&limit=5&since={}", seq(9));
    // Rows 11, 13, 15, 17 and 19 pass. All rows after the last one are pending, whether they pass or not.
    assert_eq!(couch.json("POST", &path, selector).await.json()["pending"], 30);
    let some = couch.json("POST", "/db/_changes?filter=_doc_ids&limit=1", json!({"doc_ids": ["03", "07"]})).await;
    assert_eq!(some.json()["pending"], 46);
    let path = format!("/db/_changes?feed=continuous&limit=3&since={}", seq(39));
    let lines = Feed::open(&couch, &path).await.end().await;
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({"last_seq": seq(42), "pending": 7}));
    let timed = Feed::open(&couch, "/db/_changes?feed=continuous&since=now&timeout=10").await.end().await;
    assert_eq!(serde_json::from_str::<Value>(&timed).unwrap()["pending"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn much_that_is_pending_is_estimated() {
    let couch = Couch::start().await;
    couch.database("db").await;
    // The store samples one row in 128 KiB by chance. With ids of 2,000 bytes a half is five standard deviations.
    for batch in 0..4 {
        let docs: Vec<Value> = (0..2000).map(|n| json!({"_id": format!("{batch}-{n:02000}")})).collect();
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    }
    let mut since = couch.get("/db/_changes?limit=1").await.json()["last_seq"].clone();
    let mut left = 7_999u64;
    while left > 0 {
        let path = format!("/db/_changes?limit=1500&since={}", since.as_str().unwrap());
        let page = couch.get(&path).await.json();
        left = left.saturating_sub(1500);
        let pending = page["pending"].as_u64().unwrap();
        let slack = if left <= 1000 { 0 } else { left / 2 };
        assert!(pending.abs_diff(left) <= slack, "{pending} of {left}");
        since = page["last_seq"].clone();
    }
}

/// Obsidian LiveSync reads this from a sequence before it collects garbage: a safe integer before the dash.
fn number(seq: &Value) -> u64 {
    let (number, digits) = seq.as_str().unwrap().split_once('-').unwrap();
    assert!(digits.len() == 26 && number.bytes().all(|byte| byte.is_ascii_digit()), "{seq}");
    number.parse().ok().filter(|number| *number < 1 << 53).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_begin_with_a_number() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for bulk in 0..4 {
        let docs: Vec<Value> = (0..100).map(|n| json!({"_id": format!("{bulk}-{n:03}"), "k": n})).collect();
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    }
    let feed = couch.get("/db/_changes").await.json();
    let rows = feed["results"].as_array().unwrap();
    for (place, row) in (1u64..).zip(rows) {
        assert_eq!(number(&row["seq"]), place);
    }
    // Its status line: the rest is the difference between the last sequence and the reached one.
    let info = couch.get("/db").await.json();
    assert_eq!((number(&info["update_seq"]), &feed["last_seq"]), (400, &info["update_seq"]));
    let reached = &rows[149]["seq"];
    assert_eq!(number(&feed["last_seq"]) - number(reached), 250);
    let design = json!({"views": {"k": {"map": "function(d){emit(d.k)}"}}});
    couch.put("/db/_design/d", design).await;
    let last = couch.get("/db/_changes?limit=0&since=now").await.json()["last_seq"].clone();
    for path in ["/db/_all_docs?update_seq=true&limit=1", "/db/_design/d/_view/k?update_seq=true&limit=1"] {
        assert_eq!(couch.get(path).await.json()["update_seq"], last, "{path}");
    }
    assert_eq!(couch.get("/db/_design/d/_info").await.json()["view_index"]["update_seq"], last);
    assert_eq!(couch.get("/db/_changes?descending=true&limit=1").await.json()["results"][0]["seq"], last);

    // Only the digits decide, with any number before them or without one.
    let digits = reached.as_str().unwrap().split_once('-').unwrap().1;
    for since in [reached.as_str().unwrap(), digits, &format!("7-{digits}"), &format!("9007199254740993-{digits}")] {
        let rest = couch.get(&format!("/db/_changes?since={since}")).await.json();
        assert_eq!(rest["results"][0]["seq"], rows[150]["seq"], "{since}");
        assert_eq!(rest["last_seq"], last);
    }
    assert_eq!(couch.get(&format!("/db/_changes?since=x-{digits}")).await.status, 400);
}

/// As in CouchDB after 3.5, and some time ago.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_begins_at_a_time() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs: Vec<Value> = (0..40).map(|n| json!({"_id": format!("d{n:02}")})).collect();
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    couch.put("/db/last", json!({})).await;
    let ids = async |since: &str| {
        let fed = couch.get(&format!("/db/_changes?since={since}")).await.json();
        let ids = fed["results"].as_array().unwrap_or_else(|| panic!("{fed}")).iter().map(|row| row["id"].clone());
        (ids.collect::<Vec<_>>(), fed["last_seq"].clone())
    };
    let all = ids("0").await;
    assert_eq!(all.0.len(), 41);
    for since in ["2001-09-09T01:46:40Z", "-1h", "-30m", "-2d", "%22-90s%22"] {
        assert_eq!(ids(since).await, all, "{since}");
    }
    assert_eq!(ids("2999-01-01T00:00:00Z").await, (Vec::new(), all.1.clone()), "nothing is of the future");
    let limited = couch.get("/db/_changes?since=-1h&limit=2&feed=longpoll").await.json();
    assert_eq!((limited["results"].as_array().unwrap().len(), &limited["pending"]), (2, &json!(39)));
    for wrong in ["2026-13-01T00:00:00Z", "-1", "-1y", "yesterday"] {
        let reason = "Malformed sequence supplied in 'since' parameter.";
        couch.get(&format!("/db/_changes?since={wrong}")).await.refused(400, "bad_request", reason);
    }

    let times = couch.get("/db/_time_seq").await.json();
    let bins = times["time_seq"]["00000000-ffffffff"]["nonode@nohost"].as_array().unwrap_or_else(|| panic!("{times}"));
    assert!((1..=2).contains(&bins.len()), "the test may run at the end of a bin: {times}");
    assert_eq!(bins.iter().map(|bin| bin[1].as_u64().unwrap()).sum::<u64>(), 41);
    let start = bins[0][0].as_str().unwrap();
    assert!(start.len() == 20 && start.ends_with(":00:00Z"), "{start}");
    assert_eq!(ids(start).await.0.len(), 41);
    assert_eq!(couch.call("DELETE", "/db/_time_seq").await.json(), json!({"ok": true}));
    assert_eq!(ids("-1h").await, all);
    couch.json("PUT", "/db/_time_seq", json!({})).await.refused(
        405,
        "method_not_allowed",
        "Only DELETE,GET,HEAD allowed",
    );
    assert_eq!(couch.get("/none/_time_seq").await.status, 404);
}
