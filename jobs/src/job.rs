//! A job, and the row of its state.
//!
//! ```text
//!  (Format = 1, Name, JobState, Priority, ScheduledMs, Attempts, Lost, IsResubmitted, EndedLease, EndedNumber)
//!  (Format = 1, Name, 1,     Priority, ScheduledMs, Attempts, Lost, IsResubmitted, EndedLease, EndedNumber, Lease, Number, StartedMs)
//! ```
//!
//! `JobState` is 0 for pending, 1 for running, 2 for finished. `EndedLease` and `EndedNumber` name the run that ended
//! the job last; empty and 0 before that. A run uses them to recognise its own commit after an unknown result.

use std::fmt;

use bytes::Bytes;
use foundationdb_tuple::pack;

use crate::error::{Error, Result};
use crate::row::{LeaseId, Reader, lease_id};

/// The identity of a job: its kind and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// The kind of work; RFC 007's `JobType`.
    pub kind: String,
    /// Its id among the jobs of its kind.
    pub id: String,
}

impl JobId {
    /// The id of the job with this kind and id.
    pub fn new(kind: impl Into<String>, id: impl Into<String>) -> JobId {
        JobId { kind: kind.into(), id: id.into() }
    }
}

/// The order of jobs that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others.
    High,
    /// In between.
    #[default]
    Normal,
    /// Only if no other job is due.
    Low,
}

impl Priority {
    /// The highest first.
    pub(crate) const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

    pub(crate) const fn number(self) -> u64 {
        self as u64
    }

    fn read(number: u64) -> Result<Priority> {
        let found = Priority::ALL.into_iter().find(|priority| priority.number() == number);
        found.ok_or_else(|| Error::Corrupt(format!("there is no priority {number}")))
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It waits for a run.
    Pending,
    /// A server runs it, or did until its lease expired.
    Running,
    /// It has been run.
    Finished,
}

/// A new job.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewJob {
    /// Input of the run: by convention a JSON object, at most 90,000 bytes.
    pub data: Bytes,
    /// Its priority.
    pub priority: Priority,
    /// Earliest time of a run, in milliseconds since 1970. 0: now.
    pub scheduled_ms: u64,
    /// A name that only one job of the kind has at a time. While another job has it, this one does not get it.
    pub name: Option<String>,
}

/// A job as stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Job {
    /// Its identity.
    pub id: JobId,
    /// Its state.
    pub state: JobState,
    /// Its priority.
    pub priority: Priority,
    /// Earliest time of a run, in milliseconds since 1970.
    pub scheduled_ms: u64,
    /// Number of runs that began since it was added or finished.
    pub attempts: u64,
    /// Number of runs in a row that were lost: their server ended, or lost its lease, before they did. It is 0 again
    /// when a run ends, or [has settled](crate::Jobs::settle).
    pub lost: u64,
    /// Whether it was added again during the run. Then it becomes pending when the run ends.
    pub is_resubmitted: bool,
    /// Its name.
    pub name: Option<String>,
    /// Input of the run.
    pub data: Bytes,
    /// The last progress that a run stored.
    pub progress: Option<Progress>,
    /// The current run, if it is running.
    pub run: Option<Run>,
}

/// Without the data, which may have credentials.
impl fmt::Debug for NewJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewJob { data: _, priority, scheduled_ms, name } = self;
        f.debug_struct("NewJob")
            .field("priority", priority)
            .field("scheduled_ms", scheduled_ms)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// Without the data, which may have credentials.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { id, state, priority, scheduled_ms, attempts, lost, is_resubmitted, name, data: _, progress, run } =
            self;
        f.debug_struct("Job")
            .field("id", id)
            .field("state", state)
            .field("priority", priority)
            .field("scheduled_ms", scheduled_ms)
            .field("attempts", attempts)
            .field("lost", lost)
            .field("is_resubmitted", is_resubmitted)
            .field("name", name)
            .field("progress", progress)
            .field("run", run)
            .finish_non_exhaustive()
    }
}

/// The progress of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Time of the update, in milliseconds since 1970, by the clock of the run's server.
    pub updated_ms: u64,
    /// By convention a JSON object.
    pub bytes: Bytes,
}

/// A run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Time of its start, in milliseconds since 1970, by the clock of its server.
    pub started_ms: u64,
    /// Its number among the runs of its server.
    pub number: u64,
    pub(crate) lease: LeaseId,
    /// The server's name; `None` if the server's lease was not looked up, or is gone.
    pub server: Option<String>,
}

/// A run that was lost: its server ended, or lost its lease, before the run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRun {
    /// The job.
    pub id: JobId,
    /// Number of its runs in a row that were lost.
    pub times: u64,
    /// When it may run again, in milliseconds since 1970.
    pub scheduled_ms: u64,
}

/// Longest pause after a lost run. A run may be lost for other reasons than its job, such as a server that is killed at
/// each deployment.
const LONGEST_PAUSE_MS: u64 = 600_000;

/// Pause after this many lost runs in a row, in milliseconds: the run may have ended the server, and could do so again.
pub fn pause_after_lost(times: u64) -> u64 {
    (1_000 << times.min(20)).min(LONGEST_PAUSE_MS)
}

/// The identity of a hold: the server's lease, and a number that is used once under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    pub(crate) lease: LeaseId,
    pub(crate) number: u64,
}

/// A job's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRow {
    pub(crate) state: RowState,
    pub(crate) priority: Priority,
    pub(crate) scheduled_ms: u64,
    pub(crate) attempts: u64,
    pub(crate) lost: u64,
    pub(crate) is_resubmitted: bool,
    /// The run that ended the job last.
    pub(crate) ended: Option<Token>,
    pub(crate) name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowState {
    Pending,
    Running { token: Token, started_ms: u64 },
    Finished,
}

const FORMAT: u64 = 1;
const PENDING: u64 = 0;
const RUNNING: u64 = 1;
const FINISHED: u64 = 2;

impl JobRow {
    /// Whether this run holds the job.
    pub(crate) fn is_run_by(&self, token: &Token) -> bool {
        matches!(&self.state, RowState::Running { token: running, .. } if running == token)
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let state = match self.state {
            RowState::Pending => PENDING,
            RowState::Running { .. } => RUNNING,
            RowState::Finished => FINISHED,
        };
        let (lease, number) = match &self.ended {
            Some(token) => (&token.lease[..], token.number),
            None => (&[][..], 0),
        };
        let lease = foundationdb_tuple::Bytes::from(lease);
        let priority = self.priority.number();
        let mut out = pack(&(FORMAT, &self.name));
        let rest = (state, priority, self.scheduled_ms, self.attempts, self.lost, self.is_resubmitted, lease, number);
        out.extend_from_slice(&pack(&rest));
        if let RowState::Running { token, started_ms } = &self.state {
            let lease = foundationdb_tuple::Bytes::from(&token.lease[..]);
            out.extend_from_slice(&pack(&(lease, token.number, *started_ms)));
        }
        out
    }

    pub(crate) fn read(row: &[u8]) -> Result<JobRow> {
        let mut reader = Reader::new(row);
        reader.format(FORMAT)?;
        let name = reader.take()?;
        let state: u64 = reader.take()?;
        let priority = Priority::read(reader.take()?)?;
        let (scheduled_ms, attempts) = (reader.take()?, reader.take()?);
        let (lost, is_resubmitted) = (reader.take()?, reader.take()?);
        let lease: foundationdb_tuple::Bytes<'_> = reader.take()?;
        let number = reader.take()?;
        let ended = if lease.is_empty() { None } else { Some(Token { lease: lease_id(&lease)?, number }) };
        let state = match state {
            PENDING => RowState::Pending,
            FINISHED => RowState::Finished,
            RUNNING => {
                let token = Token { lease: reader.lease()?, number: reader.take()? };
                RowState::Running { token, started_ms: reader.take()? }
            }
            other => return Err(Error::Corrupt(format!("there is no state {other}"))),
        };
        reader.end()?;
        Ok(JobRow { state, priority, scheduled_ms, attempts, lost, is_resubmitted, ended, name })
    }

    /// The job of this row, without its data and progress.
    pub(crate) fn job(&self, id: JobId) -> Job {
        let (state, run) = match self.state {
            RowState::Pending => (JobState::Pending, None),
            RowState::Finished => (JobState::Finished, None),
            RowState::Running { token, started_ms } => {
                let run = Run { started_ms, number: token.number, lease: token.lease, server: None };
                (JobState::Running, Some(run))
            }
        };
        Job {
            id,
            state,
            priority: self.priority,
            scheduled_ms: self.scheduled_ms,
            attempts: self.attempts,
            lost: self.lost,
            is_resubmitted: self.is_resubmitted,
            name: self.name.clone(),
            data: Bytes::new(),
            progress: None,
            run,
        }
    }
}

impl Progress {
    pub(crate) fn write(updated_ms: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = pack(&(FORMAT, updated_ms));
        out.extend_from_slice(bytes);
        out
    }

    pub(crate) fn read(row: &Bytes) -> Result<Progress> {
        let mut reader = Reader::new(row);
        reader.format(FORMAT)?;
        let updated_ms = reader.take()?;
        Ok(Progress { updated_ms, bytes: row.slice_ref(reader.rest()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<JobRow> {
        let token = |byte| Token { lease: [byte; 24], number: 1 << 40 };
        let states = [
            RowState::Pending,
            RowState::Running { token: token(0), started_ms: u64::MAX },
            RowState::Running { token: token(7), started_ms: 0 },
            RowState::Finished,
        ];
        let mut rows = Vec::new();
        for state in states {
            for (priority, ended) in Priority::ALL.into_iter().zip([None, Some(token(0)), Some(token(255))]) {
                let is_resubmitted = ended.is_some();
                let name = is_resubmitted.then(|| "a\0name".to_owned());
                let row = JobRow {
                    state,
                    priority,
                    scheduled_ms: 1 << 41,
                    attempts: 3,
                    lost: 0,
                    is_resubmitted,
                    ended,
                    name,
                };
                rows.extend([JobRow { lost: 7, ..row.clone() }, row]);
            }
        }
        rows
    }

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        for row in rows() {
            let bytes = row.write();
            assert_eq!(JobRow::read(&bytes), Ok(row));
            for cut in 0..bytes.len() {
                assert!(matches!(JobRow::read(&bytes[..cut]), Err(Error::Corrupt(_))), "cut at {cut}");
            }
            assert!(matches!(JobRow::read(&[&bytes[..], &[0x14]].concat()), Err(Error::Corrupt(_))));
        }
    }

    #[test]
    fn rows_of_a_later_version_are_named_whatever_follows() {
        assert_eq!(JobRow::read(&pack(&(4u64, "another", "shape"))), Err(Error::UnknownFormat(4)));
        assert_eq!(Progress::read(&pack(&(9u64, "another")).into()), Err(Error::UnknownFormat(9)));
    }

    #[test]
    fn nothing_prints_data() {
        let data = Bytes::from_static(b"secret");
        let new = NewJob { data: data.clone(), ..NewJob::default() };
        let job = Job { data, ..rows()[0].job(JobId::new("work", "a")) };
        let printed = format!("{new:?} {job:?}");
        assert!(printed.contains("work") && !printed.contains("secret") && !printed.contains("115, 101"), "{printed}");
    }

    #[test]
    fn progress_round_trips() {
        for bytes in [&b""[..], b"{}", &[0xff; 300]] {
            let row = Bytes::from(Progress::write(1 << 41, bytes));
            let read = Progress::read(&row).unwrap();
            assert_eq!((read.updated_ms, &read.bytes[..]), (1 << 41, bytes));
        }
    }
}
