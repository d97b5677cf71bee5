//! Builds indexes batch by batch, and reads the next batch while one is written.
//!
//! ```text
//!  progress   … d           h           m
//!  batch 1    read, commit ──┐
//!  batch 2      read ────────┴─ commit ──┐         starts before batch 1 is committed, and commits after it
//!  batch 3                   read ───────┴─ commit
//! ```
//!
//! A transaction that starts before the last commit cannot see the progress which that commit writes. It need not read
//! it: the builder knows it, and commits this transaction only after the other one. That is enough:
//! * Progress only means that documents up to it need not be built. Another builder may have gone further meanwhile.
//!   Then the same rows are written again.
//! * Every change that makes a build invalid changes the instance: an index is deleted, added or active, or the
//!   database is dropped or moved. The transaction read the instance, so it conflicts. It also conflicts with an edit
//!   of one of its documents, and with a server that took over the job.
//! * It continues only while no other index is inactive. So two builders at a document write the same id row.
//!
//! If anything fails, the batch read ahead is dropped, and [`build`](super::build) continues from the stored progress.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use futures_util::future::join;
use jobs::Hold;
use kv_api::{Database, Transaction};

use crate::documents::Documents;
use crate::error::Result;

use super::build::{Batched, BuildProgress, Place};

/// The reading of a batch, which may run on another thread.
pub type ReadAhead<D> = Pin<Box<dyn Future<Output = Option<BatchAhead<D>>> + Send>>;

/// A batch that was read but not committed.
pub struct BatchAhead<D: Database> {
    transaction: D::Transaction,
    batched: Batched,
}

/// A build of the indexes of a database, see [`Documents::index_build`].
pub struct IndexBuild<D: Database> {
    documents: Documents<D>,
    /// Where the last batch ended, unless that was the end.
    place: Option<Place>,
    ahead: Option<BatchAhead<D>>,
}

impl<D: Database> fmt::Debug for BatchAhead<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchAhead").field("progress", &self.batched.progress).finish_non_exhaustive()
    }
}

impl<D: Database> fmt::Debug for IndexBuild<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexBuild").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<D: Database> Documents<D> {
    /// Builds the indexes that are not active, like [`build_indexes_batch`](Self::build_indexes_batch), but reads
    /// ahead.
    pub fn index_build(&self) -> IndexBuild<D> {
        IndexBuild { documents: self.clone(), place: None, ahead: None }
    }
}

impl<D: Database> IndexBuild<D> {
    /// Writes one batch of at most `most` documents. `None` if every index is active. `spawn` gets the reading of the
    /// next batch: it may start it on another thread, or return it as it is. With `hold`, only a run that has the job
    /// can write.
    ///
    /// # Errors
    /// Like [`Documents::build_indexes_batch`].
    pub async fn next(
        &mut self,
        most: usize,
        hold: Option<&Hold>,
        spawn: impl FnOnce(ReadAhead<D>) -> ReadAhead<D>,
    ) -> Result<Option<BuildProgress>> {
        let ahead = match (self.ahead.take(), self.place.take()) {
            (None, Some(place)) => read_ahead(self.documents.clone(), most, hold.cloned(), place).await,
            (ahead, _) => ahead,
        };
        if let Some(BatchAhead { transaction, batched: Batched { progress, place } }) = ahead {
            let next = place.clone().map(|place| read_ahead(self.documents.clone(), most, hold.cloned(), place));
            let next = next.map(spawn);
            let next = async {
                match next {
                    Some(next) => next.await,
                    None => None,
                }
            };
            if let (Ok(()), next) = join(transaction.commit(), next).await {
                (self.place, self.ahead) = (place, next);
                return Ok(Some(progress));
            }
        }
        // Starts, or continues after a failure: reads the progress, and returns the error if there is one.
        let batched = self.documents.write_next_batch(most, hold).await?;
        Ok(batched.map(|Batched { progress, place }| {
            self.place = place;
            progress
        }))
    }
}

/// Reads the batch after `place`. `None` if that fails, or if the set of indexes to build must be read again.
fn read_ahead<D: Database>(documents: Documents<D>, most: usize, hold: Option<Hold>, place: Place) -> ReadAhead<D> {
    Box::pin(async move {
        let transaction = documents.engine().begin().ok()?;
        let batched = documents.build_batch(&transaction, most, hold.as_ref(), Some(place)).await.ok()??;
        Some(BatchAhead { transaction, batched })
    })
}
