//! Long work in the background, whose state is in the store: any server of several on one store can take over what
//! another one left (RFC 007 of CouchDB on FoundationDB).
//!
//! ```text
//!   add ──► pending ── accept ──► running ── finish ──► finished ── add ──► pending …
//!              ▲                     │
//!              └── resubmit, or a takeover when the server's lease is out
//!
//!   (0, Type, Id)                                job       state, and who runs it: the fence
//!   (1, Type, Id)                                data      what was asked
//!   (2, Type, Id)                                progress  what the run says
//!   (3, Type, Priority, ScheduledMs, Id)         queue     one row for each pending job
//!   (4, Type)                                    news      changes when a job becomes pending
//!   (5, Lease)                                   lease     one row for a server that runs jobs
//!   (6, Lease, Number)                           held      one row for each job that it runs
//! ```
//!
//! RFC 007 renews each running job by itself, in an index of activity. Here a server renews one row, its lease, however
//! many jobs it runs: a thousand jobs with nothing to do write nothing. A server that runs no job has no lease.
//!
//! # Invariants
//! * **Fence.** A job's row names the [`Hold`] of the run that may work on it. Every transaction in which a job writes
//!   reads the row ([`Hold::check`]), and whatever takes the job away rewrites it. So of two runs that each believe to
//!   have the job, one alone can write.
//! * **Takeover.** A server takes over from another when it has itself seen the other's lease unchanged for as long as
//!   the lease says. No two machines' clocks are compared. A takeover that comes too early costs time and nothing
//!   else: the fence decides.
//! * A lease that was declared dead is never renewed, and nothing is accepted under it. Its server begins another.
//! * A queue row stands for each pending job and no other; a held row for each running one. All change in the
//!   transaction that changes the job's row.
//! * A job runs at least once for each time it was added. A takeover, or an unknown commit result, may repeat work: a
//!   job's work must be idempotent.
//! * What cannot be read, or is of a later version, is left alone and holds nothing else up.
//!
//! The crate has no clock, no randomness and no runtime: its callers give the time, draw the server's id, and run the
//! jobs.

mod error;
mod hold;
mod job;
mod keys;
mod registry;
mod server;

pub use error::{Error, Result};
pub use hold::Hold;
pub use job::{Job, JobId, NewJob, Priority, Progress, Run, State};
pub use registry::{Jobs, Registry};
pub use server::{Accepted, Server, ServerOptions};
