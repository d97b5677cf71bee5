//! Waits for a database to change, with one watch of the store for each database and process, however many clients
//! wait.
//!
//! ```text
//!   waiters ──┬── Epoch ── armed: reads `last`, watches it, commits ── fired ──► next epoch
//!             │              │                                          │
//!             │              └ `last` beyond what a waiter has seen:    └ wakes every waiter, which looks
//!             │                it continues at once                       at `last` of the next epoch
//! ```
//!
//! Nothing is spawned, and no executor is needed: an epoch is a shared future, driven by any waiter that is
//! polled. When that one is dropped, another takes over.
//!
//! No wake-up is lost: a waiter states the sequence it has seen, and waits only on an epoch whose transaction read
//! exactly that sequence. The epoch's watch fires on any later change.

use std::fmt;
use std::sync::{Arc, Weak};

use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::feed::change::ChangesRequest;
use crate::feed::seq::Seq;
use crate::feed::tail::Tail;

pub(crate) type Fired = Shared<BoxFuture<'static, kv_api::Result<()>>>;
pub(crate) type Arming = Shared<BoxFuture<'static, Result<Armed>>>;

/// An armed watch.
#[derive(Clone)]
pub(crate) struct Armed {
    /// The last sequence when it was armed.
    pub(crate) last: Seq,
    pub(crate) fired: Fired,
}

/// The time from arming a watch until it fires.
#[derive(Clone)]
pub(crate) struct Epoch {
    pub(crate) number: u64,
    pub(crate) arming: Arming,
}

/// State shared by the waiters of a database.
#[derive(Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
    /// The tails that waiters read, one for each shape of a request.
    tails: Mutex<Vec<Weak<Tail>>>,
}

#[derive(Default)]
struct State {
    next: u64,
    current: Option<Epoch>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The current epoch, or a new one, which `arm` starts.
    pub(crate) fn epoch(&self, arm: impl FnOnce() -> Arming) -> Epoch {
        let mut state = self.state();
        if let Some(epoch) = &state.current {
            return epoch.clone();
        }
        let epoch = Epoch { number: state.next, arming: arm() };
        state.next += 1;
        state.current = Some(epoch.clone());
        epoch
    }

    /// The tail for requests of this shape.
    pub(crate) fn tail(&self, shape: ChangesRequest) -> Arc<Tail> {
        let mut tails = self.tails.lock();
        if let Some(tail) = tails.iter().filter_map(Weak::upgrade).find(|tail| tail.has_shape(&shape)) {
            return tail;
        }
        tails.retain(|tail| tail.strong_count() > 0);
        let tail = Arc::new(Tail::new(shape));
        tails.push(Arc::downgrade(&tail));
        tail
    }

    /// Ends an epoch, unless another one has started.
    pub(crate) fn end(&self, number: u64) {
        let mut state = self.state();
        if state.current.as_ref().is_some_and(|epoch| epoch.number == number) {
            state.current = None;
        }
    }
}
