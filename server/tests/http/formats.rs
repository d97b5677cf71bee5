//! `/{db}/_couch_layer/format`: the layout of bodies changes in the background.

use std::time::Duration;

use jobs::{Accepted, ServerOptions};
use kv_api::AnyDatabase;
use model::{CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions, REWRITE_JOBS, Rewriting, WriteMode};
use serde_json::json;
use server::engine::{IfMissing, open};
use server::http::Options;

use crate::support::Couch;

const FORMAT: &str = "/db/_couch_layer/format";

/// Waits until there is no job.
async fn rewritten(database: &Documents<AnyDatabase>) {
    let waiting = async {
        loop {
            let (job, changed) = database.jobs().watch(&database.rewrite_job()).await.unwrap();
            if job.is_none() {
                return;
            }
            changed.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("the bodies are rewritten");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layout_of_a_database_is_changed_by_a_request() {
    let couch = Couch::start().await;
    couch.json("PUT", "/db?format=exploded", json!({})).await;
    couch.json("PUT", "/db/a", json!({"n": [1, 2]})).await;
    let before = couch.get("/db/a?revs=true").await.text;
    assert_eq!(couch.get(FORMAT).await.json(), json!({"format": "exploded", "rewriting": false}));
    let set = couch.json("PUT", FORMAT, json!("packed")).await;
    assert_eq!((set.status.as_u16(), set.json()), (202, json!({"ok": true})));
    rewritten(&couch.layer.database("db").await.unwrap()).await;
    assert_eq!(couch.get(FORMAT).await.json(), json!({"format": "packed", "rewriting": false}));
    assert_eq!(couch.get("/db/a?revs=true").await.text, before);
    assert_eq!(couch.get("/db/_couch_layer/check").await.json()["problem_count"], json!(0));
    let reason = "The `format` value should be exploded or packed.";
    for wrong in [json!("flat"), json!(1), json!({"format": "packed"})] {
        couch.json("PUT", FORMAT, wrong).await.refused(400, "bad_request", reason);
    }
    couch.get("/none/_couch_layer/format").await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_goes_on_with_what_another_one_began() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    let database = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let body = JsonText::parse(br#"{"a":[1,2,{"b":null}]}"#).unwrap();
    let edits = (0..300).map(|n| Edit::new(format!("d{n:03}"), body.clone())).collect();
    database.write(edits, WriteMode::Interactive).await.unwrap();
    database.set_body_format(model::BodyFormat::Packed).await.unwrap();
    let options = ServerOptions { name: "gone".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut gone = jobs::Server::new(database.jobs(), [1; 16], options);
    let Accepted::Job(job, hold) = gone.accept(REWRITE_JOBS, 0).await.unwrap() else { panic!("a job") };
    let reached = database.rewrite_bodies_batch(&Rewriting::of_job(&job), 100, Some(&hold)).await.unwrap().unwrap();
    assert_eq!(reached.bodies, 100);
    gone.close().await.unwrap();

    let couch = Couch::over(engine, Options::default()).await;
    rewritten(&database).await;
    assert_eq!(couch.get(FORMAT).await.json(), json!({"format": "packed", "rewriting": false}));
    assert_eq!(couch.get("/db/d007").await.json()["a"], json!([1, 2, {"b": null}]));
}
