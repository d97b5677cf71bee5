//! Runs a replication.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use hyper::StatusCode;
use jobs::JobId;
use model::{JsonText, SystemEnvironment};
use parking_lot::Mutex;
use peer::{ErrorKind, MOST_TEXT, Peer, Retry, Steady, cut};
use replicate::{Endpoint, Progress, Replication, Report};
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::authz::rights::not_server_admin;
use crate::http::config::rotation::Rotation;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::database;
use crate::http::jobs::replicator::documents::{self, Outcome};
use crate::http::jobs::replicator::owner::Owner;
use crate::http::jobs::replicator::record::{Answer, JobProgress, Origin, ReplicationJob, figures};
use crate::http::jobs::replicator::requested::{RequestedReplication, Side};
use crate::http::jobs::replicator::{has_jobs, side};
use crate::http::jobs::run::{End, PAUSE, Run, backoff, now_ms};
use crate::http::journal::Actor;

/// Time for which the answer to a request is kept, so that each waiting client can read it.
const KEPT: Duration = Duration::from_secs(60);

/// Time for the last checkpoint of a replication that is stopped. CouchDB has five seconds. Here a stopping server
/// waits for the checkpoints, and people may wait ten seconds in all for a server to stop.
const LAST_CHECKPOINT: Duration = Duration::from_secs(3);

/// The id of a replication. If a function filters it, the source is asked for the function's code.
///
/// # Errors
/// 404 if a source behind a URL does not return the code, as in CouchDB; the errors of a database of this server.
pub(crate) async fn id(app: &Arc<App>, asked: &RequestedReplication, owner: &Owner) -> Result<String> {
    if let Some(id) = asked.known_id(&app.uuid) {
        return Ok(id);
    }
    let found = async {
        let source = open(app, asked, &asked.source, owner, None).await?;
        let source = Steady::new(source, Arc::new(SystemEnvironment)).repeating(asked.options.retries);
        let id = asked.identity(&app.uuid).find_id(&asked.options, &source).await;
        id.map(|id| asked.full_id(id)).map_err(|error| of_run(&error))
    };
    found.await.map_err(|error| match asked.source.endpoint {
        Endpoint::Remote(_) => ApiError::not_found(error.reason().to_owned()),
        Endpoint::Local(_) => error,
    })
}

/// Runs a replication with the rights of its owner, until it ends or `stop` completes. `on_progress` is called with its
/// progress.
///
/// # Errors
/// A side cannot be opened, or the replication failed. Reasons never contain credentials.
pub(crate) async fn replicate(
    app: &Arc<App>,
    asked: &RequestedReplication,
    owner: &Owner,
    stop: impl Future<Output = ()> + Send,
    on_progress: impl Fn(&Progress) + Send + Sync + 'static,
) -> Result<Report> {
    let mut stop = pin!(stop);
    let opening = async {
        let source = open(app, asked, &asked.source, owner, None).await?;
        let create = asked.create_target.then_some(asked.create_parameters.as_slice());
        Ok::<_, ApiError>((source, open(app, asked, &asked.target, owner, create).await?))
    };
    let (source_name, target_name) = (&asked.source.name, &asked.target.name);
    let noted = |error: ApiError| {
        let reason = cut(error.reason(), MOST_TEXT);
        if app.repeats.print(&format!("a replication of {source_name} to {target_name} failed: {reason}"), 1) {
            tracing::warn!(from = source_name, to = target_name, error = &*reason, "a replication failed");
        }
        error
    };
    let (source, target) = tokio::select! {
        opened = opening => opened.map_err(noted)?,
        () = &mut stop => return Err(ApiError::unavailable("The replication was stopped.")),
    };
    tracing::info!(from = source_name, to = target_name, "a replication begins");
    let replication = replicate::replicate(source, target, asked.identity(&app.uuid));
    let replication = replication.with_options(asked.options.clone());
    let replication = with_log(app, replication, asked, on_progress);
    replication.run_until(stop).await.map_err(|error| noted(of_run(&error)))
}

/// The answer for an error that ends a replication.
fn of_run(error: &peer::Error) -> ApiError {
    if (error.kind(), error.status()) == (ErrorKind::Refused, Some(404)) {
        return ApiError::not_found(error.to_string());
    }
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "replication_failed", error.to_string())
}

/// Maximum number of revisions a minute that the log names as not arrived.
const SHOWN_FAILURES: u64 = 100;

/// Logs revisions that could not be written.
fn with_log(
    app: &Arc<App>,
    replication: Replication,
    asked: &RequestedReplication,
    on_progress: impl Fn(&Progress) + Send + Sync + 'static,
) -> Replication {
    let (source, target, app) = (asked.source.name.clone(), asked.target.name.clone(), app.clone());
    let line = format!("a revision of {source} did not arrive in {target}");
    let last = AtomicU64::new(0);
    replication.on_progress(move |progress| {
        for failed in &progress.failed {
            let replicate::Failed { id, rev, reason } = failed;
            if app.repeats.print(&line, SHOWN_FAILURES) {
                tracing::warn!(from = source, to = target, id, rev, reason, "a revision did not arrive");
            }
        }
        let written = progress.figures.docs_written;
        app.statistics.replicated.add(written.saturating_sub(last.swap(written, Ordering::Relaxed)));
        on_progress(progress);
    })
}

/// Opens one side. With `create` a missing database is created.
async fn open(
    app: &Arc<App>,
    asked: &RequestedReplication,
    side: &Side,
    owner: &Owner,
    create: Option<&[(&str, String)]>,
) -> Result<Arc<dyn Peer>> {
    match &side.endpoint {
        Endpoint::Local(name) => {
            let principal = owner.principal(app).await?;
            let found = app.databases.stores.database(name).await;
            let documents = match (found, create) {
                (Err(error), Some(parameters)) if error.is_no_database() => {
                    if !principal.is_server_admin() {
                        return Err(not_server_admin());
                    }
                    let parameters = parameters.iter().map(|(name, value)| (*name, value.as_str()));
                    let created = database::create_with(app, name, parameters).await?;
                    let actor = Actor { user: principal.name.as_deref(), ..Actor::default() };
                    app.audit(&actor, "database_created", &[("db", name)]);
                    created
                }
                (Err(error), _) if error.is_no_database() => return Err(not_found(side)),
                (found, _) => found?,
            };
            if has_jobs(name) {
                documents::ensure(app, name).await?;
            }
            side::open(app, documents, owner, principal).await
        }
        Endpoint::Remote(address) => {
            let peer =
                app.clients.connecting(address.clone(), asked.connecting).map_err(|error| failed(side, &error))?;
            let retry = Retry::new(Arc::new(SystemEnvironment)).repeating(asked.options.retries);
            if let Some(parameters) = create {
                retry.ask(|| peer.create(parameters)).await.map_err(|error| failed(side, &error))?;
            }
            retry.ask(|| peer.info()).await.map_err(|error| failed(side, &error))?;
            Ok(Arc::new(peer))
        }
    }
}

fn not_found(side: &Side) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "db_not_found", format!("could not open {}", side.name))
}

/// The answer for a side that cannot be used.
fn failed(side: &Side, error: &peer::Error) -> ApiError {
    match (error.kind(), error.status()) {
        (ErrorKind::NoDatabase, _) => not_found(side),
        (_, Some(401)) => ApiError::unauthorized(format!("unauthorized to access or create database {}", side.name)),
        (_, Some(403)) => ApiError::forbidden(format!("not allowed to access or create database {}", side.name)),
        // CouchDB's error for this: a malformed cookie or token, or a database that cannot be created.
        (ErrorKind::Refused, Some(400..=499)) => {
            let reason = format!("could not open {}: {error}", side.name);
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "db_not_found", reason)
        }
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "replication_failed", error.to_string()),
    }
}

/// Runs a job.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    let Some(order) = ReplicationJob::read(&run.job.data) else {
        tracing::error!(job = ?run.job.id, "a replication's request cannot be read");
        return End::Removed;
    };
    let mut done = JobProgress::of(&run.job);
    if done.answer.is_some() {
        return End::Removed;
    }
    done.begins(&order, run.job.lost, now_ms());
    let asked = match find(&app, &order).await {
        Ok(Some(asked)) => asked,
        Ok(None) => return End::Removed,
        Err(error) => return crash(done, &error),
    };
    let (asked, owner) = match asked {
        Ok(asked) => asked,
        Err(refused) if order.is_awaited() => return answered(&app, &run, &Err(refused)).await,
        // The job was added without the check, or its owner no longer has rights.
        Err(refused) => {
            tracing::warn!(job = ?run.job.id, error = refused.reason(), "a replication cannot run");
            return end(&app, &order, done, &Outcome::Failed(refused.reason().to_owned())).await;
        }
    };
    let named = tokio::select! {
        named = name(&app, &run, &asked, &owner) => named,
        () = run.stopped() => return End::Again(Duration::ZERO),
        () = app.stopping() => return End::Again(Duration::ZERO),
    };
    let named = match named {
        Ok(Ok(id)) => Ok(id),
        Ok(Err(another)) => match runs_elsewhere(&app, &run, &order, &done, &another).await {
            Ok(end) => return end,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let id = match named {
        Ok(id) => id,
        Err(error) if order.is_awaited() => return answered(&app, &run, &Err(error)).await,
        Err(error) => return crash(done, &error),
    };
    let (say, heard) = watch::channel(done.write());
    let done = Arc::new(Mutex::new(done));
    let is_stopped = AtomicBool::new(false);
    let stop = async {
        tokio::select! {
            () = run.stopped() => {}
            () = app.stopping() => {}
            () = renamed(&app, &order, &asked, &owner, &id) => {}
        }
        is_stopped.store(true, Ordering::Relaxed);
    };
    let stop = stop.shared();
    let at_work = {
        let done = done.clone();
        replicate(&app, &asked, &owner, stop.clone(), move |progress| {
            let mut done = done.lock();
            done.figures = Some(figures(progress));
            say.send_replace(done.write());
        })
    };
    let ended = tokio::select! {
        ended = at_work => Some(ended),
        () = async { stop.await; tokio::time::sleep(LAST_CHECKPOINT).await } => None,
        never = run.report(heard) => match never {},
    };
    let done = done.lock().clone();
    let is_stopped = is_stopped.load(Ordering::Relaxed) || run.should_stop();
    let Some(ended) = ended.filter(|_| !is_stopped) else {
        // It continues from its last checkpoint, here or on another server, or was removed. With another function it
        // starts again.
        return End::Again(Duration::ZERO);
    };
    match ended {
        ended if order.is_awaited() => answered(&app, &run, &ended).await,
        Err(error) => crash(done, &error),
        Ok(_) => {
            let outcome =
                Outcome::Completed { figures: done.figures.clone(), began_ms: done.began_ms().unwrap_or_default() };
            end(&app, &order, done, &outcome).await
        }
    }
}

/// The requested replication and its owner; `None` if it is no longer requested, and an inner error if it cannot run.
async fn find(app: &App, order: &ReplicationJob) -> Result<Option<Result<(RequestedReplication, Owner)>>> {
    let settings = app.auth.settings();
    let read = |stored: &JsonText, owner: Owner| {
        let asked = RequestedReplication::read_with(stored, &settings.rows)?;
        if [&asked.source, &asked.target].into_iter().any(|side| matches!(side.endpoint, Endpoint::Local(_))) {
            owner.require_rights(&app.auth)?;
        }
        Ok((asked, owner))
    };
    match &order.origin {
        Origin::Request(request, owner) => Ok(Some(read(&request.0, owner.clone()))),
        Origin::Document { database, id, .. } => {
            let found = documents::find(app, database, id).await?;
            let found = found.filter(|document| document.is_to_run());
            Ok(found.map(|document| read(&document.body, Owner::of_document(&app.auth, &document.body))))
        }
    }
}

/// Ends a replication, also in its document if it has one.
async fn end(app: &App, order: &ReplicationJob, done: JobProgress, outcome: &Outcome) -> End {
    let Origin::Document { database, id, definition } = &order.origin else { return End::Removed };
    match documents::set_outcome(app, database, id, definition, outcome).await {
        Ok(()) => {
            if matches!(outcome, Outcome::Failed(_)) {
                app.statistics.failed_runs.add(1);
            }
            End::Removed
        }
        Err(error) => crash(done, &error),
    }
}

/// Sets the id of the replication as the name of its job. The inner error is the id, and the job that already has it.
async fn name(
    app: &Arc<App>,
    run: &Run,
    asked: &RequestedReplication,
    owner: &Owner,
) -> Result<std::result::Result<String, (String, JobId)>> {
    let id = id(app, asked, owner).await?;
    if run.job.name.as_ref() == Some(&id) {
        return Ok(Ok(id));
    }
    Ok(match run.layer.jobs().rename(&run.hold, Some(&id)).await? {
        None => Ok(id),
        Some(another) => Err((id, another)),
    })
}

/// Completes when a document's replication gets another id because the function of its source has changed: its
/// checkpoints say nothing about what the new function accepts. As in CouchDB, a request's replication continues.
async fn renamed(app: &Arc<App>, order: &ReplicationJob, asked: &RequestedReplication, owner: &Owner, known: &str) {
    if asked.known_id(&app.uuid).is_some() || matches!(order.origin, Origin::Request(..)) {
        return pending().await;
    }
    loop {
        tokio::time::sleep(Rotation::read(&app.auth.settings().rows).interval).await;
        if id(app, asked, owner).await.is_ok_and(|id| id != known) {
            return;
        }
    }
}

/// The end of a run if another job already runs the replication, as in CouchDB: of two documents the second one fails;
/// a document waits for the end of a request's replication.
async fn runs_elsewhere(
    app: &App,
    run: &Run,
    order: &ReplicationJob,
    done: &JobProgress,
    (id, another): &(String, JobId),
) -> Result<End> {
    let another = run.layer.jobs().get(another).await?;
    let Some(another) = another.and_then(|job| ReplicationJob::read(&job.data)) else { return Ok(End::Again(PAUSE)) };
    let of = match &order.origin {
        Origin::Document { id: document, .. } => format!("Replication `{id}` specified by document `{document}`"),
        Origin::Request(..) => format!("Replication `{id}`"),
    };
    let (reason, is_request) = match another.origin {
        Origin::Document { database, id, .. } => {
            (format!("{of} already started, triggered by document `{id}` from db `{database}`"), false)
        }
        Origin::Request(..) => {
            let reason = "already running as a transient replication, started via `_replicate` API endpoint";
            (format!("{of} {reason}"), true)
        }
    };
    match order.origin {
        Origin::Document { .. } if !is_request => Ok(end(app, order, done.clone(), &Outcome::Failed(reason)).await),
        // It continues in the other job.
        Origin::Request(..) if !order.is_awaited() => Ok(End::Removed),
        _ => Err(ApiError::new(StatusCode::CONFLICT, "conflict", reason)),
    }
}

/// Ends a replication for which clients wait. Its next run removes the job.
async fn answered(app: &App, run: &Run, ended: &Result<Report>) -> End {
    if ended.is_err() {
        app.statistics.failed_runs.add(1);
    }
    // It no longer runs.
    if let Err(error) = run.layer.jobs().rename(&run.hold, None).await {
        tracing::debug!(job = ?run.job.id, %error, "a replication that has ended keeps its id");
    }
    End::Answered(JobProgress { answer: Some(Answer::new(ended)), ..JobProgress::default() }.write(), KEPT)
}

fn crash(mut done: JobProgress, error: &ApiError) -> End {
    // CouchDB writes these names before the reasons.
    let reason = match error.error() {
        name @ ("db_not_found" | "unauthorized" | "forbidden") => format!("{name}: {}", error.reason()),
        _ => error.reason().to_owned(),
    };
    done.crashed(&reason, now_ms());
    End::Failed(Some(done.write()), backoff(done.errors))
}
