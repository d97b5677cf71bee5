//! Runs a transaction until it commits.
//!
//! An [`Attempt`] tells the body about earlier attempts. [`Transaction::on_error`] alone decides what is retried.
//! An [`Observer`] sees what happens and has no influence.

use std::fmt;
use std::future::Future;

use crate::{Database, Error, Result, Transaction, TransactionOption, error};

/// Facts about earlier attempts that the body of a transaction may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// Whether an earlier attempt ended with an unknown outcome (1021, 1039). Stays true for the rest of the run.
    /// A body that is not idempotent must then find out whether it has committed.
    pub maybe_committed: bool,
}

/// Errors that a body may return. An error that contains a retryable error of the store is retried. Any other
/// error ends the run.
pub trait RetryError: From<Error> {
    /// The error of the store inside this error, if there is one.
    fn kv_error(&self) -> Option<&Error>;
}

impl RetryError for Error {
    fn kv_error(&self) -> Option<&Error> {
        Some(self)
    }
}

/// Observes the attempts of a run. All methods do nothing by default.
pub trait Observer: Send + Sync {
    /// `attempt` failed with `error`, and another one follows.
    fn retrying(&self, attempt: Attempt, error: &Error) {
        let _ = (attempt, error);
    }

    /// `attempt` committed.
    fn committed(&self, attempt: Attempt) {
        let _ = attempt;
    }

    /// `attempt` failed with `error` and was the last one.
    fn gave_up(&self, attempt: Attempt, error: &Error) {
        let _ = (attempt, error);
    }
}

/// Runs a body in a transaction and commits it. Repeats both as the store's `on_error` decides.
///
/// The body may run any number of times and must have no effects outside its transaction.
///
/// A run that gives up after an attempt with an unknown outcome returns 1021, with the last error in its context.
/// The exception is a body that returns an error of its own: it is trusted to have looked at
/// [`Attempt::maybe_committed`].
pub struct Runner<'a, D> {
    database: &'a D,
    options: Vec<TransactionOption>,
    observer: Option<&'a dyn Observer>,
}

impl<'a, D: Database> Runner<'a, D> {
    /// A runner without options or observer.
    pub fn new(database: &'a D) -> Self {
        Runner { database, options: Vec::new(), observer: None }
    }

    /// Sets an option on the transaction before each attempt.
    #[must_use]
    pub fn option(mut self, option: TransactionOption) -> Self {
        self.options.push(option);
        self
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(mut self, observer: &'a dyn Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Runs `body` until it commits or fails for good.
    pub async fn run<T, E, F, Fut>(self, mut body: F) -> Result<T, E>
    where
        E: RetryError,
        F: FnMut(D::Transaction, Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let transaction = self.database.begin()?;
        let mut attempt = Attempt { number: 1, maybe_committed: false };
        loop {
            for &option in &self.options {
                transaction.set_option(option);
            }
            let outcome = match body(transaction.clone(), attempt).await {
                Ok(value) => transaction.commit().await.map(|()| value).map_err(E::from),
                Err(failure) => Err(failure),
            };
            let failure = match outcome {
                Ok(value) => {
                    self.observe(|observer| observer.committed(attempt));
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            let Some(error) = failure.kv_error().cloned() else { return Err(failure) };
            let maybe_committed = attempt.maybe_committed | error.is_maybe_committed();
            if let Err(last) = transaction.on_error(error.clone()).await {
                self.observe(|observer| observer.gave_up(attempt, &last));
                if maybe_committed && !last.is_maybe_committed() {
                    let unknown = Error::new(error::COMMIT_UNKNOWN_RESULT);
                    return Err(unknown.with_context(format!("an earlier attempt; the last one: {last}")).into());
                }
                // If the body's error is the last error, it is returned: it may say more.
                return Err(if last == error { failure } else { last.into() });
            }
            self.observe(|observer| observer.retrying(attempt, &error));
            attempt = Attempt { number: attempt.number.saturating_add(1), maybe_committed };
        }
    }

    fn observe(&self, see: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.observer {
            see(observer);
        }
    }
}

impl<D> fmt::Debug for Runner<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("options", &self.options).finish_non_exhaustive()
    }
}
