//! The job that builds the indexes of a database.
//!
//! ```text
//!  an edit defines an index ──► job ── a server builds ──► the last index is active or deleted: no job
//! ```
//!
//! The transactions that change which indexes are active add and remove the job, so it exists exactly as long as an
//! index is not active, unless a program removed it; [`Documents::request_build`] adds it again. One job builds all
//! indexes of its database. Its priority is low until somebody waits for it.

use std::future::Future;

use jobs::{Hold, Job, JobId, JobState, Jobs, NewJob, Priority, Registry};
use json::JsonWriter;
use kv_api::{Database, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::keys::Key;
use crate::layer::LayerState;
use crate::rows::instance::Indexes;
use crate::write::txids::Outcome;

/// The kind of these jobs, which is CouchDB's name for such a task. Their ids are the names of the databases.
pub const BUILD_JOBS: &str = "indexer";

impl<D: Database> LayerState<D> {
    pub(crate) fn registry(&self) -> Registry {
        Registry::new(Key::Jobs.under(&self.guard.root))
    }

    /// Adds or removes a database's job, as this change of its indexes requires.
    pub(crate) async fn plan_build<T: Transaction>(
        &self,
        transaction: &T,
        name: &str,
        before: &Indexes,
        after: &Indexes,
    ) -> Result<()> {
        if after.adds_work_to(before) {
            self.registry().add(transaction, &job_of(name), &new_job(name, Priority::Low)).await?;
        } else if before.are_to_build() && !after.are_to_build() {
            self.registry().remove(transaction, &job_of(name)).await?;
        }
        Ok(())
    }
}

impl<D: Database> Documents<D> {
    /// The registry of the store's jobs.
    pub fn jobs(&self) -> Jobs<D> {
        Jobs::new(self.engine().clone(), self.shared.registry())
    }

    /// The job that builds the database's indexes, while there is something to build.
    pub fn build_job(&self) -> JobId {
        job_of(self.name())
    }

    /// Makes sure that a job exists if there is something to build. A failed job will be run again at once.
    ///
    /// # Errors
    /// 404 if the database is gone, and the store's errors.
    pub async fn request_build(&self) -> Result<()> {
        self.request_build_with(Priority::Low).await
    }

    /// The same for somebody who waits for the build. Then it does not run in the background any more.
    ///
    /// # Errors
    /// As [`request_build`](Self::request_build).
    pub async fn request_build_soon(&self) -> Result<()> {
        self.request_build_with(Priority::Normal).await
    }

    async fn request_build_with(&self, priority: Priority) -> Result<()> {
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable).await?;
                if !instance.indexes.are_to_build() {
                    return Ok(Outcome::ReadOnly(()));
                }
                let (registry, id) = (self.shared.registry(), self.build_job());
                let job = registry.get(&transaction, &id, Read::Serializable).await?;
                // The higher one of two priorities is the lesser.
                let priority = job.as_ref().map_or(priority, |job| job.priority.min(priority));
                if job.is_some_and(|job| is_on_its_way(&job) && job.priority == priority) {
                    return Ok(Outcome::ReadOnly(()));
                }
                registry.add(&transaction, &id, &new_job(self.name(), priority)).await?;
                Ok(Outcome::Write(()))
            })
            .await
    }

    /// Removes the job in a transaction after which there is nothing to build.
    pub(super) async fn end_build(&self, transaction: &D::Transaction) -> Result<()> {
        self.shared.registry().remove(transaction, &self.build_job()).await?;
        Ok(())
    }
}

/// Makes sure that a run still has its job. A caller without a job may always write.
pub(crate) fn checked<T: Transaction>(
    hold: Option<&Hold>,
    transaction: &T,
) -> impl Future<Output = Result<()>> + Send + use<T> {
    let check = hold.map(|hold| hold.check(transaction));
    async move {
        match check {
            Some(check) => Ok(check.await?),
            None => Ok(()),
        }
    }
}

/// Whether a job is running, or waits for its first run.
fn is_on_its_way(job: &Job) -> bool {
    match job.state {
        JobState::Running => true,
        JobState::Pending => job.attempts == 0,
        JobState::Finished => false,
    }
}

fn job_of(name: &str) -> JobId {
    JobId::new(BUILD_JOBS, name)
}

fn new_job(name: &str, priority: Priority) -> NewJob {
    let mut data = Vec::new();
    let mut json = JsonWriter::new(&mut data);
    json.begin_object().name("task").begin_object().name("database").str(name).end_object().end_object();
    NewJob { data: data.into(), priority, ..NewJob::default() }
}
