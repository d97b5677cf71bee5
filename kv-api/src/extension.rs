//! Convenience methods over the two traits. No engine implements them.

use std::future::Future;

use futures_util::stream::{self, Stream};

use crate::{Attempt, Database, KeyValue, RangeRequest, Read, Result, RetryError, Runner, Transaction};

/// Convenience methods of every [`Database`].
pub trait DatabaseExt: Database {
    /// Runs `body` in a transaction until it commits: [`Runner`] without options.
    fn run<T, E, F, Fut>(&self, body: F) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send,
        E: RetryError + Send,
        F: FnMut(Self::Transaction, Attempt) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        Runner::new(self).run(body)
    }
}

impl<D: Database> DatabaseExt for D {}

/// Convenience methods of every [`Transaction`].
pub trait TransactionExt: Transaction {
    /// All rows of a range, read in batches. Memory grows with the range: limit the request, or use
    /// [`stream`](Self::stream).
    fn get_all(
        &self,
        request: RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<Vec<KeyValue>>> + Send + use<Self> {
        let transaction = self.clone();
        let first = self.get_range(&request, read);
        async move {
            let batch = first.await?;
            let mut next = request.after(&batch);
            let mut rows = batch.rows;
            while let Some(request) = next {
                let batch = transaction.get_range(&request, read).await?;
                next = request.after(&batch);
                rows.extend(batch.rows);
            }
            Ok(rows)
        }
    }

    /// The batches of a range. The call issues the first read; taking a batch issues the next.
    fn stream(
        &self,
        request: RangeRequest,
        read: Read,
    ) -> impl Stream<Item = Result<Vec<KeyValue>>> + Send + use<Self> {
        let first = self.get_range(&request, read);
        let state = Some((self.clone(), request, Some(first)));
        stream::unfold(state, move |state| async move {
            let (transaction, request, issued) = state?;
            let outcome = match issued {
                Some(first) => first.await,
                None => transaction.get_range(&request, read).await,
            };
            match outcome {
                Ok(batch) => {
                    let rest = request.after(&batch).map(|rest| (transaction, rest, None));
                    Some((Ok(batch.rows), rest))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

impl<T: Transaction> TransactionExt for T {}
