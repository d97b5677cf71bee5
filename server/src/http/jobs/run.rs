//! The interface of a running job.

use std::convert::Infallible;
use std::time::Duration;

use jobs::{Hold, Job, Jobs};
use kv_api::AnyDatabase;
use model::{Environment, Error, ErrorKind, Layer, NotFound, SystemEnvironment};
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::wire::response;

/// Minimum time between two progress reports of a run.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// Longest pause before a failed job is run again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// One run of a job.
#[derive(Debug)]
pub(crate) struct Run {
    /// The job as it was accepted.
    pub(crate) job: Job,
    /// The run's hold on the job. Each of its writes to the job's store checks it.
    pub(crate) hold: Hold,
    /// The store that has the job, at the run's pace.
    pub(crate) layer: Layer<AnyDatabase>,
    /// The registry of that store. Its transactions are never in the background: they are small, and other runs and
    /// clients may wait for the end of this one.
    jobs: Jobs<AnyDatabase>,
    is_in_background: bool,
    /// Turns true when the run should stop: it lost its job, or the job was added again.
    should_stop: watch::Receiver<bool>,
}

/// The end of a run.
#[derive(Debug)]
pub(crate) enum End {
    /// The job is done, with this result.
    Finished(Vec<u8>),
    /// The job is done and removed, since nobody needs its result.
    Removed,
    /// The job must be run again after this time.
    Again(Duration),
    /// The run ended with this progress, the answer for waiting clients or the result. The job must be run again after
    /// this time.
    Answered(Vec<u8>, Duration),
    /// The run failed, with this progress if it says how. The job must be run again after this time.
    Failed(Option<Vec<u8>>, Duration),
}

impl Run {
    /// A run of a job of `store`. `is_in_background`: whether its work yields to that of others.
    pub(crate) fn new(
        job: Job,
        hold: Hold,
        store: &Layer<AnyDatabase>,
        is_in_background: bool,
        should_stop: watch::Receiver<bool>,
    ) -> Self {
        let layer = if is_in_background { store.in_background() } else { store.clone() };
        Run { job, hold, layer, jobs: store.jobs(), is_in_background, should_stop }
    }

    /// Whether its work yields to that of others.
    pub(crate) fn is_in_background(&self) -> bool {
        self.is_in_background
    }

    /// The database of some store, at the run's pace. On behalf of no client.
    pub(crate) async fn database(&self, app: &App, name: &str) -> Result<Documents> {
        let database = app.databases.stores.database(name).await?.unvalidated();
        Ok(if self.is_in_background { database.in_background() } else { database })
    }

    /// Whether the run has lost its job, or the job was added again meanwhile, usually with other data.
    pub(crate) fn should_stop(&self) -> bool {
        *self.should_stop.borrow() || self.hold.is_lost()
    }

    /// Stores the progress whenever `said` changes, but not too often. Never returns: run it beside the work.
    pub(crate) async fn report(&self, mut said: watch::Receiver<Vec<u8>>) -> Infallible {
        loop {
            let progress = said.borrow_and_update().clone();
            // The first progress is empty, and the next one is stored at once.
            if !progress.is_empty() {
                if let Err(error) = self.jobs.update(&self.hold, &progress, now_ms()).await {
                    tracing::debug!(job = ?self.job.id, %error, "cannot store the progress of a run");
                }
                tokio::time::sleep(BETWEEN_REPORTS).await;
            }
            if said.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Completes when the run or the server should stop.
    pub(crate) async fn stopped_or_ending(&self, app: &App) {
        tokio::select! {
            () = self.stopped() => {}
            () = app.stopping() => {}
        }
    }

    /// Completes when the run should stop.
    pub(crate) async fn stopped(&self) {
        // An error means that the run is no longer supervised.
        let _ = self.should_stop.clone().wait_for(|should_stop| *should_stop).await;
    }

    /// The end of a run that processes batches of a database. `is_done`: whether its last batch is done.
    pub(crate) fn end_of(&self, is_done: model::Result<bool>) -> End {
        match is_done {
            Ok(true) => End::Removed,
            Ok(false) => End::Again(Duration::ZERO),
            Err(error) => match error.kind() {
                // The database or its design document is gone, or the database is in another store, which has its own
                // job.
                ErrorKind::NotFound(NotFound::Database | NotFound::Missing | NotFound::Deleted)
                | ErrorKind::Moved(_) => End::Removed,
                // The job was taken over, or removed by the last batch.
                ErrorKind::JobLost => End::Again(Duration::ZERO),
                _ => {
                    tracing::warn!(job = ?self.job.id, %error, "a job failed, and will be run again");
                    End::Failed(Some(failure(&error)), backoff(self.job.attempts))
                }
            },
        }
    }

    /// Ends the run in the registry.
    pub(crate) async fn end(&self, end: &End) -> jobs::Result<()> {
        let jobs = &self.jobs;
        let after = |pause: &Duration| now_ms().saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        match end {
            End::Finished(said) => jobs.finish(&self.hold, Some(said), now_ms()).await,
            End::Removed => jobs.finish_and_remove(&self.hold).await,
            End::Again(pause) => jobs.resubmit(&self.hold, after(pause)).await,
            End::Failed(None, pause) => jobs.resubmit(&self.hold, after(pause)).await,
            End::Answered(said, pause) | End::Failed(Some(said), pause) => {
                jobs.update(&self.hold, said, now_ms()).await?;
                jobs.resubmit(&self.hold, after(pause)).await
            }
        }
    }
}

/// The progress of a run that failed.
fn failure(error: &Error) -> Vec<u8> {
    response::object_text(|json| {
        json.name("error").str(error.error()).name("reason").str(&peer::cut(&error.reason(), peer::MOST_TEXT));
    })
}

/// Pause before a job that failed this many times is run again.
pub(crate) fn backoff(attempts: u64) -> Duration {
    Duration::from_secs(1 << attempts.min(10)).min(LONGEST_BACKOFF)
}

/// Pause after an error of the store.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Waits until a watched job may have changed; the caller then reads it again. After a failed watch it pauses, so that
/// callers do not read all the time.
pub(crate) async fn woken(changed: impl Future<Output = kv_api::Result<()>>) {
    if let Err(error) = changed.await {
        tracing::debug!(%error, "a job cannot be watched");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemEnvironment.now_ms()
}

/// The progress of a job that builds an index, as `_active_tasks` shows it. `expected` may be too low.
pub(crate) fn build_progress(done: u64, expected: u64) -> Vec<u8> {
    response::object_text(|json| {
        json.name("changes_done").u64(done).name("total_changes").u64(expected.max(done));
        json.name("progress").u64((done * 100).checked_div(expected).unwrap_or(0).min(100));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_shows_how_far_its_build_is() {
        let shown = |done, expected| String::from_utf8(build_progress(done, expected)).unwrap();
        assert_eq!(shown(0, 0), r#"{"changes_done":0,"total_changes":0,"progress":0}"#);
        assert_eq!(shown(20, 30), r#"{"changes_done":20,"total_changes":30,"progress":66}"#);
        assert_eq!(shown(1_000, 1_500), r#"{"changes_done":1000,"total_changes":1500,"progress":66}"#);
        assert_eq!(shown(40, 30), r#"{"changes_done":40,"total_changes":40,"progress":100}"#, "some came meanwhile");
    }

    #[test]
    fn pauses_grow_to_their_limit() {
        let pauses: Vec<u64> = [1, 2, 3, 9, u64::MAX].map(|attempts| backoff(attempts).as_secs()).into();
        assert_eq!(pauses, [2, 4, 8, 300, 300]);
    }
}
