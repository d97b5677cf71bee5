//! A server that runs jobs. It accepts jobs, renews its lease, and takes over from servers whose lease has expired.
//!
//! ```text
//!  lease   (5, Lease) = (Format = 1, IsAlive, Server, Beat, ForMs)
//!
//!   this server    no lease ── accept ──► alive ── renew: Beat + 1 ──► alive … ── renew, nothing held ──► no lease
//!   another one                             │ seen with the same Beat for ForMs
//!                                           └──► dead ── its jobs become pending ──► removed
//! ```
//!
//! The row is created when the first job is accepted. A renewal removes it if no job is held. A takeover marks the
//! lease dead in its first transaction and removes it in its last, so another server can continue an interrupted
//! takeover. Accepting reads the row, so no job is accepted under a dead lease.
//!
//! A takeover means that a server ended while its jobs ran. A run may be the cause, so its job waits. A server that
//! stops gives up its jobs itself ([`Server::close`]), and no lost run is counted.
//!
//! An acceptance with an unknown commit result is recognised by its held row. The row's key has the number of the next
//! acceptance, which reads it first.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kv_api::{BoxFuture, Database, RangeRequest, Read, Runner, Transaction, TransactionExt};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::job::{Job, JobRow, LostRun, RowState, Token, pause_after_lost};
use crate::keys;
use crate::lease::Lease;
use crate::registry::{Jobs, RETRIES, Registry, next_page};
use crate::row::LeaseId;

/// Maximum number of jobs that one transaction takes over.
const TAKEN_AT_ONCE: usize = 100;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Its name, which running jobs show.
    pub name: String,
    /// Time for which its lease holds after a renewal. Renew it and look for expired leases three times in that time.
    pub lease: Duration,
    /// Whether no other server can have the store open. Then jobs of other leases are taken over immediately.
    pub is_alone: bool,
}

/// The result of [`Server::accept`].
pub enum Accepted {
    /// A job that this server holds now.
    Job(Box<Job>, Hold),
    /// No job is due.
    Nothing {
        /// Time when the next job is due, in milliseconds since 1970.
        due_ms: Option<u64>,
        /// Completes when a job of this kind becomes pending.
        added: BoxFuture<kv_api::Result<()>>,
    },
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accepted::Job(job, _) => f.debug_tuple("Job").field(job).finish(),
            Accepted::Nothing { due_ms, .. } => {
                f.debug_struct("Nothing").field("due_ms", due_ms).finish_non_exhaustive()
            }
        }
    }
}

/// A server that runs jobs.
#[derive(Debug)]
pub struct Server<D> {
    jobs: Jobs<D>,
    options: ServerOptions,
    /// Sixteen bytes, unique among servers.
    id: [u8; 16],
    /// Number of leases that it had before this one.
    epoch: u64,
    /// The number of the next acceptance under this lease.
    next: u64,
    /// The last beat that it wrote. Beats are never reused.
    beat: u64,
    /// Whether the lease's row may exist.
    may_have_lease: bool,
    is_lost: Arc<AtomicBool>,
    /// Leases of other servers: the row, and the time since which it is unchanged.
    seen: HashMap<Bytes, (Bytes, Duration)>,
    /// Time of the last look at them.
    looked: Option<Duration>,
}

/// The result of an attempt to accept.
enum Attempt {
    Job(Box<Job>),
    Nothing(Option<u64>, BoxFuture<kv_api::Result<()>>),
    /// The lease was taken over.
    LeaseLost,
}

/// The result of a transaction of a takeover.
enum Taken {
    /// There are more jobs, in this range.
    More(RangeRequest),
    /// The lease is gone, was renewed, or its remaining rows cannot be read.
    Over,
}

impl<D: Database> Server<D> {
    /// A server with an id of sixteen random bytes, new in each process.
    pub fn new(jobs: Jobs<D>, id: [u8; 16], options: ServerOptions) -> Self {
        Server {
            jobs,
            options,
            id,
            epoch: 0,
            next: 0,
            beat: 0,
            may_have_lease: false,
            is_lost: Arc::default(),
            seen: HashMap::new(),
            looked: None,
        }
    }

    /// The registry.
    pub fn jobs(&self) -> &Jobs<D> {
        &self.jobs
    }

    fn registry(&self) -> &Registry {
        self.jobs.registry()
    }

    fn lease_id(&self) -> LeaseId {
        let mut lease = [0; 24];
        lease[..16].copy_from_slice(&self.id);
        lease[16..].copy_from_slice(&self.epoch.to_be_bytes());
        lease
    }

    /// The row of the lease with the next beat.
    fn beat(&mut self) -> Vec<u8> {
        self.beat += 1;
        let for_ms = u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX);
        Lease { is_alive: true, beat: self.beat, for_ms, server: self.options.name.clone() }.write()
    }

    /// Begins a new lease. The old one is gone, with all jobs held under it.
    fn end_lease(&mut self) {
        self.is_lost.store(true, Ordering::Release);
        self.is_lost = Arc::default();
        self.epoch += 1;
        self.next = 0;
        self.may_have_lease = false;
    }

    /// Accepts the next due job of a kind for this server. `now_ms` is the time since 1970.
    ///
    /// # Errors
    /// The store's errors. If a job was accepted and an error returned, the next call returns the job.
    pub async fn accept(&mut self, kind: &str, now_ms: u64) -> Result<Accepted> {
        loop {
            let token = Token { lease: self.lease_id(), number: self.next };
            let beat = self.beat();
            let outcome = self.try_accept(kind, now_ms, token, beat).await;
            // An acceptance that returned an error may have been committed.
            self.may_have_lease |= matches!(outcome, Err(_) | Ok(Attempt::Job(_)));
            match outcome? {
                Attempt::Job(job) => {
                    self.next += 1;
                    let hold = Hold::new(self.registry().clone(), job.id.clone(), token, self.is_lost.clone());
                    return Ok(Accepted::Job(job, hold));
                }
                Attempt::Nothing(due_ms, added) => return Ok(Accepted::Nothing { due_ms, added }),
                Attempt::LeaseLost => self.end_lease(),
            }
        }
    }

    async fn try_accept(&self, kind: &str, now_ms: u64, token: Token, beat: Vec<u8>) -> Result<Attempt> {
        let registry = self.registry();
        let (lease_key, held_key) = (registry.keys.lease(&token.lease), registry.keys.held(&token));
        let run = Runner::new(self.jobs.database()).option(RETRIES);
        run.run(|transaction, _| {
            let lease = transaction.get(&lease_key, Read::Serializable);
            let held = transaction.get(&held_key, Read::Serializable);
            let (lease_key, held_key, beat) = (&lease_key, &held_key, &beat);
            async move {
                if let Some(held) = held.await? {
                    // An earlier attempt, whose result was unknown, did it.
                    let id = keys::read_id(&held)?;
                    let job = registry.get(&transaction, &id, Read::Serializable).await?;
                    return job.map(|job| Attempt::Job(job.into())).ok_or_else(held_of_nothing);
                }
                let lease = lease.await?.map(|row| Lease::read(&row)).transpose()?;
                let has_lease = match lease {
                    Some(lease) if !lease.is_alive => return Ok(Attempt::LeaseLost),
                    None if self.may_have_lease => return Ok(Attempt::LeaseLost),
                    found => found.is_some(),
                };
                let (row, job) = match registry.first_due(&transaction, kind, now_ms).await? {
                    Ok(found) => found,
                    Err(due_ms) => {
                        let added = transaction.watch(&registry.keys.news(kind));
                        return Ok(Attempt::Nothing(due_ms, Box::pin(added)));
                    }
                };
                registry.leave_queue(&transaction, &job.id, &row);
                let (state, attempts) = (RowState::Running { token, started_ms: now_ms }, row.attempts + 1);
                let row = JobRow { state, attempts, ..row };
                transaction.set(registry.keys.job(&job.id), row.write());
                transaction.set(held_key, keys::write_id(&job.id));
                if !has_lease {
                    transaction.set(lease_key, beat);
                }
                Ok(Attempt::Job(Job { data: job.data, progress: job.progress, ..row.job(job.id) }.into()))
            }
        })
        .await
    }

    /// Renews the lease, if there is one. Removes it if no job is held under it; the next acceptance begins another.
    ///
    /// # Errors
    /// The store's errors. Then the lease may expire.
    pub async fn renew(&mut self) -> Result<()> {
        if !self.may_have_lease {
            return Ok(());
        }
        let beat = self.beat();
        let lease = self.lease_id();
        let registry = self.registry();
        let (key, held) = (registry.keys.lease(&lease), registry.keys.held_under(Some(&lease)).limit(1));
        let run = Runner::new(self.jobs.database()).option(RETRIES);
        let is_alive = run
            .run(|transaction, _| {
                let row = transaction.get(&key, Read::Serializable);
                let held = transaction.get_range(&held, Read::Serializable);
                let (key, beat) = (&key, &beat);
                async move {
                    // Removed by an earlier attempt whose result was unknown, or by a takeover.
                    let Some(row) = row.await? else { return Ok(false) };
                    if !Lease::read(&row)?.is_alive {
                        return Ok(false);
                    }
                    if held.await?.rows.is_empty() {
                        transaction.clear(key);
                        return Ok(false);
                    }
                    transaction.set(key, beat);
                    Ok::<_, Error>(true)
                }
            })
            .await?;
        if !is_alive {
            self.end_lease();
        }
        Ok(())
    }

    /// Looks at the leases of other servers, and takes over from expired ones. Call it about three times in the time
    /// that a lease holds. `now` is the time since any fixed moment, by a monotonic clock; `now_ms` is that since 1970.
    ///
    /// Returns the runs that were lost. Their jobs wait, [the longer the more](pause_after_lost) were lost in a row.
    ///
    /// # Errors
    /// The store's errors. The next call continues.
    pub async fn take_over(&mut self, now: Duration, now_ms: u64) -> Result<Vec<LostRun>> {
        let own = self.registry().keys.lease(&self.lease_id());
        let range = self.registry().keys.leases();
        let rows = self
            .jobs
            .read(|transaction| {
                let rows = transaction.get_all(range.clone(), Read::Snapshot);
                async move { Ok(rows.await?) }
            })
            .await?;
        let paused = self.looked.replace(now).and_then(|looked| now.checked_sub(looked)).unwrap_or_default();
        let (mut seen, mut out) = (HashMap::new(), Vec::new());
        for row in rows.into_iter().filter(|row| row.key != own) {
            // Rows that cannot be read may be of a later version: leave them.
            let (Ok(lease), Ok(id)) = (Lease::read(&row.value), self.registry().keys.read_lease(&row.key)) else {
                continue;
            };
            let holds = Duration::from_millis(lease.for_ms);
            let since = match self.seen.get(&row.key) {
                // After a long pause, for example a sleep of the machine, this server does not know whether the lease
                // was renewed meanwhile.
                Some((value, since)) if *value == row.value && paused < holds => *since,
                _ => now,
            };
            if !lease.is_alive || self.options.is_alone || now.saturating_sub(since) >= holds {
                out.push((id, row.value.clone()));
            }
            seen.insert(row.key, (row.value, since));
        }
        self.seen = seen;
        let mut lost = Vec::new();
        for (lease, row) in &out {
            lost.extend(self.take_from(lease, row, Some(now_ms)).await?);
        }
        Ok(lost)
    }

    /// Gives up all jobs that this server holds, so that others need not wait until its lease expires. Its runs cannot
    /// write any more.
    ///
    /// # Errors
    /// The store's errors. Others take over when the lease has expired.
    pub async fn close(&mut self) -> Result<()> {
        if !self.may_have_lease {
            return Ok(());
        }
        let lease = self.lease_id();
        let key = self.registry().keys.lease(&lease);
        let row = self
            .jobs
            .read(|transaction| {
                let row = transaction.get(&key, Read::Snapshot);
                async move { Ok(row.await?) }
            })
            .await?;
        if let Some(row) = row {
            self.take_from(&lease, &row, None).await?;
        }
        self.end_lease();
        Ok(())
    }

    /// If the lease's row is still `seen`, makes the jobs held under it pending and removes the lease. With a time,
    /// their runs were lost; without one, their server gives them up.
    async fn take_from(&self, lease: &LeaseId, seen: &Bytes, lost_ms: Option<u64>) -> Result<Vec<LostRun>> {
        let registry = self.registry();
        let key = registry.keys.lease(lease);
        let (mut range, mut left) = (registry.keys.held_under(Some(lease)).limit(TAKEN_AT_ONCE), false);
        let mut all_lost = Vec::new();
        loop {
            let run = Runner::new(self.jobs.database()).option(RETRIES);
            let (taken, unreadable, lost) = run
                .run(|transaction, _| {
                    let row = transaction.get(&key, Read::Serializable);
                    let held = transaction.get_range(&range, Read::Serializable);
                    let (key, range) = (&key, &range);
                    async move {
                        let Some(row) = row.await? else { return Ok((Taken::Over, false, Vec::new())) };
                        let found = Lease::read(&row)?;
                        if found.is_alive && row != *seen {
                            return Ok((Taken::Over, false, Vec::new()));
                        }
                        let batch = held.await?;
                        let (mut unreadable, mut lost) = (false, Vec::new());
                        for held in &batch.rows {
                            let token = registry.keys.read_held(&held.key);
                            match take_job(registry, &transaction, &token, &held.value, lost_ms).await {
                                Err(Error::Store(error)) => return Err(error.into()),
                                Err(_) => unreadable = true,
                                Ok(run) => {
                                    transaction.clear(&held.key);
                                    lost.extend(run);
                                }
                            }
                        }
                        let taken = next_page(range, &batch).map_or(Taken::Over, Taken::More);
                        if matches!(taken, Taken::Over) && !unreadable && !left {
                            transaction.clear(key);
                        } else if found.is_alive {
                            transaction.set(key, Lease { is_alive: false, ..found }.write());
                        }
                        Ok::<_, Error>((taken, unreadable, lost))
                    }
                })
                .await?;
            left |= unreadable;
            all_lost.extend(lost);
            match taken {
                Taken::Over => return Ok(all_lost),
                Taken::More(rest) => range = rest,
            }
        }
    }
}

/// Takes a job from its run and makes it pending. A time means that its server ended. If this succeeds, the caller
/// clears the held row.
async fn take_job<T: Transaction>(
    registry: &Registry,
    transaction: &T,
    token: &Result<Token>,
    held: &[u8],
    lost_ms: Option<u64>,
) -> Result<Option<LostRun>> {
    let token = token.as_ref().map_err(Clone::clone)?;
    let id = keys::read_id(held)?;
    let row = registry.row(transaction, &id, Read::Serializable).await?;
    let Some(row) = row.filter(|row| row.is_run_by(token)) else { return Err(held_of_nothing()) };
    // `ended` stays: the run did not end the job itself.
    let mut pending = JobRow { state: RowState::Pending, is_resubmitted: false, ..row };
    if row.is_resubmitted {
        transaction.clear(&registry.keys.progress(&id));
        pending.attempts = 0;
    }
    let lost = lost_ms.map(|now_ms| {
        pending.lost = pending.lost.saturating_add(1);
        pending.scheduled_ms = pending.scheduled_ms.max(now_ms.saturating_add(pause_after_lost(pending.lost)));
        LostRun { id: id.clone(), times: pending.lost, scheduled_ms: pending.scheduled_ms }
    });
    registry.enqueue(transaction, &id, &pending);
    Ok(lost)
}

fn held_of_nothing() -> Error {
    Error::Corrupt("a held job has no run".into())
}
