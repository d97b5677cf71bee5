//! The retry loop.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::environment::{TimedEnvironment, random};
use crate::error::{Error, Result};
use crate::text::{MOST_TEXT, cut};

/// Maximum number of attempts: about half a minute, if every failure is immediate.
const ATTEMPTS: u32 = 12;
/// The same for a peer that never responded, since it probably does not exist.
const FIRST_ATTEMPTS: u32 = 5;
/// Milliseconds after the first attempt after which there is no further attempt.
pub const LONGEST_MS: u64 = 10 * 60 * 1_000;
/// The first pause and the longest pause, in milliseconds.
const FIRST_PAUSE_MS: u64 = 50;
const LONGEST_PAUSE_MS: u64 = 8_000;

/// Retries for one peer. Clones share their knowledge of the peer.
#[derive(Clone, Debug)]
pub struct Retry {
    environment: Arc<dyn TimedEnvironment>,
    /// Maximum number of attempts, if the caller sets it.
    most: Option<u32>,
    /// Whether the peer has ever responded.
    has_answered: Arc<AtomicBool>,
}

/// The attempts at one request.
#[derive(Debug)]
pub struct Effort {
    attempts: u32,
    began_ms: u64,
}

impl Effort {
    /// Counts the attempts from now on: the last one did a part of the work. The time of all of them stays limited.
    pub fn progressed(&mut self) {
        self.attempts = 0;
    }
}

impl Retry {
    /// Retries for a peer that has not responded yet.
    pub fn new(environment: Arc<dyn TimedEnvironment>) -> Self {
        Retry { environment, most: None, has_answered: Arc::default() }
    }

    /// Repeats a failed request this many times; `None` means the default.
    #[must_use]
    pub fn repeating(mut self, times: Option<u32>) -> Self {
        self.most = times.map(|times| times.saturating_add(1));
        self
    }

    /// Begins to count the attempts at a request.
    pub fn effort(&self) -> Effort {
        Effort { attempts: 0, began_ms: self.environment.now_ms() }
    }

    /// Records that the peer responded.
    pub fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Pauses after a failure.
    ///
    /// # Errors
    /// The failure, if there were too many attempts.
    pub async fn pause(&self, effort: &mut Effort, failure: Error) -> Result<()> {
        effort.attempts += 1;
        let usual = if self.has_answered.load(Ordering::Relaxed) { ATTEMPTS } else { FIRST_ATTEMPTS };
        let most = self.most.unwrap_or(usual);
        let elapsed = self.environment.now_ms().saturating_sub(effort.began_ms);
        if effort.attempts >= most || elapsed >= LONGEST_MS {
            return Err(given_up(&failure, effort.attempts, elapsed));
        }
        let longest = (FIRST_PAUSE_MS << (effort.attempts - 1).min(10)).min(LONGEST_PAUSE_MS);
        // At least half of the pause, since an overloaded server needs the time. The rest is random, so that clients
        // that failed together do not return together.
        let pause = longest / 2 + random(&*self.environment) % (longest / 2 + 1);
        self.environment.sleep(Duration::from_millis(pause)).await;
        Ok(())
    }

    /// Repeats a request until it succeeds.
    ///
    /// # Errors
    /// The first failure that is not transient, or the last of too many.
    pub async fn ask<T, F>(&self, mut ask: impl FnMut() -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut effort = self.effort();
        loop {
            match ask().await {
                Err(failure) if failure.is_transient() => self.pause(&mut effort, failure).await?,
                Err(failure) => return Err(failure),
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
            }
        }
    }
}

fn given_up(failure: &Error, attempts: u32, elapsed_ms: u64) -> Error {
    let seconds = elapsed_ms.div_ceil(1_000);
    let shown = failure.to_string();
    let sentence = format!("{} (given up after {attempts} attempts in {seconds} s)", cut(&shown, MOST_TEXT - 100));
    let error = Error::new(failure.kind(), sentence);
    failure.status().map_or(error.clone(), |status| error.with_status(status))
}
