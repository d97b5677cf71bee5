//! Running a transaction until it commits.
//!
//! An [`Attempt`] tells the body about earlier attempts. [`Transaction::on_error`] alone decides what is
//! retried. An [`Observer`] sees what happens and has no influence.

use std::fmt;
use std::future::Future;

use crate::{Database, Error, Result, Transaction, TransactionOption, error};

/// What the body of a transaction may have to know about earlier attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    /// Whether an earlier attempt ended with an unknown outcome (1021, 1039). It stays true for the rest of the
    /// run. A body that is not idempotent must then find out first.
    pub maybe_committed: bool,
}

/// Errors with which a body may end. One that holds an error of the store is retried if that is retryable. Any
/// other ends the run.
pub trait RetryError: From<Error> {
    /// The error of the store in this error, if there is one.
    fn kv_error(&self) -> Option<&Error>;
}

impl RetryError for Error {
    fn kv_error(&self) -> Option<&Error> {
        Some(self)
    }
}

/// Observes the attempts of a run. By default all methods do nothing.
pub trait Observer: Send + Sync {
    /// `attempt` failed with `error`, and another follows.
    fn retrying(&self, attempt: Attempt, error: &Error) {
        let _ = (attempt, error);
    }

    /// `attempt` committed.
    fn committed(&self, attempt: Attempt) {
        let _ = attempt;
    }

    /// `attempt` failed with `error` and was the last.
    fn gave_up(&self, attempt: Attempt, error: &Error) {
        let _ = (attempt, error);
    }
}

/// Runs a body in a transaction and commits it. Repeats both as the store's `on_error` decides.
///
/// The body may run any number of times and must have no effects outside of its transaction.
///
/// If a run gives up after an attempt with an unknown outcome, its error is 1021, whatever came last; the
/// context names the last error. A body that ends with its own error after such an attempt is trusted to have
/// looked at [`Attempt::maybe_committed`].
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
                // The body's own error, if it is the one that is returned: it may say more.
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
