//! A hold: the right of one run to its job.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kv_api::{Database, Read, Runner, Transaction};

use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRow, Progress, Token};
use crate::registry::{End, Jobs, RETRIES, Registry};

/// The right of one run to its job. The run loses it when it ends, when the job is removed, and when another server
/// takes the job over.
///
/// Every transaction in which the run writes calls [`check`](Self::check) or another method with a transaction, and
/// fails with its error. This does not fence the run's work outside the store: for that, the run calls
/// [`is_lost`](Self::is_lost) from time to time.
#[derive(Clone)]
pub struct Hold {
    registry: Registry,
    id: JobId,
    token: Token,
    lease_is_lost: Arc<AtomicBool>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("id", &self.id).field("number", &self.token.number).finish_non_exhaustive()
    }
}

impl Hold {
    pub(crate) fn new(registry: Registry, id: JobId, token: Token, lease_is_lost: Arc<AtomicBool>) -> Self {
        Hold { registry, id, token, lease_is_lost }
    }

    /// The id of the job.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// Whether this run held the job when `job` was read.
    pub fn has(&self, job: &Job) -> bool {
        let run = job.run.as_ref().filter(|_| job.id == self.id);
        run.is_some_and(|run| (run.lease, run.number) == (self.token.lease, self.token.number))
    }

    /// Whether the server knows that it lost its lease, and the job with it.
    pub fn is_lost(&self) -> bool {
        self.lease_is_lost.load(Ordering::Acquire)
    }

    /// Ensures that this run holds the job, also at the transaction's commit. The call issues the read, so together
    /// with other reads it costs no extra round trip.
    ///
    /// # Errors
    /// [`Error::Lost`]; the store's errors; a row that cannot be read.
    pub fn check<T: Transaction>(&self, transaction: &T) -> impl Future<Output = Result<()>> + Send + use<T> {
        let row = self.row(transaction);
        async move { row.await.map(drop) }
    }

    fn row<T: Transaction>(&self, transaction: &T) -> impl Future<Output = Result<JobRow>> + Send + use<T> {
        let row = self.registry.row(transaction, &self.id, Read::Serializable);
        let token = self.token;
        async move { row.await?.filter(|row| row.is_run_by(&token)).ok_or(Error::Lost) }
    }

    /// Stores the progress of the run: by convention a JSON object, at most 90,000 bytes.
    ///
    /// # Errors
    /// Like [`check`](Self::check).
    pub async fn update<T: Transaction>(&self, transaction: &T, progress: &[u8], now_ms: u64) -> Result<()> {
        self.check(transaction).await?;
        transaction.set(self.registry.keys.progress(&self.id), Progress::write(now_ms, progress));
        Ok(())
    }

    /// Replaces the name of the job. If another job of the kind has the new name, returns that job, and this one has no
    /// name.
    ///
    /// # Errors
    /// Like [`check`](Self::check), also if the job was added again.
    pub async fn rename<T: Transaction>(&self, transaction: &T, name: Option<&str>) -> Result<Option<JobId>> {
        // A job that was added again has the name from that request.
        let row = self.row(transaction).await?;
        if row.is_resubmitted {
            return Err(Error::Lost);
        }
        let another = self.registry.rename(transaction, &self.id, row.name.as_deref(), name).await?;
        let name = name.filter(|_| another.is_none()).map(str::to_owned);
        transaction.set(self.registry.keys.job(&self.id), JobRow { name, ..row }.write());
        Ok(another)
    }

    /// Ends the run. The job stays, as finished. If it was added again meanwhile, it becomes pending.
    ///
    /// # Errors
    /// Like [`check`](Self::check). After an unknown commit result, [`Error::Lost`] may mean that the run has ended as
    /// requested.
    pub async fn finish<T: Transaction>(&self, transaction: &T, progress: Option<&[u8]>, now_ms: u64) -> Result<()> {
        let progress = progress.map(|bytes| (bytes, now_ms));
        self.end(transaction, &End::Finished { progress }).await
    }

    /// Ends the run and removes the job. If the job was added again meanwhile, it becomes pending.
    ///
    /// # Errors
    /// Like [`finish`](Self::finish).
    pub async fn finish_and_remove<T: Transaction>(&self, transaction: &T) -> Result<()> {
        self.end(transaction, &End::Removed).await
    }

    /// Ends the run. The job becomes pending again, and is not run before `scheduled_ms`. If it was added again
    /// meanwhile, the schedule of that request applies.
    ///
    /// # Errors
    /// Like [`finish`](Self::finish).
    pub async fn resubmit<T: Transaction>(&self, transaction: &T, scheduled_ms: u64) -> Result<()> {
        self.end(transaction, &End::Again { scheduled_ms }).await
    }

    async fn end<T: Transaction>(&self, transaction: &T, end: &End<'_>) -> Result<()> {
        let row = self.row(transaction).await?;
        self.registry.end(transaction, &self.id, &row, end);
        Ok(())
    }
}

/// The same operations, each in its own transaction. After an unknown commit result they find out what was committed.
impl<D: Database> Jobs<D> {
    /// [`Hold::update`].
    ///
    /// # Errors
    /// Like [`Hold::check`].
    pub async fn update(&self, hold: &Hold, progress: &[u8], now_ms: u64) -> Result<()> {
        let run = Runner::new(self.database()).option(RETRIES);
        run.run(|transaction, _| async move { hold.update(&transaction, progress, now_ms).await }).await
    }

    /// [`Hold::rename`].
    ///
    /// # Errors
    /// Like [`Hold::rename`].
    pub async fn rename(&self, hold: &Hold, name: Option<&str>) -> Result<Option<JobId>> {
        let run = Runner::new(self.database()).option(RETRIES);
        run.run(|transaction, _| async move { hold.rename(&transaction, name).await }).await
    }

    /// Forgets the earlier lost runs, once this run has lasted long. Call it for a job with [lost
    /// runs](crate::Job::lost).
    ///
    /// # Errors
    /// Like [`Hold::check`].
    pub async fn settle(&self, hold: &Hold) -> Result<()> {
        let run = Runner::new(self.database()).option(RETRIES);
        run.run(|transaction, _| async move {
            let row = hold.row(&transaction).await?;
            transaction.set(self.registry().keys.job(&hold.id), JobRow { lost: 0, ..row }.write());
            Ok(())
        })
        .await
    }

    /// [`Hold::finish`].
    ///
    /// # Errors
    /// Like [`Hold::check`].
    pub async fn finish(&self, hold: &Hold, progress: Option<&[u8]>, now_ms: u64) -> Result<()> {
        let progress = progress.map(|bytes| (bytes, now_ms));
        self.end_run(hold, &End::Finished { progress }).await
    }

    /// [`Hold::finish_and_remove`].
    ///
    /// # Errors
    /// Like [`Hold::check`].
    pub async fn finish_and_remove(&self, hold: &Hold) -> Result<()> {
        self.end_run(hold, &End::Removed).await
    }

    /// [`Hold::resubmit`].
    ///
    /// # Errors
    /// Like [`Hold::check`].
    pub async fn resubmit(&self, hold: &Hold, scheduled_ms: u64) -> Result<()> {
        self.end_run(hold, &End::Again { scheduled_ms }).await
    }

    async fn end_run(&self, hold: &Hold, end: &End<'_>) -> Result<()> {
        let run = Runner::new(self.database()).option(RETRIES);
        run.run(|transaction, attempt| async move {
            let row = self.registry().row(&transaction, &hold.id, Read::Serializable).await?;
            match row {
                Some(row) if row.is_run_by(&hold.token) => self.registry().end(&transaction, &hold.id, &row, end),
                // An earlier attempt of unknown result did it.
                Some(row) if attempt.maybe_committed && row.ended == Some(hold.token) => {}
                None if attempt.maybe_committed && matches!(end, End::Removed) => {}
                _ => return Err(Error::Lost),
            }
            Ok(())
        })
        .await
    }
}
