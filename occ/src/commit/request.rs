//! A commit request: what a transaction gives to the pipeline, and how it gets its answer.

use kv_api::{Error, Result, Versionstamp};

use crate::KeyRange;
use crate::mutation::Mutation;
use crate::sync::{Arc, Mutex, Promise, lock};
use crate::watches::Watch;

/// Memory of a request beside its keys and values, roughly.
const OVERHEAD: usize = 512;

/// A transaction that is being committed.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) read_version: i64,
    /// Read conflict ranges. Sorted and disjoint.
    pub(crate) read_conflicts: Vec<KeyRange>,
    /// Write conflict ranges, besides the keys of `mutations` that conflict.
    pub(crate) write_conflicts: Vec<KeyRange>,
    pub(crate) mutations: Vec<Mutation>,
    /// Size of the transaction, counted as FoundationDB counts it.
    pub(crate) bytes: usize,
    /// Whether the transaction shrinks the data. Then it commits even when the disk is full.
    pub(crate) frees_space: bool,
    pub(crate) ticket: Arc<Ticket>,
}

impl Request {
    /// Memory that the request occupies in the queue.
    pub(crate) fn queued_bytes(&self) -> usize {
        OVERHEAD + self.bytes
    }
}

/// The committer's handle on its request. It may be dropped before the answer comes.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) outcome: Promise<Result<Versionstamp>>,
    /// Watches to arm when the transaction commits.
    pub(super) watches: Mutex<Vec<Arc<Watch>>>,
    /// The transaction's versionstamp, for callers of `get_versionstamp`.
    pub(super) stamp: Arc<Promise<Result<Versionstamp>>>,
}

impl Ticket {
    pub(crate) fn new(watches: Vec<Arc<Watch>>, stamp: Arc<Promise<Result<Versionstamp>>>) -> Self {
        Ticket { outcome: Promise::default(), watches: Mutex::new(watches), stamp }
    }

    /// Fails the request, its watches and its versionstamp.
    pub(crate) fn fail(&self, error: Error) {
        self.stamp.resolve(Err(error.clone()));
        for watch in lock(&self.watches).drain(..) {
            watch.finish(Err(error.clone()));
        }
        self.outcome.resolve(Err(error));
    }
}
