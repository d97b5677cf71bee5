//! Compares a range of rows on two sides, and makes the target's range equal to the source's.
//!
//! ```text
//!   source   a   b   c       e │         both sides are read from the same key; rows after the last key
//!   target   a       c'  d   e │ f …     of a side that has more wait for the next step
//!                │   │   │
//!              only  other only
//! ```
//!
//! One step reads and writes a bounded number of bytes, whatever the length and the differences of the ranges.

use std::cmp::Ordering;

use kv_api::{Bytes, Database, KeySelector, KeyValue, RangeBatch, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::rows::instance::Instance;
use crate::write::unguarded::Unguarded;

use super::arrival::Arriving;
use super::rows::without_prefix;

/// Approximate number of bytes that one step reads on each side.
const STEP_BYTES: usize = 250_000;

/// The same range on both sides. Keys have no database prefix.
pub(super) struct Ranges {
    begin: Bytes,
    end: Bytes,
    /// A row of the source that must not be copied.
    without: Option<Bytes>,
}

impl Ranges {
    /// The range of all keys of `key`.
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

    /// Cuts the range after this key of the source and the keys below it.
    pub(super) fn up_to<S: Database>(self, source: &Documents<S>, key: DatabaseKey<'_>) -> Ranges {
        let end = Bytes::from(source.keys().bounds(key).1).slice(source.keys().prefix().len()..);
        Ranges { end, ..self }
    }

    pub(super) fn without(self, row: Bytes) -> Ranges {
        Ranges { without: Some(row), ..self }
    }

    /// The cursor at the start.
    pub(super) fn begin(&self) -> Cursor {
        Cursor(KeySelector::first_greater_or_equal(self.begin.clone()))
    }

    fn request(&self, keys: &DatabaseKeys, from: &Cursor) -> RangeRequest {
        let under = |selector: &KeySelector| KeySelector { key: under(keys, &selector.key), ..selector.clone() };
        let end = KeySelector::first_greater_or_equal(self.end.clone());
        RangeRequest::selectors(under(&from.0), under(&end)).target_bytes(STEP_BYTES)
    }
}

pub(super) fn under(keys: &DatabaseKeys, suffix: &[u8]) -> Bytes {
    [keys.prefix().as_ref(), suffix].concat().into()
}

/// The position of a walk over both ranges.
#[derive(Clone)]
pub(super) struct Cursor(KeySelector);

/// A row that differs between the sides.
pub(super) enum Difference {
    /// A row of the source that the target lacks.
    Missing(KeyValue),
    /// A row of the source that has another value at the target.
    Other(KeyValue),
    /// The key of a row that the source lacks.
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

/// The differences up to the last key that both sides have reached, and the cursor for the next step.
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

/// Reads a step of one side, and its instance.
async fn read<D: Database>(documents: &Documents<D>, ranges: &Ranges, from: &Cursor) -> Result<(RangeBatch, Instance)> {
    let keys = documents.keys();
    let request = ranges.request(keys, from);
    let (batch, instance) = documents
        .read(|transaction| {
            let instance = documents.instance(&transaction, Read::Snapshot);
            let batch = transaction.get_range(&request, Read::Snapshot);
            async move {
                let instance = instance.await?;
                Ok((batch.await?, instance))
            }
        })
        .await?;
    let rows = batch.rows.into_iter().map(|row| without_prefix(keys, row)).collect();
    Ok((RangeBatch { rows, more: batch.more }, instance))
}

/// Whether the difference is the row that is not copied.
fn is_left_out(ranges: &Ranges, difference: &Difference) -> bool {
    ranges.without.as_ref() == Some(difference.key()) && !matches!(difference, Difference::Added(_))
}

/// Makes a step of the target's range equal to the source's. Returns the next cursor, `None` at the end.
pub(super) async fn mirror<S: Database, T: Database>(
    source: &Documents<S>,
    target: &Arriving<T>,
    ranges: &Ranges,
    from: &Cursor,
) -> Result<Option<Cursor>> {
    let (theirs, instance) = read(source, ranges, from).await?;
    target.note_layout(instance.format, instance.rewrites).await?;
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

/// Compares a step of both ranges. Returns the differences and the next cursor.
pub(super) async fn compare<S: Database, T: Database>(
    source: &Documents<S>,
    target: &Documents<T>,
    ranges: &Ranges,
    from: &Cursor,
) -> Result<(Vec<Difference>, Option<Cursor>)> {
    Ok(differences(read(source, ranges, from).await?.0, read(target, ranges, from).await?.0))
}
