//! The layout of a database's bodies changes while the database is in use.

use std::ops::ControlFlow;
use std::time::Duration;

use conformance::chaos::{Chaos, Fault, Rates};
use conformance::random::Random;
use jobs::{Accepted, Hold, Job, Server};
use kv_api::{Database, KeyValue, Transaction};
use model::{
    BodyFormat, CreateOptions, Documents, Edit, GetOptions, OpenRev, OpenRevs, Purge, REWRITE_JOBS, RelocatePhase,
    Rewriting, WriteMode, relocate,
};

use super::jobs::server;
use super::relocating::{Contents, at, contents, filled, large, options, rows_under, run};
use crate::stage::*;

/// Everything that can be read, in any layout.
async fn readable<D: Database>(documents: &Documents<D>) -> Contents {
    let mut contents = contents(documents).await;
    (contents.info.format, contents.info.rewrites) = (BodyFormat::Exploded, false);
    (contents.info.created_ms, contents.info.instance_id) = (0, [0; 16]);
    contents
}

/// The rows of bodies of the only database under a prefix of one byte, without that byte.
async fn bodies<D: Database>(engine: &D, prefix: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = rows_under(engine, prefix).await;
    let rows = rows.into_iter().map(|KeyValue { key, value }| (key[1..].to_vec(), value.to_vec()));
    rows.filter(|(key, _)| key.starts_with(&[0x15, 4, 0x14, 0x15, 6])).collect()
}

async fn job<D: Database>(documents: &Documents<D>) -> Option<Job> {
    documents.jobs().get(&documents.rewrite_job()).await.unwrap()
}

async fn accept<D: Database>(server: &mut Server<D>) -> (Job, Hold) {
    match server.accept(REWRITE_JOBS, 0).await.unwrap() {
        Accepted::Job(job, hold) => (*job, hold),
        Accepted::Nothing { .. } => panic!("there is no job"),
    }
}

/// Edits documents before and after the place that a rewrite has reached: the same ones in each database.
async fn edit_some<D: Database>(documents: &Documents<D>, n: usize) {
    let id = format!("doc-{:03}", (n * 7) % 20);
    let old = get(documents, &id).await.rev;
    documents.put(edit(&id, &format!(r#"{{"n":{n},"l":["x",{{"y":[]}}]}}"#)).over(old)).await.unwrap();
    match n % 4 {
        0 => merge(documents, replicated("conflicted", &format!("3-{n} b a"), r#"{"x":{"y":2}}"#)).await,
        1 => drop(documents.put(edit(&format!("new-{n}"), r#"{"a":{"b":1}}"#)).await.unwrap()),
        2 => {
            let rev = get(documents, &format!("doc-{:03}", 19 - n % 5)).await.rev;
            drop(documents.purge(&[Purge::new(format!("doc-{:03}", 19 - n % 5), vec![rev])]).await.unwrap());
            documents.put(edit(&format!("doc-{:03}", 19 - n % 5), r#"{"again":1}"#)).await.unwrap();
        }
        _ => {
            let old = get(documents, "attached").await;
            let stubs = old.attachments.iter().map(|one| model::AttachmentEdit::stub(one.name.clone())).collect();
            let edit = edit("attached", &format!(r#"{{"n":{n}}}"#)).over(old.rev);
            documents.put(Edit { attachments: stubs, ..edit }).await.unwrap();
        }
    }
}

pub(crate) async fn bodies_are_rewritten_while_they_are_read_and_edited(stage: Stage) {
    let engine = stage.engine();
    let layouts = (BodyFormat::Exploded, BodyFormat::Packed);
    for ((from, to), (here, there)) in [(layouts, ("a", "b")), ((layouts.1, layouts.0), ("c", "d"))] {
        // The twin has the new layout from the beginning, and gets the same edits.
        let (one, other) = (at(&engine, here).await, at(&engine, there).await);
        let (documents, twin) = (filled(&one, from, 20).await, filled(&other, to, 20).await);
        for n in 0..2 {
            merge(&documents, large(n)).await;
            merge(&twin, large(n)).await;
        }
        assert_eq!(job(&documents).await, None);
        assert!(!documents.set_body_format(from).await.unwrap(), "it has it");
        let before = readable(&documents).await;
        assert!(documents.set_body_format(to).await.unwrap());
        assert!(documents.set_body_format(to).await.unwrap());
        assert_eq!(readable(&documents).await, before);
        let (mut progress, mut batches) = (Rewriting::default(), 0);
        while let Some(next) = documents.rewrite_bodies_batch(&progress, 3, None).await.unwrap() {
            assert!(next.bodies <= progress.bodies + 3 && next.expected > 20, "{next:?}");
            progress = next;
            let info = documents.info().await.unwrap();
            assert_eq!(info.format, to);
            if batches == 0 {
                assert_eq!(readable(&documents).await, before, "revisions, sequences and sizes stay");
            }
            assert_sound(&documents).await;
            if info.rewrites {
                edit_some(&documents, batches).await;
                edit_some(&twin, batches).await;
            }
            batches += 1;
        }
        assert!(batches > 9, "{batches}");
        assert!(!documents.info().await.unwrap().rewrites);
        assert_eq!(job(&documents).await, None);
        assert!(bodies(&engine, here).await == bodies(&engine, there).await, "the rows are those of the twin");
        let (ours, theirs) = (readable(&documents).await, readable(&twin).await);
        assert_eq!((ours.trees, ours.info.sizes), (theirs.trees, theirs.info.sizes));
        assert_sound(&documents).await;
    }
}

pub(crate) async fn a_rewriting_is_gone_on_with_by_another_server(stage: Stage) {
    let layer = at(&stage.engine(), "a").await;
    let options = CreateOptions { format: Some(BodyFormat::Exploded), ..CreateOptions::default() };
    let documents = layer.create_database("db", options).await.unwrap();
    let edits = (0..20).map(|n| edit(&format!("d{n:02}"), r#"{"a":1,"b":[2]}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    documents.set_body_format(BodyFormat::Packed).await.unwrap();
    let jobs = documents.jobs();
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    let (found, first) = accept(&mut here).await;
    let data = std::str::from_utf8(&found.data).unwrap();
    assert!(data.starts_with(r#"{"task":{"database":"db","format":"packed"},"request":""#), "{data}");
    let reached = documents.rewrite_bodies_batch(&Rewriting::of_job(&found), 8, Some(&first)).await.unwrap().unwrap();
    assert_eq!((reached.bodies, reached.expected), (8, 20));
    here.close().await.unwrap();
    let (found, second) = accept(&mut there).await;
    assert_eq!(Rewriting::of_job(&found).bodies, 8, "it goes on where the first one stopped");
    let late = documents.rewrite_bodies_batch(&reached, 4, Some(&first)).await.unwrap_err();
    assert_eq!(*late.kind(), model::ErrorKind::JobLost);
    let next = documents.rewrite_bodies_batch(&Rewriting::of_job(&found), 4, Some(&second)).await.unwrap().unwrap();
    assert_eq!(next.bodies, 12);

    // There and back: rewritten documents must be visited again, also by the current run.
    documents.set_body_format(BodyFormat::Exploded).await.unwrap();
    documents.set_body_format(BodyFormat::Packed).await.unwrap();
    let early = get(&documents, "d03").await.rev;
    documents.put(edit("d03", "{}").over(early)).await.unwrap();
    assert!(job(&documents).await.unwrap().is_resubmitted);
    let again = documents.rewrite_bodies_batch(&next, 4, Some(&second)).await.unwrap().unwrap();
    assert_eq!(again.bodies, 4, "it begins anew");
    jobs.resubmit(&second, 0).await.unwrap();
    let (found, third) = accept(&mut there).await;
    let mut progress = Rewriting::of_job(&found);
    assert_eq!(progress.bodies, 0);
    while let Some(next) = documents.rewrite_bodies_batch(&progress, 7, Some(&third)).await.unwrap() {
        progress = next;
        if job(&documents).await.is_none() {
            break;
        }
    }
    assert_eq!((progress.bodies, job(&documents).await), (20, None));
    assert_layout(&stage.engine(), "a", &documents, BodyFormat::Packed).await;

    // The job goes with its database.
    documents.set_body_format(BodyFormat::Exploded).await.unwrap();
    layer.delete_database("db").await.unwrap();
    assert_eq!(job(&documents).await, None);
    assert_eq!(documents.rewrite_bodies(|_| ()).await.unwrap_err().status(), 404);
}

/// The rows of all bodies are those that a new database with this layout has. It is the only one under `prefix`.
async fn assert_layout<D: Database>(engine: &D, prefix: &str, documents: &Documents<D>, format: BodyFormat) {
    let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
    let copy = at(engine, "z").await.create_database("copy", options).await.unwrap();
    for change in feed(documents, Default::default()).await {
        let options = GetOptions { revs: true, ..GetOptions::default() };
        for leaf in documents.open_revs(&change.id, &OpenRevs::All, &options).await.unwrap() {
            let OpenRev::Found(leaf) = leaf else { panic!("{leaf:?}") };
            let edit = Edit::new(leaf.id.clone(), leaf.body.clone()).with_history(leaf.revisions.clone().unwrap());
            merge(&copy, if leaf.deleted { edit.deleting() } else { edit }).await;
        }
    }
    let found = bodies(engine, prefix).await;
    assert!(!found.is_empty() && found == bodies(engine, "z").await, "the rows are not those of {format:?}");
}

pub(crate) async fn rewriting_and_edits_lose_nothing_through_faults(stage: Stage) {
    let seed = 47;
    let engine = stage.engine();
    let calm = at(&engine, "a").await;
    let options = CreateOptions { format: Some(BodyFormat::Exploded), ..CreateOptions::default() };
    let documents = calm.create_database("db", options).await.unwrap();
    for n in 0..12 {
        documents.put(edit(&format!("doc-{n:02}"), r#"{"n":0,"l":[[],{"m":0}]}"#)).await.unwrap();
    }
    let rates = Rates { latency: 0.2, longest: Duration::from_millis(1), ..Rates::retryable(0.03) };
    let chaotic = at(&Chaos::new(engine.clone(), seed, rates), "a").await;
    let database = &chaotic.database("db").await.unwrap();
    let write = |writer: u64| async move {
        let mut random = Random::new(seed + writer);
        for n in 1..12 {
            let id = format!("doc-{:02}", random.below(12));
            let body = format!(r#"{{"n":{n},"w":{writer},"l":[{n}]}}"#);
            if random.chance(0.3) {
                let path = format!("2-{writer}{n} a");
                let results = database.write(vec![replicated(&id, &path, &body)], WriteMode::Replicated).await;
                results.unwrap().pop().unwrap().unwrap_or_else(|error| panic!("{error}; seed {seed}"));
                continue;
            }
            loop {
                let old = database.get(&id, &GetOptions::default()).await.unwrap();
                match database.put(edit(&id, &body).over(old.rev)).await {
                    Ok(rev) => {
                        let read = database.open_revs(&id, &OpenRevs::These(vec![rev]), &GetOptions::default()).await;
                        if let OpenRev::Found(leaf) = &read.unwrap()[0] {
                            assert_eq!(leaf.body, json(&body), "seed {seed}");
                        }
                        break;
                    }
                    Err(error) => assert_eq!(error.status(), 409, "{error}; seed {seed}"),
                }
            }
        }
    };
    let change = async {
        for turn in 0..5 {
            let format = if turn % 2 == 0 { BodyFormat::Packed } else { BodyFormat::Exploded };
            database.set_body_format(format).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    // Two of them, both without the job.
    let rewrite = || async {
        for _ in 0..3 {
            database.rewrite_bodies(|_| ()).await.unwrap_or_else(|error| panic!("{error}; seed {seed}"));
            tokio::task::yield_now().await;
        }
    };
    futures_util::future::join5(write(1), write(2), change, rewrite(), rewrite()).await;
    documents.rewrite_bodies(|_| ()).await.unwrap();
    assert!(!documents.info().await.unwrap().rewrites);
    assert_sound(&documents).await;
    assert_layout(&engine, "a", &documents, BodyFormat::Packed).await;

    // With an unknown result, both steps happen once.
    for fault in [Fault::UnknownCommitted, Fault::UnknownNotCommitted] {
        let before = readable(&documents).await;
        let layer = at(&Chaos::scripted(engine.clone(), [fault; 3].map(Some)), "a").await;
        let unsure = layer.database("db").await.unwrap();
        assert!(unsure.set_body_format(BodyFormat::Exploded).await.unwrap(), "{fault:?}");
        let layer = at(&Chaos::scripted(engine.clone(), [fault; 3].map(Some)), "a").await;
        layer.database("db").await.unwrap().rewrite_bodies(|_| ()).await.unwrap();
        assert_eq!((readable(&documents).await, job(&documents).await), (before, None), "{fault:?}");
        documents.set_body_format(BodyFormat::Packed).await.unwrap();
        documents.rewrite_bodies(|_| ()).await.unwrap();
    }
}

pub(crate) async fn a_layout_changes_while_its_database_moves(stage: Stage) {
    let engine = stage.engine();
    for (stop, (from, to)) in [(2, ("a", "b")), (4, ("c", "d")), (6, ("e", "f"))] {
        let (source, target) = (at(&engine, from).await, at(&engine, to).await);
        let documents = filled(&source, BodyFormat::Exploded, 30).await;
        merge(&documents, large(0)).await;
        // When the layout changes, some or all documents are copied, and half or all of the bodies.
        let mut calls = 0;
        let stopped = run(&source, &target, options(true), |_| {
            calls += 1;
            if calls == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        stopped.await.unwrap_err();
        documents.set_body_format(BodyFormat::Packed).await.unwrap();
        if stop == 4 {
            documents.rewrite_bodies(|_| ()).await.unwrap();
        } else {
            documents.rewrite_bodies_batch(&Rewriting::default(), 15, None).await.unwrap();
        }
        let before = readable(&documents).await;
        let (mut phases, verified) = (Vec::new(), options(true));
        let report = relocate(&source, &target, "db", &verified, |at| {
            phases.push(at.phase);
            ControlFlow::Continue(())
        });
        let report = report.await.unwrap();
        assert!(report.moved && report.is_same(), "{stop}: {report:?}");
        assert!(phases.contains(&RelocatePhase::Verifying));
        assert_eq!(source.jobs().list(REWRITE_JOBS).await.unwrap(), [], "{stop}");
        let there = target.database("db").await.unwrap();
        assert!(there.info().await.unwrap().rewrites, "{stop}: what was copied before is old");
        assert!(job(&there).await.is_some(), "{stop}");
        there.rewrite_bodies(|_| ()).await.unwrap();
        let mut after = readable(&there).await;
        after.info.incarnation = 0;
        assert_eq!(after, before, "{stop}");
        assert_eq!(job(&there).await, None);
        assert_sound(&there).await;
        // The remains have other layouts now, and the same documents.
        let again = relocate(&source, &target, "db", &options(true), |_| ControlFlow::Continue(())).await.unwrap();
        assert!(again.moved_before && again.is_same(), "{stop}: {again:?}");
    }
}

/// The layout changes and changes back during the copy. The part that was copied in between is old at the target.
pub(crate) async fn a_layout_changes_there_and_back_while_its_database_moves(stage: Stage) {
    let engine = stage.engine();
    // The documents, as without a change of the layout.
    let twin = filled(&at(&engine, "z").await, BodyFormat::Exploded, 30).await;
    merge(&twin, large(0)).await;
    let sound = bodies(&engine, "z").await;
    // Some or all documents are copied in between.
    for (stop, from, to) in [(2, "a", "b"), (4, "c", "d")] {
        let (source, target) = (at(&engine, from).await, at(&engine, to).await);
        let documents = filled(&source, BodyFormat::Exploded, 30).await;
        merge(&documents, large(0)).await;
        let stops_after = |calls: usize| {
            let mut left = calls;
            move |_| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        // Nothing is copied before the first change.
        run(&source, &target, options(false), stops_after(1)).await.unwrap_err();
        documents.set_body_format(BodyFormat::Packed).await.unwrap();
        documents.rewrite_bodies(|_| ()).await.unwrap();
        run(&source, &target, options(false), stops_after(stop)).await.unwrap_err();
        documents.set_body_format(BodyFormat::Exploded).await.unwrap();
        documents.rewrite_bodies(|_| ()).await.unwrap();
        let report = relocate(&source, &target, "db", &options(false), |_| ControlFlow::Continue(())).await.unwrap();
        assert!(report.moved, "{stop}: {report:?}");
        let there = target.database("db").await.unwrap();
        assert!(there.info().await.unwrap().rewrites && bodies(&engine, to).await != sound, "{stop}: some are packed");
        there.rewrite_bodies(|_| ()).await.unwrap();
        assert!(!there.info().await.unwrap().rewrites, "{stop}");
        assert!(bodies(&engine, to).await == sound, "{stop}");
        assert_sound(&there).await;
    }
}

pub(crate) async fn what_cannot_be_rewritten_stays(stage: Stage) {
    let engine = stage.engine();
    let layer = at(&engine, "a").await;
    let options = CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() };
    let documents = layer.create_database("db", options).await.unwrap();
    let deep = format!(r#"{{"{}":1}}"#, "path".repeat(4_000));
    let too_long_for_a_key = documents.put(edit("deep", &deep)).await.unwrap();
    documents.put(edit("damaged", &format!(r#"{{"a":"{}"}}"#, "x".repeat(300_000)))).await.unwrap();
    documents.put(edit("sound", r#"{"a":{"b":1}}"#)).await.unwrap();
    // The last row of the damaged one.
    let rows = rows_under(&engine, "a").await;
    let of_damaged = |row: &&KeyValue| row.key[1..].starts_with(b"\x15\x04\x14\x15\x06\x02damaged");
    let cut = rows.iter().rfind(of_damaged).unwrap().key.clone();
    let transaction = engine.begin().unwrap();
    transaction.clear(&cut);
    transaction.commit().await.unwrap();
    let problems = documents.check(|_| {}).await.unwrap().problems;
    assert_eq!(problems.len(), 1);

    documents.set_body_format(BodyFormat::Exploded).await.unwrap();
    documents.rewrite_bodies(|_| ()).await.unwrap();
    assert!(!documents.info().await.unwrap().rewrites);
    assert_eq!(documents.check(|_| {}).await.unwrap().problems, problems, "the damage is as it was");
    let left = bodies(&engine, "a").await;
    let rows_of = |id: &str| left.iter().filter(|(key, _)| key[6..].starts_with(id.as_bytes())).count();
    assert_eq!((rows_of("damaged"), rows_of("deep"), rows_of("sound")), (3, 1, 2));
    assert_eq!(get(&documents, "deep").await.rev, too_long_for_a_key);
    assert_eq!(get(&documents, "deep").await.body, json(&deep));
}
