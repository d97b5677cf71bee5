//! Adds, removes, finds and watches jobs.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use futures_util::future::try_join_all;
use kv_api::{
    BoxFuture, Database, KeySelector, MutationType, RangeBatch, RangeRequest, Read, RetryError, Runner, Transaction,
    TransactionExt, TransactionOption,
};

use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRow, JobState, NewJob, Priority, Progress, RowState};
use crate::keys::{self, Keys};
use crate::lease::Lease;

/// Maximum number of rows in a page. Each page is read in its own transaction.
const PAGE: usize = 100;

/// Maximum number of retries of a transaction that its caller repeats anyway, or waits for.
pub(crate) const RETRIES: TransactionOption = TransactionOption::RetryLimit(Some(50));

/// The registry of a store, for use in the caller's transactions.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(crate) keys: Keys,
}

impl Registry {
    /// The registry whose keys have this prefix. No other keys may have it.
    pub fn new(prefix: impl Into<Bytes>) -> Self {
        Registry { keys: Keys::new(prefix.into()) }
    }

    /// Adds a job. A new or finished job becomes pending, and a pending one is replaced. A running one gets the new
    /// data and name at once, and becomes pending again when its run ends. Returns the new state.
    ///
    /// A pause after lost runs stays, unless the data changes.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn add<T: Transaction>(&self, transaction: &T, id: &JobId, new: &NewJob) -> Result<JobState> {
        let mut row = self.row(transaction, id, Read::Serializable).await?;
        if let Some(row) = row.as_mut().filter(|row| row.lost > 0)
            && transaction.get(&self.keys.data(id), Read::Snapshot).await?.unwrap_or_default() != new.data
        {
            row.lost = 0;
        }
        transaction.set(self.keys.data(id), new.data.clone());
        let (priority, mut scheduled_ms) = (new.priority, new.scheduled_ms);
        let old = row.as_ref().and_then(|row| row.name.as_deref());
        let name = match self.rename(transaction, id, old, new.name.as_deref()).await? {
            None => new.name.clone(),
            Some(_another) => None,
        };
        if let Some(row) = &row
            && let RowState::Running { .. } = row.state
        {
            let row = JobRow { priority, scheduled_ms, is_resubmitted: true, name, ..row.clone() };
            transaction.set(self.keys.job(id), row.write());
            return Ok(JobState::Running);
        }
        if let Some(row) = &row {
            transaction.clear(&self.keys.progress(id));
            self.leave_queue(transaction, id, row);
            if row.lost > 0 {
                scheduled_ms = scheduled_ms.max(row.scheduled_ms);
            }
        }
        let lost = row.as_ref().map_or(0, |row| row.lost);
        let ended = row.and_then(|row| row.ended);
        let state = RowState::Pending;
        let row = JobRow { state, priority, scheduled_ms, attempts: 0, lost, is_resubmitted: false, ended, name };
        self.enqueue(transaction, id, &row);
        Ok(JobState::Pending)
    }

    /// Removes a job, whatever its state. A run of it cannot write any more. Returns whether the job existed.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn remove<T: Transaction>(&self, transaction: &T, id: &JobId) -> Result<bool> {
        let Some(row) = self.row(transaction, id, Read::Serializable).await? else { return Ok(false) };
        self.leave_queue(transaction, id, &row);
        if let RowState::Running { token, .. } = &row.state {
            transaction.clear(&self.keys.held(token));
        }
        self.clear(transaction, id, &row);
        Ok(true)
    }

    /// The job of this kind that has a name.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn named<T: Transaction>(&self, transaction: &T, kind: &str, name: &str) -> Result<Option<JobId>> {
        let found = transaction.get(&self.keys.name(kind, name), Read::Serializable).await?;
        found.map(|row| keys::read_id(&row)).transpose()
    }

    /// Replaces the name of a job; the caller writes it into the job's row. If another job has the new name, returns
    /// that one, and this job has no name.
    pub(crate) async fn rename<T: Transaction>(
        &self,
        transaction: &T,
        id: &JobId,
        old: Option<&str>,
        new: Option<&str>,
    ) -> Result<Option<JobId>> {
        if let Some(old) = old {
            transaction.clear(&self.keys.name(&id.kind, old));
        }
        let Some(new) = new else { return Ok(None) };
        let another = self.named(transaction, &id.kind, new).await?;
        if another.is_none() {
            transaction.set(self.keys.name(&id.kind, new), keys::write_id(id));
        }
        Ok(another)
    }

    /// The job, if it exists. With a serializable read, the transaction conflicts with every change of the job's state.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn get<T: Transaction>(&self, transaction: &T, id: &JobId, read: Read) -> Result<Option<Job>> {
        Ok(self.row_and_job(transaction, id, read).await?.map(|(_, job)| job))
    }

    async fn row_and_job<T: Transaction>(
        &self,
        transaction: &T,
        id: &JobId,
        read: Read,
    ) -> Result<Option<(JobRow, Job)>> {
        let row = self.row(transaction, id, read);
        let data = transaction.get(&self.keys.data(id), Read::Snapshot);
        let progress = transaction.get(&self.keys.progress(id), Read::Snapshot);
        let Some(row) = row.await? else { return Ok(None) };
        let mut job = row.job(id.clone());
        job.data = data.await?.unwrap_or_default();
        job.progress = progress.await?.map(|row| Progress::read(&row)).transpose()?;
        Ok(Some((row, job)))
    }

    /// The job's row. The call issues the read.
    pub(crate) fn row<T: Transaction>(
        &self,
        transaction: &T,
        id: &JobId,
        read: Read,
    ) -> impl Future<Output = Result<Option<JobRow>>> + Send + use<T> {
        let row = transaction.get(&self.keys.job(id), read);
        async move { row.await?.map(|row| JobRow::read(&row)).transpose() }
    }

    /// Writes the row of a job that becomes pending.
    pub(crate) fn enqueue<T: Transaction>(&self, transaction: &T, id: &JobId, row: &JobRow) {
        transaction.set(self.keys.job(id), row.write());
        transaction.set(self.keys.queued(id, row.priority, row.scheduled_ms), b"");
        // The commit's versionstamp: a new value each time. No write depends on this row.
        transaction.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        transaction.atomic_op(MutationType::SetVersionstampedValue, self.keys.news(&id.kind), &[0; 14]);
    }

    pub(crate) fn leave_queue<T: Transaction>(&self, transaction: &T, id: &JobId, row: &JobRow) {
        if row.state == RowState::Pending {
            transaction.clear(&self.keys.queued(id, row.priority, row.scheduled_ms));
        }
    }

    pub(crate) fn clear<T: Transaction>(&self, transaction: &T, id: &JobId, row: &JobRow) {
        if let Some(name) = &row.name {
            transaction.clear(&self.keys.name(&id.kind, name));
        }
        transaction.clear(&self.keys.job(id));
        transaction.clear(&self.keys.data(id));
        transaction.clear(&self.keys.progress(id));
    }

    /// Ends a run. If the job was added again meanwhile, it becomes pending; otherwise `end` decides.
    pub(crate) fn end<T: Transaction>(&self, transaction: &T, id: &JobId, row: &JobRow, end: &End<'_>) {
        let RowState::Running { token, .. } = row.state else { return };
        transaction.clear(&self.keys.held(&token));
        let (state, is_resubmitted, ended) = (RowState::Pending, false, Some(token));
        let ended = JobRow { state, lost: 0, is_resubmitted, ended, ..row.clone() };
        if row.is_resubmitted {
            // The job was added again: the schedule of that request applies, and the progress belongs to the old one.
            transaction.clear(&self.keys.progress(id));
            return self.enqueue(transaction, id, &JobRow { attempts: 0, ..ended });
        }
        match end {
            End::Finished { progress } => {
                if let Some((bytes, now_ms)) = progress {
                    transaction.set(self.keys.progress(id), Progress::write(*now_ms, bytes));
                }
                let row = JobRow { state: RowState::Finished, attempts: 0, ..ended };
                transaction.set(self.keys.job(id), row.write());
            }
            End::Removed => self.clear(transaction, id, row),
            End::Again { scheduled_ms } => {
                self.enqueue(transaction, id, &JobRow { scheduled_ms: *scheduled_ms, ..ended });
            }
        }
    }

    /// The first pending job that is due, with the highest priority; or the time when the next one is due.
    pub(crate) async fn first_due<T: Transaction>(
        &self,
        transaction: &T,
        kind: &str,
        now_ms: u64,
    ) -> Result<std::result::Result<(JobRow, Job), Option<u64>>> {
        // Usually one round trip.
        let firsts = Priority::ALL.map(|priority| {
            let range = self.keys.queue(kind, priority).limit(1);
            (transaction.get_range(&range, Read::Snapshot), range)
        });
        let mut next_ms: Option<u64> = None;
        for (first, mut range) in firsts {
            let mut batch = first.await?;
            while let Some(found) = batch.rows.first() {
                let queued = self.keys.read_queued(&found.key);
                if let Ok((scheduled_ms, id)) = queued {
                    if scheduled_ms > now_ms {
                        next_ms = Some(next_ms.map_or(scheduled_ms, |next| next.min(scheduled_ms)));
                        break;
                    }
                    match self.row_and_job(transaction, &id, Read::Serializable).await {
                        Ok(Some((row, job))) if row.state == RowState::Pending => return Ok(Ok((row, job))),
                        Err(Error::Store(error)) => return Err(error.into()),
                        // The job or its progress is damaged, or it is not pending: it stays, and does not delay
                        // others.
                        _ => {}
                    }
                }
                let Some(next) = next_page(&range, &batch) else { break };
                range = next;
                batch = transaction.get_range(&range, Read::Snapshot).await?;
            }
        }
        Ok(Err(next_ms))
    }
}

/// The rest of a range after a page of it, with the same limit.
pub(crate) fn next_page(range: &RangeRequest, page: &RangeBatch) -> Option<RangeRequest> {
    let last = page.rows.last().filter(|_| page.more)?;
    Some(RangeRequest { begin: KeySelector::first_greater_than(last.key.clone()), ..range.clone() })
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// The job stays, as finished, with the last progress and its time.
    Finished { progress: Option<(&'a [u8], u64)> },
    /// The job is removed.
    Removed,
    /// The job becomes pending again.
    Again { scheduled_ms: u64 },
}

/// The registry of a store. Each operation is a transaction.
#[derive(Clone)]
pub struct Jobs<D> {
    database: D,
    registry: Registry,
}

impl<D> fmt::Debug for Jobs<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl<D: Database> Jobs<D> {
    /// The registry with this prefix in a store.
    pub fn new(database: D, registry: Registry) -> Self {
        Jobs { database, registry }
    }

    /// The store.
    pub fn database(&self) -> &D {
        &self.database
    }

    /// The registry, for use in the caller's transactions.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// [`Registry::add`]. After an unknown commit result, the job may be added twice and run twice.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn add(&self, id: &JobId, new: &NewJob) -> Result<JobState> {
        let run = Runner::new(&self.database);
        run.run(|transaction, _| async move { self.registry.add(&transaction, id, new).await }).await
    }

    /// [`Registry::remove`].
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn remove(&self, id: &JobId) -> Result<bool> {
        let run = Runner::new(&self.database);
        run.run(|transaction, attempt| async move {
            Ok(self.registry.remove(&transaction, id).await? || attempt.maybe_committed)
        })
        .await
    }

    /// [`Registry::get`].
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn get(&self, id: &JobId) -> Result<Option<Job>> {
        self.read(|transaction| async move { self.registry.get(&transaction, id, Read::Snapshot).await }).await
    }

    /// [`Registry::named`].
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn named(&self, kind: &str, name: &str) -> Result<Option<JobId>> {
        self.read(|transaction| async move { self.registry.named(&transaction, kind, name).await }).await
    }

    /// All jobs of a kind, sorted by id, except those that cannot be read.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn list(&self, kind: &str) -> Result<Vec<Job>> {
        let (mut jobs, mut rest) = self.page(kind, None).await?;
        while rest.is_some() {
            let (more, behind) = self.page(kind, rest).await?;
            jobs.extend(more);
            rest = behind;
        }
        Ok(jobs)
    }

    /// A page of the jobs of a kind, sorted by id, except those that cannot be read, and the rest of the range. `rest`
    /// comes from the previous page. For callers that need not have all jobs at once.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn page(&self, kind: &str, rest: Option<RangeRequest>) -> Result<(Vec<Job>, Option<RangeRequest>)> {
        let range = rest.unwrap_or_else(|| self.registry.keys.jobs(kind).limit(PAGE));
        let range = &range;
        self.read(|transaction| async move {
            let batch = transaction.get_range(range, Read::Snapshot).await?;
            let ids = batch.rows.iter().filter_map(|row| self.registry.keys.read_job(&row.key).ok());
            Ok((self.look_up(&transaction, ids.collect()).await?, next_page(range, &batch)))
        })
        .await
    }

    /// The running jobs with their servers' names, except those that cannot be read.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn running(&self) -> Result<Vec<Job>> {
        let keys = &self.registry.keys;
        self.pages(keys.held_under(None), |transaction, range| async move {
            let batch = transaction.get_range(&range, Read::Snapshot).await?;
            if batch.rows.is_empty() {
                return Ok((Vec::new(), None));
            }
            let leases = transaction.get_all(keys.leases(), Read::Snapshot);
            let held = batch
                .rows
                .iter()
                .filter_map(|row| Some((keys.read_held(&row.key).ok()?.lease, keys::read_id(&row.value).ok()?)));
            let (held, ids): (Vec<_>, Vec<_>) = held.unzip();
            let jobs = self.look_up(&transaction, ids.clone()).await?;
            let leases = leases.await?;
            let name_of = |job: &Job| {
                let lease = keys.lease(&held[ids.iter().position(|id| *id == job.id)?]);
                let row = leases.iter().find(|row| row.key == lease)?;
                Lease::read(&row.value).ok().map(|lease| lease.server)
            };
            let named = jobs.into_iter().filter(|job| job.state == JobState::Running).map(|mut job| {
                let server = name_of(&job);
                if let Some(run) = &mut job.run {
                    run.server = server;
                }
                job
            });
            Ok((named.collect(), next_page(&range, &batch)))
        })
        .await
    }

    /// Jobs from a range that is read in pages, each in a transaction of its own.
    async fn pages<F>(&self, all: RangeRequest, page: impl Fn(D::Transaction, RangeRequest) -> F) -> Result<Vec<Job>>
    where
        F: Future<Output = Result<(Vec<Job>, Option<RangeRequest>)>>,
    {
        let mut jobs = Vec::new();
        let mut next = Some(all.limit(PAGE));
        while let Some(range) = next {
            let (some, rest) = self.read(|transaction| page(transaction, range.clone())).await?;
            jobs.extend(some);
            next = rest;
        }
        Ok(jobs)
    }

    /// The jobs that exist and can be read.
    async fn look_up(&self, transaction: &D::Transaction, ids: Vec<JobId>) -> Result<Vec<Job>> {
        let jobs = ids.iter().map(|id| async move {
            match self.registry.get(transaction, id, Read::Snapshot).await {
                Err(Error::Store(error)) => Err(Error::Store(error)),
                found => Ok(found.ok().flatten()),
            }
        });
        Ok(try_join_all(jobs).await?.into_iter().flatten().collect())
    }

    /// The job, and a future that completes when the job's state changes: it was accepted, taken over, added again,
    /// ended or removed. Progress is not a change of state.
    ///
    /// # Errors
    /// The store's errors; a row that cannot be read.
    pub async fn watch(&self, id: &JobId) -> Result<(Option<Job>, BoxFuture<kv_api::Result<()>>)> {
        let run = Runner::new(&self.database);
        run.run(|transaction, _| async move {
            let job = self.registry.get(&transaction, id, Read::Snapshot);
            let changed: BoxFuture<_> = Box::pin(transaction.watch(&self.registry.keys.job(id)));
            Ok((job.await?, changed))
        })
        .await
    }

    /// Runs `body` in a transaction that is never committed.
    pub(crate) async fn read<T, F, Fut>(&self, mut body: F) -> Result<T>
    where
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let transaction = self.database.begin()?;
        transaction.set_option(RETRIES);
        loop {
            match body(transaction.clone()).await {
                Ok(value) => return Ok(value),
                Err(failure) => match failure.kv_error().cloned() {
                    Some(error) => transaction.on_error(error).await?,
                    None => return Err(failure),
                },
            }
        }
    }
}
