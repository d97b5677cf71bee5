//! Waiting for changes.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use futures_util::FutureExt;
use kv_api::{Counted, Database, RetryError};
use model::{
    Change, ChangesRequest, CreateOptions, Documents, Edit, ErrorKind, NotFound, RevId, Seq, Since, Style, Watcher,
    WriteMode,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::consuming::ends_after;
use crate::stage::*;

/// Fails a test that waits forever.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("a wake-up")
}

pub(crate) async fn waiters_wake_once_for_each_change(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("before", "{}")).await.unwrap();
    let seen = documents.last_seq().await.unwrap();

    // A change after the seen sequence, but before the wait, ends the wait at once.
    let mut watcher = documents.watch_changes(model::Seq::ZERO);
    assert_eq!(soon(watcher.changed()).await.unwrap(), seen);

    let mut watcher = documents.watch_changes(seen);
    for n in 0..5 {
        let made = {
            let mut waiting = pin!(watcher.changed());
            for _ in 0..10 {
                assert!(poll_once(waiting.as_mut()).is_none(), "nothing changed");
                tokio::task::yield_now().await;
            }
            documents.put(edit(&format!("doc-{n}"), "{}")).await.unwrap();
            let made = documents.last_seq().await.unwrap();
            assert_eq!(soon(waiting).await.unwrap(), made);
            made
        };
        watcher.saw(made);
    }
    // A change between two waits is not lost. A local document is not a change.
    documents.put(edit("between", "{}")).await.unwrap();
    let last = documents.last_seq().await.unwrap();
    assert_eq!(soon(watcher.changed()).await.unwrap(), last);
    documents.put_local("_local/x", None, json("{}")).await.unwrap();
    let mut waiting = pin!(watcher.changed());
    for _ in 0..10 {
        assert!(poll_once(waiting.as_mut()).is_none());
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn dropping_the_database_ends_all_waiting(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let mut watcher = documents.watch_changes(model::Seq::ZERO);
            tokio::spawn(async move { watcher.changed().await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    layer.delete_database("db").await.unwrap();
    for waiter in waiters {
        let error = soon(waiter).await.unwrap().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotFound(NotFound::Database));
    }
}

pub(crate) async fn waiters_share_one_watch(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    counted.take();
    // More than the number of watches that the store allows.
    let mut waiters = Vec::new();
    for _ in 0..20_000 {
        let mut watcher = documents.watch_changes(model::Seq::ZERO);
        waiters.push(tokio::spawn(async move { watcher.changed().await }));
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counted.take().len(), 1, "one transaction watches for all");
    // Half of them stop waiting, including the one that drives the watch.
    for waiter in waiters.drain(..10_000) {
        waiter.abort();
    }
    documents.put(edit("a", "{}")).await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    // On a remote store the watch may be set after the write.
    let transactions = counted.take().len();
    assert!((1..=2).contains(&transactions), "one wrote, one looked what had changed: {transactions}");
}

pub(crate) async fn waiters_poll_a_store_without_watches(stage: Stage) {
    let documents = database(Chaos::without_watches(stage.engine())).await;
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mut watcher = documents.watch_changes(model::Seq::ZERO);
            tokio::spawn(async move { watcher.changed().await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    // Another server writes.
    let other = stage.layer().await.database("db").await.unwrap();
    other.put(edit("a", "{}")).await.unwrap();
    let last = other.last_seq().await.unwrap();
    for waiter in waiters {
        assert_eq!(soon(waiter).await.unwrap().unwrap(), last);
    }
    let mut watcher = documents.watch_changes(last);
    let mut waiting = pin!(watcher.changed());
    assert!(poll_once(waiting.as_mut()).is_none());
    stage.layer().await.delete_database("db").await.unwrap();
    let error = soon(waiting).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotFound(NotFound::Database));
}

/// What feeds with these requests cost, without the writes: transactions and reads for each of a number of writes that
/// all feeds see before the next one.
async fn cost_of_feeds(stage: &Stage, name: &str, requests: &[ChangesRequest], are_shared: bool) -> (f64, f64) {
    const WRITES: usize = 8;
    let (writing, counted) = (stage.layer().await, Counted::new(stage.engine()));
    let written = writing.create_database(name, CreateOptions::default()).await.unwrap();
    let documents = layer(counted.clone()).await.database(name).await.unwrap();
    let seen = documents.last_seq().await.unwrap();
    let (saw, mut all_saw) = mpsc::unbounded_channel();
    let mut feeds = Vec::new();
    for request in requests.iter().cloned() {
        let (documents, saw) = (documents.clone(), saw.clone());
        feeds.push(tokio::spawn(async move {
            let mut watcher = documents.watch_changes(seen);
            let mut request = ChangesRequest { since: seen.into(), ..request };
            loop {
                watcher.changed().await.unwrap();
                let batch = match are_shared {
                    true => watcher.changes(&request).await.unwrap(),
                    false => documents.changes(&request).await.unwrap(),
                };
                request.since = batch.last_seq.into();
                watcher.saw(batch.last_seq);
                saw.send(batch.last_seq).unwrap();
            }
        }));
    }
    let settle = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    settle().await;
    counted.take();
    for n in 0..WRITES {
        written.put(edit(&format!("doc-{n}"), "{}")).await.unwrap();
        let last = written.last_seq().await.unwrap();
        for _ in requests {
            assert_eq!(soon(all_saw.recv()).await, Some(last), "each feed sees each write once");
        }
    }
    settle().await;
    feeds.iter().for_each(|feed| feed.abort());
    let counts = counted.take();
    let reads: u64 = counts.iter().map(|counts| counts.reads).sum();
    let cost = (counts.len() as f64 / WRITES as f64, reads as f64 / WRITES as f64);
    println!("{name}: {} feeds cost {} transactions and {} reads for each write", requests.len(), cost.0, cost.1);
    cost
}

pub(crate) async fn a_write_costs_as_much_with_any_number_of_waiting_feeds(stage: Stage) {
    const FEEDS: usize = 200;
    let plain = ChangesRequest { numbered: true, ..ChangesRequest::default() };
    let only = |id: &str| ChangesRequest { doc_ids: Some([id].into_iter().collect()), ..plain.clone() };
    let with_documents = ChangesRequest { include_docs: true, ..plain.clone() };
    let (one_transactions, one_reads) = cost_of_feeds(&stage, "one", std::slice::from_ref(&plain), true).await;

    let (transactions, _) = cost_of_feeds(&stage, "apart", &vec![plain.clone(); FEEDS], false).await;
    assert!(transactions > FEEDS as f64, "each feed reads for itself: {transactions} transactions for a write");

    // A transaction arms the watch, and another one reads. On a remote store, the watch may be armed in between.
    let most = (one_transactions.max(2.) + 1., one_reads.max(6.) + 4.);
    let mut some_ids = vec![plain.clone(); FEEDS];
    some_ids.extend((0..FEEDS).map(|n| only(&format!("doc-{}", n % 10))));
    for (name, requests) in [("many", vec![plain.clone(); FEEDS]), ("some-ids", some_ids)] {
        let cost = cost_of_feeds(&stage, name, &requests, true).await;
        assert!(cost.0 <= most.0 && cost.1 <= most.1, "{name}: {cost:?} for a write, and {most:?} with one feed");
    }
    // Those that ask for documents share one more read.
    let both: Vec<_> = (0..FEEDS).flat_map(|_| [plain.clone(), with_documents.clone()]).collect();
    let cost = cost_of_feeds(&stage, "documents", &both, true).await;
    assert!(cost.0 <= most.0 + 2. && cost.1 <= 2. * most.1, "{cost:?} for a write");
}

/// The end of the writes of a test: the last sequence to read up to, once it is known.
type Last = watch::Receiver<Option<Seq>>;

/// A feed that reads from `start` to the end of the writes. Its calls are dropped now and then, it stops watching and
/// begins again, and it is slow at times. Returns its rows.
async fn read_by_chance<D: Database>(
    documents: Documents<D>,
    mut request: ChangesRequest,
    mut random: Random,
    last: Last,
    shared: Arc<[AtomicU64; 2]>,
) -> Vec<Change> {
    let mut rows: Vec<Change> = Vec::new();
    let mut watcher: Option<Watcher<D>> = None;
    // Number of polls after which a call is dropped.
    let polls = |random: &mut Random| if random.chance(0.3) { 1 + random.below(20) as usize } else { usize::MAX };
    loop {
        let Since::Seq(since) = request.since else { unreachable!("a sequence") };
        if last.borrow().is_some_and(|last| since >= last) {
            return rows;
        }
        if random.chance(0.1) {
            watcher = None;
        }
        for _ in 0..random.below(8) * random.below(8) {
            tokio::task::yield_now().await;
        }
        let watcher = watcher.get_or_insert_with(|| documents.watch_changes(since));
        let reading = async {
            let batch = watcher.shared_changes(&request, |reading| reading.map(Result::ok).boxed()).await;
            shared[usize::from(batch.is_none())].fetch_add(1, Ordering::Relaxed);
            match batch {
                Some(batch) => Ok(batch),
                None => documents.changes(&request).await,
            }
        };
        let Some(batch) = soon(ends_after(polls(&mut random), reading)).await else { continue };
        let batch = match batch {
            // So many retries failed that it was given up.
            Err(error) if error.kv_error().is_some_and(kv_api::Error::is_retryable) => continue,
            batch => batch.unwrap(),
        };
        assert!(batch.last_seq >= since);
        assert!(request.limit.is_none_or(|limit| batch.rows.len() <= limit));
        let ids: HashSet<&str> = batch.rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), batch.rows.len(), "a document twice in one batch");
        rows.extend(batch.rows);
        request.since = batch.last_seq.into();
        let is_done = last.borrow().is_some_and(|last| batch.last_seq >= last);
        if !batch.more && !is_done {
            watcher.saw(batch.last_seq);
            // A dropped wait is followed by a read that may find nothing.
            if let Some(changed) = soon(ends_after(polls(&mut random), watcher.changed())).await {
                changed.unwrap();
            }
        }
    }
}

pub(crate) async fn feeds_that_share_reads_agree_with_a_plain_reader(stage: Stage) {
    let shared = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for seed in 0..4 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let name = format!("db-{seed}");
        let written = stage.layer().await.create_database(&name, CreateOptions::default()).await.unwrap();
        let rates = Rates { latency: 0.02, longest: Duration::from_millis(1), ..Rates::retryable(0.002) };
        let documents = layer(Chaos::new(stage.engine(), seed, rates)).await.database(&name).await.unwrap();
        let (ended, last) = watch::channel(None);
        let mut seqs = vec![Seq::ZERO];
        let mut revs: BTreeMap<String, Vec<RevId>> = BTreeMap::new();
        let mut feeds = Vec::new();
        for n in 0..80 {
            if random.chance(0.25) {
                let ids = (0..10).filter(|_| random.chance(0.3)).map(|n| format!("doc-{n}")).collect::<Vec<_>>();
                let request = ChangesRequest {
                    since: random.pick(&seqs[seqs.len().saturating_sub(20)..]).to_owned().into(),
                    style: *random.pick(&[Style::MainOnly, Style::AllDocs, Style::Live]),
                    include_docs: random.chance(0.4),
                    conflicts: random.chance(0.2),
                    limit: random.chance(0.4).then(|| 1 + random.below(40) as usize),
                    doc_ids: (random.chance(0.3) && !ids.is_empty()).then(|| ids.into()),
                    numbered: true,
                    ..ChangesRequest::default()
                };
                let reader = Random::new(random.bits());
                let rows = read_by_chance(documents.clone(), request.clone(), reader, last.clone(), shared.clone());
                feeds.push((request, tokio::spawn(rows)));
            }
            let id = format!("doc-{}", random.below(10));
            let body = format!(r#"{{"n":{n},"text":"{}"}}"#, "x".repeat(random.below(3_000) as usize));
            match random.below(10) {
                0 => {
                    let many = 1 + random.below(250);
                    let edits = (0..many).map(|m| edit(&format!("bulk-{n}-{m}"), "{}")).collect();
                    for rev in written.write(edits, WriteMode::Interactive).await.unwrap() {
                        rev.unwrap();
                    }
                }
                1 => {
                    let path = format!("1-{:032x}", random.bits());
                    merge(&written, replicated(&id, &path, &body)).await;
                    revs.entry(id).or_default().push(rev(&path));
                }
                what => {
                    let over = written.get(&id, &Default::default()).await.ok().map(|document| document.rev);
                    let is_there = over.is_some();
                    let edit = Edit { rev: over, ..edit(&id, &body) };
                    let edit = if what < 4 && is_there { edit.deleting() } else { edit };
                    let rev = written.put(edit).await.unwrap();
                    revs.entry(id).or_default().push(rev);
                }
            }
            seqs.push(written.last_seq().await.unwrap());
            for _ in 0..random.below(10) {
                tokio::task::yield_now().await;
            }
        }
        let end = written.last_seq().await.unwrap();
        ended.send(Some(end)).unwrap();
        // Wakes the feeds that have read everything.
        written.put(edit("end", "{}")).await.unwrap();
        assert!(feeds.len() > 10, "seed {seed}");
        for (number, (request, reader)) in feeds.into_iter().enumerate() {
            let rows: Vec<Change> = reader.await.unwrap().into_iter().filter(|row| row.seq <= end).collect();
            let of_whom = format!("seed {seed}, feed {number}, {request:?}");
            assert!(rows.is_sorted_by(|one, other| one.seq < other.seq), "in order, each row once: {of_whom}");
            for row in &rows {
                assert_eq!(row.error, None, "{of_whom}");
                let known = revs.get(&row.id).is_none_or(|revs| revs.contains(&row.revs[0]));
                assert!(known, "{row:?} was never written: {of_whom}");
                let document = row.doc.as_ref().map(|document| (&document.id, &document.rev));
                assert_eq!(document, request.include_docs.then_some((&row.id, &row.revs[0])), "{of_whom}");
            }
            // Rows of documents that changed again are gone from the plain reader's feed.
            let expected: Vec<Change> = feed(&written, ChangesRequest { limit: None, ..request.clone() })
                .await
                .into_iter()
                .filter(|row| row.seq <= end)
                .collect();
            let left: HashSet<Seq> = expected.iter().map(|row| row.seq).collect();
            let rows: Vec<Change> = rows.into_iter().filter(|row| left.contains(&row.seq)).collect();
            assert_eq!(rows, expected, "{of_whom}");
        }
    }
    let [shared, apart] = [&shared[0], &shared[1]].map(|count| count.load(Ordering::Relaxed));
    assert!(shared > apart && apart > 0, "{shared} shared reads, {apart} feeds that read for themselves");
}

pub(crate) async fn a_shared_read_that_nobody_ends_is_ended_by_the_next(stage: Stage) {
    let documents = stage.documents().await;
    let request = ChangesRequest::default();
    for gives_up in [false, true] {
        let since = documents.last_seq().await.unwrap();
        let request = ChangesRequest { since: since.into(), ..request.clone() };
        let mut watchers: Vec<_> = (0..3).map(|_| documents.watch_changes(since)).collect();
        documents.put(edit(&format!("doc-{gives_up}"), "{}")).await.unwrap();
        let (go_on, gone_on) = oneshot::channel::<()>();
        let [first, second, third] = &mut watchers[..] else { unreachable!("three") };
        {
            let reading = first.shared_changes(&request, |reading| {
                Box::pin(async move {
                    gone_on.await.ok()?;
                    reading.await.ok()
                })
            });
            assert!(poll_once(pin!(reading)).is_none());
        }
        // The first one is gone. The others wait for its read, and begin none.
        let (mut second, mut third) = (
            pin!(second.shared_changes(&request, |_| unreachable!("a second read"))),
            pin!(third.shared_changes(&request, |_| unreachable!("a third read"))),
        );
        assert!(poll_once(second.as_mut()).is_none() && poll_once(third.as_mut()).is_none());
        if gives_up {
            drop(go_on);
            assert_eq!(soon(second).await, None);
            assert_eq!(soon(third).await, None);
        } else {
            go_on.send(()).unwrap();
            let plain = documents.changes(&request).await.unwrap();
            assert_eq!(soon(second).await.as_ref(), Some(&plain));
            assert_eq!(soon(third).await, Some(plain));
        }
        // The next read is a new one.
        let mut watcher = documents.watch_changes(since);
        assert_eq!(watcher.changes(&request).await.unwrap(), documents.changes(&request).await.unwrap());
    }
}

pub(crate) async fn a_shared_read_that_began_before_a_change_is_not_the_last(stage: Stage) {
    let documents = stage.documents().await;
    let request = ChangesRequest::default();
    let (mut first, mut second) = (documents.watch_changes(Seq::ZERO), documents.watch_changes(Seq::ZERO));
    documents.put(edit("a", "{}")).await.unwrap();
    let ((has_read, read), (go_on, gone_on)) = (oneshot::channel(), oneshot::channel::<()>());
    let asked = request.clone();
    let first = tokio::spawn(async move {
        let run = |reading: kv_api::BoxFuture<model::Result<model::ChangesBatch>>| -> kv_api::BoxFuture<_> {
            Box::pin(async move {
                let batch = reading.await.ok();
                has_read.send(()).ok()?;
                gone_on.await.ok()?;
                batch
            })
        };
        first.shared_changes(&asked, run).await
    });
    soon(read).await.unwrap();
    documents.put(edit("b", "{}")).await.unwrap();
    let last = soon(second.changed()).await.unwrap();
    let batch = {
        let mut batch = pin!(second.shared_changes(&request, |_| unreachable!("another read")));
        assert!(poll_once(batch.as_mut()).is_none());
        go_on.send(()).unwrap();
        soon(batch).await.unwrap()
    };
    assert_eq!(batch.rows[0].id, "a");
    assert!(batch.last_seq < last && batch.more && batch.pending.is_none(), "a wait would not end: {batch:?}");
    assert!(!soon(first).await.unwrap().unwrap().more, "it has not seen the second change");
    let rest = ChangesRequest { since: batch.last_seq.into(), ..request };
    assert_eq!(second.changes(&rest).await.unwrap().rows[0].id, "b");
}

pub(crate) async fn feeds_of_a_dropped_database_share_nothing(stage: Stage) {
    let layer = stage.layer().await;
    let old = layer.create_database("db", Default::default()).await.unwrap();
    let mut watchers = [old.watch_changes(Seq::ZERO), old.watch_changes(Seq::ZERO)];
    old.put(edit("old", "{}")).await.unwrap();
    let batch = watchers[0].changes(&ChangesRequest::default()).await.unwrap();
    let request = ChangesRequest { since: batch.last_seq.into(), ..ChangesRequest::default() };
    layer.delete_database("db").await.unwrap();
    let new = layer.create_database("db", Default::default()).await.unwrap();
    for watcher in &mut watchers {
        watcher.saw(batch.last_seq);
        let is_gone = |error: model::Error| *error.kind() == ErrorKind::NotFound(NotFound::Database);
        assert!(watcher.changes(&request).await.is_err_and(is_gone));
        assert!(soon(watcher.changed()).await.is_err_and(is_gone));
    }
    let mut watcher = new.watch_changes(Seq::ZERO);
    assert_eq!(watcher.changes(&ChangesRequest::default()).await.unwrap().rows, []);
}
