//! Transactions that only read.

use std::future::Future;

use kv_api::error::TRANSACTION_TOO_OLD;
use kv_api::{Database, RetryError, Transaction, TransactionOption};

use crate::error::Result;

/// How often a read is begun anew before its error is given back.
const RETRIES: u32 = 20;

/// Runs `body` in a transaction that is never committed, and anew in a later one where the store says
/// that this may help (a read version too old, say). Its reads may be snapshot reads: nothing is
/// decided by them.
pub(crate) async fn run<D, T, F, Fut>(engine: &D, mut body: F) -> Result<T>
where
    D: Database,
    F: FnMut(D::Transaction) -> Fut,
    Fut: Future<Output = Result<T>>,
{
    run_batch(engine, 1, |transaction, _| body(transaction)).await
}

/// The same for a batch: `body` is told how many items it may read, `most` at first. After a read version that
/// grew too old it is half as many, so that the retry does not fail where the attempt before it did.
pub(crate) async fn run_batch<D, T, F, Fut>(engine: &D, most: usize, mut body: F) -> Result<T>
where
    D: Database,
    F: FnMut(D::Transaction, usize) -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let transaction = engine.begin()?;
    transaction.set_option(TransactionOption::RetryLimit(Some(RETRIES)));
    let mut items = most;
    loop {
        match body(transaction.clone(), items).await {
            Ok(value) => return Ok(value),
            Err(failure) => match failure.kv_error().cloned() {
                Some(error) => {
                    if error.code() == TRANSACTION_TOO_OLD {
                        items = (items / 2).max(1);
                    }
                    transaction.on_error(error).await?;
                }
                None => return Err(failure),
            },
        }
    }
}
