//! Builds indexes: a job in the store of the database.
//!
//! Every edit that defines an index adds the job ([`model::BUILD_JOBS`]), and the last batch of the build removes it.
//! This module runs the job, and waits for it.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use jobs::{Job, JobId, JobState, Priority};
use model::JsonText;
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::run::{End, Run, build_progress, now_ms, woken};

/// Runs a job: one batch after the other, each in a transaction of its own.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    let (say, heard) = watch::channel(Vec::new());
    let built = tokio::select! {
        built = build(&app, &run, &say) => built,
        // A batch in the background may stand still, and somebody may wait for the next run.
        () = run.stopped(), if run.is_in_background() => Ok(false),
        never = run.report(heard) => match never {},
    };
    run.end_of(built)
}

/// Builds to the end. Returns false if the run was stopped before the end.
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
    database.request_build_soon().await?;
    wait_for(app, database, &database.build_job()).await
}

/// Waits until a job of a database is gone.
///
/// # Errors
/// The error of a run that failed. The job is run again later.
pub(crate) async fn wait_for(app: &App, database: &Documents, id: &JobId) -> Result<()> {
    watch_job(app, database, id, true).await
}

/// The same. With `is_urgent`, a build does not stay in the background.
async fn watch_job(app: &App, database: &Documents, id: &JobId, is_urgent: bool) -> Result<()> {
    let jobs = database.jobs();
    loop {
        let (job, changed) = jobs.watch(id).await?;
        let Some(job) = job else { return Ok(()) };
        if let Some(error) = failure_of(&job, now_ms()) {
            return Err(error);
        }
        app.require_jobs()?;
        if is_urgent && job.id == database.build_job() && job.priority == Priority::Low {
            // An edit has defined another index meanwhile.
            database.request_build_soon().await?;
        }
        tokio::select! {
            () = app.stopping() => return Err(ApiError::unavailable("The server is shutting down.")),
            () = woken(changed) => {}
        }
    }
}

/// The same in the background, for at most `time`, so that the indexes of a small database are built before their client
/// gets its answer.
pub(crate) async fn wait_a_little(app: &App, database: &Documents, time: Duration) {
    let built = async {
        database.request_build().await?;
        watch_job(app, database, &database.build_job(), false).await
    };
    if let Ok(Err(error)) = tokio::time::timeout(time, built).await {
        tracing::debug!(database = database.name(), ?error, "indexes are not built yet");
    }
}

/// Longest pause, after lost runs, for which a request waits.
const SHORT_PAUSE_MS: u64 = 30_000;

/// Why a request does not wait for the job's next run: the error of its last run, or a long pause after runs that were
/// lost with their servers.
fn failure_of(job: &Job, now_ms: u64) -> Option<ApiError> {
    if job.state != JobState::Pending {
        return None;
    }
    let pause_ms = job.scheduled_ms.saturating_sub(now_ms);
    if job.lost > 0 && pause_ms > SHORT_PAUSE_MS {
        let (lost, seconds) = (job.lost, pause_ms.div_ceil(1_000));
        let reason = format!("The server ended {lost} times while it built this. It tries again in {seconds} s.");
        return Some(ApiError::unavailable(reason));
    }
    let progress = job.progress.as_ref()?;
    let progress = JsonText::parse(&progress.bytes).ok()?;
    let text = |name| Some(progress.get(name)?.as_str()?.into_owned());
    let reason = format!("An index cannot be built: {}: {}", text("error")?, text("reason")?);
    Some(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pause_after_lost_runs_is_not_waited_for() {
        let job = |state, lost, scheduled_ms| Job {
            id: JobId::new("build", "db"),
            state,
            priority: Priority::Normal,
            scheduled_ms,
            attempts: 1,
            lost,
            is_resubmitted: false,
            name: None,
            data: Default::default(),
            progress: None,
            run: None,
        };
        let refused =
            |job: Job| failure_of(&job, 1_000).map(|error| (error.status().as_u16(), error.reason().to_owned()));
        let (status, reason) = refused(job(JobState::Pending, 6, 65_000)).unwrap();
        assert_eq!(status, 503);
        assert_eq!(reason, "The server ended 6 times while it built this. It tries again in 64 s.");
        assert_eq!(refused(job(JobState::Pending, 2, 5_000)), None, "a short pause");
        assert_eq!(refused(job(JobState::Pending, 0, 65_000)), None, "a pause for another reason");
        assert_eq!(refused(job(JobState::Running, 6, 65_000)), None);
    }
}
