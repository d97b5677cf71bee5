//! Finds the edits made before a time.
//!
//! A row of the counts has a time and a version, and all edits up to the version were committed before the time. So the
//! edits after that version are all those since the time, and perhaps some older ones: at most those of the few
//! minutes, or of the [`EDITS_BETWEEN`](super::due::EDITS_BETWEEN) edits, between two rows of a process. For times
//! years ago, fewer rows are left.
//!
//! Times never fall along the rows: a row whose clock is not later than the last row's time repeats it. So a clock that
//! is behind does not hide edits. After a clock that was ahead, times stand still until the real time is later, and
//! requests for a time before that return too many edits. [`Documents::reset_times`] forgets all times.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use kv_api::{Database, RangeRequest, Read, Transaction};

use super::EditCount;
use super::due::MS_BETWEEN;
use crate::admin::info::read_last;
use crate::documents::Documents;
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::rows::row::STAMP_LEN;
use crate::rows::stats::Stats;
use crate::write::txids::Outcome;
use crate::write::unguarded::Unguarded;

/// Number of rows read at once.
const ROWS: usize = 64;

/// Number of rows that a reset changes in a transaction.
const ROWS_RESET: usize = 1_000;

const HOUR_MS: u64 = 3_600_000;

/// Widths of bins in milliseconds, and the number of bins of each width, from now on back: almost fourteen years in
/// all.
const WIDTHS: [(u64, usize); 4] =
    [(3 * HOUR_MS, 24), (24 * HOUR_MS, 11), (30 * 24 * HOUR_MS, 11), (365 * 24 * HOUR_MS, 13)];

/// Maximum distance between the times of two rows, as a fraction of their age.
const PART_OF_AGE: u64 = 8;

/// A span of time, up to the next one or to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeBin {
    /// Its start, in milliseconds since 1970.
    pub start_ms: u64,
    /// About the number of edits in it.
    pub edits: u64,
}

impl EditCount {
    /// Whether to keep the row's time, between those of the last kept row and of the next row.
    pub(super) fn tells_time(&self, kept_ms: Option<u64>, next: &EditCount, now_ms: u64) -> bool {
        let (Some(own), Some(next)) = (self.time, next.time) else { return false };
        let least_gap = MS_BETWEEN.max(now_ms.saturating_sub(own.ms) / PART_OF_AGE);
        next.ms.saturating_sub(kept_ms.unwrap_or(0)) > least_gap
    }

    /// The edits up to this sequence were committed by the time of the row at `at`; `None` if it has no time.
    pub(super) fn told(&self, at: Seq) -> Option<Seq> {
        Some(self.time?.upto.unwrap_or(Seq::end_of(at.incarnation(), self.version)))
    }

    /// Whether its time is before this one. A row without a time is older than those with one.
    fn is_before(&self, time_ms: u64) -> bool {
        self.time.is_none_or(|own| own.ms < time_ms)
    }
}

impl<D: Database> Documents<D> {
    /// A sequence after which the feed has every edit since a time, in milliseconds since 1970, by the clocks of the
    /// processes that wrote. There may be some older edits after it.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn since_time(&self, time_ms: u64) -> Result<Seq> {
        // The clock of another process may be a little ahead.
        if time_ms > self.shared.guard.environment.now_ms().saturating_add(HOUR_MS) {
            return self.last_seq().await;
        }
        let row = self.read(|transaction| async move {
            self.instance(&transaction, Read::Snapshot).await?;
            self.count_before(&transaction, time_ms).await
        });
        Ok(row.await?.and_then(|(at, count)| count.told(at)).unwrap_or(Seq::ZERO))
    }

    /// About the number of edits by the time when they were made, oldest first, in at most 60 bins. The last days have
    /// bins of three hours. Bins without edits are left out.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn time_bins(&self) -> Result<Vec<TimeBin>> {
        let (now_ms, stats_key) = (self.shared.guard.environment.now_ms(), &self.keys().key(DatabaseKey::Stats));
        let read = self.read(|transaction| async move {
            let created_ms = self.instance(&transaction, Read::Snapshot).await?.created_ms;
            Ok((created_ms, Stats::read(transaction.get(stats_key, Read::Snapshot).await?.as_deref())?))
        });
        let (created_ms, stats) = read.await?;
        let mut after = u64::try_from(stats.edits).unwrap_or(0);
        let mut bins = Vec::new();
        let starts = starts(created_ms, now_ms);
        for (place, &start_ms) in starts.iter().enumerate() {
            // The oldest bin includes everything older.
            let before = if place + 1 == starts.len() {
                0
            } else {
                let row = self.read(|transaction| async move { self.count_before(&transaction, start_ms).await });
                row.await?.map_or(0, |(_, count)| count.before.min(after))
            };
            if before < after {
                bins.push(TimeBin { start_ms, edits: after - before });
            }
            after = before;
        }
        bins.reverse();
        Ok(bins)
    }

    /// Remembers that all edits so far were made by now, unless a row of the last `apart_ms` says so already. Without
    /// this, an edit is known to be old only once others follow it. Returns the newest time that was known before.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn mark_time(&self, apart_ms: u64) -> Result<Option<u64>> {
        self.shared
            .guard
            .run(|transaction| async move {
                let instance = self.instance(&transaction, Read::Serializable);
                let last = transaction.get(&self.keys().key(DatabaseKey::Last), Read::Snapshot);
                let newest = transaction.get_range(&self.newest_count(), Read::Snapshot);
                let count = self.edit_count(&transaction, 0);
                let (instance, last) = (instance.await?, read_last(last.await?.as_deref())?);
                let newest = newest.await?.rows.first().map(|row| self.read_row(row)).transpose()?;
                let told = newest.and_then(|(at, count)| count.told(at));
                let known_ms = newest.and_then(|(_, count)| Some(count.time?.ms));
                let count = count.await?;
                let is_known = told.unwrap_or(Seq::ZERO) >= last
                    && known_ms.zip(count.time).is_some_and(|(known, now)| now.ms.saturating_sub(known) <= apart_ms);
                // A row that only repeats another one is useless.
                if is_known || count.time.is_some_and(|time| time.upto.is_some()) {
                    return Ok(Outcome::ReadOnly(known_ms));
                }
                count.write(&transaction, self.keys(), instance.incarnation);
                Ok(Outcome::Write(known_ms))
            })
            .await
    }

    /// Forgets the times of all edits so far: a time before now then gives the whole feed. Use it after a wrong clock
    /// wrote times in the future.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn reset_times(&self) -> Result<()> {
        self.shared.edit_counts.slot(self.keys()).latest_ms.store(0, Ordering::Relaxed);
        let (first, beyond) = self.keys().bounds(DatabaseKey::Counts);
        // The newest rows first, since later ones take their times from them.
        let mut end = Some(Bytes::from(beyond));
        while let Some(to) = end {
            let range = &RangeRequest::keys(first.clone(), to).reverse().limit(ROWS_RESET);
            end = self
                .shared
                .guard
                .run(|transaction| async move {
                    self.instance(&transaction, Read::Serializable).await?;
                    let batch = transaction.get_range(range, Read::Snapshot).await?;
                    for row in &batch.rows {
                        let count = EditCount::read(&row.value)?;
                        if count.time.is_some() {
                            transaction.set_unguarded(&row.key, EditCount { time: None, ..count }.encode());
                        }
                    }
                    Ok(Outcome::Write(batch.rows.last().filter(|_| batch.more).map(|row| row.key.clone())))
                })
                .await?;
        }
        Ok(())
    }

    /// The last row with a time before this one. Halves the range of sequences until it has few rows.
    async fn count_before(&self, transaction: &D::Transaction, time_ms: u64) -> Result<Option<(Seq, EditCount)>> {
        let keys = self.keys();
        let newest = transaction.get_range(&self.newest_count(), Read::Snapshot).await?;
        let Some((at, count)) = newest.rows.first().map(|row| self.read_row(row)).transpose()? else { return Ok(None) };
        if count.is_before(time_ms) {
            return Ok(Some((at, count)));
        }
        // All rows before `low` are before the time, and all rows from `high` on are not.
        let (mut found, mut low, mut high) = (None, 0, number(at));
        while low < high {
            let middle = low + (high - low) / 2;
            let rows = |from, to, most| {
                let key = |number| keys.key(DatabaseKey::Count(seq(number)));
                transaction.get_range(&RangeRequest::keys(key(from), key(to)).limit(most), Read::Snapshot)
            };
            let (few, next) = (rows(low, high, ROWS), rows(middle, high, 1));
            let few = few.await?;
            if !few.more {
                for row in &few.rows {
                    let (at, count) = self.read_row(row)?;
                    if !count.is_before(time_ms) {
                        break;
                    }
                    found = Some((at, count));
                }
                break;
            }
            match next.await?.rows.first().map(|row| self.read_row(row)).transpose()? {
                Some((at, count)) if count.is_before(time_ms) => {
                    (found, low) = (Some((at, count)), number(at) + 1);
                }
                _ => high = middle,
            }
        }
        Ok(found)
    }
}

/// The starts of at most 60 bins, newest first. The first is not after now. The last is not after the creation,
/// unless that is longer ago than all bins.
fn starts(created_ms: u64, now_ms: u64) -> Vec<u64> {
    let mut start = now_ms - now_ms % WIDTHS[0].0;
    let mut starts = vec![start];
    for width in WIDTHS.iter().flat_map(|&(width, count)| std::iter::repeat_n(width, count)) {
        if start <= created_ms {
            break;
        }
        start = start.saturating_sub(width);
        starts.push(start);
    }
    starts
}

/// A sequence as a number that sorts like it.
fn number(seq: Seq) -> u128 {
    seq.as_bytes().iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn seq(number: u128) -> Seq {
    let bytes = number.to_be_bytes();
    let mut stamp = [0; STAMP_LEN];
    stamp.copy_from_slice(&bytes[16 - STAMP_LEN..]);
    Seq::new(bytes[16 - Seq::LEN], &stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_numbers_that_sort_like_them() {
        for one in [Seq::ZERO, Seq::LAST, Seq::end_of(3, 1 << 50), Seq::beginning_of(9)] {
            assert_eq!(seq(number(one)), one);
        }
        assert!(number(Seq::end_of(0, u64::MAX)) < number(Seq::beginning_of(1)));
    }

    #[test]
    fn bins_go_back_to_the_creation_and_are_at_most_sixty() {
        let (hour, now) = (HOUR_MS, 500_000 * HOUR_MS + 1);
        assert_eq!(starts(now, now).len(), 1);
        let day = starts(now - 24 * hour, now);
        assert_eq!((day[0], day.len()), (now - 1 - 2 * hour, 9), "{day:?}");
        assert!(day.is_sorted_by(|a, b| a > b) && *day.last().unwrap() <= now - 24 * hour);
        let all = starts(0, now);
        assert_eq!((all.len(), now - all[59] > 13 * 365 * 24 * hour), (60, true));
    }
}
