//! Jobs in the background: accepted once, renewed together, taken over, and fenced.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use conformance::chaos::{Chaos, Fault};
use conformance::interleave::interleave;
use jobs::{Accepted, Error, Hold, Job, JobId, JobState, Jobs, NewJob, Priority, Registry, Server, ServerOptions};
use kv_api::{Counted, Database, RangeRequest, Read, Transaction, TransactionExt};
use model::{Layer, LayerOptions};

use crate::stage::*;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A third of the time that a lease holds.
pub(crate) const BEAT: Duration = Duration::from_secs(10);

pub(crate) fn registry<D: Database>(engine: D) -> Jobs<D> {
    Jobs::new(engine, Registry::new(&b"jobs/"[..]))
}

pub(crate) fn server<D: Database>(jobs: &Jobs<D>, number: u8) -> Server<D> {
    let options = ServerOptions { name: format!("server-{number}"), lease: LEASE, is_alone: false };
    Server::new(jobs.clone(), [number; 16], options)
}

pub(crate) fn work(id: &str) -> JobId {
    JobId::new("work", id)
}

fn asking(data: &str) -> NewJob {
    NewJob { data: Bytes::copy_from_slice(data.as_bytes()), ..NewJob::default() }
}

/// The next job of the kind "work".
pub(crate) async fn accept<D: Database>(server: &mut Server<D>, now_ms: u64) -> Option<(Job, Hold)> {
    match server.accept("work", now_ms).await.expect("an answer") {
        Accepted::Job(job, hold) => Some((*job, hold)),
        Accepted::Nothing { .. } => None,
    }
}

/// A time at which jobs are due after one lost run.
const LATER_MS: u64 = 10_000;

async fn accepted<D: Database>(server: &mut Server<D>) -> (Job, Hold) {
    accept(server, LATER_MS).await.expect("a job")
}

async fn state<D: Database>(jobs: &Jobs<D>, id: &str) -> Option<JobState> {
    jobs.get(&work(id)).await.expect("an answer").map(|job| job.state)
}

/// Lets a server look at the leases of others until one that stays unchanged has expired.
pub(super) async fn outlive<D: Database>(server: &mut Server<D>, now: &mut Duration) {
    for _ in 0..4 {
        server.take_over(*now, 0).await.expect("a look");
        *now += BEAT;
    }
}

pub(crate) async fn jobs_are_added_accepted_and_finished(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    assert_eq!(jobs.get(&work("a")).await, Ok(None));
    assert_eq!(jobs.add(&work("a"), &asking("first")).await, Ok(JobState::Pending));
    let other = JobId::new("other", "a");
    jobs.add(&other, &asking("of another kind")).await.unwrap();

    let (job, hold) = accepted(&mut here).await;
    assert_eq!((&job.id, &job.data[..], job.state, job.attempts), (&work("a"), &b"first"[..], JobState::Running, 1));
    assert!(accept(&mut there, 0).await.is_none() && accept(&mut here, 0).await.is_none(), "accepted once");
    jobs.update(&hold, br#"{"done":1}"#, 7).await.unwrap();
    let running = jobs.running().await.unwrap();
    assert_eq!(running.len(), 1);
    let run = running[0].run.as_ref().unwrap();
    assert_eq!((running[0].id.clone(), run.server.as_deref()), (work("a"), Some("server-1")));
    let progress = running[0].progress.as_ref().unwrap();
    assert_eq!((progress.updated_ms, &progress.bytes[..]), (7, &br#"{"done":1}"#[..]));

    jobs.finish(&hold, Some(br#"{"done":2}"#), 8).await.unwrap();
    let job = jobs.get(&work("a")).await.unwrap().unwrap();
    assert_eq!((job.state, job.run, job.progress.unwrap().updated_ms), (JobState::Finished, None, 8));
    assert_eq!(jobs.running().await, Ok(vec![]));
    assert_eq!(jobs.update(&hold, b"late", 9).await, Err(Error::Lost));
    assert_eq!(jobs.finish(&hold, None, 9).await, Err(Error::Lost));
    assert!(accept(&mut there, 0).await.is_none());

    // Added again, it is pending again, and the old progress is gone.
    assert_eq!(jobs.add(&work("a"), &asking("second")).await, Ok(JobState::Pending));
    let (job, hold) = accepted(&mut there).await;
    assert_eq!((&job.data[..], job.attempts, job.progress), (&b"second"[..], 1, None));
    // Added during the run, it runs once more.
    assert_eq!(jobs.add(&work("a"), &asking("third")).await, Ok(JobState::Running));
    assert_eq!(jobs.add(&work("a"), &asking("fourth")).await, Ok(JobState::Running));
    assert!(jobs.get(&work("a")).await.unwrap().unwrap().is_resubmitted);
    jobs.update(&hold, b"still its own", 10).await.unwrap();
    jobs.finish_and_remove(&hold).await.unwrap();
    assert!(!hold.has(&jobs.get(&work("a")).await.unwrap().unwrap()));
    let (job, hold) = accepted(&mut here).await;
    assert!(hold.has(&job));
    assert_eq!((&job.data[..], job.attempts, job.is_resubmitted), (&b"fourth"[..], 1, false));
    assert_eq!(job.progress, None);
    jobs.finish_and_remove(&hold).await.unwrap();
    assert_eq!(state(&jobs, "a").await, None);

    // A run may end itself and be retried; the run of a removed job may not.
    jobs.add(&work("a"), &asking("fifth")).await.unwrap();
    let (_, hold) = accepted(&mut here).await;
    jobs.resubmit(&hold, 100).await.unwrap();
    assert!(accept(&mut there, 99).await.is_none());
    let (job, hold) = accept(&mut there, 100).await.unwrap();
    assert_eq!((job.attempts, &job.data[..]), (2, &b"fifth"[..]));
    assert_eq!(jobs.remove(&work("a")).await, Ok(true));
    assert_eq!(jobs.remove(&work("a")).await, Ok(false));
    assert_eq!(jobs.update(&hold, b"late", 11).await, Err(Error::Lost));
    // This holds even if a job with that id exists again and runs.
    jobs.add(&work("a"), &asking("sixth")).await.unwrap();
    let (_, again) = accepted(&mut there).await;
    assert_eq!(jobs.finish_and_remove(&hold).await, Err(Error::Lost));
    jobs.finish_and_remove(&again).await.unwrap();

    assert_eq!(jobs.list("work").await, Ok(vec![]));
    assert_eq!(jobs.list("other").await.unwrap().len(), 1);
    assert_eq!(jobs.remove(&other).await, Ok(true));
    for server in [&mut here, &mut there] {
        server.renew().await.unwrap();
    }
    let rows = stage.engine().begin().unwrap().get_all(RangeRequest::prefix(b"jobs/"), Read::Snapshot).await.unwrap();
    assert_eq!(rows.len(), 2, "what wakes those who wait for each of two kinds: {rows:?}");
}

pub(crate) async fn jobs_come_by_priority_and_schedule(stage: Stage) {
    let jobs = registry(stage.engine());
    let mut server = server(&jobs, 1);
    for (id, priority, scheduled_ms) in [
        ("low", Priority::Low, 0),
        ("later", Priority::High, 500),
        ("second", Priority::Normal, 20),
        ("first", Priority::Normal, 10),
        ("high", Priority::High, 100),
        ("moved", Priority::Normal, 5),
    ] {
        jobs.add(&work(id), &NewJob { priority, scheduled_ms, ..NewJob::default() }).await.unwrap();
    }
    // Added again while it is pending, it changes its place.
    jobs.add(&work("moved"), &NewJob { priority: Priority::Low, scheduled_ms: 1, ..NewJob::default() }).await.unwrap();
    let mut order = Vec::new();
    while let Some((job, _)) = accept(&mut server, 100).await {
        order.push(job.id.id);
    }
    assert_eq!(order, ["high", "first", "second", "low", "moved"]);
    let Accepted::Nothing { due_ms, .. } = server.accept("work", 499).await.unwrap() else { panic!("not due") };
    assert_eq!(due_ms, Some(500));
    assert_eq!(accept(&mut server, 500).await.unwrap().0.id, work("later"));
    let Accepted::Nothing { due_ms, .. } = server.accept("work", 500).await.unwrap() else { panic!("nothing left") };
    assert_eq!(due_ms, None);
}

pub(crate) async fn waiters_for_jobs_wake(stage: Stage) {
    let jobs = registry(stage.engine());
    let mut server = server(&jobs, 1);
    let Accepted::Nothing { added, .. } = server.accept("work", 0).await.unwrap() else { panic!("nothing is there") };
    let mut added = pin!(added);
    assert!(poll_once(added.as_mut()).is_none());
    jobs.add(&work("a"), &NewJob::default()).await.unwrap();
    added.await.unwrap();
    // A job whose run ended may be due again.
    let (_, hold) = accepted(&mut server).await;
    let Accepted::Nothing { added, .. } = server.accept("work", 0).await.unwrap() else { panic!("nothing is left") };
    jobs.resubmit(&hold, 0).await.unwrap();
    added.await.unwrap();

    // A watch wakes on every change of a job's state.
    let (job, changed) = jobs.watch(&work("a")).await.unwrap();
    assert_eq!(job.unwrap().state, JobState::Pending);
    let (_, hold) = accepted(&mut server).await;
    changed.await.unwrap();
    let (job, changed) = jobs.watch(&work("a")).await.unwrap();
    assert_eq!(job.unwrap().state, JobState::Running);
    jobs.finish(&hold, None, 0).await.unwrap();
    changed.await.unwrap();
    let (job, changed) = jobs.watch(&work("a")).await.unwrap();
    assert_eq!(job.unwrap().state, JobState::Finished);
    jobs.remove(&work("a")).await.unwrap();
    changed.await.unwrap();
    assert_eq!(jobs.watch(&work("a")).await.unwrap().0, None);
}

pub(crate) async fn a_job_is_taken_over_when_its_servers_lease_is_out(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut lost, mut other) = (server(&jobs, 1), server(&jobs, 2));
    jobs.add(&work("a"), &asking("it")).await.unwrap();
    let (_, stale) = accepted(&mut lost).await;
    jobs.update(&stale, b"so far", 1).await.unwrap();
    // While it renews its lease, nothing is taken over, however much time passes.
    let mut now = Duration::from_secs(1_000_000);
    for _ in 0..10 {
        other.take_over(now, 0).await.unwrap();
        assert!(accept(&mut other, 0).await.is_none());
        lost.renew().await.unwrap();
        now += BEAT;
    }
    // Its lease expires when it was seen unchanged for that time, and not earlier.
    for _ in 0..3 {
        other.take_over(now, 0).await.unwrap();
        assert_eq!(state(&jobs, "a").await, Some(JobState::Running));
        now += BEAT;
    }
    // A server that has not looked for a long time does not know whether the lease was renewed meanwhile.
    now += LEASE;
    other.take_over(now, 0).await.unwrap();
    assert_eq!(state(&jobs, "a").await, Some(JobState::Running));
    for _ in 0..3 {
        now += BEAT;
        other.take_over(now, 0).await.unwrap();
    }
    assert_eq!(state(&jobs, "a").await, Some(JobState::Pending));
    assert_eq!(jobs.update(&stale, b"late", 2).await, Err(Error::Lost));
    let (job, hold) = accepted(&mut other).await;
    assert_eq!((&job.data[..], job.attempts, &job.progress.unwrap().bytes[..]), (&b"it"[..], 2, &b"so far"[..]));
    for attempt in [
        jobs.update(&stale, b"late", 2).await,
        jobs.finish(&stale, None, 2).await,
        jobs.finish_and_remove(&stale).await,
        jobs.resubmit(&stale, 0).await,
    ] {
        assert_eq!(attempt, Err(Error::Lost));
    }
    jobs.update(&hold, b"further", 3).await.unwrap();
    // The server notices, and continues under a new lease.
    assert!(!stale.is_lost());
    lost.renew().await.unwrap();
    assert!(stale.is_lost() && !hold.is_lost());
    jobs.add(&work("b"), &asking("it")).await.unwrap();
    let (_, fresh) = accepted(&mut lost).await;
    jobs.finish(&fresh, None, 4).await.unwrap();
    jobs.finish(&hold, None, 4).await.unwrap();
}

pub(crate) async fn a_transaction_that_began_before_a_takeover_cannot_commit(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut lost, mut other) = (server(&jobs, 1), server(&jobs, 2));
    jobs.add(&work("a"), &asking("it")).await.unwrap();
    let (_, stale) = accepted(&mut lost).await;
    let late = stage.engine().begin().unwrap();
    stale.check(&late).await.unwrap();
    late.set(b"written", b"late");
    let mut now = Duration::ZERO;
    outlive(&mut other, &mut now).await;
    assert_eq!(late.commit().await.unwrap_err().code(), kv_api::error::NOT_COMMITTED);
    // The same for one that began before the job was removed.
    let (_, hold) = accepted(&mut other).await;
    let late = stage.engine().begin().unwrap();
    hold.check(&late).await.unwrap();
    late.set(b"written", b"late");
    jobs.remove(&work("a")).await.unwrap();
    assert_eq!(late.commit().await.unwrap_err().code(), kv_api::error::NOT_COMMITTED);
    let written = stage.engine().begin().unwrap().get(b"written", Read::Snapshot).await.unwrap();
    assert_eq!(written, None);
}

pub(crate) async fn what_a_server_gives_back_is_pending_at_once(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut first, mut other) = (server(&jobs, 1), server(&jobs, 2));
    for n in 0..5 {
        jobs.add(&work(&n.to_string()), &NewJob::default()).await.unwrap();
    }
    let (_, hold) = accepted(&mut first).await;
    accepted(&mut first).await;
    jobs.add(&hold.id().clone(), &asking("once more")).await.unwrap();
    first.close().await.unwrap();
    assert!(hold.is_lost());
    assert_eq!(jobs.update(&hold, b"late", 0).await, Err(Error::Lost));
    let mut attempts = Vec::new();
    while let Some((job, _)) = accept(&mut other, 0).await {
        attempts.push((job.id.id, job.attempts, job.is_resubmitted));
    }
    let expected = [("0", 1), ("1", 2), ("2", 1), ("3", 1), ("4", 1)];
    assert_eq!(attempts, expected.map(|(id, attempts)| (id.to_owned(), attempts, false)));
    // A server that is alone does not wait.
    let options = ServerOptions { name: "alone".into(), lease: LEASE, is_alone: true };
    let mut alone = Server::new(jobs.clone(), [3; 16], options);
    alone.take_over(Duration::ZERO, 0).await.unwrap();
    assert_eq!(jobs.running().await, Ok(vec![]));
    assert!(accept(&mut alone, LATER_MS).await.is_some());
    alone.take_over(BEAT, 0).await.unwrap();
    assert_eq!(jobs.running().await.unwrap().len(), 1, "its own lease stands");
}

pub(crate) async fn a_thousand_idle_jobs_commit_nothing(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let jobs = registry(counted.clone());
    let (mut here, mut there) = (server(&jobs, 1), server(&jobs, 2));
    // Without jobs there is nothing to renew.
    here.renew().await.unwrap();
    assert_eq!(counted.take(), []);
    let mut holds = Vec::new();
    for n in 0..1_000 {
        jobs.add(&work(&format!("{n:04}")), &asking("{}")).await.unwrap();
        holds.push(accepted(&mut here).await.1);
    }
    counted.take();
    let mut now = Duration::ZERO;
    for _ in 0..6 {
        here.renew().await.unwrap();
        let renewal = counted.take();
        assert_eq!(renewal.len(), 1);
        assert_eq!((renewal[0].commits, renewal[0].sets, renewal[0].kvs_read), (1, 1, 2), "the lease, and no job");
        assert_eq!((renewal[0].clears, renewal[0].range_clears, renewal[0].atomic_ops), (0, 0, 0));
        now += BEAT;
        for server in [&mut here, &mut there] {
            server.take_over(now, 0).await.unwrap();
            let look = counted.take();
            assert_eq!((look.len(), look[0].commits, look[0].kvs_read), (1, 0, 1), "a look at one lease");
        }
    }
    let work_of_one = counted.begin().unwrap();
    holds[17].check(&work_of_one).await.unwrap();
    assert_eq!((work_of_one.counts().kvs_read, work_of_one.counts().round_trips), (1, 1), "the fence");
    for hold in &holds {
        jobs.finish_and_remove(hold).await.unwrap();
    }
    here.renew().await.unwrap();
    counted.take();
    here.renew().await.unwrap();
    assert_eq!(counted.take(), [], "the lease went with the last job");
}

pub(crate) async fn stores_without_jobs_have_no_rows_of_them(stage: Stage) {
    let layer = Layer::open(stage.engine(), LayerOptions::default()).await.unwrap();
    let documents = layer.create_database("db", model::CreateOptions::default()).await.unwrap();
    documents.put(edit("a", "{}")).await.unwrap();
    let mut server = server(&layer.jobs(), 1);
    assert!(accept(&mut server, 0).await.is_none());
    server.take_over(Duration::ZERO, 0).await.unwrap();
    server.renew().await.unwrap();
    server.close().await.unwrap();
    layer.delete_database("db").await.unwrap();
    let rows = async || {
        // The subspace of jobs: the integer 8.
        let range = RangeRequest::prefix(&[0x15, 8]);
        stage.engine().begin().unwrap().get_all(range, Read::Snapshot).await.unwrap().len()
    };
    assert_eq!(rows().await, 0);
    layer.jobs().add(&work("a"), &NewJob::default()).await.unwrap();
    assert_eq!(rows().await, 4, "the job, what was asked, the queue, and what wakes those who wait");
}

pub(crate) async fn unknown_results_neither_lose_a_job_nor_run_it_twice(stage: Stage) {
    for fault in [Fault::UnknownCommitted, Fault::UnknownNotCommitted, Fault::TimedOutCommitted] {
        let calm = registry(stage.engine());
        let retried = fault != Fault::TimedOutCommitted;
        let faulty = || {
            let faults =
                if retried { vec![Some(fault), Some(Fault::NotCommitted), Some(fault)] } else { vec![Some(fault)] };
            registry(Chaos::scripted(stage.engine(), faults))
        };
        for id in ["a", "b"] {
            assert_eq!(faulty().add(&work(id), &asking("it")).await.is_ok(), retried);
            assert_eq!(state(&calm, id).await, Some(JobState::Pending));
        }
        // A job that was accepted without the server's knowledge is returned once, by this call or the next.
        let number = 10 * (fault as u8) + 10;
        let mut server = server(&faulty(), number);
        let (first, hold) = match server.accept("work", 0).await {
            Ok(Accepted::Job(job, hold)) => (job, hold),
            Err(error) => {
                assert!(!retried, "{error}");
                let Ok(Accepted::Job(job, hold)) = server.accept("other", 0).await else { panic!("what it has") };
                (job, hold)
            }
            nothing => panic!("{nothing:?}"),
        };
        assert_eq!((first.attempts, calm.running().await.unwrap().len()), (1, 1));
        let (second, other) = accepted(&mut server).await;
        assert_ne!(first.id, second.id);
        assert_eq!(calm.running().await.unwrap().len(), 2);

        for (hold, is_removed) in [(&hold, false), (&other, true)] {
            let jobs = faulty();
            let ended = match is_removed {
                true => jobs.finish_and_remove(hold).await,
                false => jobs.finish(hold, Some(b"done"), 1).await,
            };
            assert_eq!(ended.is_ok(), retried, "{ended:?}");
            let expected = if is_removed { None } else { Some(JobState::Finished) };
            assert_eq!(state(&calm, &hold.id().id).await, expected);
        }
        assert!(accept(&mut server, 0).await.is_none());
        let removed = faulty().remove(hold.id()).await;
        assert!(removed.unwrap_or(true));
        assert_eq!(state(&calm, &hold.id().id).await, None);
        server.close().await.unwrap();
        assert_eq!(calm.list("work").await, Ok(vec![]));
    }
}

/// A server that need not wait for the leases of others.
async fn take_over<D: Database>(jobs: Jobs<D>) {
    let options = ServerOptions { name: "server-2".into(), lease: LEASE, is_alone: true };
    Server::new(jobs, [2; 16], options).take_over(Duration::ZERO, 0).await.unwrap();
}

pub(crate) async fn a_takeover_between_two_attempts_of_a_renewal_is_noticed(stage: Stage) {
    let jobs = registry(stage.engine());
    jobs.add(&work("a"), &asking("it")).await.unwrap();
    // The acceptance commits. The first attempt of the renewal has an unknown result.
    let unknown = Chaos::scripted(stage.engine(), [None, Some(Fault::UnknownNotCommitted)]);
    let renew = async |engine| {
        let mut lost = server(&registry(engine), 1);
        let (_, hold) = accepted(&mut lost).await;
        lost.renew().await.unwrap();
        (lost, hold)
    };
    let ((mut lost, hold), was_held) = interleave(unknown, 1, renew, async || take_over(jobs.clone()).await).await;
    assert!(was_held && hold.is_lost());
    assert_eq!(jobs.update(&hold, b"late", 0).await, Err(Error::Lost));
    let (_, fresh) = accepted(&mut lost).await;
    assert!(!fresh.is_lost());
    jobs.update(&fresh, b"its own", 0).await.unwrap();
}

pub(crate) async fn a_lease_that_is_renewed_during_a_takeover_holds(stage: Stage) {
    let jobs = registry(stage.engine());
    jobs.add(&work("a"), &asking("it")).await.unwrap();
    let mut server = server(&jobs, 1);
    let (_, hold) = accepted(&mut server).await;
    let takes_over = async |engine| take_over(registry(engine)).await;
    let ((), was_held) = interleave(stage.engine(), 0, takes_over, async || server.renew().await.unwrap()).await;
    server.renew().await.unwrap();
    assert!(was_held && !hold.is_lost());
    jobs.update(&hold, b"its own", 0).await.unwrap();
}

pub(crate) async fn a_takeover_that_breaks_off_is_gone_on_with(stage: Stage) {
    let jobs = registry(stage.engine());
    let mut lost = server(&jobs, 1);
    let mut holds = Vec::new();
    for n in 0..250 {
        jobs.add(&work(&format!("{n:03}")), &NewJob::default()).await.unwrap();
        holds.push(accepted(&mut lost).await.1);
    }
    assert_eq!(jobs.running().await.unwrap().len(), 250);
    // A look at the leases commits nothing. The first transaction of the takeover commits, and the second fails
    // permanently.
    let mut breaking = server(&registry(Chaos::scripted(stage.engine(), [None, Some(Fault::TooLarge)])), 2);
    let mut now = Duration::ZERO;
    for _ in 0..3 {
        breaking.take_over(now, 0).await.unwrap();
        now += BEAT;
    }
    assert!(matches!(breaking.take_over(now, 0).await, Err(Error::Store(_))));
    let pending = async || {
        let all = jobs.list("work").await.unwrap();
        assert_eq!(all.len(), 250);
        all.iter().filter(|job| job.state == JobState::Pending).count()
    };
    assert_eq!(pending().await, 100);
    // After the first transaction the lease is dead: it is not renewed, and no job is accepted under it.
    lost.renew().await.unwrap();
    assert!(holds.iter().all(Hold::is_lost));
    let (_, fresh) = accepted(&mut lost).await;
    // Another server need not wait.
    let mut third = server(&jobs, 3);
    third.take_over(now, 0).await.unwrap();
    assert_eq!(pending().await, 249);
    for hold in &holds {
        assert_eq!(jobs.update(hold, b"late", 0).await, Err(Error::Lost));
    }
    jobs.update(&fresh, b"its own", 0).await.unwrap();
    let leases = RangeRequest::prefix(b"jobs/\x15\x05");
    assert_eq!(stage.engine().begin().unwrap().get_all(leases, Read::Snapshot).await.unwrap().len(), 1);
}

pub(crate) async fn a_job_whose_server_ended_waits_longer_each_time(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut number, mut now_ms) = (0, 1_000_000);
    let mut alone = || {
        number += 1;
        let options = ServerOptions { name: "alone".into(), lease: LEASE, is_alone: true };
        Server::new(jobs.clone(), [number; 16], options)
    };
    let job = async || jobs.get(&work("a")).await.unwrap().unwrap();
    let named = NewJob { name: Some("x".into()), ..asking("it") };
    jobs.add(&work("a"), &named).await.unwrap();
    jobs.add(&work("b"), &asking("it")).await.unwrap();
    let mut first = alone();
    let b = loop {
        let (job, hold) = accept(&mut first, now_ms).await.unwrap();
        if job.id == work("b") {
            break hold;
        }
    };
    // One that ended in time is not affected.
    jobs.finish(&b, None, now_ms).await.unwrap();
    for (times, pause) in [(1, 2_000), (2, 4_000), (3, 8_000)] {
        let mut next = alone();
        let lost = next.take_over(Duration::ZERO, now_ms).await.unwrap();
        assert_eq!(lost, [jobs::LostRun { id: work("a"), times, scheduled_ms: now_ms + pause }]);
        let waiting = job().await;
        assert_eq!((waiting.state, waiting.lost, waiting.name.as_deref()), (JobState::Pending, times, Some("x")));
        // Adding the same job again does not end the pause.
        jobs.add(&work("a"), &named).await.unwrap();
        assert!(accept(&mut next, now_ms + pause - 1).await.is_none());
        now_ms += pause;
        assert_eq!(accept(&mut next, now_ms).await.unwrap().0.lost, times);
    }
    // An orderly stop of a server is not counted, and neither is a server that gives up its jobs.
    let mut next = alone();
    assert_eq!(next.take_over(Duration::ZERO, now_ms).await.unwrap().len(), 1);
    now_ms += 16_000;
    accept(&mut next, now_ms).await.unwrap();
    next.close().await.unwrap();
    assert_eq!(job().await.lost, 4);
    assert_eq!(alone().take_over(Duration::ZERO, now_ms).await, Ok(vec![]));
    // When a run has settled, or ends, the lost runs before it are forgotten.
    let (_, hold) = accept(&mut next, now_ms).await.unwrap();
    jobs.settle(&hold).await.unwrap();
    assert_eq!(job().await.lost, 0);
    let mut next = alone();
    next.take_over(Duration::ZERO, now_ms).await.unwrap();
    assert_eq!(jobs.settle(&hold).await, Err(Error::Lost));
    now_ms += 2_000;
    let (lost, hold) = accept(&mut next, now_ms).await.unwrap();
    assert_eq!(lost.lost, 1);
    jobs.resubmit(&hold, 0).await.unwrap();
    assert_eq!(job().await.lost, 0);
    // Another request runs at once.
    accept(&mut next, now_ms).await.unwrap();
    let mut next = alone();
    next.take_over(Duration::ZERO, now_ms).await.unwrap();
    assert!(accept(&mut next, now_ms).await.is_none());
    jobs.add(&work("a"), &asking("something else")).await.unwrap();
    assert_eq!(accept(&mut next, now_ms).await.unwrap().0.lost, 0);
}

pub(crate) async fn one_job_at_a_time_has_a_name(stage: Stage) {
    let jobs = registry(stage.engine());
    let mut server = server(&jobs, 1);
    let named = |name: &str| NewJob { name: Some(name.into()), ..NewJob::default() };
    let name_of = async |id: &str| jobs.get(&work(id)).await.unwrap().and_then(|job| job.name);
    let holder = async |name: &str| jobs.named("work", name).await.unwrap().map(|id| id.id);
    jobs.add(&work("a"), &named("x")).await.unwrap();
    jobs.add(&work("b"), &named("x")).await.unwrap();
    jobs.add(&JobId::new("other", "a"), &named("x")).await.unwrap();
    assert_eq!((name_of("a").await.as_deref(), name_of("b").await), (Some("x"), None));
    assert_eq!(holder("x").await.as_deref(), Some("a"));

    // A job keeps its name to the end of its run, and another one gets it after that.
    let (job, a) = accepted(&mut server).await;
    assert_eq!((job.id, job.name.as_deref()), (work("a"), Some("x")));
    let (job, b) = accepted(&mut server).await;
    assert_eq!((job.id, job.name), (work("b"), None));
    assert_eq!(jobs.rename(&b, Some("x")).await, Ok(Some(work("a"))));
    jobs.resubmit(&a, 0).await.unwrap();
    assert_eq!(jobs.rename(&b, Some("x")).await, Ok(Some(work("a"))), "it is to run again");
    let (_, a) = accepted(&mut server).await;
    jobs.finish_and_remove(&a).await.unwrap();
    assert_eq!(holder("x").await, None);
    assert_eq!(jobs.rename(&b, Some("x")).await, Ok(None));
    assert_eq!((holder("x").await.as_deref(), name_of("b").await.as_deref()), (Some("b"), Some("x")));

    // Added again, a running job gets the new name at once, and its present run can no longer rename it.
    jobs.add(&work("b"), &named("y")).await.unwrap();
    assert_eq!((holder("x").await, holder("y").await.as_deref()), (None, Some("b")));
    assert_eq!(jobs.rename(&b, Some("x")).await, Err(Error::Lost));
    jobs.resubmit(&b, 0).await.unwrap();
    let (job, b) = accepted(&mut server).await;
    assert_eq!(job.name.as_deref(), Some("y"));
    assert_eq!(jobs.rename(&b, None).await, Ok(None));
    assert_eq!((holder("y").await, name_of("b").await), (None, None));
    assert_eq!(jobs.rename(&b, Some("z")).await, Ok(None));
    jobs.remove(&work("b")).await.unwrap();
    assert_eq!(holder("z").await, None);
    assert_eq!(jobs.named("other", "x").await.unwrap(), Some(JobId::new("other", "a")));
}

pub(crate) async fn jobs_that_cannot_be_read_hold_nothing_up(stage: Stage) {
    let jobs = registry(stage.engine());
    let (mut lost, mut other) = (server(&jobs, 1), server(&jobs, 2));
    for id in ["a", "b", "b progress", "b progress of later", "c", "d", "e"] {
        jobs.add(&work(id), &asking("it")).await.unwrap();
    }
    // (0, "work", id); a row of a later version is one of format 4.
    let row_of = |id: &str| [b"jobs/\x14\x02work\x00\x02", id.as_bytes(), b"\x00"].concat();
    let spoil = async |id: &str, row: &[u8]| {
        let transaction = stage.engine().begin().unwrap();
        assert!(transaction.get(&row_of(id), Read::Serializable).await.unwrap().is_some());
        transaction.set(row_of(id), row);
        transaction.commit().await.unwrap();
    };
    spoil("a", b"\x15\x04\x15\x63").await;
    spoil("b", b"torn").await;
    let progress = [("b progress", &b"torn"[..]), ("b progress of later", b"\x15\x02\x15\x63")];
    let progress = progress.map(|(id, row)| ([b"jobs/\x15\x02\x02work\x00\x02", id.as_bytes(), b"\x00"].concat(), row));
    let transaction = stage.engine().begin().unwrap();
    progress.iter().for_each(|(key, row)| transaction.set(key, row));
    transaction.commit().await.unwrap();
    assert!(matches!(jobs.get(&work("b progress")).await, Err(Error::Corrupt(_))));
    assert_eq!(jobs.get(&work("b progress of later")).await, Err(Error::UnknownFormat(2)));
    let (job, hold) = accepted(&mut lost).await;
    assert_eq!(job.id, work("c"));
    let (job, _) = accepted(&mut lost).await;
    assert_eq!(job.id, work("d"));
    assert_eq!(jobs.get(&work("a")).await, Err(Error::UnknownFormat(4)));
    assert!(matches!(jobs.add(&work("b"), &asking("it")).await, Err(Error::Corrupt(_))));
    assert_eq!(jobs.list("work").await.unwrap().len(), 3);

    // A running job that cannot be read stays as it is, and the others are taken over.
    spoil("d", b"\x15\x04\x15\x63").await;
    assert_eq!(jobs.running().await.unwrap().len(), 1);
    let mut now = Duration::ZERO;
    outlive(&mut other, &mut now).await;
    assert_eq!(jobs.update(&hold, b"late", 0).await, Err(Error::Lost));
    let taken: Vec<JobId> = [accepted(&mut other).await, accepted(&mut other).await].map(|(job, _)| job.id).into();
    // The run of the first one was lost, so it comes later.
    assert_eq!(taken, [work("e"), work("c")]);
    other.take_over(now, 0).await.unwrap();
    assert!(accept(&mut other, LATER_MS).await.is_none());
    let spoiled = stage.engine().begin().unwrap().get(&row_of("d"), Read::Snapshot).await.unwrap();
    assert_eq!(spoiled.as_deref(), Some(&b"\x15\x04\x15\x63"[..]));
    for (key, row) in progress {
        let kept = stage.engine().begin().unwrap().get(&key, Read::Snapshot).await.unwrap();
        assert_eq!(kept.as_deref(), Some(row));
    }
}
