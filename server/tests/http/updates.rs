//! The feed of all databases.

use kv_api::{Database, Transaction};
use serde_json::{Value, json};
use server::http::Options;

use crate::feeds::Feed;
use crate::support::Couch;

fn rows(answer: &Value) -> Vec<String> {
    let row = |row: &Value| format!("{} {}", row["type"].as_str().unwrap(), row["db_name"].as_str().unwrap());
    answer["results"].as_array().unwrap().iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_databases_are_listed_in_their_order() {
    let couch = Couch::start().await;
    assert_eq!(
        couch.get("/_db_updates").await.text,
        "{\"results\":[\n\n],\n\"last_seq\":\"00000000000000000000000000\"}\n"
    );
    for name in ["a", "b"] {
        couch.database(name).await;
    }
    couch.put("/a/x", json!({})).await;
    let all = couch.get("/_db_updates").await.json();
    assert_eq!(rows(&all), ["created a", "created b", "updated a"]);
    assert_eq!(all["last_seq"], all["results"][2]["seq"]);
    couch.call("DELETE", "/b").await;
    couch.put("/a/y", json!({})).await;
    let since = format!("/_db_updates?since={}", all["last_seq"].as_str().unwrap());
    assert_eq!(rows(&couch.get(&since).await.json()), ["deleted b", "updated a"]);
    assert_eq!(rows(&couch.get("/_db_updates?descending=true&limit=1").await.json()), ["updated a"]);
    let first = couch.get("/_db_updates?limit=1").await.json();
    assert_eq!(rows(&first), ["created a"]);
    let since = format!("/_db_updates?limit=1&since={}", first["last_seq"].as_str().unwrap());
    assert_eq!(rows(&couch.get(&since).await.json()), ["deleted b"]);
    for none in ["limit=0", "since=now", "limit=0&feed=longpoll", "since=now&feed=longpoll&timeout=1"] {
        assert!(rows(&couch.get(&format!("/_db_updates?{none}")).await.json()).is_empty(), "{none}");
    }
    for (wrong, reason) in [
        ("feed=none", "Supported `feed` types: normal, continuous, longpoll, eventsource"),
        ("limit=x", "invalid_integer"),
        ("timeout=-1", "The timeout parameter should be a non-negative integer"),
        ("since=12-abc", "Malformed sequence supplied in 'since' parameter."),
    ] {
        couch.get(&format!("/_db_updates?{wrong}")).await.refused(400, "bad_request", reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_of_all_databases_wait_at_any_server() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine.clone(), Options::default()).await;
    let other = Couch::over(engine, Options::default()).await;
    couch.database("a").await;
    let mut live = Feed::open(&couch, "/_db_updates?feed=continuous&since=now&heartbeat=20").await;
    let mut events = Feed::open(&couch, "/_db_updates?feed=eventsource").await;
    let mut poll = Feed::open(&couch, "/_db_updates?feed=longpoll&since=now").await;
    live.until(|text| text.contains("\n\n")).await;
    other.database("b").await;
    poll.until(|text| text.contains("\"type\":\"created\"")).await;
    let polled: Value = serde_json::from_str(&poll.end().await).unwrap();
    assert_eq!(rows(&polled), ["created b"]);
    live.until(|text| text.contains("created")).await;
    other.put("/a/x", json!({})).await;
    live.until(|text| text.contains("updated")).await;
    other.call("DELETE", "/b").await;
    let lines = live.until(|text| text.contains("deleted")).await;
    let lines: Vec<Value> =
        lines.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows(&json!({ "results": lines })), ["created b", "updated a", "deleted b"]);
    let seq = lines[2]["seq"].as_str().unwrap();
    let text = events.until(|text| text.contains(&format!("\nid: {seq}\n\n"))).await;
    assert!(text.starts_with("data: {\"db_name\":\"a\",\"type\":\"created\",\"seq\":"), "{text}");
    couch.server.stop().await;
    let rest = live.end().await;
    assert!(rest.ends_with(&format!("{{\"last_seq\":\"{seq}\"}}\n")), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_continues_from_before_forgotten_drops_is_told() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine.clone(), Options::default()).await;
    couch.database("a").await;
    // As many drops as the store keeps, with versionstamps from 1 on.
    let transaction = engine.begin().unwrap();
    for number in 1..=1_000_u16 {
        let [high, low] = number.to_be_bytes();
        let key = [0x15, 10, 0x15, 1, 0x33, 0, 0, 0, 0, 0, 0, 0, 0, high, low, 0, 0, 2, b'd', 0];
        transaction.set(&key, &[0x15, 1]);
    }
    transaction.commit().await.unwrap();
    couch.call("DELETE", "/a").await;
    let missed = "000000000000000000000001";
    let answer = couch.get(&format!("/_db_updates?since=00{missed}")).await.json();
    assert_eq!(rows(&answer), ["deleted d", "deleted a"]);
    assert!(answer["warning"].as_str().is_some_and(|warning| warning.contains("_all_dbs")), "{answer}");
    for since in ["0", "00000000000000000000010000", answer["last_seq"].as_str().unwrap()] {
        let answer = couch.get(&format!("/_db_updates?since={since}")).await.json();
        assert_eq!(answer.get("warning"), None, "{since}");
    }
    let live = format!("/_db_updates?feed=continuous&timeout=1&since=00{missed}");
    let lines = couch.get(&live).await.text;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line.get("warning").is_some()).collect::<Vec<_>>(), [true, false, false]);
}
