//! The number of rows in a range.
//!
//! Rows do not store their position, so the first rows of the range are counted: about as many as the answer has, so
//! that counting costs no more than the answer. The store estimates the bytes of the rest, and the counted rows give
//! the size of a row. Embedded engines count up to 1,000 more rows and then estimate from a sample of one row in about
//! 128 KiB, so their result is coarse below some ten megabytes.

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::read::all_docs::AllDocsRequest;
use crate::rows::stats::Stats;

/// Minimum and maximum number of rows that are counted before the store estimates the rest.
const COUNTED: std::ops::RangeInclusive<usize> = 100..=1_000;

impl<D: Database> Documents<D> {
    /// Number of changes after this sequence, or before it with `descending`: exact up to `exact` (at least a
    /// hundred, at most a thousand), an estimate above.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn pending(&self, seq: Seq, descending: bool, exact: usize) -> Result<u64> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Changes);
        let at = keys.key(DatabaseKey::Change(seq));
        let range = match descending {
            true => RangeRequest::keys(first, at),
            false => RangeRequest::selectors(
                KeySelector::first_greater_than(at),
                KeySelector::first_greater_or_equal(beyond),
            ),
        };
        self.count(range, exact, |stats| stats.doc_count + stats.doc_del_count).await
    }

    /// Number of live documents in the range of a listing: exact up to `exact` (at least a hundred, at most a
    /// thousand), an estimate above. Uses only `start` and `end`, with their options.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn count_docs(&self, request: &AllDocsRequest, exact: usize) -> Result<u64> {
        match request.range(self.keys()) {
            Some(range) => self.count(range, exact, |stats| stats.doc_count).await,
            None => Ok(0),
        }
    }

    /// Counts a range, which is a part of `whole` rows.
    async fn count(&self, range: RangeRequest, exact: usize, whole: impl Fn(Stats) -> i64) -> Result<u64> {
        let stats_key = self.keys().key(DatabaseKey::Stats);
        let exact = exact.clamp(*COUNTED.start(), *COUNTED.end());
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let mut batch = transaction.get_range(&range.clone().limit(exact), Read::Snapshot);
            let stats = transaction.get(&stats_key, Read::Snapshot);
            let (mut range, whole) = (range.clone(), &whole);
            async move {
                instance.await?;
                let (mut counted, mut bytes) = (0, 0);
                loop {
                    let read = batch.await?;
                    counted += read.rows.len();
                    bytes += read.rows.iter().map(|row| row.key.len() + row.value.len()).sum::<usize>();
                    // Without a rest, this was the whole range.
                    let Some(rest) = range.after(&read) else { return Ok(counted as u64) };
                    range = rest;
                    if counted >= exact {
                        break;
                    }
                    batch = transaction.get_range(&range.clone().limit(exact - counted), Read::Snapshot);
                }
                let rest = transaction.get_estimated_range_size(&range.begin.key, &range.end.key).await?;
                let (counted, bytes) = (counted as u64, bytes as u64);
                let estimate = counted.saturating_add(rest.saturating_mul(counted) / bytes.max(1));
                let most = u64::try_from(whole(Stats::read(stats.await?.as_deref())?)).unwrap_or(0);
                Ok(estimate.clamp(counted + 1, most.max(counted + 1)))
            }
        })
        .await
    }
}
