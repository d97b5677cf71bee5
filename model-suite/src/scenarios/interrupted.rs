//! Relocations that are interrupted, abandoned or overtaken, and writers meanwhile.

use std::ops::ControlFlow;

use conformance::chaos::{Chaos, Fault, Rates};
use conformance::interleave::interleave;
use kv_api::Database;
use model::{
    BodyFormat, ChangesRequest, CreateOptions, Error, ErrorKind, GetOptions, NotFound, RelocateReport, Since,
    abandon_relocation, relocate,
};

use super::relocating::{at, contents, fill, filled, go_on, kind, large, options, rows_under, run, stop_at};
use crate::stage::*;

/// Runs a relocation with an interruption at every possible place, and an edit after each.
async fn at_every_stop<D: Database>(engine: &D, chaos: Option<u64>, verify: bool) {
    for stop in 1.. {
        let (source, target) = (at(engine, "a").await, at(engine, "b").await);
        let here = filled(&source, BodyFormat::Packed, 3).await;
        merge(&here, large(0)).await;
        let faults = |side: u64| match chaos {
            // A page reads dozens of rows in each attempt, and each read may fail. With twice this rate, one seed made
            // all attempts at one page fail.
            Some(seed) => {
                Chaos::new(engine.clone(), seed.wrapping_mul(1_000) + 2 * stop + side, Rates::retryable(0.01))
            }
            None => Chaos::new(engine.clone(), 0, Rates::default()),
        };
        let (from, to) = (at(&faults(0), "a").await, at(&faults(1), "b").await);
        let stopped = relocate(&from, &to, "db", &options(verify), stop_at(stop as usize)).await;
        let what = format!("stopped at {stop}, chaos {chaos:?}");
        if let Ok(report) = stopped {
            assert!(report.moved && report.is_same(), "{what}");
            assert!(stop > 10, "{what}: only so few places");
            source.delete_database("db").await.unwrap();
            target.delete_database("db").await.unwrap();
            return;
        }
        assert_eq!(kind(stopped), ErrorKind::Stopped, "{what}");
        // The database is in at most one place, and open unless this was the last step.
        let open_there = target.database("db").await;
        let wrote = match here.put(edit("between", "{}")).await {
            Ok(_) => {
                assert_eq!(kind(open_there), ErrorKind::NotFound(NotFound::Database), "{what}");
                merge(&here, large(1)).await;
                let tombstone = here.get_local("_local/one").await.unwrap();
                here.delete_local(&tombstone.id).await.unwrap();
                true
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::Moving => assert_eq!(get(&here, "doc-001").await.rev.position(), 1, "{what}"),
                    ErrorKind::Moved(_) => drop(open_there.expect("the target")),
                    other => panic!("{what}: {other:?}"),
                }
                false
            }
        };
        let report = relocate(&from, &to, "db", &options(verify), go_on).await;
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(report.moved && report.is_same(), "{what}: {report:?}");
        let there = target.database("db").await.unwrap();
        assert_sound(&there).await;
        let remains = source.remains("db").await.unwrap().expect("remains");
        assert_sound(&remains).await;
        let (mut ours, theirs) = (contents(&remains).await, contents(&there).await);
        assert_eq!(ours.info.update_seq.seq.incarnation(), 1, "{what}: whoever has seen it has seen everything");
        (ours.info.update_seq, ours.info.incarnation) = (theirs.info.update_seq, theirs.info.incarnation);
        assert_eq!(theirs, ours, "{what}");
        assert_eq!(theirs.feed.iter().any(|row| row.id == "between"), wrote, "{what}");
        source.delete_database("db").await.unwrap();
        target.delete_database("db").await.unwrap();
    }
}

pub(crate) async fn a_run_that_ends_anywhere_is_gone_on_with(stage: Stage) {
    let engine = stage.engine();
    at_every_stop(&engine, None, false).await;
}

pub(crate) async fn a_run_that_ends_anywhere_is_gone_on_with_through_faults(stage: Stage) {
    let engine = stage.engine();
    let seed = 11;
    at_every_stop(&engine, Some(seed), true).await;
}

/// Documents that were copied earlier have ancestors that the source has forgotten.
pub(crate) async fn branches_may_be_stemmed_while_their_database_moves(stage: Stage) {
    let engine = stage.engine();
    for stop in 1.. {
        let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
        let here = filled(&source, BodyFormat::Packed, 3).await;
        merge(&here, large(0)).await;
        if relocate(&source, &target, "db", &options(true), stop_at(stop)).await.is_ok() {
            assert!(stop > 10, "only {stop} places");
            return;
        }
        if here.set_revs_limit(1).await.is_ok() {
            let mut stemming = here.stemming().unwrap();
            while stemming.next().await.unwrap() {}
        }
        let report = relocate(&source, &target, "db", &options(true), go_on).await.unwrap();
        assert!(report.moved && report.is_same(), "stopped at {stop}: {report:?}");
        source.delete_database("db").await.unwrap();
        target.delete_database("db").await.unwrap();
    }
}

pub(crate) async fn abandoning_a_relocation_leaves_nothing_behind(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    let here = filled(&source, BodyFormat::Exploded, 3).await;
    assert!(!abandon_relocation(&source, &target, "db").await.unwrap(), "there is nothing to abandon");
    for stop in 1.. {
        match relocate(&source, &target, "db", &options(true), stop_at(stop)).await {
            Err(error) if *error.kind() == ErrorKind::Stopped => {}
            other => panic!("stop {stop}: {other:?}"),
        }
        if target.database("db").await.is_ok() {
            // Published: now the relocation can only be finished, through all further interruptions.
            assert!(matches!(kind(abandon_relocation(&source, &target, "db").await), ErrorKind::Relocation(_)));
            break;
        }
        assert!(abandon_relocation(&source, &target, "db").await.unwrap(), "stop {stop}");
        let left = rows_under(&engine, "b").await;
        let left: Vec<_> = left.into_iter().filter(|row| row.key[1..].starts_with(&[0x15, 4])).collect();
        assert!(left.is_empty(), "stop {stop}: {left:?}");
        here.put(edit(&format!("stop-{stop}"), "{}")).await.unwrap();
        assert_sound(&here).await;
    }
    // The database is dropped during its copy. The copy is removed too.
    let here = source.create_database("dropped", CreateOptions::default()).await.unwrap();
    fill(&here, 10).await;
    let mut calls = 0;
    let plain = options(false);
    let stopped = relocate(&source, &target, "dropped", &plain, |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(kind(stopped.await), ErrorKind::Stopped);
    source.delete_database("dropped").await.unwrap();
    assert_eq!(
        kind(relocate(&source, &target, "dropped", &options(false), go_on).await),
        ErrorKind::NotFound(NotFound::Database)
    );
    assert!(abandon_relocation(&source, &target, "dropped").await.unwrap());
    assert!(!abandon_relocation(&source, &target, "dropped").await.unwrap());
}

pub(crate) async fn of_two_runs_of_a_relocation_the_later_goes_on(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    filled(&source, BodyFormat::Exploded, 300).await;
    // The earlier run is held in the middle of a step while the later one runs.
    for held in 1..12 {
        let earlier = Chaos::new(engine.clone(), held, Rates::default());
        let (from, to) = (at(&earlier, "a").await, at(&earlier, "b").await);
        let mut calls = 0;
        let both = run(&from, &to, options(false), |_| {
            calls += 1;
            if calls == held {
                // On a separate thread: a callback cannot wait.
                let (source, target) = (source.clone(), target.clone());
                let later = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    runtime.block_on(relocate(&source, &target, "db", &options(true), stop_at(3))).map(drop)
                });
                assert_eq!(kind(later.join().unwrap()), ErrorKind::Stopped, "held at {held}");
            }
            ControlFlow::Continue(())
        });
        match both.await {
            Err(error) => {
                let why = error.to_string();
                assert!(why.contains("taken over") || why.contains("opened again"), "held at {held}: {why}");
            }
            Ok(report) => panic!("held at {held}: {report:?}"),
        }
        assert!(source.database("db").await.unwrap().put(edit(&format!("held-{held}"), "{}")).await.is_ok());
    }
    let report: RelocateReport = relocate(&source, &target, "db", &options(true), go_on).await.unwrap();
    assert!(report.moved && report.is_same());
    assert_sound(&target.database("db").await.unwrap()).await;
}

async fn moves<D: Database>(engine: D) -> Result<RelocateReport, Error> {
    relocate(&at(&engine, "a").await, &at(&engine, "b").await, "db", &options(false), go_on).await
}

/// Two runs are each held at one of their commits: the later one while the earlier one is held. A client writes while
/// both are held.
pub(crate) async fn a_run_that_is_overtaken_anywhere_leaves_no_edit_behind(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    let (mut histories, mut writes) = (0, 0);
    'earlier: for earlier in 0.. {
        for later in 0.. {
            let here = source.create_database("db", CreateOptions::default()).await.unwrap();
            here.put(edit("first", "{}")).await.unwrap();
            let (mut is_written, mut later_held) = (false, false);
            let write = async || is_written = here.put(edit("between", "{}")).await.is_ok();
            let meanwhile = async || later_held = interleave(engine.clone(), later, moves, write).await.1;
            let (_, earlier_held) = interleave(engine.clone(), earlier, moves, meanwhile).await;
            let what = format!("held at {earlier} and {later}, written: {is_written}");
            let report = relocate(&source, &target, "db", &options(true), go_on).await;
            let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(report.moved && report.is_same(), "{what}: {report:?}");
            let there = target.database("db").await.unwrap();
            assert_eq!(is_missing(&there, "between").await, !is_written, "{what}");
            assert_sound(&there).await;
            source.delete_database("db").await.unwrap();
            target.delete_database("db").await.unwrap();
            (histories, writes) = (histories + 1, writes + usize::from(is_written));
            match (earlier_held, later_held) {
                (false, _) => break 'earlier,
                (true, false) => break,
                (true, true) => {}
            }
        }
    }
    assert!(histories > 20 && writes > 5, "{histories} histories, {writes} with an edit");
}

pub(crate) async fn a_failure_behind_the_fence_opens_the_source_again(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    let here = filled(&source, BodyFormat::Exploded, 3).await;
    let mut failures = 0;
    for commit in 0.. {
        // 1031 is permanent: the commit may have happened, may not have happened, or may happen later.
        let fault = if commit % 2 == 0 { Fault::TimedOutCommitted } else { Fault::TimedOutNotCommitted };
        let script = (0..commit / 2).map(|_| None).chain([Some(fault)]);
        let failing = at(&Chaos::scripted(engine.clone(), script), "b").await;
        match relocate(&source, &failing, "db", &options(true), go_on).await {
            Ok(report) => {
                assert!(report.moved && report.is_same());
                break;
            }
            Err(error) => assert_eq!(error.status(), 503, "{error}"),
        }
        failures += 1;
        match here.put(edit(&format!("after-{commit}"), "{}")).await {
            Ok(_) => assert!(target.database("db").await.is_err(), "commit {commit}"),
            // The commit that publishes failed. It may have happened: only another run can find out.
            Err(error) => assert_eq!(*error.kind(), ErrorKind::Moving, "commit {commit}"),
        }
        assert_sound(&here).await;
    }
    assert!(failures > 6, "{failures}");
    assert_sound(&target.database("db").await.unwrap()).await;
}

pub(crate) async fn writers_at_work_lose_nothing_while_their_database_moves(stage: Stage) {
    let engine = stage.engine();
    let seed = 5;
    let rates = Rates {
        latency: 0.3,
        longest: std::time::Duration::from_micros(200),
        not_committed: 0.02,
        unknown_committed: 0.02,
        unknown_not_committed: 0.02,
        ..Rates::default()
    };
    let slow = |client: u64| Chaos::new(engine.clone(), seed + client, rates);
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    filled(&source, BodyFormat::Exploded, 200).await;
    let writers = (0..4u64).map(|writer| {
        let (from, to) = (slow(2 * writer), slow(2 * writer + 1));
        async move {
            let (from, to) = (at(&from, "a").await, at(&to, "b").await);
            let mut documents = from.database("db").await.unwrap();
            let (mut last, mut here) = (None, 0);
            for n in 0..60u32 {
                let edit = |last: &Option<model::RevId>| {
                    let mut edit = edit(&format!("writer-{writer}"), &format!(r#"{{"n":{n}}}"#));
                    edit.rev = last.clone();
                    edit
                };
                loop {
                    match documents.put(edit(&last)).await {
                        Ok(rev) => {
                            here += usize::from(documents.last_seq().await.is_ok_and(|seq| seq.incarnation() == 0));
                            last = Some(rev);
                            break;
                        }
                        Err(error) => match error.kind() {
                            ErrorKind::Moving => tokio::task::yield_now().await,
                            ErrorKind::Moved(_) => documents = to.database("db").await.unwrap(),
                            other => panic!("{other:?}; seed {seed}"),
                        },
                    }
                }
            }
            (last.unwrap().position(), here)
        }
    });
    // A reader of the feed that follows the database.
    let reader = async {
        let (mut documents, mut since) = (source.database("db").await.unwrap(), model::Seq::ZERO);
        let mut seen = std::collections::BTreeMap::new();
        while (0..4).any(|writer| seen.get(&format!("writer-{writer}")) != Some(&60)) {
            let request = ChangesRequest { since: Since::Seq(since), limit: Some(7), ..ChangesRequest::default() };
            match documents.changes(&request).await {
                Ok(batch) => {
                    for row in batch.rows {
                        assert!(row.seq > since, "in order");
                        since = row.seq;
                        let position = row.revs[0].position();
                        let before = seen.insert(row.id, position);
                        assert!(before.is_none_or(|before| before < position), "no row twice; seed {seed}");
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::Moved(_)) => {
                    documents = target.database("db").await.unwrap();
                }
                Err(error) => panic!("{error}; seed {seed}"),
            }
            tokio::task::yield_now().await;
        }
        seen.len()
    };
    let (from, to) = (at(&slow(100), "a").await, at(&slow(101), "b").await);
    let options = options(true);
    let moving = relocate(&from, &to, "db", &options, go_on);
    let (positions, seen, report) = tokio::join!(futures_util::future::join_all(writers), reader, moving);
    let report = report.unwrap();
    assert!(report.moved && report.is_same(), "{report:?}; seed {seed}");
    assert!(positions.iter().all(|(position, _)| *position == 60), "{positions:?}; seed {seed}");
    let there = target.database("db").await.unwrap();
    assert_eq!(seen, 204 + 4);
    for writer in 0..4 {
        let options = GetOptions { conflicts: true, ..GetOptions::default() };
        let document = there.get(&format!("writer-{writer}"), &options).await.unwrap();
        assert_eq!((document.body.as_str(), document.conflicts), (r#"{"n":59}"#, None));
    }
    assert_sound(&there).await;
}
