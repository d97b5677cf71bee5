//! The number before a sequence: about how many edits the database had had by then, and when that was.
//!
//! CouchDB's sequences are `N-…`, and programs use `N`: they take the difference of two as the number of changes
//! between them. A versionstamp has no such number, so some transactions write a row with the number of edits up to
//! them:
//!
//! ```text
//!  (17, Incarnation, Stamp) = (Before, Own, Version, TimeMs, Upto)
//! ```
//!
//! `Stamp` is that of the transaction. `Before` is the number of edits committed at `Version`, the version that it
//! read, by the [counters](crate::rows::stats). `Own` is the number of its own edits. The number of a sequence is the
//! greatest count of the rows up to it. It never changes, since only later rows are added, and it never falls along the
//! feed. The number at the end of the feed lags behind by less than [`EDITS_BETWEEN`](due::EDITS_BETWEEN) edits for
//! each process that writes.
//!
//! A row is written without a conflict range, and edits do not read it. A later row can have a lower count than an
//! earlier one, if its transaction read before the earlier one committed. Then the stamp of the earlier row is greater
//! than the `Version` of the later row. So no row before that version needs to be read.
//!
//! All edits up to `Version`, or up to the sequence `Upto` if there is one, were committed before `TimeMs` ([`times`]).
//!
//! A row that is no longer needed for a sequence in the feed is cleared, unless its time is still useful
//! ([`Documents::thin_counts`]). So there are at most about as many rows as documents, however often these are edited.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kv_api::{Database, KeySelector, KeyValue, MutationType, RangeRequest, Read, Transaction, TransactionOption};

mod due;
mod times;

pub(crate) use self::due::EditCounts;
pub use self::times::TimeBin;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::feed::seq::{NumberedSeq, Seq};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::rows::row::{Reader, STAMP_LEN};
use crate::rows::stats::Stats;
use crate::rows::tuple;
use crate::write::txids::Outcome;
use crate::write::unguarded::Unguarded;

/// Number of rows that one thinning reads: several times those written since the last one.
const ROWS_THINNED: usize = 64;

/// Number of rows read after a sequence, if more sequences must be numbered.
const ROWS_AHEAD: usize = 256;

/// Number of rows read at once before a sequence. Few are needed: those of concurrent transactions.
const ROWS_BEHIND: usize = 8;

/// The row of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EditCount {
    /// Number of edits committed at `version`.
    before: u64,
    /// Number of edits of the transaction itself.
    own: u64,
    /// The version that the transaction read.
    version: u64,
    /// `None` if it was [reset](Documents::reset_times).
    time: Option<Time>,
}

/// The time in a row. It never falls along the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time {
    /// In milliseconds since 1970.
    ms: u64,
    /// The edits up to this sequence were committed by then; `None` for those up to the version of the row.
    upto: Option<Seq>,
}

impl EditCount {
    fn encode(self) -> Vec<u8> {
        let mut row = Vec::with_capacity(32);
        for number in [self.before, self.own, self.version].into_iter().chain(self.time.map(|time| time.ms)) {
            tuple::append_u64(&mut row, number);
        }
        if let Some(Time { upto: Some(upto), .. }) = self.time {
            tuple::append_bytes(&mut row, upto.as_bytes());
        }
        row
    }

    fn read(row: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(row);
        let (before, own, version) = (reader.int()?, reader.int()?, reader.int()?);
        let mut time = None;
        if reader.peek().is_some() {
            let ms = reader.int()?;
            let upto = reader.peek().map(|_| reader.bytes()).transpose()?;
            let seq = |bytes: Cow<'_, [u8]>| bytes.as_ref().try_into().map(Seq::from_bytes);
            let wrong = |_| Error::corrupt("a sequence of wrong length in a row that counts edits");
            time = Some(Time { ms, upto: upto.map(seq).transpose().map_err(wrong)? });
        }
        let count = EditCount { before, own, version, time };
        reader.end()?;
        Ok(count)
    }

    /// Writes the row of the transaction.
    pub(crate) fn write(self, transaction: &impl Transaction, keys: &DatabaseKeys, incarnation: u8) {
        let mut key = keys.key(DatabaseKey::PendingCount(incarnation));
        let stamp_at = (key.len() - STAMP_LEN) as u32;
        key.extend_from_slice(&stamp_at.to_le_bytes());
        transaction.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        transaction.atomic_op(MutationType::SetVersionstampedKey, key, self.encode());
    }

    /// Number of edits up to `seq`, by the row of the transaction at `at`.
    fn upto(&self, at: Seq, seq: Seq) -> u64 {
        let own = if at.is_of_same_transaction(seq) { (u64::from(seq.edit()) + 1).min(self.own) } else { self.own };
        self.before.saturating_add(own)
    }
}

/// The rows around the sequences to number.
#[derive(Default)]
struct Window {
    /// In ascending order.
    rows: Vec<(Seq, EditCount)>,
    /// All rows up to this sequence are known; `None` if no rows are.
    upto: Option<Seq>,
}

impl Window {
    /// The number of a sequence that is not after `upto`.
    fn number(&self, seq: Seq) -> u64 {
        let rows = &self.rows[..self.rows.partition_point(|(at, _)| *at <= seq)];
        let Some((last, newest)) = rows.last() else { return 0 };
        let is_newer = |at: &Seq| at.incarnation() == last.incarnation() && at.version() > newest.version;
        let rows = rows.iter().rev().enumerate().take_while(|(place, (at, _))| *place == 0 || is_newer(at));
        rows.map(|(_, (at, count))| count.upto(*at, seq)).max().unwrap_or(0)
    }
}

impl<D: Database> Documents<D> {
    /// Counts the edits of a transaction that is about to write. Returns the row that it must write, if any.
    pub(crate) async fn count_edits(&self, transaction: &D::Transaction, own: usize) -> Result<Option<EditCount>> {
        let now_ms = self.shared.guard.environment.now_ms();
        self.shared.edit_counts.slot(self.keys()).latest_ms.fetch_max(now_ms, Ordering::Relaxed);
        if own == 0 || !self.shared.edit_counts.is_row_due(self.keys(), own, now_ms) {
            return Ok(None);
        }
        self.edit_count(transaction, own).await.map(Some)
    }

    /// The row of a transaction with this number of edits.
    async fn edit_count(&self, transaction: &D::Transaction, own: usize) -> Result<EditCount> {
        let stats = transaction.get(&self.keys().key(DatabaseKey::Stats), Read::Snapshot);
        let newest = transaction.get_range(&self.newest_count(), Read::Snapshot);
        let version = transaction.get_read_version().await?;
        // The clock is read after the version, so the edits of that version were committed before this time.
        // If the clock was set back, edits without a row may have later times than it.
        let latest_ms = self.shared.edit_counts.slot(self.keys()).latest_ms.load(Ordering::Relaxed);
        let now_ms = self.shared.guard.environment.now_ms().max(latest_ms);
        let before = u64::try_from(Stats::read(stats.await?.as_deref())?.edits).unwrap_or(0);
        // An unreadable row makes feeds fail, but not edits.
        let newest = newest.await?.rows.first().and_then(|row| self.read_row(row).ok());
        // A time before the known one is not used.
        let known = newest.and_then(|(at, count)| Some(Time { upto: Some(count.told(at)?), ..count.time? }));
        let time = known.filter(|known| known.ms >= now_ms).unwrap_or(Time { ms: now_ms, upto: None });
        let version = u64::try_from(version).unwrap_or(0);
        Ok(EditCount { before, own: own as u64, version, time: Some(time) })
    }

    fn read_row(&self, row: &KeyValue) -> Result<(Seq, EditCount)> {
        Ok((self.keys().read_count(&row.key)?, EditCount::read(&row.value)?))
    }

    /// The request for the last row.
    fn newest_count(&self) -> RangeRequest {
        let (first, beyond) = self.keys().bounds(DatabaseKey::Counts);
        RangeRequest::keys(first, beyond).reverse().limit(1)
    }

    /// The sequence with its number, as clients see it. A feed numbers its own with
    /// [`ChangesRequest::numbered`](crate::ChangesRequest::numbered).
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn numbered(&self, seq: Seq) -> Result<NumberedSeq> {
        Ok(self.numbered_all(&[seq]).await?[0])
    }

    /// Several sequences with their numbers, in the order in which they are given.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn numbered_all(&self, seqs: &[Seq]) -> Result<Vec<NumberedSeq>> {
        self.read(|transaction| async move {
            let instance = self.instance(&transaction, Read::Snapshot);
            let numbered = self.number(&transaction, seqs).await;
            instance.await?;
            numbered
        })
        .await
    }

    /// One numbered sequence for each of `seqs`, in their order.
    pub(crate) async fn number(&self, transaction: &D::Transaction, seqs: &[Seq]) -> Result<Vec<NumberedSeq>> {
        let mut numbered: Vec<NumberedSeq> = seqs.iter().map(|&seq| NumberedSeq { number: 0, seq }).collect();
        let mut places: Vec<usize> = (0..seqs.len()).collect();
        places.sort_unstable_by_key(|&place| seqs[place]);
        let greatest = seqs.iter().max().copied();
        let mut window = Window::default();
        for place in places {
            let seq = seqs[place];
            if window.upto.is_none_or(|upto| upto < seq) {
                window = self.window(transaction, seq, Some(seq) < greatest).await?;
            }
            numbered[place].number = window.number(seq);
        }
        Ok(numbered)
    }

    /// The rows that number `seq`, and some after it if others follow.
    async fn window(&self, transaction: &D::Transaction, seq: Seq, others_follow: bool) -> Result<Window> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Counts);
        let behind = KeySelector::first_greater_than(keys.key(DatabaseKey::Count(seq)));
        let ahead =
            RangeRequest::selectors(behind.clone(), KeySelector::first_greater_or_equal(beyond)).limit(ROWS_AHEAD);
        let ahead = others_follow.then(|| transaction.get_range(&ahead, Read::Snapshot));
        let read = |row: &KeyValue| self.read_row(row);
        let mut rows: Vec<(Seq, EditCount)> = Vec::new();
        let mut end = behind;
        loop {
            let range = RangeRequest::selectors(KeySelector::first_greater_or_equal(first.clone()), end).reverse();
            let batch = transaction.get_range(&range.limit(ROWS_BEHIND), Read::Snapshot).await?;
            rows.extend(batch.rows.iter().map(read).collect::<Result<Vec<_>>>()?);
            let is_enough = rows.first().zip(rows.last()).is_none_or(|((newest_at, newest), (oldest, _))| {
                oldest.incarnation() < newest_at.incarnation() || oldest.version() <= newest.version
            });
            match batch.rows.last() {
                Some(last) if !is_enough && batch.more => {
                    end = KeySelector::first_greater_or_equal(last.key.clone());
                }
                _ => break,
            }
        }
        rows.reverse();
        let mut upto = seq;
        if let Some(ahead) = ahead {
            let ahead = ahead.await?;
            rows.extend(ahead.rows.iter().map(read).collect::<Result<Vec<_>>>()?);
            upto = if ahead.more { rows.last().map_or(seq, |(at, _)| *at) } else { Seq::LAST };
        }
        Ok(Window { rows, upto: Some(upto) })
    }

    /// Now and then, clears some rows that are not needed for a sequence in the feed. After an error, the next call
    /// tries again.
    pub(crate) async fn thin_counts_if_due(&self) {
        if self.shared.edit_counts.is_thinning_due(self.keys()) {
            let _ = Box::pin(self.thin_counts(ROWS_THINNED)).await;
        }
    }

    /// Reads `most` rows, from where the last call ended. A row is cleared if the feed has no sequence between it and
    /// the next row. Sequences cannot appear there: new ones follow all rows that a transaction reads. Some rows are
    /// kept for their times, the older the fewer: about a hundred in years.
    async fn thin_counts(&self, most: usize) -> Result<()> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Counts);
        let thinned = &self.shared.edit_counts.slot(keys).thinned;
        let begin = Bytes::from(first);
        let from = Some(thinned.lock().clone()).filter(|key| key.starts_with(&begin)).unwrap_or_else(|| begin.clone());
        let (from, beyond, now_ms) = (&from, &beyond, self.shared.guard.environment.now_ms());
        let reached = self
            .shared
            .guard
            .run(|transaction| async move {
                self.instance(&transaction, Read::Serializable).await?;
                let range = RangeRequest::keys(from.clone(), beyond.clone()).limit(most);
                let batch = transaction.get_range(&range, Read::Snapshot).await?;
                let mut rows = Vec::with_capacity(batch.rows.len());
                for row in &batch.rows {
                    rows.push(self.read_row(row)?);
                }
                let needed: Vec<_> = rows
                    .windows(2)
                    .map(|pair| {
                        let key = |seq| KeySelector::first_greater_or_equal(keys.key(DatabaseKey::Change(seq)));
                        let between = RangeRequest::selectors(key(pair[0].0), key(pair[1].0)).limit(1);
                        transaction.get_range(&between, Read::Snapshot)
                    })
                    .collect();
                let (mut cleared, mut kept_ms) = (false, None);
                for ((pair, row), needed) in rows.windows(2).zip(&batch.rows).zip(needed) {
                    let [(_, count), (_, next)] = pair else { continue };
                    let is_covered = count.before.saturating_add(count.own) <= next.before;
                    if needed.await?.rows.is_empty() && is_covered && !count.tells_time(kept_ms, next, now_ms) {
                        transaction.clear_unguarded(&row.key);
                        cleared = true;
                    } else {
                        kept_ms = count.time.map(|time| time.ms);
                    }
                }
                let reached = match batch.rows.last() {
                    Some(last) if batch.more => last.key.clone(),
                    _ => Bytes::new(),
                };
                Ok(if cleared { Outcome::Write(reached) } else { Outcome::ReadOnly(reached) })
            })
            .await?;
        *thinned.lock() = reached;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(version: u64, edit: u16) -> Seq {
        let mut stamp = [0; STAMP_LEN];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        stamp[10..].copy_from_slice(&edit.to_be_bytes());
        Seq::new(0, &stamp)
    }

    #[test]
    fn numbers_count_edits_and_never_fall() {
        let row = |at, before, own, version| (seq(at, 0), EditCount { before, own, version, time: None });
        // The second row's transaction read before the first one committed, and so did the third's.
        let window = Window { rows: vec![row(50, 0, 40, 10), row(60, 0, 3, 45), row(70, 5, 50, 46)], upto: None };
        for (seq, number) in [
            (seq(49, 9), 0),
            (seq(50, 0), 1),
            (seq(50, 39), 40),
            (seq(55, 0), 40),
            (seq(60, 0), 40),
            (seq(70, 0), 40),
            (seq(70, 37), 43),
            (seq(70, 49), 55),
            (seq(99, 0), 55),
        ] {
            assert_eq!(window.number(seq), number, "{seq}");
        }
    }

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let time = |upto| Some(Time { ms: 1 << 40, upto });
        let count = |time| EditCount { before: 1 << 50, own: 1_000, version: u64::MAX, time };
        let counts = [count(None), count(time(None)), count(time(Some(seq(1, 0))))];
        let rows = counts.map(EditCount::encode);
        for (count, row) in counts.iter().zip(&rows) {
            assert_eq!(EditCount::read(row).unwrap(), *count);
        }
        let last = &rows[2];
        for cut in (0..last.len()).filter(|cut| rows.iter().all(|row| row.len() != *cut)) {
            assert!(EditCount::read(&last[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn times_are_kept_the_fewer_the_older_they_are() {
        let row = |ms| EditCount { before: 0, own: 0, version: 0, time: Some(Time { ms, upto: None }) };
        let year = 365 * 86_400_000;
        // Each row replaces the previous one, unless that one's time is useful.
        let mut kept: Vec<u64> = vec![0];
        let mut row_ms = 0;
        while row_ms < 3 * year {
            row_ms += due::MS_BETWEEN;
            kept.push(row_ms);
            if kept.len().is_multiple_of(16) {
                let mut before = None;
                let mut left = Vec::new();
                for pair in kept.windows(2) {
                    if row(pair[0]).tells_time(before, &row(pair[1]), row_ms) {
                        before = Some(pair[0]);
                        left.push(pair[0]);
                    }
                }
                left.extend(kept.last());
                kept = left;
            }
        }
        assert!((50..200).contains(&kept.len()), "{}", kept.len());
        for pair in kept.windows(2) {
            let age = row_ms - pair[0];
            assert!(pair[1] - pair[0] <= age / 4 + 16 * due::MS_BETWEEN, "{} at {age}", pair[1] - pair[0]);
        }
    }
}
