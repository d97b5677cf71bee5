//! Long work in the background. Its state is in the store, so each server on a store can take over another server's
//! jobs (RFC 007 of CouchDB on FoundationDB).
//!
//! ```text
//!   add ──► pending ── accept ──► running ── finish ──► finished ── add ──► pending …
//!              ▲                     │
//!              └── resubmit, or a takeover when the server's lease has expired
//!
//!   (0, Type, Id)                                job       its state and its run: the fence
//!   (1, Type, Id)                                data      input of the run
//!   (2, Type, Id)                                progress  what the run reports
//!   (3, Type, Priority, ScheduledMs, Id)         queue     a row for each pending job
//!   (4, Type)                                    news      changes when a job becomes pending
//!   (5, Lease)                                   lease     a row for each server that runs jobs
//!   (6, Lease, Number)                           held      a row for each job that a server runs
//!   (7, Type, Name)                              name      the one job of the type that has the name
//! ```
//!
//! RFC 007 renews each running job separately, in an index of activity. Here a server renews only one row, its lease,
//! however many jobs it runs. So a thousand idle jobs write nothing. A server without running jobs has no lease.
//!
//! # Invariants
//! * **Fence.** A job's row names the [`Hold`] of its run. Every transaction in which the run writes reads the row
//!   ([`Hold::check`]), and every operation that takes the job away rewrites it. So if two runs both assume that they
//!   hold the job, only one can write.
//! * **Takeover.** A server takes over from another when it has itself seen the other's lease unchanged for the time in
//!   the lease. Clocks of different machines are never compared. A takeover that is too early only costs time: the
//!   fence decides.
//! * A lease that was declared dead is never renewed, and no job is accepted under it. Its server begins a new one.
//! * Each pending job has a queue row and each running job a held row; other such rows do not exist. They change in the
//!   transaction that changes the job's row.
//! * A job runs at least once for each time that it was added. A takeover or an unknown commit result may repeat work,
//!   so the work must be idempotent.
//! * Each name row has a job whose row has that name, and the other way round. They change in one transaction, so two
//!   jobs of a type never have the same name.
//! * A job whose last run was lost waits before it runs again, longer with each lost run in a row
//!   ([`pause_after_lost`]). Otherwise a job that crashes its server would also crash each server that takes it over,
//!   and each one that starts.
//! * Rows that are damaged or of a later version stay unchanged and do not delay other jobs.
//!
//! The crate has no clock, no randomness and no runtime. Its callers pass the time, draw the server's id and run the
//! jobs.

mod error;
mod hold;
mod job;
mod keys;
mod lease;
mod registry;
mod row;
mod server;

pub use error::{Error, Result};
pub use hold::Hold;
pub use job::{Job, JobId, JobState, LostRun, NewJob, Priority, Progress, Run, pause_after_lost};
pub use registry::{Jobs, Registry};
pub use server::{Accepted, Server, ServerOptions};
