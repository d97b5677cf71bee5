//! Transactions that only read.

use std::future::Future;

use kv_api::error::TRANSACTION_TOO_OLD;
use kv_api::{Database, RetryError, Transaction, TransactionOption};

use crate::error::Result;

/// Maximum number of retries of a read.
const RETRIES: u32 = 20;

/// Runs `body` in a transaction that is never committed, and again in a new one if the store says that a retry may
/// help, for example because the read version is too old. Its reads may be snapshot reads, since no write depends on
/// them.
pub(crate) async fn run<D, T, F, Fut>(engine: &D, mut body: F) -> Result<T>
where
    D: Database,
    F: FnMut(D::Transaction) -> Fut,
    Fut: Future<Output = Result<T>>,
{
    run_batch(engine, 1, |transaction, _| body(transaction)).await
}

/// The same for a batch. `body` gets the number of items that it may read, `most` at first. Each time the read version
/// becomes too old, the number is halved, so that a retry succeeds. It is also halved if rows cannot be read, so that
/// the error is about the first item.
pub(crate) async fn run_batch<D, T, F, Fut>(engine: &D, most: usize, mut body: F) -> Result<T>
where
    D: Database,
    F: FnMut(D::Transaction, usize) -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let transaction = engine.begin()?;
    let mut items = most;
    loop {
        match body(transaction.clone(), items).await {
            Ok(value) => return Ok(value),
            Err(failure) => match failure.kv_error().cloned() {
                Some(error) if error.damage().is_some() && items > 1 => items /= 2,
                Some(error) => {
                    if error.code() == TRANSACTION_TOO_OLD {
                        items = (items / 2).max(1);
                    }
                    transaction.set_option(TransactionOption::RetryLimit(Some(RETRIES)));
                    transaction.on_error(error).await?;
                }
                None => return Err(failure),
            },
        }
    }
}
