//! A job, as the code that runs it sees it.

use std::convert::Infallible;
use std::time::Duration;

use jobs::{Hold, Job, Jobs};
use kv_api::AnyDatabase;
use model::{Environment, SystemEnvironment};
use tokio::sync::watch;

/// The least time between two reports of a run.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// One run of a job.
#[derive(Debug)]
pub(crate) struct Run {
    /// The job as it was accepted.
    pub(crate) job: Job,
    /// The run's right to the job, which each of its writes to the server's store checks.
    pub(crate) hold: Hold,
    jobs: Jobs<AnyDatabase>,
    /// Turns true when the run should stop: it has lost its job, or somebody added the job again.
    should_stop: watch::Receiver<bool>,
}

/// How a run ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The job is done; what the run says at its end.
    Finished(Vec<u8>),
    /// The job is to be run again, after this time.
    Again(Duration),
}

impl Run {
    pub(crate) fn new(job: Job, hold: Hold, jobs: Jobs<AnyDatabase>, should_stop: watch::Receiver<bool>) -> Self {
        Run { job, hold, jobs, should_stop }
    }

    /// Whether the run has lost its job, or the job was added again meanwhile: with other data, as a rule.
    pub(crate) fn should_stop(&self) -> bool {
        *self.should_stop.borrow() || self.hold.is_lost()
    }

    /// Says how far the run is whenever `said` changes, not too often. It never ends: run it beside the work.
    pub(crate) async fn report(&self, mut said: watch::Receiver<Vec<u8>>) -> Infallible {
        loop {
            let progress = said.borrow_and_update().clone();
            if !progress.is_empty()
                && let Err(error) = self.jobs.update(&self.hold, &progress, now_ms()).await
            {
                tracing::debug!(job = ?self.job.id, %error, "a run cannot say how far it is");
            }
            tokio::time::sleep(BETWEEN_REPORTS).await;
            if said.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends the run in the registry.
    pub(crate) async fn end(&self, end: &End) -> jobs::Result<()> {
        match end {
            End::Finished(said) => self.jobs.finish(&self.hold, Some(said), now_ms()).await,
            End::Again(after) => self.jobs.resubmit(&self.hold, now_ms() + after.as_millis() as u64).await,
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemEnvironment.now_ms()
}
