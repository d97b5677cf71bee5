//! The number before a sequence: about how many edits the database had had by then.
//!
//! CouchDB's sequences are `N-…`, and programs use `N`: they take the difference of two as the number of changes
//! between them. A versionstamp has no such number, so some transactions write a row with the number of edits until
//! then:
//!
//! ```text
//!  (17, Incarnation, Stamp) = (Before, Own, Version)
//! ```
//!
//! `Stamp` is that of the transaction. `Before` is the number of edits committed at `Version`, the version that it
//! read, by the [counters](crate::stats). `Own` is the number of its own edits. The number of a sequence is the
//! greatest count of the rows up to it. So for each sequence it is one number for ever, since only later rows follow,
//! and it never falls along the feed. The number at the end of the feed lags behind by less than
//! [`EDITS_BETWEEN`](due::EDITS_BETWEEN) edits for each process that writes.
//!
//! A row is written without a conflict, and read by no edit. A later row can have a lower count than an earlier one, if
//! its transaction read before the earlier one committed. Then the stamp of the earlier row is greater than the
//! `Version` of the later row. So no row before that version needs to be read.
//!
//! A row that no sequence in the feed needs any more is cleared ([`Documents::thin_counts`]). So there are not more
//! rows than documents, however often these are edited.

use bytes::Bytes;
use kv_api::{Database, KeySelector, KeyValue, MutationType, RangeRequest, Read, Transaction, TransactionOption};

mod due;

pub(crate) use self::due::EditCounts;
use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::row::{Reader, STAMP_LEN};
use crate::seq::{NumberedSeq, Seq};
use crate::stats::Stats;
use crate::tuple;
use crate::txids::Outcome;
use crate::unguarded::Unguarded;

/// Number of rows that one call of it looks at: several times those that were written since the last.
const ROWS_THINNED: usize = 64;

/// Number of rows that are read after a sequence, if more sequences have to be numbered.
const ROWS_AHEAD: usize = 256;

/// Number of rows that are read before a sequence at once. Few are needed: those of concurrent transactions.
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
}

impl EditCount {
    fn encode(self) -> Vec<u8> {
        let mut row = Vec::with_capacity(24);
        for number in [self.before, self.own, self.version] {
            tuple::append_u64(&mut row, number);
        }
        row
    }

    fn read(row: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(row);
        let count = EditCount { before: reader.int()?, own: reader.int()?, version: reader.int()? };
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

/// The rows around the sequences that are numbered.
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
        let beside = |at: &Seq| at.incarnation() == last.incarnation() && at.version() > newest.version;
        let rows = rows.iter().rev().enumerate().take_while(|(place, (at, _))| *place == 0 || beside(at));
        rows.map(|(_, (at, count))| count.upto(*at, seq)).max().unwrap_or(0)
    }
}

impl<D: Database> Documents<D> {
    /// Counts the edits of a transaction that is about to write. Returns the row that it is to write, if any.
    pub(crate) async fn count_edits(&self, transaction: &D::Transaction, own: usize) -> Result<Option<EditCount>> {
        if own == 0 || !self.shared.edit_counts.is_row_due(self.keys(), own) {
            return Ok(None);
        }
        let stats = transaction.get(&self.keys().key(DatabaseKey::Stats), Read::Snapshot);
        let version = transaction.get_read_version().await?;
        let before = u64::try_from(Stats::read(stats.await?.as_deref())?.edits).unwrap_or(0);
        Ok(Some(EditCount { before, own: own as u64, version: u64::try_from(version).unwrap_or(0) }))
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

    /// The rows that number `seq`, and some behind it if others follow.
    async fn window(&self, transaction: &D::Transaction, seq: Seq, others_follow: bool) -> Result<Window> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Counts);
        let behind = KeySelector::first_greater_than(keys.key(DatabaseKey::Count(seq)));
        let ahead =
            RangeRequest::selectors(behind.clone(), KeySelector::first_greater_or_equal(beyond)).limit(ROWS_AHEAD);
        let ahead = others_follow.then(|| transaction.get_range(&ahead, Read::Snapshot));
        let read = |row: &KeyValue| Ok((keys.read_count(&row.key)?, EditCount::read(&row.value)?));
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

    /// Clears some rows that no sequence in the feed needs, once in a while. After an error, the next call tries again.
    pub(crate) async fn thin_counts_if_due(&self) {
        if self.shared.edit_counts.is_thinning_due(self.keys()) {
            let _ = Box::pin(self.thin_counts(ROWS_THINNED)).await;
        }
    }

    /// Looks at `most` rows, from where the last call ended. A row is cleared if the feed has no sequence between it
    /// and the next row. None can come there: new sequences follow all rows that a transaction reads.
    async fn thin_counts(&self, most: usize) -> Result<()> {
        let keys = self.keys();
        let (first, beyond) = keys.bounds(DatabaseKey::Counts);
        let thinned = &self.shared.edit_counts.slot(keys).thinned;
        let begin = Bytes::from(first);
        let from = Some(thinned.lock().clone()).filter(|key| key.starts_with(&begin)).unwrap_or_else(|| begin.clone());
        let (from, beyond) = (&from, &beyond);
        let reached = self
            .shared
            .guard
            .run(|transaction| async move {
                self.instance(&transaction, Read::Serializable).await?;
                let range = RangeRequest::keys(from.clone(), beyond.clone()).limit(most);
                let batch = transaction.get_range(&range, Read::Snapshot).await?;
                let mut rows = Vec::with_capacity(batch.rows.len());
                for row in &batch.rows {
                    rows.push((keys.read_count(&row.key)?, EditCount::read(&row.value)?));
                }
                let needed: Vec<_> = rows
                    .windows(2)
                    .map(|pair| {
                        let key = |seq| KeySelector::first_greater_or_equal(keys.key(DatabaseKey::Change(seq)));
                        let between = RangeRequest::selectors(key(pair[0].0), key(pair[1].0)).limit(1);
                        transaction.get_range(&between, Read::Snapshot)
                    })
                    .collect();
                let mut cleared = false;
                for ((pair, row), needed) in rows.windows(2).zip(&batch.rows).zip(needed) {
                    let is_covered = pair[0].1.before.saturating_add(pair[0].1.own) <= pair[1].1.before;
                    if needed.await?.rows.is_empty() && is_covered {
                        transaction.clear_unguarded(&row.key);
                        cleared = true;
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
        let row = |at, before, own, version| (seq(at, 0), EditCount { before, own, version });
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
        let count = EditCount { before: 1 << 50, own: 1_000, version: u64::MAX };
        let row = count.encode();
        assert_eq!(EditCount::read(&row).unwrap(), count);
        for cut in 0..row.len() {
            assert!(EditCount::read(&row[..cut]).is_err(), "cut at {cut}");
        }
    }
}
