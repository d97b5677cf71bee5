//! Builds indexes: a job in the store of the database.
//!
//! Every edit that brings an index adds the job ([`model::BUILD_JOBS`]), and the last batch of the build removes it. This
//! module runs the job, and waits for it.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use jobs::{Job, JobId, State};
use model::JsonText;
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::app::jobs::{End, Run, build_progress, woken};
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};

/// Runs a job: one batch after the other, each in a transaction of its own.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    let (say, heard) = watch::channel(Vec::new());
    let built = tokio::select! {
        built = build(&app, &run, &say) => built,
        never = run.report(heard) => match never {},
    };
    run.end_of(built)
}

/// Builds to the end. Returns false if the run was stopped and the build must be continued.
async fn build(app: &App, run: &Run, say: &watch::Sender<Vec<u8>>) -> model::Result<bool> {
    let mut build = run.layer.database(&run.job.id.id).await?.index_build();
    while !run.should_stop() && !app.is_stopping() {
        match build.next(usize::MAX, Some(&run.hold), |batch| app.ahead(batch)).await? {
            Some(done) => drop(say.send_replace(build_progress(done.documents, done.expected))),
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// Waits until the indexes of a database are built.
///
/// # Errors
/// The error of a run that failed. The job is run again later.
pub(crate) async fn wait(app: &App, database: &Documents) -> Result<()> {
    database.request_build().await?;
    wait_for(app, database, &database.build_job()).await
}

/// Waits until a job of a database is gone.
///
/// # Errors
/// The error of a run that failed. The job is run again later.
pub(crate) async fn wait_for(app: &App, database: &Documents, id: &JobId) -> Result<()> {
    let jobs = database.jobs();
    loop {
        let (job, changed) = jobs.watch(id).await?;
        let Some(job) = job else { return Ok(()) };
        if let Some(error) = failure_of(&job) {
            return Err(error);
        }
        app.require_jobs()?;
        tokio::select! {
            () = app.stopping() => return Err(ApiError::unavailable("The server is shutting down.")),
            () = woken(changed) => {}
        }
    }
}

/// The same, for at most `time`, so that the indexes of a small database are built when their client gets its answer.
pub(crate) async fn wait_a_little(app: &App, database: &Documents, time: Duration) {
    if let Ok(Err(error)) = tokio::time::timeout(time, wait(app, database)).await {
        tracing::debug!(database = database.name(), ?error, "indexes are not built yet");
    }
}

/// The error of the last run of a job that waits for its next run.
fn failure_of(job: &Job) -> Option<ApiError> {
    let progress = job.progress.as_ref().filter(|_| job.state == State::Pending)?;
    let progress = JsonText::parse(&progress.bytes).ok()?;
    let text = |name| Some(progress.get(name)?.as_str()?.into_owned());
    let reason = format!("An index cannot be built: {}: {}", text("error")?, text("reason")?);
    Some(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason))
}
