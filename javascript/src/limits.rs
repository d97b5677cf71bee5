//! The limits of one call of a function.

use std::time::Duration;

/// Limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the sandbox's heap: the design document, its functions, and what they allocate.
    pub memory: usize,
    /// How long a call may run, in processor time of its thread. A function that exceeded it gets half the time in its
    /// next call, and so on. So a function without end does not cost the full time for each document.
    pub time: Duration,
    /// Time for which a series of calls keeps its thread before others have their turn.
    pub turn: Duration,
    /// Bytes of the stack, at most 16 MiB. The thread needs somewhat more; threads of a [`Pool`](crate::Pool) have it.
    pub stack: usize,
    /// Bytes of JSON text that a call may emit or return.
    pub output: usize,
}

/// The largest stack that can be set: `rquickjs` takes a larger value, and zero, to mean no limit.
pub(crate) const MAX_STACK: usize = 16 << 20;

/// Bytes of stack for functions that recurse as deep as they can in CouchDB, about 5,300 calls. Without optimisation,
/// QuickJS takes five times as much for a call.
const STACK: usize = if cfg!(debug_assertions) { MAX_STACK } else { 8 << 20 };

impl Default for Limits {
    /// 64 MiB of memory, five seconds like CouchDB's `os_process_timeout`, half a second for a turn, 8 MiB of stack (16
    /// MiB in builds without optimisation), 16 MiB of results.
    fn default() -> Limits {
        let (time, turn) = (Duration::from_secs(5), Duration::from_millis(500));
        Limits { memory: 64 << 20, time, turn, stack: STACK, output: 16 << 20 }
    }
}
