//! A clock that moves only when a test moves it.

use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, poll_fn};

use crate::Clock;
use crate::sync::{Arc, Mutex, lock};

/// A clock that tests move by hand. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Hands>>);

#[derive(Debug, Default)]
struct Hands {
    now: Duration,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// A clock at its origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward and wakes the sleepers.
    pub fn advance(&self, by: Duration) {
        let sleepers = {
            let mut hands = lock(&self.0);
            hands.now += by;
            std::mem::take(&mut hands.sleepers)
        };
        for sleeper in sleepers {
            sleeper.wake();
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        lock(&self.0).now
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        let hands = self.0.clone();
        let until = lock(&hands).now.saturating_add(pause);
        poll_fn(move |context| {
            let mut hands = lock(&hands);
            if hands.now >= until {
                return Poll::Ready(());
            }
            hands.sleepers.push(context.waker().clone());
            Poll::Pending
        })
        .boxed()
    }
}
