//! Two ranges side by side: what differs, and making it equal.
//!
//! ```text
//!   source   a   b   c       e │         both sides are read from the same key; what follows the last key
//!   target   a       c'  d   e │ f …     of a side that has more to come waits for the next step
//!                │   │   │
//!              only  other only
//! ```
//!
//! One step reads and writes a bounded number of bytes, however long the ranges and however different.

use std::cmp::Ordering;

use kv_api::{Bytes, Database, KeySelector, KeyValue, RangeBatch, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::txids::Unguarded;

use super::arrival::Arriving;
use super::rows::without_prefix;

/// About how many bytes of rows one step reads on each side.
const STEP_BYTES: usize = 250_000;

/// The same range on two sides, by keys without the databases' prefixes.
pub(super) struct Ranges {
    begin: Bytes,
    end: Bytes,
    /// A row of the source that is as if it were not there.
    without: Option<Bytes>,
}

impl Ranges {
    /// Everything of `key`.
    pub(super) fn whole<S: Database, T: Database>(
        source: &Documents<S>,
        target: &Documents<T>,
        key: DatabaseKey<'_>,
    ) -> Ranges {
        let (begin, end) = source.keys().bounds(key);
        let prefix = source.keys().prefix().len();
        debug_assert!(target.keys().key(key).ends_with(&begin[prefix..]), "the same key on both sides");
        Ranges { begin: Bytes::from(begin).slice(prefix..), end: Bytes::from(end).slice(prefix..), without: None }
    }

    /// Up to this key of the source and what is below it.
    pub(super) fn up_to<S: Database>(self, source: &Documents<S>, key: DatabaseKey<'_>) -> Ranges {
        let end = Bytes::from(source.keys().bounds(key).1).slice(source.keys().prefix().len()..);
        Ranges { end, ..self }
    }

    pub(super) fn without(self, row: Bytes) -> Ranges {
        Ranges { without: Some(row), ..self }
    }

    /// Where to begin: behind no row.
    pub(super) fn begin(&self) -> Cursor {
        Cursor(KeySelector::first_greater_or_equal(self.begin.clone()))
    }

    fn request(&self, keys: &DatabaseKeys, from: &Cursor) -> RangeRequest {
        let under = |selector: &KeySelector| KeySelector { key: under(keys, &selector.key), ..selector.clone() };
        let end = KeySelector::first_greater_or_equal(self.end.clone());
        RangeRequest::selectors(under(&from.0), under(&end)).target_bytes(STEP_BYTES)
    }
}

fn under(keys: &DatabaseKeys, suffix: &[u8]) -> Bytes {
    [keys.prefix().as_ref(), suffix].concat().into()
}

/// How far a walk over two ranges has come.
#[derive(Clone)]
pub(super) struct Cursor(KeySelector);

/// A row that is not the same on both sides.
pub(super) enum Difference {
    /// The target lacks it.
    Missing(KeyValue),
    /// The target has another value; the source's row.
    Other(KeyValue),
    /// The source lacks it; its key.
    Added(Bytes),
}

impl Difference {
    pub(super) fn key(&self) -> &Bytes {
        match self {
            Difference::Missing(row) | Difference::Other(row) => &row.key,
            Difference::Added(key) => key,
        }
    }
}

/// What differs up to where both sides are known, and where to go on.
fn differences(source: RangeBatch, target: RangeBatch) -> (Vec<Difference>, Option<Cursor>) {
    let last = |batch: &RangeBatch| if batch.more { batch.rows.last().map(|row| row.key.clone()) } else { None };
    let upto = match (last(&source), last(&target)) {
        (Some(source), Some(target)) => Some(source.min(target)),
        (one, other) => one.or(other),
    };
    let within = |row: &KeyValue| upto.as_ref().is_none_or(|upto| row.key <= *upto);
    let mut left = source.rows.into_iter().take_while(within).peekable();
    let mut right = target.rows.into_iter().take_while(within).peekable();
    let mut differences = Vec::new();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.key.cmp(&right.key),
        };
        let one = if order == Ordering::Greater { None } else { left.next() };
        let other = if order == Ordering::Less { None } else { right.next() };
        match (one, other) {
            (Some(one), Some(other)) if one.value == other.value => {}
            (Some(one), Some(_)) => differences.push(Difference::Other(one)),
            (Some(one), None) => differences.push(Difference::Missing(one)),
            (None, Some(other)) => differences.push(Difference::Added(other.key)),
            (None, None) => {}
        }
    }
    (differences, upto.map(|upto| Cursor(KeySelector::first_greater_than(upto))))
}

/// Reads a step of the source's side.
async fn read<D: Database>(documents: &Documents<D>, ranges: &Ranges, from: &Cursor) -> Result<RangeBatch> {
    let keys = documents.keys();
    let request = ranges.request(keys, from);
    let batch = documents
        .read(|transaction| {
            let instance = documents.instance(&transaction, Read::Snapshot);
            let batch = transaction.get_range(&request, Read::Snapshot);
            async move {
                instance.await?;
                Ok(batch.await?)
            }
        })
        .await?;
    Ok(RangeBatch { rows: batch.rows.into_iter().map(|row| without_prefix(keys, row)).collect(), more: batch.more })
}

/// As [`read`], without the row that is as if it were not there; the last of a batch stays, and is taken
/// out of the differences.
fn is_left_out(ranges: &Ranges, difference: &Difference) -> bool {
    ranges.without.as_ref() == Some(difference.key()) && !matches!(difference, Difference::Added(_))
}

/// Makes a step of the target's range equal to the source's; where to go on, `None` at the end.
pub(super) async fn mirror<S: Database, T: Database>(
    source: &Documents<S>,
    target: &Arriving<T>,
    ranges: &Ranges,
    from: &Cursor,
) -> Result<Option<Cursor>> {
    let theirs = read(source, ranges, from).await?;
    let keys = target.documents.keys();
    let request = ranges.request(keys, from);
    target
        .write(None, |transaction| {
            let ours = transaction.get_range(&request, Read::Snapshot);
            let theirs = theirs.clone();
            async move {
                let ours = ours.await?;
                let rows = ours.rows.into_iter().map(|row| without_prefix(keys, row)).collect();
                let (differences, next) = differences(theirs, RangeBatch { rows, more: ours.more });
                for difference in differences.iter().filter(|difference| !is_left_out(ranges, difference)) {
                    match difference {
                        Difference::Missing(row) | Difference::Other(row) => {
                            transaction.set_unguarded(under(keys, &row.key), &row.value);
                        }
                        Difference::Added(key) => transaction.clear_unguarded(&under(keys, key)),
                    }
                }
                Ok(next)
            }
        })
        .await
}

/// A step of comparing two ranges: what differs, and where to go on.
pub(super) async fn compare<S: Database, T: Database>(
    source: &Documents<S>,
    target: &Documents<T>,
    ranges: &Ranges,
    from: &Cursor,
) -> Result<(Vec<Difference>, Option<Cursor>)> {
    Ok(differences(read(source, ranges, from).await?, read(target, ranges, from).await?))
}
