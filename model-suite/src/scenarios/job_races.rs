//! Random histories of jobs, compared with an oracle, and races of servers that both assume that they hold the same
//! job.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use jobs::{
    Accepted, Error, Hold, JobState, Jobs, NewJob, Priority, Registry, Server, ServerOptions, pause_after_lost,
};
use kv_api::{AnyDatabase, Database, MutationType, RangeRequest, Read, Transaction, TransactionExt};

use super::jobs::{BEAT, LEASE, server, work};
use crate::stage::*;

const SERVERS: usize = 3;

/// The expected state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    state: JobState,
    priority: Priority,
    scheduled_ms: u64,
    attempts: u64,
    lost: u64,
    is_resubmitted: bool,
    name: Option<String>,
    data: Bytes,
    progress: Option<(u64, Bytes)>,
    /// Index of the acceptance that holds it.
    run: Option<usize>,
}

/// The registry's behaviour in memory, without rows of leases, queue and numbers.
#[derive(Default)]
struct Oracle {
    jobs: BTreeMap<String, Expected>,
    /// The server of each acceptance.
    runs: Vec<usize>,
    servers: [OracleServer; SERVERS],
}

#[derive(Default)]
struct OracleServer {
    /// Number of writes of its lease; `None` without a lease.
    lease: Option<u64>,
    written: u64,
    /// The leases of others that it saw, and since when.
    seen: HashMap<(usize, u64), Duration>,
    looked: Duration,
}

impl Oracle {
    /// The name, if no other job has it.
    fn free(&self, id: &str, name: Option<&str>) -> Option<String> {
        let others = self.jobs.iter().filter(|(other, _)| *other != id);
        let is_free = others.filter_map(|(_, job)| job.name.as_deref()).all(|other| Some(other) != name);
        name.filter(|_| is_free).map(str::to_owned)
    }

    fn add(&mut self, id: &str, new: &NewJob) -> JobState {
        let (lost, waits_until) = match self.jobs.get(id) {
            Some(job) if job.lost > 0 && job.data == new.data => (job.lost, job.scheduled_ms),
            _ => (0, 0),
        };
        let fresh = Expected {
            state: JobState::Pending,
            priority: new.priority,
            scheduled_ms: new.scheduled_ms.max(waits_until),
            attempts: 0,
            lost,
            is_resubmitted: false,
            name: self.free(id, new.name.as_deref()),
            data: new.data.clone(),
            progress: None,
            run: None,
        };
        let job = match self.jobs.get(id) {
            Some(job) if job.state == JobState::Running => Expected {
                state: JobState::Running,
                is_resubmitted: true,
                scheduled_ms: new.scheduled_ms,
                attempts: job.attempts,
                progress: job.progress.clone(),
                run: job.run,
                ..fresh
            },
            _ => fresh,
        };
        let state = job.state;
        self.jobs.insert(id.to_owned(), job);
        state
    }

    fn write_lease(&mut self, server: usize) {
        let server = &mut self.servers[server];
        server.written += 1;
        server.lease = Some(server.written);
    }

    fn accept(&mut self, server: usize, now_ms: u64) -> Option<String> {
        let due = self.jobs.iter().filter(|(_, job)| job.state == JobState::Pending && job.scheduled_ms <= now_ms);
        let (id, _) = due.min_by_key(|(id, job)| (job.priority, job.scheduled_ms, (*id).clone()))?;
        let id = id.clone();
        let job = self.jobs.get_mut(&id)?;
        (job.state, job.attempts, job.run) = (JobState::Running, job.attempts + 1, Some(self.runs.len()));
        self.runs.push(server);
        if self.servers[server].lease.is_none() {
            self.write_lease(server);
        }
        Some(id)
    }

    fn of_run(&mut self, run: usize) -> Option<(&String, &mut Expected)> {
        self.jobs.iter_mut().find(|(_, job)| job.run == Some(run))
    }

    /// `end` gets the job if it was not added again meanwhile, and returns whether it stays.
    fn end(&mut self, run: usize, end: impl FnOnce(&mut Expected) -> bool) -> bool {
        let Some((id, job)) = self.of_run(run) else { return false };
        let id = id.clone();
        (job.run, job.lost) = (None, 0);
        if pend(job) || end(job) {
            return true;
        }
        self.jobs.remove(&id);
        true
    }

    fn held_by(&self, server: usize) -> Vec<usize> {
        let runs = self.jobs.values().filter_map(|job| job.run);
        runs.filter(|run| self.runs[*run] == server).collect()
    }

    /// Takes all jobs from a server; with a time since it ended.
    fn lose(&mut self, server: usize, lost_ms: Option<u64>) {
        for run in self.held_by(server) {
            if let Some((_, job)) = self.of_run(run) {
                job.run = None;
                pend(job);
                job.state = JobState::Pending;
                if let Some(now_ms) = lost_ms {
                    job.lost += 1;
                    job.scheduled_ms = job.scheduled_ms.max(now_ms + pause_after_lost(job.lost));
                }
            }
        }
        self.servers[server].lease = None;
    }

    fn renew(&mut self, server: usize) {
        if self.servers[server].lease.is_none() {
            return;
        }
        if self.held_by(server).is_empty() {
            self.servers[server].lease = None;
        } else {
            self.write_lease(server);
        }
    }

    fn take_over(&mut self, server: usize, now: Duration) {
        let looked = std::mem::replace(&mut self.servers[server].looked, now);
        let before = std::mem::take(&mut self.servers[server].seen);
        for other in (0..SERVERS).filter(|other| *other != server) {
            let Some(lease) = self.servers[other].lease else { continue };
            let since = before.get(&(other, lease)).filter(|_| now - looked < LEASE);
            let since = *since.unwrap_or(&now);
            self.servers[server].seen.insert((other, lease), since);
            if now - since >= LEASE {
                self.lose(other, Some(now.as_millis() as u64));
            }
        }
    }
}

/// Makes a job pending if it was added again during its run. Returns whether it was.
fn pend(job: &mut Expected) -> bool {
    let again = std::mem::take(&mut job.is_resubmitted);
    if again {
        (job.state, job.attempts, job.progress) = (JobState::Pending, 0, None);
    }
    again
}

struct Play {
    random: Random,
    jobs: Jobs<Chaos<AnyDatabase>>,
    servers: Vec<Server<Chaos<AnyDatabase>>>,
    oracle: Oracle,
    /// The hold of each acceptance.
    holds: Vec<Hold>,
    now: Duration,
}

impl Play {
    async fn step(&mut self) -> Result<String, String> {
        let server = self.random.below(SERVERS as u64) as usize;
        let now_ms = self.now.as_millis() as u64;
        let id = ["a", "b", "c", "d", "e"][self.random.below(5) as usize];
        let bytes = self.random.bits().to_be_bytes();
        let run = self.random.below(self.holds.len().max(1) as u64) as usize;
        let hold = self.holds.get(run).cloned();
        let name = [None, Some("x"), Some("y")][self.random.below(3) as usize];
        let step = match (self.random.below(13), hold) {
            (0..=2, _) => {
                let priority = *self.random.pick(&[Priority::High, Priority::Normal, Priority::Low]);
                let scheduled_ms = (now_ms + self.random.below(20_000)).saturating_sub(10_000);
                let name = name.map(str::to_owned);
                let new = NewJob { data: Bytes::copy_from_slice(&bytes), priority, scheduled_ms, name };
                let (found, expected) = (self.jobs.add(&work(id), &new).await, self.oracle.add(id, &new));
                same("add", found, Ok(expected))?;
                format!("add {id} {priority:?} {scheduled_ms}")
            }
            (3, _) => {
                let expected = self.oracle.jobs.remove(id).is_some();
                same("remove", self.jobs.remove(&work(id)).await, Ok(expected))?;
                format!("remove {id}")
            }
            (4..=5, _) => {
                let expected = self.oracle.accept(server, now_ms);
                let found = match self.servers[server].accept("work", now_ms).await {
                    Ok(Accepted::Job(job, hold)) => {
                        self.holds.push(hold);
                        Ok(Some(job.id.id))
                    }
                    Ok(Accepted::Nothing { .. }) => Ok(None),
                    Err(error) => Err(error),
                };
                let step = format!("accept by {server}: {found:?}");
                same("accept", found, Ok(expected))?;
                step
            }
            (6, Some(hold)) => {
                let expected = self.oracle.of_run(run).map(|(_, job)| {
                    job.progress = Some((now_ms, Bytes::copy_from_slice(&bytes)));
                });
                same("update", self.jobs.update(&hold, &bytes, now_ms).await, expected.ok_or(Error::Lost))?;
                format!("update {run}")
            }
            (7, Some(hold)) => {
                let kind = self.random.below(4);
                let expected = self.oracle.end(run, |job| {
                    match kind {
                        0 => job.state = JobState::Finished,
                        1 => return false,
                        2 => (job.state, job.scheduled_ms) = (JobState::Pending, now_ms + 10_000),
                        _ => {
                            job.state = JobState::Finished;
                            job.progress = Some((now_ms, Bytes::copy_from_slice(&bytes)));
                        }
                    }
                    if job.state == JobState::Finished {
                        job.attempts = 0;
                    }
                    true
                });
                let found = match kind {
                    0 => self.jobs.finish(&hold, None, now_ms).await,
                    1 => self.jobs.finish_and_remove(&hold).await,
                    2 => self.jobs.resubmit(&hold, now_ms + 10_000).await,
                    _ => self.jobs.finish(&hold, Some(&bytes), now_ms).await,
                };
                same("the end of a run", found, if expected { Ok(()) } else { Err(Error::Lost) })?;
                format!("end {run} as {kind}")
            }
            (8, _) => {
                self.oracle.renew(server);
                same("renew", self.servers[server].renew().await, Ok(()))?;
                format!("renew {server}")
            }
            (9, _) if self.random.chance(0.1) => {
                self.oracle.lose(server, None);
                same("close", self.servers[server].close().await, Ok(()))?;
                format!("close {server}")
            }
            (10, Some(hold)) => {
                let of_run = self.oracle.of_run(run).filter(|(_, job)| !job.is_resubmitted);
                let id = of_run.map(|(id, _)| id.clone());
                let given = id.as_ref().map(|id| self.oracle.free(id, name));
                let found = self.jobs.rename(&hold, name).await;
                let holder = |name: &str| self.oracle.jobs.iter().find(|(_, job)| job.name.as_deref() == Some(name));
                let another = name.filter(|_| given == Some(None)).and_then(holder).map(|(id, _)| work(id));
                same("rename", found, given.as_ref().map(|_| another).ok_or(Error::Lost))?;
                if let Some((_, job)) = self.oracle.of_run(run).filter(|(_, job)| !job.is_resubmitted) {
                    job.name = given.flatten();
                }
                format!("rename {run} to {name:?}")
            }
            _ => {
                self.now += BEAT;
                self.oracle.take_over(server, self.now);
                let found = self.servers[server].take_over(self.now, self.now.as_millis() as u64).await;
                // After an unknown result it does not name the jobs that it took.
                same("take over", found.map(drop), Ok(()))?;
                format!("take over by {server} at {:?}", self.now)
            }
        };
        Ok(step)
    }

    /// Compares all jobs with the oracle's. Reads without faults.
    async fn compare(&self, calm: &Jobs<AnyDatabase>) -> Result<(), String> {
        let found = calm.list("work").await.map_err(|error| error.to_string())?;
        let running = calm.running().await.map_err(|error| error.to_string())?;
        let mut expected_running = 0;
        for (job, (id, expected)) in found.iter().zip(&self.oracle.jobs) {
            let run = expected.run.map(|run| format!("server-{}", self.oracle.runs[run]));
            let by =
                running.iter().find(|running| running.id == job.id).and_then(|running| running.run.clone()?.server);
            expected_running += usize::from(run.is_some());
            same("who runs it", by, run)?;
            let progress = job.progress.clone().map(|progress| (progress.updated_ms, progress.bytes));
            let found = Expected {
                state: job.state,
                priority: job.priority,
                scheduled_ms: job.scheduled_ms,
                attempts: job.attempts,
                lost: job.lost,
                is_resubmitted: job.is_resubmitted,
                name: job.name.clone(),
                data: job.data.clone(),
                progress,
                run: expected.run,
            };
            same("a job", (&job.id.id, &found), (id, expected))?;
        }
        for name in ["x", "y"] {
            let found = calm.named("work", name).await.map_err(|error| error.to_string())?;
            let expected = self.oracle.jobs.iter().find(|(_, job)| job.name.as_deref() == Some(name));
            same("who has a name", found, expected.map(|(id, _)| work(id)))?;
        }
        same("how many", (found.len(), running.len()), (self.oracle.jobs.len(), expected_running))
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}")) }
}

/// All kinds of faults that are retried.
fn rates() -> Rates {
    Rates { too_old: 0.002, future_version: 0.002, ..Rates::retryable(0.06) }
}

pub(crate) async fn random_histories_of_jobs_agree_with_the_oracle(stage: Stage) {
    for seed in 1..=6 {
        let chaos = Chaos::new(stage.engine(), seed, rates());
        let registry = Registry::new(format!("jobs-{seed}/").into_bytes());
        let calm = Jobs::new(stage.engine(), registry.clone());
        let jobs = Jobs::new(chaos, registry);
        let servers = (0..SERVERS as u8).map(|number| server(&jobs, number)).collect();
        let (random, oracle, now) = (Random::new(seed), Oracle::default(), Duration::from_secs(100));
        let mut play = Play { random, jobs, servers, oracle, holds: Vec::new(), now };
        let mut steps = Vec::new();
        for _ in 0..120 {
            let outcome = play.step().await;
            let failed = match outcome {
                Ok(step) => {
                    steps.push(step);
                    play.compare(&calm).await.err()
                }
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failed {
                panic!("{failure}; seed {seed}, after {steps:#?}");
            }
        }
    }
}

/// One job, and two servers that may both assume that they hold it. A run reads the next number at its start and then
/// counts in memory. If two runs never write at the same time, the log has each number once and in order.
async fn race(engine: AnyDatabase, seed: u64, is_fenced: bool) -> Result<usize, String> {
    let prefix = format!("race-{seed}-{is_fenced}/").into_bytes();
    let (counter, log) = ([&prefix[..], b"counter"].concat(), [&prefix[..], b"log/"].concat());
    let chaos = Chaos::new(engine.clone(), seed, rates());
    let jobs = Jobs::new(chaos.clone(), Registry::new([&prefix[..], b"jobs/"].concat()));
    let mut random = Random::new(seed);
    let mut servers: Vec<_> = (0..2).map(|number| server(&jobs, number)).collect();
    /// A server's assumption about the job.
    struct Assumed<T> {
        hold: Option<Hold>,
        /// The last number written, as far as the run knows; `None` if it must read it.
        last: Option<u64>,
        /// A transaction that has begun and is not committed, and the number that it writes.
        begun: Option<(T, u64)>,
    }
    let mut assumed = [0, 1].map(|_| Assumed { hold: None, last: None, begun: None });
    jobs.add(&work("it"), &NewJob::default()).await.map_err(|error| error.to_string())?;
    let mut now = Duration::from_secs(100);
    for _ in 0..200 {
        let at = random.below(2) as usize;
        let (server, mine) = (&mut servers[at], &mut assumed[at]);
        match random.below(13) {
            0 => server.renew().await.map_err(|error| error.to_string())?,
            1 | 2 => {
                now += BEAT;
                server.take_over(now, 0).await.map_err(|error| error.to_string())?;
            }
            3..=5 => {
                if let Accepted::Job(_, hold) =
                    server.accept("work", u64::MAX >> 1).await.map_err(|error| error.to_string())?
                {
                    *mine = Assumed { hold: Some(hold), last: None, begun: None };
                }
            }
            6..=8 => {
                let Some(hold) = mine.hold.clone().filter(|_| mine.begun.is_none()) else { continue };
                let transaction = chaos.begin().map_err(|error| error.to_string())?;
                if is_fenced && let Err(error) = hold.check(&transaction).await {
                    if error == Error::Lost {
                        mine.hold = None;
                    }
                    continue;
                }
                let last = match mine.last {
                    Some(last) => last,
                    None => match transaction.get(&counter, Read::Serializable).await {
                        Ok(row) => row.map_or(0, |row| u64::from_be_bytes(row[..].try_into().unwrap_or_default())),
                        Err(_) => continue,
                    },
                };
                let key = [&log[..], &[0xff; 10], &(log.len() as u32).to_le_bytes()].concat();
                transaction.atomic_op(MutationType::SetVersionstampedKey, key, &(last + 1).to_be_bytes());
                transaction.set(&counter, &(last + 1).to_be_bytes());
                mine.begun = Some((transaction, last + 1));
            }
            _ => {
                let Some((transaction, number)) = mine.begun.take() else { continue };
                // After an unknown result the run reads the number again.
                mine.last = transaction.commit().await.ok().map(|()| number);
            }
        }
    }
    let transaction = engine.begin().map_err(|error| error.to_string())?;
    let rows = transaction.get_all(RangeRequest::prefix(&log), Read::Snapshot).await;
    let rows = rows.map_err(|error| error.to_string())?;
    for (row, expected) in rows.iter().zip(1u64..) {
        if row.value[..] != expected.to_be_bytes() {
            return Err(format!("row {expected} of the log is {:?}", row.value));
        }
    }
    Ok(rows.len())
}

pub(crate) async fn of_two_runs_of_a_job_one_alone_writes(stage: Stage) {
    let (mut written, mut found) = (0, 0);
    for seed in 1..=12 {
        match race(stage.engine(), seed, true).await {
            Ok(rows) => written += rows,
            Err(failure) => panic!("{failure}; seed {seed}"),
        }
        // The same histories without the fence.
        found += u64::from(race(stage.engine(), seed, false).await.is_err());
    }
    assert!(written > 100, "{written} rows: the runs have hardly worked");
    assert!(found > 0, "no history shows that the fence is needed");
}

/// Several servers of one store work on the same jobs concurrently, through faults.
pub(crate) async fn servers_at_work_at_the_same_time_do_each_job(stage: Stage) {
    let seed = 3;
    let calm = Jobs::new(stage.engine(), Registry::new(&b"jobs/"[..]));
    for n in 0..30 {
        calm.add(&work(&n.to_string()), &NewJob::default()).await.unwrap();
    }
    let at_work = (0..4u8).map(|number| {
        let chaos = Chaos::new(stage.engine(), seed + u64::from(number), rates());
        let jobs = Jobs::new(chaos, calm.registry().clone());
        let options = ServerOptions { name: number.to_string(), lease: LEASE, is_alone: false };
        let mut server = Server::new(jobs.clone(), [number; 16], options);
        async move {
            let mut done = 0;
            while let Accepted::Job(_, hold) = server.accept("work", 0).await? {
                jobs.update(&hold, &[number], 0).await?;
                server.renew().await?;
                jobs.finish(&hold, None, 0).await?;
                done += 1;
            }
            server.renew().await?;
            Ok::<_, Error>(done)
        }
    });
    let done = futures_util::future::try_join_all(at_work).await.unwrap_or_else(|error| panic!("{error}; seed {seed}"));
    assert_eq!(done.iter().sum::<u32>(), 30, "each job once, seed {seed}: {done:?}");
    let all = calm.list("work").await.unwrap();
    assert!(all.iter().all(|job| job.state == JobState::Finished && job.progress.is_some()), "seed {seed}: {all:?}");
    let leases = stage.engine().begin().unwrap().get_all(RangeRequest::prefix(b"jobs/\x15\x05"), Read::Snapshot);
    assert_eq!(leases.await.unwrap().len(), 0, "seed {seed}");
}
