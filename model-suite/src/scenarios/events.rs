//! The events of a store's databases: creations, updates and drops.

use std::collections::BTreeMap;
use std::pin::pin;

use conformance::random::Random;
use kv_api::{Counted, Counts, Database, RangeRequest, Read, Transaction, TransactionExt};
use model::{CreateOptions, DatabaseEventKind, DatabaseEvents, Layer, NotFound, Seq};

use super::feed::soon;
use super::relocating::{at, go_on, options, run};
use crate::stage::*;

fn sign(kind: DatabaseEventKind) -> char {
    match kind {
        DatabaseEventKind::Created => '+',
        DatabaseEventKind::Updated => '~',
        DatabaseEventKind::Deleted => '-',
        other => panic!("an event of an unknown kind: {other:?}"),
    }
}

fn text(events: &DatabaseEvents) -> String {
    let one = |event: &model::DatabaseEvent| format!("{}{}", sign(event.kind), event.name);
    events.events.iter().map(one).collect::<Vec<_>>().join(" ")
}

async fn create<D: Database>(layer: &Layer<D>, name: &str) {
    layer.create_database(name, CreateOptions::default()).await.unwrap();
}

async fn put<D: Database>(layer: &Layer<D>, name: &str, id: &str) {
    layer.database(name).await.unwrap().put(edit(id, "{}")).await.unwrap();
}

pub(crate) async fn each_database_has_its_last_events_in_order(stage: Stage) {
    let layer = stage.layer().await;
    let since = async |seq: Seq| {
        let events = layer.database_events(seq).await.unwrap();
        assert!(events.events.iter().all(|event| seq < event.seq && event.seq <= events.last_seq));
        (text(&events), events.last_seq)
    };
    assert_eq!(since(Seq::ZERO).await, (String::new(), Seq::ZERO));
    create(&layer, "a").await;
    create(&layer, "b").await;
    let (all, both) = since(Seq::ZERO).await;
    assert_eq!(all, "+a +b");
    assert_eq!(since(both).await, (String::new(), both), "the end stays where it is");
    put(&layer, "a", "x").await;
    layer.database("b").await.unwrap().put_local("_local/x", None, json("{}")).await.unwrap();
    let (new, updated) = since(both).await;
    assert_eq!(new, "~a", "a local document is not an update");
    put(&layer, "b", "x").await;
    put(&layer, "a", "y").await;
    assert_eq!(since(updated).await.0, "~b ~a");
    layer.delete_database("b").await.unwrap();
    assert_eq!(since(Seq::ZERO).await.0, "+a ~a -b");
    create(&layer, "b").await;
    assert_eq!(since(Seq::ZERO).await.0, "+a ~a -b +b");
    put(&layer, "b", "x").await;
    layer.delete_database("b").await.unwrap();
    layer.delete_database("a").await.unwrap();
    let (all, end) = since(both).await;
    assert_eq!(all, "-b -a");
    assert_eq!(since(end).await, (String::new(), end));
    // A sequence ahead of the store comes from another store.
    let never = Seq::from_bytes([0xff; Seq::LEN]);
    let events = layer.database_events(never).await.unwrap();
    assert_eq!((text(&events), events.last_seq), ("-b -a".to_owned(), end));
}

pub(crate) async fn events_follow_a_database_to_another_store(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a/").await, at(&engine, "b/").await);
    create(&source, "db").await;
    put(&source, "db", "x").await;
    create(&target, "other").await;
    run(&source, &target, options(true), go_on).await.unwrap();
    let arrived = target.database_events(Seq::ZERO).await.unwrap();
    assert_eq!(text(&arrived), "+other +db", "its edits were made elsewhere");
    put(&target, "db", "y").await;
    assert_eq!(text(&target.database_events(arrived.last_seq).await.unwrap()), "~db");
    assert_eq!(text(&source.database_events(Seq::ZERO).await.unwrap()), "+db");
    source.delete_database("db").await.unwrap();
    assert_eq!(text(&source.database_events(Seq::ZERO).await.unwrap()), "-db");
}

pub(crate) async fn watchers_of_events_wake_for_each(stage: Stage) {
    let (layer, other) = (stage.layer().await, stage.layer().await);
    create(&layer, "a").await;
    let mut watcher = layer.watch_databases();
    let mut last = watcher.read(Seq::ZERO).await.unwrap().last_seq;
    for (step, expected) in ["~a", "+b", "~b", "~a", "-a", "+a", "~a", "-b"].into_iter().enumerate() {
        {
            let mut waiting = pin!(watcher.changed());
            for _ in 0..10 {
                assert!(poll_once(waiting.as_mut()).is_none(), "nothing happened before step {step}");
                tokio::task::yield_now().await;
            }
            let name = &expected[1..];
            match &expected[..1] {
                "+" => create(&other, name).await,
                "-" => other.delete_database(name).await.unwrap(),
                _ => put(&other, name, &format!("doc-{step}")).await,
            }
            soon(waiting).await;
        }
        // A needless wake-up is allowed.
        let mut seen = DatabaseEvents::default();
        while seen.events.is_empty() {
            seen = watcher.read(last).await.unwrap();
        }
        assert_eq!(text(&seen), expected, "step {step}");
        assert!(!watcher.misses_some());
        last = seen.last_seq;
        // The watch may only have seen that the database changed.
        watcher.read(last).await.unwrap();
        let mut idle = 0;
        while idle < 10 {
            let has_changed = poll_once(pin!(watcher.changed())).is_some();
            if has_changed {
                watcher.read(last).await.unwrap();
            } else {
                idle += 1;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Continues from its last sequence while others write, and ends with all existing events.
pub(crate) async fn who_reads_on_misses_no_event(stage: Stage) {
    let layer = stage.layer().await;
    let names = ["a", "b", "c", "d"];
    for seed in 0..4 {
        let writers = names.map(|name| {
            let (layer, mut random) = (layer.clone(), Random::new(seed * 10 + u64::from(name.as_bytes()[0])));
            tokio::spawn(async move {
                for n in 0..12 {
                    match layer.database(name).await {
                        Err(error) => {
                            assert_eq!(*error.kind(), model::ErrorKind::NotFound(NotFound::Database));
                            create(&layer, name).await;
                        }
                        Ok(_) if random.below(5) == 0 => layer.delete_database(name).await.unwrap(),
                        Ok(database) => drop(database.put(edit(&format!("{seed}-{n}"), "{}")).await.unwrap()),
                    }
                    tokio::task::yield_now().await;
                }
            })
        });
        // The last event of each kind of each database, as a reader has them.
        let mut known: BTreeMap<(String, char), Seq> = BTreeMap::new();
        let mut last = Seq::ZERO;
        let mut is_over = false;
        loop {
            let page = layer.database_events(last).await.unwrap();
            assert!(last <= page.last_seq, "seed {seed}");
            for event in page.events {
                assert!(last < event.seq && event.seq <= page.last_seq, "seed {seed}");
                known.insert((event.name, sign(event.kind)), event.seq);
            }
            last = page.last_seq;
            if is_over {
                break;
            }
            is_over = writers.iter().all(|writer| writer.is_finished());
            tokio::task::yield_now().await;
        }
        for writer in writers {
            writer.await.unwrap();
        }
        let all = layer.database_events(Seq::ZERO).await.unwrap();
        assert_eq!(all.last_seq, last, "seed {seed}");
        for event in all.events {
            assert_eq!(known.get(&(event.name.clone(), sign(event.kind))), Some(&event.seq), "seed {seed}: {event:?}");
        }
    }
}

pub(crate) async fn edits_pay_nothing_for_events(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    let cost = async |id: &str| {
        counted.take();
        documents.put(edit(id, "{}")).await.unwrap();
        // Bytes differ: transaction ids are random, and their zeros take two bytes.
        counted.take().into_iter().map(|counts| Counts { bytes_written: 0, ..counts }).collect::<Vec<_>>()
    };
    let before = cost("a").await;
    let layer = layer(counted.clone()).await;
    let mut watcher = layer.watch_databases();
    assert_eq!(text(&watcher.read(Seq::ZERO).await.unwrap()), "+db ~db");
    for _ in 0..10 {
        assert!(poll_once(pin!(watcher.changed())).is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(cost("b").await, before);
    soon(watcher.changed()).await;
}

/// The key of a drop in a store without a prefix, by a number that stands for its versionstamp.
fn drop_key(number: u16, name: &str) -> Vec<u8> {
    let mut key = vec![0x15, 10, 0x15, 1, 0x33, 0, 0, 0, 0, 0, 0, 0, 0];
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(&[0, 0, 2]);
    key.extend_from_slice(name.as_bytes());
    key.push(0);
    key
}

/// The sequence of such a drop.
fn drop_seq(number: u16) -> Seq {
    let mut bytes = [0; Seq::LEN];
    bytes[9..11].copy_from_slice(&number.to_be_bytes());
    Seq::from_bytes(bytes)
}

pub(crate) async fn only_the_last_drops_are_kept(stage: Stage) {
    let (layer, engine) = (stage.layer().await, stage.engine());
    let drop = async |name: &str| {
        create(&layer, name).await;
        layer.delete_database(name).await.unwrap();
    };
    let rows = async || {
        let range = RangeRequest::keys(&[0x15, 10, 0x15, 1][..], &[0x15, 10, 0x15, 2][..]);
        engine.begin().unwrap().get_all(range, Read::Snapshot).await.unwrap().len()
    };
    create(&layer, "db").await;
    drop("x").await;
    drop("x").await;
    let all = layer.database_events(Seq::ZERO).await.unwrap();
    assert_eq!((text(&all), rows().await), ("+db -x".to_owned(), 2), "the last drop of a name");
    let first = all.events[0].seq;
    assert!(!layer.database_events(first).await.unwrap().lacks_drops, "nothing was forgotten");

    let transaction = engine.begin().unwrap();
    (1..=998).for_each(|number| transaction.set(drop_key(number, &format!("d{number}")), &[0x15, 1]));
    transaction.commit().await.unwrap();
    assert_eq!(rows().await, 1_000);
    for (step, name) in ["y", "z", "x"].into_iter().enumerate() {
        drop(name).await;
        assert_eq!(rows().await, 1_000, "as many as are kept");
        let forgotten = 1 + step as u16;
        for (since, lacks_drops) in [(Seq::ZERO, false), (drop_seq(forgotten), false), (first, false)] {
            let events = layer.database_events(since).await.unwrap();
            assert_eq!(events.lacks_drops, lacks_drops, "{step}: {since}");
        }
        let mut before = [0; Seq::LEN];
        before.copy_from_slice(drop_seq(forgotten).as_bytes());
        before[10] -= 1;
        before[12] = 1;
        let events = layer.database_events(Seq::from_bytes(before)).await.unwrap();
        assert!(events.lacks_drops && events.events[0].name == format!("d{}", forgotten + 1), "{step}");
    }
    let ahead = layer.database_events(Seq::from_bytes([0xff; Seq::LEN])).await.unwrap();
    assert!(ahead.lacks_drops, "a reader of another time of the store");
    let all = layer.database_events(Seq::ZERO).await.unwrap();
    assert_eq!(all.events.iter().filter(|event| event.name == "x").count(), 1);
    assert_eq!(text(&layer.database_events(first).await.unwrap()), "-y -z -x");
}
