//! The numbers before sequences.

use std::collections::BTreeMap;

use kv_api::{AnyDatabase, Database, RangeRequest, Read, TransactionExt};
use model::{ChangesRequest, CreateOptions, Documents, Edit, NumberedSeq, Seq, WriteMode};

use super::relocating::{at, go_on, options, run};
use crate::stage::*;

/// How far the number at the end of a feed may lag behind the edits of one process.
const LAG: u64 = 32;

fn numbered() -> ChangesRequest {
    ChangesRequest { numbered: true, ..ChangesRequest::default() }
}

async fn bulk<D: Database>(documents: &Documents<D>, name: &str, count: usize) {
    let edits = (0..count).map(|n| edit(&format!("{name}-{n:04}"), "{}")).collect();
    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
}

/// The numbers of the feed. They never decrease along it, and equal those seen before.
async fn numbers<D: Database>(documents: &Documents<D>, seen: &mut BTreeMap<Seq, u64>) -> Vec<u64> {
    let mut numbers = Vec::new();
    for change in feed(documents, numbered()).await {
        let number = change.number.unwrap();
        assert!(numbers.last().is_none_or(|last| *last <= number), "{} after {:?}", number, numbers.last());
        assert_eq!(*seen.entry(change.seq).or_insert(number), number, "{}", change.seq);
        assert_eq!(change.shown_seq(), format!("{number}-{}", change.seq));
        numbers.push(number);
    }
    numbers
}

pub(crate) async fn numbers_count_edits_never_fall_and_stay(stage: Stage) {
    let documents = stage.documents().await;
    let mut seen = BTreeMap::new();
    assert_eq!(documents.info().await.unwrap().update_seq.number, 0);
    for round in 0..6 {
        for n in 0..20 {
            documents.put(edit(&format!("single-{round}-{n}"), "{}")).await.unwrap();
        }
        bulk(&documents, &format!("bulk-{round}"), 100).await;
        bulk(&documents, &format!("small-{round}"), 7).await;
        // Each document was written once, so its place in the feed is the number of edits until then.
        for (place, number) in (1u64..).zip(numbers(&documents, &mut seen).await) {
            assert!((place.saturating_sub(LAG)..=place).contains(&number), "{number} at {place}");
        }
    }
    let batch = documents.changes(&ChangesRequest { limit: Some(300), ..numbered() }).await.unwrap();
    let last = NumberedSeq { number: batch.last_number.unwrap(), seq: batch.last_seq };
    assert_eq!(documents.numbered(last.seq).await.unwrap(), last);
    assert_eq!(documents.numbered_all(&[last.seq, Seq::ZERO, last.seq]).await.unwrap()[2], last);
    let descending = feed(&documents, ChangesRequest { descending: true, ..numbered() }).await;
    assert!(descending.iter().all(|change| seen[&change.seq] == change.number.unwrap()));
    let info = documents.info().await.unwrap();
    let end = documents.changes(&ChangesRequest { since: last.seq.into(), ..numbered() }).await.unwrap();
    assert_eq!((end.last_seq, end.last_number.unwrap()), (info.update_seq.seq, info.update_seq.number));
}

pub(crate) async fn numbers_of_writers_side_by_side_never_fall(stage: Stage) {
    let documents = stage.documents().await;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let documents = documents.clone();
            tokio::spawn(async move {
                for n in 0..6 {
                    bulk(&documents, &format!("{writer}-{n}"), 40 + n).await;
                    documents.put(edit(&format!("{writer}-{n}"), "{}")).await.unwrap();
                }
            })
        })
        .collect();
    let mut seen = BTreeMap::new();
    while !writers.iter().all(|writer| writer.is_finished()) {
        numbers(&documents, &mut seen).await;
        // An engine in memory answers at once, so the other writers would never get a turn.
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let numbers = numbers(&documents, &mut seen).await;
    let (last, edits) = (*numbers.last().unwrap(), numbers.len() as u64);
    assert!(last <= edits, "{last} of {edits}");
    // Once there are no concurrent writers, a row counts all edits before it.
    bulk(&documents, "last", LAG as usize).await;
    assert_eq!(documents.info().await.unwrap().update_seq.number, edits + LAG);
}

/// Number of rows that count edits: their keys end with the subspace, the incarnation and a stamp.
async fn rows(engine: &AnyDatabase) -> usize {
    let transaction = engine.begin().unwrap();
    let all = RangeRequest::keys(&b""[..], &b"\xff"[..]);
    let rows = transaction.get_all(all, Read::Snapshot).await.unwrap();
    let counts = |key: &[u8]| key.len() > 16 && key[key.len() - 16..].starts_with(&[0x15, 17, 0x14, 0x33]);
    rows.iter().filter(|row| counts(&row.key)).count()
}

pub(crate) async fn rows_that_count_edits_go_with_their_sequences(stage: Stage) {
    let documents = stage.documents().await;
    let mut seen = BTreeMap::new();
    for n in 0..4 {
        bulk(&documents, &format!("kept-{n}"), LAG as usize).await;
    }
    numbers(&documents, &mut seen).await;
    assert_eq!(rows(&stage.engine()).await, 4);
    let mut revs = vec![None; LAG as usize];
    for _ in 0..120 {
        let edits: Vec<Edit> = revs
            .drain(..)
            .enumerate()
            .map(|(n, rev)| {
                let edit = edit(&format!("edited-{n}"), "{}");
                rev.into_iter().fold(edit, Edit::over)
            })
            .collect();
        for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
            revs.push(Some(result.unwrap()));
        }
    }
    let (left, all) = (rows(&stage.engine()).await, numbers(&documents, &mut seen).await);
    assert!((5..40).contains(&left), "{left} rows after 124");
    assert_eq!((all.len() as u64, *all.last().unwrap()), (5 * LAG, 124 * LAG));
    assert_sound(&documents).await;
}

pub(crate) async fn numbers_move_with_their_database(stage: Stage) {
    let engine = stage.engine();
    let (a, b) = (at(&engine, "a").await, at(&engine, "b").await);
    let documents = a.create_database("db", CreateOptions::default()).await.unwrap();
    for n in 0..3 {
        bulk(&documents, &format!("before-{n}"), 50).await;
    }
    let mut seen = BTreeMap::new();
    let before = numbers(&documents, &mut seen).await;
    run(&a, &b, options(true), go_on).await.unwrap();
    let moved = b.database("db").await.unwrap();
    assert_eq!(numbers(&moved, &mut seen).await, before);
    bulk(&moved, "after", 50).await;
    assert_eq!(numbers(&moved, &mut seen).await[150..], (151..=200).collect::<Vec<u64>>());
}
