//! The feed as a stream, and consumers that keep their place in the store.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use conformance::chaos::{Chaos, Fault, Rates};
use futures_util::{StreamExt, TryStreamExt};
use kv_api::{AnyDatabase, Database, MutationType, RangeRequest, Read, Transaction, TransactionExt};
use model::{
    Change, ChangesRequest, Consumer, CreateOptions, Documents, Edit, Edits, Error, ErrorKind, Layer, LayerOptions,
    NotFound, RelocateOptions, Since, WriteMode, relocate,
};

use crate::stage::*;

pub(crate) async fn the_feed_is_a_stream_that_may_go_on(stage: Stage) {
    let documents = stage.documents().await;
    let edits: Vec<Edit> = (0..30).map(|n| edit(&format!("doc-{n:02}"), &format!(r#"{{"n":{n}}}"#))).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let all: Vec<Change> = documents.feed().stream().try_collect().await.unwrap();
    assert_eq!(all, feed(&documents, ChangesRequest::default()).await);
    let rest = documents.feed().since(all[19].seq).with_documents().stream();
    let rest: Vec<Change> = rest.try_collect().await.unwrap();
    assert_eq!((rest.len(), rest[0].id.as_str()), (10, "doc-20"));
    assert!(rest.iter().all(|change| change.doc.as_ref().is_some_and(|document| document.body.len() > 2)));
    let ids = vec!["doc-25".to_owned(), "doc-03".to_owned(), "doc-04".to_owned()];
    let even = documents.feed().of_documents(ids).filter(|row| row.id.ends_with(['4', '5']));
    let even = even.filter(|row| row.id.starts_with("doc-0")).stream().try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(even.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["doc-04"]);

    let live = documents.feed().since(all[28].seq).live();
    let mut filtered = pin!(live.clone().filter(|row| row.id == "latest").stream());
    let mut live = pin!(live.stream());
    assert_eq!(live.next().await.unwrap().unwrap().id, "doc-29");
    for id in ["later", "latest"] {
        let mut next = pin!(live.next());
        assert!(poll_once(next.as_mut()).is_none(), "it waits");
        documents.put(edit(id, "{}")).await.unwrap();
        assert_eq!(next.await.unwrap().unwrap().id, id);
    }
    assert_eq!(filtered.next().await.unwrap().unwrap().id, "latest");
    let now = documents.feed().since(Since::Now).stream().try_collect::<Vec<_>>().await;
    assert_eq!(now.unwrap(), []);
    // Dropping the database ends the stream.
    stage.layer().await.delete_database("db").await.unwrap();
    assert_eq!(live.next().await.unwrap().unwrap_err().status(), 404);
    assert!(live.next().await.is_none());
}

/// A layer in a store that also has rows of the caller.
async fn beside<D: Database>(engine: D) -> Layer<D> {
    let prefix = "documents".into();
    Layer::open(engine, LayerOptions { prefix, ..LayerOptions::default() }).await.unwrap()
}

/// Consumes rows: counts each in a row of the caller, and copies it to a new document of another database.
async fn copy<D: Database>(consumer: &Consumer<D>, copies: &Documents<D>, limit: usize) -> Result<usize, Error> {
    consumer
        .consume(limit, async |edits: Edits<D>, rows: Vec<Change>| {
            assert!((1..=limit).contains(&rows.len()));
            for row in &rows {
                let copy = format!("{}/{}", row.id, row.seq);
                edits.transaction().atomic_op(MutationType::Add, format!("seen/{copy}").into_bytes(), &[1, 0][..]);
                edits.put(copies, edit(&copy, "{}"))?;
            }
            Ok::<_, Error>(())
        })
        .await
}

/// Every copy was made once, and the last state of every document was copied.
async fn assert_consumed(engine: &AnyDatabase, source: &Documents<AnyDatabase>, copies: &Documents<AnyDatabase>) {
    let seen = engine.begin().unwrap().get_all(RangeRequest::prefix(b"seen/"), Read::Snapshot).await.unwrap();
    assert!(seen.iter().all(|row| row.value[..] == [1, 0]), "{seen:?}");
    let seen: Vec<&str> = seen.iter().map(|row| std::str::from_utf8(&row.key[5..]).unwrap()).collect();
    let mut copied: Vec<String> = feed(copies, ChangesRequest::default()).await.into_iter().map(|row| row.id).collect();
    copied.sort();
    assert_eq!(copied, seen);
    for row in feed(source, ChangesRequest::default()).await {
        assert!(seen.contains(&format!("{}/{}", row.id, row.seq).as_str()), "{row:?} of {seen:?}");
    }
    assert_sound(copies).await;
    assert_sound(source).await;
}

async fn two_databases<D: Database>(layer: &Layer<D>) -> (Documents<D>, Documents<D>) {
    let source = layer.create_database("source", CreateOptions::default()).await.unwrap();
    (source, layer.create_database("copies", CreateOptions::default()).await.unwrap())
}

/// Databases of [`two_databases`], in another layer of the same store.
async fn same_databases<D: Database>(engine: D) -> (Documents<D>, Documents<D>) {
    let layer = beside(engine).await;
    (layer.database("source").await.unwrap(), layer.database("copies").await.unwrap())
}

pub(crate) async fn two_consumers_of_one_name_share_the_feed(stage: Stage) {
    let seed = 31;
    let (documents, copies) = two_databases(&beside(stage.engine()).await).await;
    let rates = Rates { latency: 0.3, longest: Duration::from_millis(1), ..Rates::retryable(0.03) };
    let (source, target) = same_databases(Chaos::new(stage.engine(), seed, rates)).await;
    let consumer = source.feed().live().consumer("copier");
    let forever = async |limit: usize| {
        loop {
            let done = copy(&consumer, &target, limit).await;
            done.unwrap_or_else(|error| panic!("{error}; seed {seed}"));
        }
    };
    let work = async {
        for n in 0..20 {
            let id = format!("doc-{}", n % 5);
            let over = documents.get(&id, &Default::default()).await.ok().map(|document| document.rev);
            documents.put(Edit { rev: over, ..edit(&id, &format!(r#"{{"n":{n}}}"#)) }).await.unwrap();
            tokio::task::yield_now().await;
        }
        let third = documents.feed().consumer("copier");
        while copy(&third, &copies, 2).await.unwrap() > 0 {}
        assert_eq!(third.place().await.unwrap(), Some(documents.last_seq().await.unwrap()), "seed {seed}");
    };
    // The first two wait for more, or are in a transaction, when they end.
    let both = futures_util::future::join(forever(1), forever(3));
    futures_util::future::select(pin!(work), pin!(both)).await;
    assert_consumed(&stage.engine(), &documents, &copies).await;
}

/// Another consumer with the same name runs between reading rows and committing their effects.
pub(crate) async fn rows_that_another_consumer_has_consumed_are_left(stage: Stage) {
    let (documents, copies) = two_databases(&beside(stage.engine()).await).await;
    for id in ["a", "b", "c"] {
        documents.put(edit(id, "{}")).await.unwrap();
    }
    let (one, other) = (documents.feed().consumer("copier"), documents.feed().consumer("copier"));
    let attempts = AtomicUsize::new(0);
    let late = one.consume(2, async |edits: Edits<_>, rows: Vec<Change>| {
        if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            assert_eq!(copy(&other, &copies, 2).await?, 2);
        }
        for row in &rows {
            let seen = format!("seen/{}/{}", row.id, row.seq).into_bytes();
            edits.transaction().atomic_op(MutationType::Add, seen, &[1, 0][..]);
            edits.put(&copies, edit(&format!("{}/{}", row.id, row.seq), "{}"))?;
        }
        Ok::<_, Error>(())
    });
    assert_eq!(late.await.unwrap(), 1, "only the row that is left");
    assert_consumed(&stage.engine(), &documents, &copies).await;
}

/// Drops a future after this many polls, if it has not ended before.
pub(super) async fn ends_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

pub(crate) async fn a_consumer_that_ends_anywhere_is_gone_on_with(stage: Stage) {
    let (documents, copies) = two_databases(&beside(stage.engine()).await).await;
    let (mut ended, mut went_on) = (0, 0);
    for seed in 0..40 {
        documents.put(edit(&format!("doc-{seed:02}"), "{}")).await.unwrap();
        let rates = Rates { latency: 0.4, longest: Duration::from_micros(100), ..Rates::retryable(0.02) };
        let (source, target) = same_databases(Chaos::new(stage.engine(), seed, rates)).await;
        // Each is a separate process.
        let consumer = source.feed().consumer("copier");
        // A consumer takes some ten polls on an embedded engine, and several times as many on a cluster.
        match ends_after(1 + (seed * seed / 8) as usize, copy(&consumer, &target, 2)).await {
            None => ended += 1,
            Some(done) => went_on += done.unwrap_or_else(|error| panic!("{error}; seed {seed}")),
        }
    }
    assert!(ended > 0 && went_on > 0, "{ended} ended, {went_on} rows consumed by others");
    let last = documents.feed().consumer("copier");
    while copy(&last, &copies, 100).await.unwrap() > 0 {}
    assert_consumed(&stage.engine(), &documents, &copies).await;
}

pub(crate) async fn what_a_consumer_does_at_an_unknown_result_happens_once(stage: Stage) {
    let (documents, copies) = two_databases(&beside(stage.engine()).await).await;
    for (n, fault) in [Fault::UnknownCommitted, Fault::UnknownNotCommitted, Fault::NotCommitted].into_iter().enumerate()
    {
        documents.put(edit(&format!("doc-{n}"), "{}")).await.unwrap();
        let (source, target) = same_databases(Chaos::scripted(stage.engine(), [Some(fault), Some(fault)])).await;
        assert_eq!(copy(&source.feed().consumer("copier"), &target, 5).await.unwrap(), 1, "{fault:?}");
        assert_consumed(&stage.engine(), &documents, &copies).await;

        // A run that asks too late cannot know whether it committed. The next one can.
        documents.put(edit(&format!("late-{n}"), "{}")).await.unwrap();
        let environment = super::unknown::Ticking::by(70_000);
        let options = LayerOptions { prefix: "documents".into(), environment, ..LayerOptions::default() };
        let layer = Layer::open(Chaos::scripted(stage.engine(), [Some(fault)]), options).await.unwrap();
        let (source, target) = (layer.database("source").await.unwrap(), layer.database("copies").await.unwrap());
        let failed = copy(&source.feed().consumer("copier"), &target, 5).await;
        assert!(failed.is_err(), "{fault:?}");
        let left = copy(&documents.feed().consumer("copier"), &copies, 5).await.unwrap();
        assert_eq!(left, usize::from(fault != Fault::UnknownCommitted), "{fault:?}");
        assert_consumed(&stage.engine(), &documents, &copies).await;
    }
}

pub(crate) async fn a_place_goes_where_its_database_goes(stage: Stage) {
    let layer = beside(stage.engine()).await;
    let (documents, copies) = two_databases(&layer).await;
    documents.put(edit("a", "{}")).await.unwrap();
    let consumer = documents.feed().consumer("copier");
    assert_eq!(consumer.place().await.unwrap(), None);
    assert_eq!(copy(&consumer, &copies, 5).await.unwrap(), 1);
    let place = consumer.place().await.unwrap();
    assert_eq!(place, Some(documents.last_seq().await.unwrap()));

    // It moves to another store, and continues there after the move.
    let prefix = "elsewhere".into();
    let elsewhere = Layer::open(stage.engine(), LayerOptions { prefix, ..LayerOptions::default() }).await.unwrap();
    let options = RelocateOptions { from: "a:".into(), to: "b:".into(), ..RelocateOptions::default() };
    let report = relocate(&layer, &elsewhere, "source", &options, |_| std::ops::ControlFlow::Continue(())).await;
    assert!(report.unwrap().moved);
    let gone = copy(&consumer, &copies, 5).await.unwrap_err();
    assert_eq!(*gone.kind(), ErrorKind::Moved("b:".into()));
    let moved = elsewhere.database("source").await.unwrap();
    let there = elsewhere.create_database("copies", CreateOptions::default()).await.unwrap();
    let consumer = moved.feed().consumer("copier");
    assert_eq!(consumer.place().await.unwrap(), place);
    moved.put(edit("b", "{}")).await.unwrap();
    assert_eq!(copy(&consumer, &there, 5).await.unwrap(), 1, "only what is new");

    // The place is dropped with the database: a new database of that name has none.
    elsewhere.delete_database("source").await.unwrap();
    let anew = elsewhere.create_database("source", CreateOptions::default()).await.unwrap();
    anew.put(edit("c", "{}")).await.unwrap();
    for gone in [copy(&consumer, &there, 5).await.map(drop), consumer.place().await.map(drop)] {
        assert_eq!(*gone.unwrap_err().kind(), ErrorKind::NotFound(NotFound::Database));
    }
    let consumer = anew.feed().consumer("copier");
    assert_eq!(consumer.place().await.unwrap(), None);
    assert_eq!(copy(&consumer, &there, 5).await.unwrap(), 1);
}

pub(crate) async fn a_place_moves_only_with_its_effects(stage: Stage) {
    let layer = beside(stage.engine()).await;
    let (documents, copies) = two_databases(&layer).await;
    let now = documents.feed().since(Since::Now).consumer("now");
    documents.put(edit("before", "{}")).await.unwrap();
    assert_eq!(copy(&now, &copies, 5).await.unwrap(), 0);
    assert_eq!(now.place().await.unwrap(), Some(documents.last_seq().await.unwrap()), "now is stored");
    documents.put(edit("after", "{}")).await.unwrap();
    assert_eq!(copy(&now, &copies, 5).await.unwrap(), 1);

    // An effect that fails leaves the place where it was, and writes nothing.
    let consumer = documents.feed().consumer("copier");
    let refused = consumer.consume(5, async |edits: Edits<_>, _| {
        edits.transaction().set(b"seen/never", b"");
        edits.put(&copies, edit("never", "{}"))?;
        edits.put(&copies, edit("never", "{}").over(rev("1-a")))
    });
    assert_eq!(refused.await.unwrap_err().status(), 400);
    let own = consumer.consume(5, async |edits: Edits<_>, _| {
        edits.transaction().set(b"seen/never", b"");
        Err::<(), Error>(ErrorKind::Conflict.into())
    });
    assert_eq!(own.await.unwrap_err().status(), 409);
    assert_eq!(consumer.place().await.unwrap(), None);
    assert!(stage.engine().begin().unwrap().get(b"seen/never", Read::Snapshot).await.unwrap().is_none());

    // The names are independent of each other. Rows that are filtered out are passed once.
    let none = documents.feed().filter(|row| row.id == "none").consumer("filter");
    assert_eq!(copy(&none, &copies, 1).await.unwrap(), 0);
    assert_eq!(none.place().await.unwrap(), Some(documents.last_seq().await.unwrap()));
    documents.put(edit("none", "{}")).await.unwrap();
    documents.put(edit("other", "{}")).await.unwrap();
    assert_eq!(copy(&none, &copies, 1).await.unwrap(), 1);
    assert_eq!(consumer.place().await.unwrap(), None);

    // If a place was removed, the consumer starts at the beginning; an invalid place is an error.
    let id = "_local/consumer/filter";
    documents.delete_local(id).await.unwrap();
    let all = documents.feed().consumer("filter");
    assert_eq!(all.consume(9, async |_, _| Ok::<_, Error>(())).await.unwrap(), 4);
    documents.put_local(id, None, json(r#"{"seq":7}"#)).await.unwrap();
    assert_eq!(copy(&all, &copies, 1).await.unwrap_err().status(), 500);
    // A name that is not a valid id is refused.
    let long = documents.feed().consumer(&"n".repeat(5_000));
    assert_eq!(copy(&long, &copies, 1).await.unwrap_err().status(), 400);
}
