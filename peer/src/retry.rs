//! The loop that asks again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::environment::{Environment, random};
use crate::error::{Error, Result};

/// How often something is tried: for about half a minute, if each failure comes at once.
const ATTEMPTS: u32 = 12;
/// The same, of a peer that has never answered: most likely it is not there.
const FIRST_ATTEMPTS: u32 = 5;
/// No attempt begins later than this after the first, in milliseconds.
pub const LONGEST_MS: u64 = 10 * 60 * 1_000;
/// The first pause and the longest, in milliseconds.
const FIRST_PAUSE_MS: u64 = 50;
const LONGEST_PAUSE_MS: u64 = 8_000;

/// How one peer is asked again. Clones share what is known of it.
#[derive(Clone, Debug)]
pub struct Retry {
    environment: Arc<dyn Environment>,
    /// Whether it has ever answered.
    has_answered: Arc<AtomicBool>,
}

/// Attempts at one thing.
#[derive(Debug)]
pub struct Effort {
    attempts: u32,
    began_ms: u64,
}

impl Retry {
    /// For a peer that has not answered yet.
    pub fn new(environment: Arc<dyn Environment>) -> Self {
        Retry { environment, has_answered: Arc::default() }
    }

    /// Begins to count attempts at one thing.
    pub fn effort(&self) -> Effort {
        Effort { attempts: 0, began_ms: self.environment.now_ms() }
    }

    /// Says that the peer answered.
    pub fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Pauses after a failure.
    ///
    /// # Errors
    /// The failure, if there were enough of them.
    pub async fn pause(&self, effort: &mut Effort, failure: Error) -> Result<()> {
        effort.attempts += 1;
        let most = if self.has_answered.load(Ordering::Relaxed) { ATTEMPTS } else { FIRST_ATTEMPTS };
        let elapsed = self.environment.now_ms().saturating_sub(effort.began_ms);
        if effort.attempts >= most || elapsed >= LONGEST_MS {
            return Err(given_up(&failure, effort.attempts, elapsed));
        }
        let longest = (FIRST_PAUSE_MS << (effort.attempts - 1).min(10)).min(LONGEST_PAUSE_MS);
        // Half of it at least: a server that is overloaded needs the time. The rest by chance, so that those who
        // failed together do not come back together.
        let pause = longest / 2 + random(&*self.environment) % (longest / 2 + 1);
        self.environment.sleep(Duration::from_millis(pause)).await;
        Ok(())
    }

    /// Asks until there is an answer.
    ///
    /// # Errors
    /// The first failure that does not pass, or the last of too many.
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
    let sentence = format!("{failure} (given up after {attempts} attempts in {seconds} s)");
    let error = Error::new(failure.kind(), sentence);
    failure.status().map_or(error.clone(), |status| error.with_status(status))
}
