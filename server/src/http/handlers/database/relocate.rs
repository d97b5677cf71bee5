//! `/{db}/_couch_layer/relocate`: moves a database to another store while it is served.
//!
//! ```text
//!   POST    starts a relocation, or joins the running one    {"to": "lsm:/srv/new", "verify": true}
//!   GET     its state
//!   DELETE  stops it, and removes the copy                   ?to=lsm:/srv/new
//! ```
//!
//! Relocating and abandoning are jobs in the server's own store ([`jobs`]). One replaces the other, so two runs never
//! work on one database. A restarted server continues its relocations; another server of the same cluster can continue
//! them too.
//!
//! During the last step, usually a moment, writes wait at a gate; then they continue in the new store. Waiting feeds
//! are woken, and continue there by themselves.
//!
//! A store is a folder of the server's machine, or a cluster that it can reach. Only an administrator may name one. On
//! a server without an administrator nobody may.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use jobs::{Job, JobId, JobState, NewJob};
use kv_api::error::{BATCH_TRANSACTION_THROTTLED, TRANSACTION_TIMED_OUT};
use kv_api::{Read, RetryError, Runner};
use model::{ErrorKind, JsonText, JsonWriter, RelocatePhase, RelocateProgress};
use tokio::sync::{OwnedRwLockWriteGuard, watch};

use crate::engine::{EngineUrl, IfMissing};
use crate::http::app::App;
use crate::http::app::stores::Store;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::run::{End, PAUSE, Run, woken};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};
use crate::relocation::{RequestedRelocation, Status, phase_name};

/// The kind of these jobs. Their ids are the names of the databases.
pub(crate) const KIND: &str = "relocation";

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RelocationJob {
    /// The store with the database; `None` for the server's own store if its URL is unknown.
    from: Option<String>,
    asked: RequestedRelocation,
    /// Whether the relocation is to be abandoned.
    abandons: bool,
}

impl RelocationJob {
    fn write(&self, name: &str) -> Vec<u8> {
        let mut text = Vec::new();
        let mut json = JsonWriter::new(&mut text);
        json.begin_object();
        json.name("task").begin_object().name("database").str(name).name("target").str(&self.asked.to).end_object();
        if let Some(from) = &self.from {
            json.name("from").str(from);
        }
        json.name("to").str(&self.asked.to).name("verify").bool(self.asked.verify);
        json.name("delete_source").bool(self.asked.delete_source).name("abandon").bool(self.abandons).end_object();
        text
    }

    fn read(data: &[u8]) -> Option<RelocationJob> {
        let json = JsonText::parse(data).ok()?;
        let from = json.get("from").and_then(|from| Some(from.as_str()?.into_owned()));
        Some(RelocationJob {
            from,
            asked: RequestedRelocation::from_json(&json)?,
            abandons: json.get("abandon")?.as_bool()?,
        })
    }
}

/// The progress of a run, as `_active_tasks` shows it.
fn progress(at: RelocateProgress) -> Vec<u8> {
    response::object_text(|json| {
        let total = at.expected.max(at.documents);
        json.name("phase").str(phase_name(at.phase)).name("changes_done").u64(at.documents);
        json.name("total_changes").u64(total);
        json.name("progress").u64((at.documents * 100).checked_div(total).unwrap_or(0));
    })
}

/// The state of a relocation's job.
fn status_of(job: &Job) -> Status {
    let said = job.progress.as_ref().and_then(|said| JsonText::parse(&said.bytes).ok());
    if job.state == JobState::Finished {
        return said.and_then(|said| Status::from_json(&said)).unwrap_or(Status::None);
    }
    let number = |name| said.as_ref()?.get(name)?.as_u64();
    let phase = said.as_ref().and_then(|said| Status::phase(said.get("phase")?.as_str()?.as_ref()));
    Status::Running {
        phase: phase.unwrap_or(phase_name(RelocatePhase::Copying)),
        documents: number("changes_done").unwrap_or_default(),
        expected: number("total_changes").unwrap_or_default(),
    }
}

async fn job_of(app: &App, name: &str) -> Result<Option<Job>> {
    Ok(app.layer.jobs().get(&JobId::new(KIND, name)).await?)
}

/// Refuses all requests if the server has no administrator.
fn require_administrator(request: &Request) -> Result<()> {
    if request.app.auth.is_open_admin() {
        return Err(ApiError::forbidden(
            "naming a store needs an administrator, and this server has none; set COUCHDB_USER and \
             COUCHDB_PASSWORD, or relocate while it is stopped",
        ));
    }
    Ok(())
}

/// What [`status`] does.
pub(crate) const STATUS: Operation = Operation::new("The progress of the relocation.", &[Reply::object(200)]);

pub(crate) async fn status(request: &Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    let job = job_of(&request.app, name).await?;
    if job.is_none() {
        request.fresh_database(name).await?;
    }
    let order = job.as_ref().and_then(|job| RelocationJob::read(&job.data)).filter(|order| !order.abandons);
    Ok(response::object(|json| match (&job, order) {
        (Some(job), Some(order)) => {
            json.name("to").str(&order.asked.to);
            status_of(job).write(json);
        }
        _ => Status::None.write(json),
    }))
}

/// What [`begin`] does.
pub(crate) const BEGIN: Operation = Operation::new("Moves the database to another store.", &[Reply::done(202)])
    .bodies(&[Content::members(&[
        Param::text("to", "The URL of the store.").required(),
        Param::flag("verify", "Compares both before the move."),
        Param::flag("delete_source", "Deletes the database in the old store."),
    ])])
    .refusals(&[412, 501]);

pub(crate) async fn begin(request: &mut Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let asked = RequestedRelocation::from_json(&request.json_object().await?);
    let asked = asked.ok_or_else(|| {
        ApiError::bad_request("`to` must be the URL of a store; `verify` and `delete_source` are true or false")
    })?;
    let app = &request.app;
    let source = app.databases.stores.home(name).await?;
    let target = store(app, &asked.to, IfMissing::Create).await?;
    let (Some(from), Some(to)) = (source.url.clone(), target.url.clone()) else {
        return Err(ApiError::not_implemented("relocations from or to a store without a URL"));
    };
    if from == to {
        return Err(ApiError::precondition_failed("The database is in that store already."));
    }
    let order = RelocationJob {
        from: Some(from.to_string()),
        asked: RequestedRelocation { to: to.to_string(), ..asked },
        abandons: false,
    };
    let (jobs, id) = (app.layer.jobs(), JobId::new(KIND, name));
    let new = NewJob { data: order.write(name).into(), ..NewJob::default() };
    // A retry after an unknown result needs no check: it joins the job that an earlier attempt added.
    let is_joined = Runner::new(jobs.database()).run(|transaction, _| {
        let (registry, id, new) = (jobs.registry(), &id, &new);
        async move {
            match registry.get(&transaction, id, Read::Serializable).await? {
                Some(job) if job.state != JobState::Finished => Ok::<_, jobs::Error>(job.data == new.data),
                _ => registry.add(&transaction, id, new).await.map(|_| true),
            }
        }
    });
    if is_joined.await? {
        Ok(response::ok(StatusCode::ACCEPTED))
    } else {
        Err(ApiError::precondition_failed("Another relocation of the database is under way."))
    }
}

/// Runs a job.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    let name = &run.job.id.id;
    let outcome = match RelocationJob::read(&run.job.data) {
        None => Ok(Some(Status::Failed("the job's data cannot be read".to_owned()))),
        Some(order) if order.abandons => abandon_here(&app, name, &order).await.map(Some),
        Some(order) => relocate_here(&app, &run, name, &order).await,
    };
    match outcome {
        Ok(None) => End::Again(Duration::ZERO),
        Ok(Some(status)) => End::Finished(response::object_text(|json| status.write(json))),
        Err(error) => {
            // The job ends and is not tried again.
            app.statistics.failed_runs.add(1);
            End::Finished(response::object_text(|json| Status::Failed(error.reason().to_owned()).write(json)))
        }
    }
}

/// Moves the database. `None`: it was stopped, and the job must be continued.
async fn relocate_here(app: &Arc<App>, run: &Run, name: &str, order: &RelocationJob) -> Result<Option<Status>> {
    let source = source(app, order).await?;
    let target = store(app, &order.asked.to, IfMissing::Create).await?;
    let (Some(from), Some(to)) = (&source.url, &target.url) else {
        return Err(ApiError::not_implemented("relocations from or to a store without a URL"));
    };
    tracing::info!(database = %name, %from, %to, "a relocation begins");
    let options = order.asked.options(from, to);
    let gate = app.gates.set_up(name);
    let mut held: Option<OwnedRwLockWriteGuard<()>> = None;
    let mut gate_was_tried = false;
    let is_finishing = AtomicBool::new(false);
    let (say, heard) = watch::channel(Vec::new());
    let on_progress = |at: RelocateProgress| {
        say.send_replace(progress(at));
        if matches!(at.phase, RelocatePhase::Finishing | RelocatePhase::Leaving) {
            // From here on it is not stopped: that would leave the database closed.
            is_finishing.store(true, Ordering::SeqCst);
            if !std::mem::replace(&mut gate_was_tried, true) {
                held = gate.close();
            }
        } else if run.should_stop() || app.is_stopping() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let moved = tokio::select! {
        moved = model::relocate(&source.layer, &target.layer, name, &options, on_progress) => moved,
        () = stopped(app, run, &is_finishing) => Err(ErrorKind::Stopped.into()),
        never = run.report(heard) => match never {},
    };
    // Before the gate opens: waiting requests must not use the old handle.
    app.databases.forget(name);
    drop(held);
    match moved {
        Ok(report) => {
            tracing::info!(database = %name, moved = report.moved, documents = report.documents, "a relocation ends");
            Ok(Some(Status::Ended(report.into())))
        }
        Err(error) if *error.kind() == ErrorKind::Stopped => Ok(None),
        // The cluster had no room for the copy. The next run continues it.
        Err(error) if !is_finishing.load(Ordering::SeqCst) && had_no_room(&error) => {
            tracing::info!(database = %name, %error, "a relocation pauses");
            tokio::select! {
                () = stopped(app, run, &is_finishing) => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
            Ok(None)
        }
        Err(error) => {
            tracing::warn!(database = %name, %error, "a relocation ends");
            Ok(Some(Status::Failed(match error.kind() {
                ErrorKind::FileExists => "there is another database of this name in the target already".to_owned(),
                // The reason may name stores: only an administrator can read it.
                _ => error.reason().into_owned(),
            })))
        }
    }
}

/// Completes when a relocation should stop, also in the middle of a transaction: the copy is in the background and may
/// stand still. Never completes from the last step on.
async fn stopped(app: &App, run: &Run, is_finishing: &AtomicBool) {
    run.stopped_or_ending(app).await;
    if is_finishing.load(Ordering::SeqCst) {
        std::future::pending().await
    }
}

/// Whether the store gave no answer in time, or refused work in the background.
fn had_no_room(error: &model::Error) -> bool {
    let code = error.kv_error().map(kv_api::Error::code);
    matches!(code, Some(TRANSACTION_TIMED_OUT | BATCH_TRANSACTION_THROTTLED))
}

/// Abandons the relocation.
async fn abandon_here(app: &App, name: &str, order: &RelocationJob) -> Result<Status> {
    let source = source(app, order).await?;
    let target = store(app, &order.asked.to, IfMissing::Fail).await?;
    Ok(Status::Abandoned(model::abandon_relocation(&source.layer, &target.layer, name).await?))
}

/// The store that had the database when the relocation was requested.
async fn source(app: &App, order: &RelocationJob) -> Result<Store> {
    let own = app.databases.stores.own();
    match &order.from {
        Some(from) if own.url.as_ref().map(ToString::to_string).as_ref() != Some(from) => {
            store(app, from, IfMissing::Fail).await
        }
        _ => Ok(own),
    }
}

/// What [`abandon`] does.
pub(crate) const ABANDON: Operation =
    Operation::new("Abandons the relocation, and deletes its copy.", &[Reply::object(200), Reply::object(202)])
        .query(&[&[Param::text("to", "The URL of the store.")]])
        .refusals(&[412]);

pub(crate) async fn abandon(request: &Request, name: &str) -> Result<Response> {
    require_administrator(request)?;
    let app = &request.app;
    let job = job_of(app, name).await?;
    let under_way = job.as_ref().and_then(|job| RelocationJob::read(&job.data));
    let to = match (request.params.get("to"), &under_way) {
        (Some(to), _) => to.to_owned(),
        (None, Some(order)) => order.asked.to.clone(),
        (None, None) => return Err(ApiError::bad_request("`to` must be the URL of the relocation's target")),
    };
    let target = store(app, &to, IfMissing::Fail).await?;
    let to = target.url.as_ref().map(ToString::to_string);
    let is_over = job.is_none_or(|job| job.state == JobState::Finished);
    if under_way.is_some_and(|order| !is_over && Some(&order.asked.to) != to.as_ref()) {
        return Err(ApiError::precondition_failed("The relocation under way goes to another store."));
    }
    let source = match app.databases.stores.home(name).await {
        // The database was dropped; its copy remains.
        Err(error) if error.is_no_database() => app.databases.stores.own(),
        found => found?,
    };
    if source.url == target.url {
        return Err(ApiError::precondition_failed("The database has moved already."));
    }
    let asked = RequestedRelocation { to: to.unwrap_or_default(), verify: false, delete_source: false };
    let order = RelocationJob { from: source.url.as_ref().map(ToString::to_string), asked, abandons: true };
    let (jobs, id) = (app.layer.jobs(), JobId::new(KIND, name));
    let new = NewJob { data: order.write(name).into(), ..NewJob::default() };
    jobs.add(&id, &new).await?;
    loop {
        let (job, changed) = jobs.watch(&id).await?;
        match job {
            Some(job) if job.data == new.data && job.state != JobState::Finished => {}
            Some(job) if job.data == new.data => {
                return match status_of(&job) {
                    Status::Abandoned(abandoned) => Ok(response::object(|json| {
                        json.name("ok").bool(true).name("abandoned").bool(abandoned);
                    })),
                    Status::Failed(reason) => Err(ApiError::precondition_failed(reason)),
                    _ => Err(ApiError::internal()),
                };
            }
            _ => return Err(ApiError::precondition_failed("Another relocation of the database is under way.")),
        }
        app.require_jobs()?;
        tokio::select! {
            () = app.stopping() => return Err(ApiError::unavailable("The server is stopping.")),
            () = woken(changed) => {}
        }
    }
}

/// The store that a client names.
async fn store(app: &App, url: &str, if_missing: IfMissing) -> Result<Store> {
    let url: EngineUrl =
        url.parse().map_err(|error: crate::engine::EngineError| ApiError::bad_request(error.to_string()))?;
    if url == EngineUrl::Memory {
        return Err(ApiError::bad_request("mem: keeps nothing when the server stops"));
    }
    if !url.is_absolute() {
        return Err(ApiError::bad_request("the folder must be an absolute path on the server's machine"));
    }
    let opened = app.databases.stores.open(&url, if_missing).await;
    opened.map_err(|error| {
        tracing::warn!(%error, store = %url, "a named store cannot be opened");
        // Only an administrator, who named the store, reads this.
        ApiError::precondition_failed(error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_is_asked_is_read_back() {
        for (from, abandons) in [(None, true), (Some("lsm:/a \"b\"".to_owned()), false)] {
            let asked = RequestedRelocation { to: "lsm:/c".to_owned(), verify: true, delete_source: false };
            let order = RelocationJob { from, asked, abandons };
            assert_eq!(RelocationJob::read(&order.write("db")), Some(order));
        }
        for wrong in [&b""[..], b"{}", b"[1]", br#"{"to":1,"abandon":true}"#, br#"{"to":"a"}"#] {
            assert_eq!(RelocationJob::read(wrong), None);
        }
    }
}
