//! The jobs that this server runs.
//!
//! ```text
//!   accept ──► supervise ─┬─ run, on the threads for scans ──► finished, or run again later
//!     ▲                   └─ watch the job's row, and stop the run when it should stop
//!     └ when a job became pending or is due, or a run ended
//!
//!   every minute             if there is no room, continuous replications make room for waiting ones
//!   every five seconds       if there is no room, builds in the background make room for those that a client waits for
//!   every third of a lease   renew the lease, if there is one; look for servers whose lease has expired, for room made
//!                            by a setting, and whether another build has changed the format of the store
//!   stop                     runs stop between two steps; unfinished jobs are given back
//! ```
//!
//! The registry is in the server's own store ([`jobs`]), so servers of one cluster share the work. A store to which a
//! database moved has its own registry, for jobs of its databases. They run while the store is open.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use jobs::{Accepted, Error, Hold, Job, JobState, Jobs, LostRun, Priority, ServerOptions};
use kv_api::AnyDatabase;
use model::{Environment, ErrorKind, Layer, SystemEnvironment};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use crate::engine::EngineUrl;
use crate::http::app::App;
use crate::http::app::repeats::Repeated;
use crate::http::app::stores::Store;
use crate::http::authz::auth_design;
use crate::http::config::rotation::Rotation;
use crate::http::handlers::database::{format, relocate, upkeep};
use crate::http::jobs::replicator::{documents, record, run};
use crate::http::jobs::run::{End, PAUSE, Run, backoff, now_ms};
use crate::http::jobs::{auto_purge, collect_vaults, index_build, peruser, view_update};

/// Number of renewals in the duration of a lease.
const BEATS: u32 = 3;

/// Time for runs to stop when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// Time for a run in the background to come to its next step, and stop there. After that it is cut off.
const TO_NEXT_STEP: Duration = Duration::from_secs(1);

/// Time after which a run is no longer suspected to end its server.
const SETTLED: Duration = Duration::from_secs(600);

/// Time after which runs in the background make room for jobs that somebody waits for.
const BETWEEN_TURNS: Duration = Duration::from_secs(5);

/// Number of lost runs that the log names one by one.
const NAMED: usize = 20;

/// How much a kind of job yields to the requests of clients, and to other jobs. **The one place where that is decided.**
///
/// In the background, all transactions have a lower priority than others ([`Layer::in_background`]). FoundationDB starts
/// such transactions later, and none at all while the cluster is at its limit or recovers from a failure. So whatever a
/// client waits for must not be in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As fast as a request: clients wait for these jobs, or see what they do.
    AsRequests,
    /// In the background.
    Background,
    /// In the background while the job's priority is low. Whoever waits for the job raises its priority.
    UnlessAwaited,
}

impl Pace {
    fn is_in_background(self, job: &Job) -> bool {
        match self {
            Pace::AsRequests => false,
            Pace::Background => true,
            Pace::UnlessAwaited => job.priority == Priority::Low,
        }
    }
}

/// A kind of job. **A new kind of background work starts here.**
struct Kind {
    name: &'static str,
    /// Maximum number of simultaneous runs on this server, for each store. A setting overrides it for replications.
    at_once: usize,
    /// Whether its jobs are in the store of their database instead of the server's own.
    is_of_databases: bool,
    pace: Pace,
    run: fn(Arc<App>, Arc<Run>) -> BoxFuture<'static, End>,
}

const KINDS: [Kind; 10] = [
    Kind {
        name: relocate::KIND,
        at_once: 16,
        is_of_databases: false,
        // The copy is in the background: `model` knows when it ends, and writers wait for the rest.
        pace: Pace::AsRequests,
        run: |app, run| relocate::run(app, run).boxed(),
    },
    Kind {
        name: model::BUILD_JOBS,
        at_once: 4,
        is_of_databases: true,
        pace: Pace::UnlessAwaited,
        run: |app, run| index_build::run(app, run).boxed(),
    },
    Kind {
        name: view_update::KIND,
        at_once: 4,
        is_of_databases: true,
        // There is a job only if a query asked for it.
        pace: Pace::AsRequests,
        run: |app, run| view_update::run(app, run).boxed(),
    },
    Kind {
        name: model::REWRITE_JOBS,
        at_once: 2,
        is_of_databases: true,
        pace: Pace::Background,
        run: |app, run| format::run(app, run).boxed(),
    },
    Kind {
        name: model::FORGET_JOBS,
        at_once: 2,
        is_of_databases: true,
        pace: Pace::Background,
        run: |app, run| upkeep::forget(app, run).boxed(),
    },
    Kind {
        name: documents::FOLLOWERS,
        at_once: 1_000,
        is_of_databases: false,
        pace: Pace::AsRequests,
        run: |app, run| documents::follow(app, run).boxed(),
    },
    Kind {
        name: auto_purge::KIND,
        at_once: 1,
        is_of_databases: false,
        pace: Pace::Background,
        run: |app, run| auto_purge::run(app, run).boxed(),
    },
    Kind {
        name: collect_vaults::KIND,
        at_once: 1,
        is_of_databases: false,
        pace: Pace::Background,
        run: |app, run| collect_vaults::run(app, run).boxed(),
    },
    Kind {
        name: peruser::KIND,
        at_once: 1,
        is_of_databases: false,
        pace: Pace::AsRequests,
        run: |app, run| peruser::follow(app, run).boxed(),
    },
    Kind {
        name: record::KIND,
        at_once: 2_000,
        is_of_databases: false,
        pace: Pace::AsRequests,
        run: |app, job| run::run(app, job).boxed(),
    },
];

/// The names of all kinds.
pub(crate) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// A run of a job, as its slot knows it.
struct Running {
    began: Instant,
    /// Whether it may be stopped so that another job can run.
    takes_turns: bool,
    /// Tells the run to stop. Closed when it has ended.
    stop: Arc<watch::Sender<bool>>,
}

/// A kind of job, and the events that this server waits for before it accepts the next one.
struct Slot {
    kind: &'static Kind,
    /// The runs, the oldest first.
    running: Vec<Running>,
    /// When waiting jobs may take the place of continuous runs.
    turn: Instant,
    /// Whether a job may be waiting.
    should_look: bool,
    added: Option<kv_api::BoxFuture<kv_api::Result<()>>>,
    due: Option<Instant>,
}

/// Time between two checks for abandoned uploads.
const BETWEEN_GIVING_BACK: Duration = Duration::from_secs(1);

/// Runs jobs until the server stops. `name` is the server's. `opened` receives stores that are opened later.
pub(crate) fn start(app: Arc<App>, name: String, mut opened: mpsc::UnboundedReceiver<Store>) -> JoinHandle<()> {
    if app.options.pause_jobs {
        tracing::warn!("this server runs no jobs: it was started with --pause-jobs");
    }
    if app.options.standby.is_some() {
        // Jobs are its source's. The channel stays open.
        return tokio::spawn(async move {
            app.stopping().await;
            drop(opened);
        });
    }
    tokio::spawn(async move {
        let mut stores = JoinSet::new();
        let own = Store { url: app.options.store.clone(), layer: app.layer.clone() };
        stores.spawn(work(app.clone(), name.clone(), own, true));
        stores.spawn(give_back(app.clone()));
        stores.spawn(documents::begin(app.clone()));
        stores.spawn(peruser::begin(app.clone()));
        stores.spawn(auth_design::begin(app.clone()));
        stores.spawn(auto_purge::begin(app.clone()));
        loop {
            tokio::select! {
                () = app.stopping() => break,
                Some(store) = opened.recv() => drop(stores.spawn(work(app.clone(), name.clone(), store, false))),
            }
        }
        while stores.join_next().await.is_some() {}
    })
}

/// Frees the space of uploads whose clients left.
async fn give_back(app: Arc<App>) {
    loop {
        tokio::select! {
            () = app.stopping() => return,
            () = tokio::time::sleep(BETWEEN_GIVING_BACK) => app.layer.give_back_uploads().await,
        }
    }
}

/// Runs the jobs of one store.
async fn work(app: Arc<App>, name: String, store: Store, is_own: bool) {
    let mut id = [0; 16];
    SystemEnvironment.random(&mut id);
    // Every store except a cluster has one owner at a time.
    let is_alone = matches!(&store.url, Some(url) if !matches!(url, EngineUrl::Cluster { .. }));
    let lease = app.options.lease;
    let options = ServerOptions { name, lease, is_alone };
    let layer = store.layer;
    let mut server = jobs::Server::new(layer.jobs(), id, options);
    let began = Instant::now();
    let mut beat = tokio::time::interval((lease / BEATS).max(Duration::from_millis(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A build without JavaScript leaves views to servers that can run their functions.
    let can_run = |kind: &&Kind| cfg!(feature = "javascript") || kind.name != view_update::KIND;
    let kinds = KINDS.iter().filter(|kind| is_own || kind.is_of_databases).filter(can_run);
    let slots =
        kinds.map(|kind| Slot { kind, running: Vec::new(), turn: began, should_look: true, added: None, due: None });
    let mut slots: Vec<Slot> = slots.collect();
    let mut runs = JoinSet::new();
    loop {
        for slot in slots.iter_mut().filter(|slot| slot.should_look && !app.options.pause_jobs) {
            slot.fill(&app, &layer, &mut server, &mut runs).await;
        }
        let due = slots.iter().filter_map(|slot| slot.due).min();
        let turn = slots.iter().filter_map(|slot| slot.next_turn(&app)).min();
        tokio::select! {
            () = app.stopping() => break,
            _ = beat.tick() => {
                // The next beat tries again.
                if let Err(error) = server.renew().await {
                    app.statistics.failed_renewals.add(1);
                    tracing::warn!(%error, "the lease on this server's jobs cannot be renewed");
                }
                if !is_alone && is_of_another_format(&layer).await {
                    let running = slots.iter().flat_map(|slot| &slot.running);
                    running.for_each(|run| {
                        run.stop.send_replace(true);
                    });
                    break;
                }
                match server.take_over(began.elapsed(), now_ms()).await {
                    Ok(lost) => {
                        app.statistics.lost_runs.add(lost.len() as u64);
                        note_lost(&lost);
                    }
                    Err(error) => tracing::warn!(%error, "cannot look for lost jobs of other servers"),
                }
                for Repeated { line, times } in app.repeats.over().into_iter().filter(|_| is_own) {
                    tracing::warn!(line, times, "repeated in the last minute");
                }
                // A full slot waits for nothing, but a setting may have made room since.
                slots.iter_mut().for_each(|slot| slot.should_look |= slot.added.is_none() && slot.due.is_none());
            }
            Some(_) = runs.join_next() => slots.iter_mut().for_each(|slot| slot.should_look = true),
            () = one_was_added(&mut slots) => {}
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let now = Instant::now();
                slots.iter_mut().for_each(|slot| slot.should_look |= slot.due.is_some_and(|due| due <= now));
            }
            () = tokio::time::sleep_until(turn.unwrap_or_else(Instant::now)), if turn.is_some() => {
                for slot in &mut slots {
                    slot.take_turns(&app, &layer).await;
                }
            }
        }
    }
    let ended = async { while runs.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("jobs that were still running are cut off");
    }
    if let Err(error) = server.close().await {
        tracing::warn!(%error, "this server's jobs cannot be given back; another server takes them over in time");
    }
}

/// Whether another build has changed the format of a store that others use too. Then nothing more is done there.
async fn is_of_another_format(layer: &Layer<AnyDatabase>) -> bool {
    match layer.check_format().await {
        Ok(()) => false,
        Err(error) if matches!(error.kind(), ErrorKind::Format { .. }) => {
            tracing::error!(%error, "this server serves the store no longer, and runs no jobs in it");
            true
        }
        Err(error) => {
            tracing::debug!(%error, "the format of the store cannot be read");
            false
        }
    }
}

/// Logs which jobs wait because their server ended.
fn note_lost(lost: &[LostRun]) {
    for LostRun { id, times, scheduled_ms } in lost.iter().take(NAMED) {
        let seconds = scheduled_ms.saturating_sub(now_ms()).div_ceil(1_000);
        tracing::warn!(job = ?id, times, seconds, "a server ended while it ran this job, which waits before it runs again");
    }
    if lost.len() > NAMED {
        tracing::warn!(jobs = lost.len() - NAMED, "further jobs wait, since a server ended while it ran them");
    }
}

/// Waits until a job of some kind was added, and marks the kind.
async fn one_was_added(slots: &mut [Slot]) {
    let waiting = slots.iter_mut().enumerate().filter_map(|(at, slot)| {
        let added = slot.added.as_mut()?;
        Some(added.map(move |woken| (at, woken)).boxed())
    });
    let waiting: Vec<_> = waiting.collect();
    if waiting.is_empty() {
        return std::future::pending().await;
    }
    let ((at, woken), _, others) = select_all(waiting).await;
    drop(others);
    let slot = &mut slots[at];
    slot.added = None;
    match woken {
        Ok(()) => slot.should_look = true,
        Err(error) => {
            tracing::debug!(kind = slot.kind.name, %error, "a watch for jobs failed");
            slot.due = Some(Instant::now() + PAUSE);
        }
    }
}

impl Slot {
    /// How its runs take turns; `None` if none may be stopped for another one.
    fn rotation(&self, app: &App) -> Option<Rotation> {
        let most = self.kind.at_once;
        match (self.kind.name, self.kind.pace) {
            (record::KIND, _) => Some(Rotation::read(&app.auth.settings().rows)),
            (_, Pace::UnlessAwaited) => Some(Rotation { most, churn: most, interval: BETWEEN_TURNS }),
            _ => None,
        }
    }

    /// Number of runs at a time.
    fn at_once(&self, app: &App) -> usize {
        self.rotation(app).map_or(self.kind.at_once, |rotation| rotation.most)
    }

    /// When waiting jobs may take the place of others; `None` if there is room.
    fn next_turn(&self, app: &App) -> Option<Instant> {
        let rotation = self.rotation(app)?;
        (self.running.len() >= rotation.most).then(|| self.turn + rotation.interval)
    }

    /// Whether a job that is due may take the place of a run.
    fn is_preferred(&self, job: &Job) -> bool {
        self.kind.pace != Pace::UnlessAwaited || !self.kind.pace.is_in_background(job)
    }

    /// Stops the oldest continuous runs, or runs in the background: as many as there are waiting jobs, up to a limit.
    /// They go to the end of the queue. Runs above the maximum are always stopped.
    async fn take_turns(&mut self, app: &App, layer: &Layer<AnyDatabase>) {
        let Some(rotation) = self.rotation(app) else { return };
        let now = Instant::now();
        if self.next_turn(app).is_none_or(|turn| turn > now) {
            return;
        }
        self.turn = now;
        self.running.retain(|run| !run.stop.is_closed());
        if !self.running.iter().any(|run| run.takes_turns) {
            return;
        }
        let excess = self.running.len().saturating_sub(self.at_once(app));
        let waiting = match layer.jobs().list(self.kind.name).await {
            Ok(jobs) => {
                let now_ms = now_ms();
                let is_due = |job: &&Job| job.state == JobState::Pending && job.scheduled_ms <= now_ms;
                jobs.iter().filter(is_due).filter(|job| self.is_preferred(job)).count()
            }
            Err(error) => return tracing::warn!(%error, "jobs that wait cannot be counted"),
        };
        let turns = excess.max(waiting.min(rotation.churn));
        let has_run = |run: &&Running| run.takes_turns && now.duration_since(run.began) >= rotation.interval;
        for run in self.running.iter().filter(has_run).take(turns) {
            run.stop.send_replace(true);
        }
    }

    /// Accepts jobs until none is left, or `at_once` are running.
    async fn fill(
        &mut self,
        app: &Arc<App>,
        layer: &Layer<AnyDatabase>,
        server: &mut jobs::Server<AnyDatabase>,
        runs: &mut JoinSet<()>,
    ) {
        (self.should_look, self.added, self.due) = (false, None, None);
        self.running.retain(|run| !run.stop.is_closed());
        while self.running.len() < self.at_once(app) {
            match server.accept(self.kind.name, now_ms()).await {
                Ok(Accepted::Job(job, hold)) => {
                    let (stop, should_stop) = watch::channel(false);
                    let (began, stop) = (Instant::now(), Arc::new(stop));
                    let takes_turns = match self.kind.name {
                        record::KIND => record::is_continuous(&job),
                        _ => self.kind.pace == Pace::UnlessAwaited && self.kind.pace.is_in_background(&job),
                    };
                    self.running.push(Running { began, takes_turns, stop: stop.clone() });
                    runs.spawn(supervise(app.clone(), layer.clone(), *job, hold, stop, should_stop));
                }
                Ok(Accepted::Nothing { due_ms, added }) => {
                    self.added = Some(added);
                    self.due = due_ms.map(|due| Instant::now() + Duration::from_millis(due.saturating_sub(now_ms())));
                    return;
                }
                Err(error) => {
                    tracing::warn!(kind = self.kind.name, %error, "jobs cannot be accepted");
                    self.due = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }
}

/// Runs a job, and records the end of the run in the registry.
async fn supervise(
    app: Arc<App>,
    layer: Layer<AnyDatabase>,
    job: Job,
    hold: Hold,
    stop: Arc<watch::Sender<bool>>,
    should_stop: watch::Receiver<bool>,
) {
    let jobs = layer.jobs();
    // The job may be of another kind than the requested one: if the result of an acceptance is unknown, the next
    // acceptance returns its job.
    let Some(kind) = KINDS.iter().find(|kind| kind.name == job.id.kind) else { return };
    let is_in_background = kind.pace.is_in_background(&job);
    let run = Arc::new(Run::new(job, hold, &layer, is_in_background, should_stop));
    let _running = app.statistics.jobs.enter();
    let _replicating = (kind.name == record::KIND).then(|| app.statistics.replications.enter());
    tracing::info!(job = ?run.job.id, attempt = run.job.attempts, "a job begins");
    let Some(mut task) = app.spawn_scan((kind.run)(app.clone(), run.clone())) else { return };
    // A transaction in the background may stand still, and then the run does not come to its next step.
    let stands_still = async {
        run.stopped_or_ending(&app).await;
        tokio::time::sleep(TO_NEXT_STEP).await;
    };
    let ended = tokio::select! {
        ended = &mut task => ended,
        () = stands_still, if is_in_background => {
            task.abort();
            (&mut task).await.or_else(|error| if error.is_cancelled() { Ok(End::Again(Duration::ZERO)) } else { Err(error) })
        }
        never = follow(&jobs, &run, &stop) => match never {},
        never = settle(&jobs, &run) => match never {},
    };
    let mut end = ended.unwrap_or_else(|error| {
        tracing::error!(job = ?run.job.id, %error, "a job's run ended unexpectedly");
        End::Failed(None, backoff(run.job.attempts))
    });
    if matches!(end, End::Failed(..)) {
        app.statistics.failed_runs.add(1);
    }
    loop {
        match run.end(&end).await {
            Ok(()) | Err(Error::Lost) => return,
            // The report of the run can never be stored.
            Err(Error::Store(error))
                if !error.is_retryable()
                    && matches!(end, End::Finished(_) | End::Answered(..) | End::Failed(Some(_), _)) =>
            {
                tracing::error!(job = ?run.job.id, %error, "a job's report cannot be stored; the job will be run again");
                end = End::Again(backoff(run.job.attempts));
                continue;
            }
            Err(error) => tracing::warn!(job = ?run.job.id, %error, "the end of a job cannot be stored"),
        }
        tokio::select! {
            () = app.stopping() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Forgets earlier lost runs once this run has lasted long enough. Never returns.
async fn settle(jobs: &Jobs<AnyDatabase>, run: &Run) -> Infallible {
    if run.job.lost > 0 {
        tokio::time::sleep(SETTLED).await;
        if let Err(error) = jobs.settle(&run.hold).await {
            tracing::debug!(job = ?run.job.id, %error, "cannot forget a job's lost runs");
        }
    }
    std::future::pending().await
}

/// Tells a run to stop when it has lost its job, or the job was added again. Never returns.
async fn follow(jobs: &Jobs<AnyDatabase>, run: &Run, stop: &watch::Sender<bool>) -> Infallible {
    loop {
        match jobs.watch(&run.job.id).await {
            Ok((job, changed)) => {
                let is_asked_again = job.as_ref().is_some_and(|job| job.is_resubmitted);
                if is_asked_again || !job.is_some_and(|job| run.hold.has(&job)) {
                    stop.send_replace(true);
                    return std::future::pending().await;
                }
                if changed.await.is_ok() {
                    continue;
                }
            }
            Err(error) => tracing::debug!(job = ?run.job.id, %error, "a job cannot be watched"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn the_page_of_keys_lists_each_kind_of_job_and_no_other() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/keyspace.md")).unwrap();
        let (_, table) = page.split_once("\n| type | id |").unwrap();
        let rows = table.lines().take_while(|line| !line.is_empty());
        let listed: BTreeSet<&str> = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
        assert_eq!(listed, super::kinds().collect());
    }
}
