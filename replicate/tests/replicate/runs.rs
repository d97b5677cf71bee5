//! Results and checkpoints of replications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{AttachmentEdit, Edit, JsonText, WriteMode};
use peer::{ErrorKind, Filter, Peer};
use rand::SeedableRng;
use rand::rngs::StdRng;
use replicate::{Figures, Options, replicate};

use crate::support::{World, contents, fill, identity, json, leaf};

/// Replicates in both directions, and then again with nothing to do.
async fn meet(one: Arc<dyn Peer>, other: Arc<dyn Peer>) {
    let report = replicate(one.clone(), other.clone(), identity()).run().await.unwrap();
    let Figures { missing_found, docs_read, docs_written, doc_write_failures, .. } = report.figures;
    assert!(docs_read > 0 && docs_read == docs_written && missing_found == docs_read, "{:?}", report.figures);
    assert_eq!((doc_write_failures, report.no_changes), (0, false));
    let back = replicate(other.clone(), one.clone(), identity()).run().await.unwrap();
    assert_eq!(back.figures.doc_write_failures, 0);
    let (left, right) = (contents(&*one).await, contents(&*other).await);
    assert_eq!(left.len(), right.len());
    assert!(left == right, "{:?}", left.iter().zip(&right).find(|(left, right)| left != right));
    // Replicating back changed nothing in `one`, so the first record is still complete.
    let again = replicate(one, other, identity()).run().await.unwrap();
    assert_eq!(again.figures.docs_read, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_and_far_databases_become_the_same() {
    for (seed, source_is_far, target_is_far) in [(1, false, false), (2, false, true), (3, true, false), (4, true, true)]
    {
        println!("seed {seed}");
        let world = World::new().await;
        let dice = &mut StdRng::seed_from_u64(seed);
        fill(&world.create("one").await, dice, 120, &[10, 70_000, 3_000_000]).await;
        fill(&world.create("other").await, dice, 30, &[5_000]).await;
        let one = if source_is_far { world.far("one").await } else { world.local("one").await };
        let other = if target_is_far { world.far("other").await } else { world.local("other").await };
        meet(one, other).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_behind_its_checkpoint() {
    let world = World::new().await;
    let documents = world.create("one").await;
    world.create("other").await;
    for number in 0..50 {
        documents.put(Edit::new(format!("{number}"), json("{}"))).await.unwrap();
    }
    let (one, other) = (world.local("one").await, world.far("other").await);
    let first = replicate(one.clone(), other.clone(), identity()).run().await.unwrap();
    assert_eq!(first.figures.docs_written, 50);
    documents.put(Edit::new("new", json("{}"))).await.unwrap();
    let second = replicate(one.clone(), other.clone(), identity()).run().await.unwrap();
    assert_eq!((second.figures.missing_checked, second.figures.docs_written), (1, 1));
    assert_eq!(second.record.get("history").unwrap().elements().count(), 2);
    assert_eq!(second.record.get("replication_id_version").unwrap().as_u64(), Some(4));
    let third = replicate(one.clone(), other.clone(), identity()).run().await.unwrap();
    assert!(third.no_changes);
    assert_eq!(third.record, second.record, "the record of the last session that did something");
    // Both sides have the same record, under one id.
    let locals = |name: &'static str| {
        let layer = world.layer.clone();
        async move {
            let documents = layer.database(name).await.unwrap();
            let request = model::AllDocsRequest { include_docs: true, ..Default::default() };
            let rows = documents.local_docs(&request).await.unwrap().rows;
            assert_eq!(rows.len(), 1);
            (rows[0].id.clone(), rows[0].body.clone().unwrap())
        }
    };
    assert_eq!(locals("one").await, locals("other").await);
    // Without its record on one side it starts at the beginning, and writes nothing twice.
    let (id, _) = locals("other").await;
    world.layer.database("other").await.unwrap().delete_local(&id).await.unwrap();
    let anew = replicate(one.clone(), other.clone(), identity()).run().await.unwrap();
    assert_eq!((anew.figures.missing_checked, anew.figures.docs_written), (51, 0));
    let options = Options { use_checkpoints: false, ..Options::default() };
    let forgetful = replicate(one, other, identity()).with_options(options).run().await.unwrap();
    assert_eq!(forgetful.figures.missing_checked, 51);
    assert_eq!(forgetful.record.as_str(), r#"{"use_checkpoints":false}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_pass_what_they_name() {
    for is_far in [false, true] {
        let world = World::new().await;
        let documents = world.create("one").await;
        for number in 0..40 {
            documents.put(Edit::new(format!("d{number} x"), json(&format!(r#"{{"n":{number}}}"#)))).await.unwrap();
        }
        // The losing leaf matches.
        let dice = &mut StdRng::seed_from_u64(1);
        documents.put(Edit::new("both", json(r#"{"n":1}"#))).await.unwrap();
        let lost = vec![leaf("both", 1, r#"{"n":39}"#, dice), leaf("both", 3, r#"{"n":2}"#, dice)];
        documents.write(lost, WriteMode::Replicated).await.unwrap();
        let one = if is_far { world.far("one").await } else { world.local("one").await };
        let ids = Filter::DocIds(vec!["d1%20x".into(), "d2 x".into(), "none".into()]);
        let selector = Filter::Selector(json(r#"{"n":{"$gt":35}}"#));
        for (place, (filter, leaves)) in [(ids, 2), (selector, 5)].into_iter().enumerate() {
            world.create(&format!("t{place}")).await;
            let target = world.local(&format!("t{place}")).await;
            let options = Options { filter, batch_size: 7, ..Options::default() };
            let replication = replicate(one.clone(), target.clone(), identity()).with_options(options);
            let report = replication.run().await.unwrap();
            assert_eq!(report.figures.docs_written, leaves, "far: {is_far}");
            assert_eq!(replication.run().await.unwrap().figures.missing_checked, 0);
        }
        world.create("winners").await;
        let options = Options { winning_revs_only: true, ..Options::default() };
        let target = world.local("winners").await;
        let report = replicate(one.clone(), target, identity()).with_options(options).run().await.unwrap();
        assert_eq!((report.figures.missing_checked, report.figures.docs_written), (41, 41));
        let function = Filter::Function { name: "x/y".into(), params: Vec::new() };
        let options = Options { filter: function, ..Options::default() };
        let refused = replicate(one, world.local("winners").await, identity()).with_options(options).run().await;
        assert_eq!(refused.unwrap_err().to_string(), "the source has no filter x/y");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_refused_is_named_and_the_rest_goes_on() {
    for is_far in [false, true] {
        let (world, small) = (World::new().await, World::new().await);
        let documents = world.create("one").await;
        small.create("other").await;
        for number in 0..10 {
            documents.put(Edit::new(format!("{number}"), json("{}"))).await.unwrap();
        }
        // This document is larger than the target's limit.
        let wide = model::Layer::open(
            server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap(),
            model::LayerOptions::default(),
        );
        let wide = wide.await.unwrap().create_database("wide", model::CreateOptions::default()).await.unwrap();
        wide.put(Edit::new("large", json(&format!(r#"{{"x":"{}"}}"#, "x".repeat(200_000))))).await.unwrap();
        wide.put(Edit::new("small", json("{}"))).await.unwrap();
        let source: Arc<dyn Peer> = Arc::new(peer::Local::new(wide));
        let target = if is_far { small.far("other").await } else { small.local("other").await };
        let failed = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = failed.clone();
        let replication = replicate(source, target.clone(), identity());
        let replication = replication.on_progress(move |progress| seen.lock().unwrap().extend(progress.failed.clone()));
        let report = replication.run().await.unwrap();
        assert_eq!((report.figures.docs_written, report.figures.doc_write_failures), (1, 1));
        let failed = failed.lock().unwrap().clone();
        assert_eq!((failed.len(), failed[0].id.as_str()), (1, "large"));
        assert!(failed[0].reason.contains("too_large"), "{}", failed[0].reason);
        assert_eq!(contents(&*target).await.len(), 1);
    }
}

/// If a validation function throws, waiting does not help: the document will not change.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_at_which_the_target_fails_each_time_is_named_and_the_rest_goes_on() {
    let world = World::new().await;
    let (documents, target) = (world.create("one").await, world.create("other").await);
    for id in ["good", "bad"] {
        documents.put(Edit::new(id, json("{}"))).await.unwrap();
    }
    let mut upload = documents.upload("a", model::UploadAs::Plain { content_type: "image/png" });
    upload.write(b"x").await.unwrap();
    let mut edit = Edit::new("bad picture", json("{}"));
    edit.attachments.push(AttachmentEdit::new("a", "image/png", upload.finish().await.unwrap()));
    documents.put(edit).await.unwrap();
    let design =
        r#"{"validate_doc_update":"function (doc) { if (doc._id.indexOf('bad') === 0) { throw 'broken'; } }"}"#;
    target.unvalidated().put(Edit::new("_design/v", json(design))).await.unwrap();
    let failed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = failed.clone();
    let replication = replicate(world.local("one").await, world.far("other").await, identity());
    let replication = replication.with_environment(crate::faults::hasty(1));
    let replication = replication.on_progress(move |progress| seen.lock().unwrap().extend(progress.failed.clone()));
    let report = replication.run().await.unwrap();
    assert_eq!((report.figures.docs_written, report.figures.doc_write_failures), (1, 2));
    let mut failed: Vec<_> = failed.lock().unwrap().iter().map(|one| (one.id.clone(), one.reason.clone())).collect();
    failed.sort();
    assert_eq!((failed[0].0.as_str(), failed[1].0.as_str()), ("bad", "bad picture"));
    assert!(failed.iter().all(|(_, reason)| reason.contains("broken")), "{failed:?}");
    // The next run continues after them.
    assert!(replication.run().await.unwrap().no_changes);
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_that_are_there_are_not_sent_again() {
    for is_far in [false, true] {
        let world = World::new().await;
        let documents = world.create("one").await;
        world.create("other").await;
        let mut upload = documents.upload("a", model::UploadAs::Plain { content_type: "image/png" });
        upload.write(&vec![7; 500_000]).await.unwrap();
        let mut edit = Edit::new("x", json("{}"));
        edit.attachments.push(AttachmentEdit::new("a", "image/png", upload.finish().await.unwrap()));
        let rev = documents.put(edit).await.unwrap();
        let one = if is_far { world.far("one").await } else { world.local("one").await };
        let other = if is_far { world.far("other").await } else { world.local("other").await };
        let bytes = Arc::new(AtomicU64::new(0));
        let run = || {
            let bytes = bytes.clone();
            let replication = replicate(one.clone(), other.clone(), identity());
            replication.on_progress(move |progress| bytes.store(progress.bytes, Ordering::Relaxed))
        };
        run().run().await.unwrap();
        assert!(bytes.load(Ordering::Relaxed) > 500_000);
        let mut edit = Edit::new("x", json(r#"{"n":2}"#)).over(rev);
        edit.attachments.push(AttachmentEdit::stub("a"));
        documents.put(edit).await.unwrap();
        let again = run().run().await.unwrap();
        assert_eq!(again.figures.docs_written, 1);
        // The figures of a record add up over its sessions, as in CouchDB.
        let session = again.record.get("history").unwrap().elements().next().unwrap();
        let counted = ["docs_read", "docs_written", "bulk_get_docs", "bulk_get_attempts"];
        let counted = counted.map(|name| session.get(name).unwrap().as_u64().unwrap());
        assert_eq!(counted, [2, 2, 0, 2]);
        assert!(bytes.load(Ordering::Relaxed) < 1_000);
        assert!(contents(&*one).await == contents(&*other).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_one_follows() {
    for is_far in [false, true] {
        let world = World::new().await;
        let documents = world.create("one").await;
        world.create("other").await;
        let one = if is_far { world.far("one").await } else { world.local("one").await };
        let other = world.local("other").await;
        let replication = replicate(one, other, identity()).continuous();
        let running = tokio::spawn(async move { replication.run().await });
        let arrived = world.layer.database("other").await.unwrap();
        let mut seen = arrived.watch_changes(arrived.last_seq().await.unwrap());
        for number in 0..5 {
            documents.put(Edit::new(format!("{number}"), json("{}"))).await.unwrap();
            while arrived.info().await.unwrap().doc_count <= number {
                seen.changed().await.unwrap();
            }
        }
        assert!(!running.is_finished());
        running.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_stopped_writes_a_checkpoint() {
    let world = World::new().await;
    let documents = world.create("one").await;
    world.create("other").await;
    documents.put(Edit::new("a", json("{}"))).await.unwrap();
    let (one, other) = (world.local("one").await, world.far("other").await);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let continuous = replicate(one.clone(), other.clone(), identity()).continuous();
    let continuous = continuous.on_progress(move |done| {
        stop.send_replace(done.figures.docs_written == 1);
    });
    let stopped = async move {
        let mut stopped = stopped;
        stopped.wait_for(|stopped| *stopped).await.unwrap();
    };
    let report = continuous.run_until(stopped).await.unwrap();
    assert_eq!((report.figures.docs_written, report.no_changes), (1, false));
    let again = replicate(one, other, identity()).run().await.unwrap();
    assert!(again.no_changes && again.record == report.record, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_was_to_be_asked_nothing_changed() {
    let world = World::new().await;
    let documents = world.create("one").await;
    world.create("other").await;
    let run = || async {
        let options =
            Options { filter: Filter::Selector(json(r#"{"n":1}"#)), use_checkpoints: true, ..Options::default() };
        let (one, other) = (world.local("one").await, world.far("other").await);
        replicate(one, other, identity()).with_options(options).run().await.unwrap()
    };
    let first = run().await;
    assert_eq!((first.no_changes, first.record), (true, JsonText::empty_object()), "an empty database");
    documents.put(Edit::new("a", json(r#"{"n":1}"#))).await.unwrap();
    let second = run().await;
    assert!(!second.no_changes);
    documents.put(Edit::new("b", json(r#"{"n":2}"#))).await.unwrap();
    let third = run().await;
    assert_eq!((third.no_changes, third.record), (true, second.record), "what does not pass the filter");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_is_said() {
    let world = World::new().await;
    world.create("one").await;
    let (one, none) = (world.local("one").await, world.far("none").await);
    let refused = replicate(one, none, identity()).run().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoDatabase);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_made_anew_gets_everything() {
    let world = World::new().await;
    let documents = world.create("one").await;
    world.create("other").await;
    documents.put(Edit::new("before", json("{}"))).await.unwrap();
    let (one, other) = (world.local("one").await, world.far("other").await);
    let options = Options { checkpoint_interval: Duration::from_millis(50), ..Options::default() };
    let replication = replicate(one.clone(), other.clone(), identity()).with_options(options).continuous();
    let running = tokio::spawn(async move { replication.run().await });
    let arrived = world.layer.database("other").await.unwrap();
    while arrived.local_docs(&model::AllDocsRequest::default()).await.unwrap().rows.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The server says in whole seconds when a database was created.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    world.layer.delete_database("other").await.unwrap();
    world.create("other").await;
    documents.put(Edit::new("after", json("{}"))).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), running).await.expect("it goes on");
    let failed = ended.unwrap().unwrap_err();
    assert!(failed.to_string().contains("created again"), "{failed}");
    replicate(one, other, identity()).run().await.unwrap();
    let arrived = world.layer.database("other").await.unwrap();
    assert_eq!(arrived.info().await.unwrap().doc_count, 2);
}
