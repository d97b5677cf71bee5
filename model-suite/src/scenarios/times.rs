//! The edits since a time.

use kv_api::Database;
use model::{ChangesRequest, CreateOptions, Documents, Layer, Seq, WriteMode};

use crate::stage::*;

/// The feed since a time may have this many earlier edits too, of this many milliseconds.
const EDITS: usize = 32;
const MS: u64 = 300_000;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

async fn bulk<D: Database>(documents: &Documents<D>, name: &str, count: usize) {
    let edits = (0..count).map(|n| edit(&format!("{name}-{n:04}"), "{}")).collect();
    for result in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
}

/// The documents that changed since a time, by the feed.
async fn since<D: Database>(documents: &Documents<D>, time_ms: u64) -> Vec<String> {
    let since = documents.since_time(time_ms).await.unwrap().into();
    let changes = feed(documents, ChangesRequest { since, ..ChangesRequest::default() }).await;
    changes.into_iter().map(|change| change.id).collect()
}

pub(crate) async fn no_edit_since_a_time_is_missing_and_few_are_older(stage: Stage) {
    let clock = Clock::default();
    let layer = Layer::open(stage.engine(), clock.options()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    assert_eq!(documents.since_time(0).await.unwrap(), Seq::ZERO);
    let mut written: Vec<(u64, String)> = Vec::new();
    for n in 0..400u64 {
        // Bursts, and pauses of minutes, hours and days.
        clock.pass(match n % 50 {
            49 => DAY,
            n if n % 10 == 9 => n * MS / 7,
            n => n * 100,
        });
        let id = format!("d{n}");
        documents.put(edit(&id, "{}")).await.unwrap();
        written.push((clock.now(), id));
    }
    let (first, last) = (written[0].0, clock.now());
    for step in 0..60 {
        let time = first + (last - first) * step / 59;
        let found = since(&documents, time).await;
        let at = written.partition_point(|(made, _)| *made < time);
        let ids: Vec<&String> = written.iter().map(|(_, id)| id).collect();
        let begin = ids.len() - found.len();
        assert_eq!(found.iter().collect::<Vec<_>>(), ids[begin..], "the feed ends with all that came later");
        assert!(begin <= at, "{} edits since {time} are missing", begin - at);
        let older = &written[begin..at];
        let is_near = older.last().is_none_or(|(last, _)| last - older[0].0 <= 2 * MS);
        assert!(older.len() <= EDITS || is_near, "{} edits before {time}", older.len());
    }
    assert_eq!(since(&documents, last + 2 * 3_600_000).await, Vec::<String>::new(), "nothing is of the future");
    let bins = documents.time_bins().await.unwrap();
    assert_eq!(bins.iter().map(|bin| bin.edits).sum::<u64>(), 400);
    assert!(bins.len() > 5 && bins.is_sorted_by(|a, b| a.start_ms < b.start_ms), "{bins:?}");

    // The last edits are old once the clock was read.
    clock.pass(MS);
    let now = clock.now();
    clock.pass(MS);
    assert!(!since(&documents, now).await.is_empty(), "nobody knows that it is old");
    documents.mark_time(u64::MAX).await.unwrap();
    documents.mark_time(u64::MAX).await.unwrap();
    let marked = clock.now();
    clock.pass(MS);
    assert_eq!(since(&documents, marked + 1).await, Vec::<String>::new());
    documents.put(edit("new", "{}")).await.unwrap();
    assert_eq!(since(&documents, marked + 1).await, ["new"]);

    documents.reset_times().await.unwrap();
    assert_eq!(since(&documents, marked + 1).await.len(), 401, "nothing is known of the time before");
    clock.pass(MS);
    bulk(&documents, "after", EDITS).await;
    let after = clock.now();
    clock.pass(MS);
    bulk(&documents, "later", EDITS).await;
    clock.pass(1);
    assert_eq!(since(&documents, clock.now()).await.len(), EDITS);
    assert_eq!(since(&documents, after + 1).await.len(), 2 * EDITS);
    assert_sound(&documents).await;
}

pub(crate) async fn a_clock_that_is_behind_hides_no_edit(stage: Stage) {
    let (right, behind) = (Clock::default(), Clock::default());
    right.pass(10 * DAY);
    let layer = Layer::open(stage.engine(), right.options()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let other = Layer::open(stage.engine(), behind.options()).await.unwrap().database("db").await.unwrap();
    let mut times = Vec::new();
    for round in 0..12 {
        right.pass(HOUR);
        times.push(right.now());
        let writer = if (3..6).contains(&round) || round == 9 { &other } else { &documents };
        bulk(writer, &format!("round-{round:02}"), EDITS).await;
    }
    for (round, time) in times.into_iter().enumerate() {
        let found = since(&documents, time).await;
        assert!(found.len() >= (12 - round) * EDITS, "{} edits since round {round}", found.len());
    }
    // A clock that was ahead gives too many, until its times are forgotten.
    let ahead = Clock::default();
    ahead.pass(4_000 * DAY);
    let other = Layer::open(stage.engine(), ahead.options()).await.unwrap().database("db").await.unwrap();
    bulk(&other, "ahead", EDITS).await;
    bulk(&other, "ahead-too", EDITS).await;
    for n in 0..3 {
        right.pass(HOUR);
        bulk(&documents, &format!("on-{n}"), EDITS).await;
    }
    assert!(since(&documents, right.now()).await.len() > 3 * EDITS);
    documents.reset_times().await.unwrap();
    for n in 3..6 {
        right.pass(HOUR);
        bulk(&documents, &format!("on-{n}"), EDITS).await;
    }
    right.pass(1);
    assert_eq!(since(&documents, right.now()).await.len(), EDITS);

    // The clock of one process is set back, after an edit that has no row of its own.
    right.pass(HOUR);
    let before = right.now();
    documents.put(edit("unseen", "{}")).await.unwrap();
    right.set_back(HOUR / 2);
    bulk(&documents, "set-back", EDITS).await;
    assert!(since(&documents, before).await.contains(&"unseen".to_owned()));
    // The process forgets a time that was ahead, like the others.
    right.pass(4_000 * DAY);
    documents.put(edit("far", "{}")).await.unwrap();
    right.set_back(4_000 * DAY);
    documents.reset_times().await.unwrap();
    for n in 6..9 {
        right.pass(HOUR);
        bulk(&documents, &format!("on-{n}"), EDITS).await;
    }
    right.pass(1);
    assert_eq!(since(&documents, right.now()).await.len(), EDITS);
}

/// Only the rows of one document would be left, and all of them new.
pub(crate) async fn a_document_that_changes_all_the_time_leaves_the_times_of_the_others(stage: Stage) {
    let clock = Clock::default();
    let layer = Layer::open(stage.engine(), clock.options()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    bulk(&documents, "old", 100).await;
    let mut rev = None;
    for _ in 0..20 * 24 {
        clock.pass(HOUR);
        let edit = edit("hot", "{}");
        rev = Some(documents.put(rev.into_iter().fold(edit, model::Edit::over)).await.unwrap());
    }
    for days in [1, 5, 10, 15] {
        assert_eq!(since(&documents, clock.now() - days * DAY).await, ["hot"], "{days} days ago");
    }
}
