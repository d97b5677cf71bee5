//! A batch on its way into fjall: of each key what is to become of it, once.
//!
//! fjall removes keys, not ranges. So a range that is cleared is listed, and its rows are removed one by one;
//! unless they are very many, when the range becomes pending ([`disk::clears`]).
//!
//! ```text
//!   batch     set d   clear b   clear c..e   set d2   set b        stored: c d
//!   settled   b is set last; c removed; d was set before the clear, so it is removed; d2 set
//! ```

use std::borrow::Cow;

use bytes::Bytes;
use disk::clears::uncovered;
use kv_api::Result;
use occ::settle::{Point, settle as settle_points};
use occ::store::Op;
use occ::{KeyRange, RangeSet};

/// A batch, settled.
#[derive(Debug)]
pub(crate) struct Settled {
    /// In key order, each key once.
    pub(crate) points: Vec<Point>,
    /// What is pending after the batch, where that has changed.
    pub(crate) pending: Option<RangeSet>,
}

/// Settles a batch. `list` gives the stored keys of a range, in order; ranges of more than `bulk` of them
/// become pending.
pub(crate) fn settle<Keys: Iterator<Item = Result<Bytes>>>(
    ops: Vec<Op>,
    pending: &RangeSet,
    bulk: usize,
    list: impl Fn(&KeyRange) -> Keys,
) -> Result<Settled> {
    let mut pending = Cow::Borrowed(pending);
    let mut points = Vec::with_capacity(ops.len());
    let mut clears = Vec::new();
    for (place, op) in ops.into_iter().enumerate() {
        match op {
            Op::Set { key, value } => {
                if pending.contains(&key) {
                    let point = KeyRange::point(&key);
                    pending.to_mut().remove(&point.begin, &point.end);
                }
                points.push(Point { key, value: Some(value), place });
            }
            Op::Clear { key } if pending.contains(&key) => {}
            Op::Clear { key } => points.push(Point { key, value: None, place }),
            Op::ClearRange { begin, end } => {
                let range = KeyRange { begin, end };
                match listed(&range, &pending, bulk, &list)? {
                    Some(keys) => points.extend(keys.into_iter().map(|key| Point { key, value: None, place })),
                    None => pending.to_mut().insert(range.clone()),
                }
                clears.push((place, range));
            }
        }
    }
    settle_points(&mut points, &clears);
    let pending = match pending {
        Cow::Borrowed(_) => None,
        Cow::Owned(pending) => Some(pending),
    };
    Ok(Settled { points, pending })
}

/// The stored keys of a range that are not pending; `None` for more than `bulk`.
fn listed<Keys: Iterator<Item = Result<Bytes>>>(
    range: &KeyRange,
    pending: &RangeSet,
    bulk: usize,
    list: &impl Fn(&KeyRange) -> Keys,
) -> Result<Option<Vec<Bytes>>> {
    let mut keys = Vec::new();
    for part in uncovered(pending, &range.begin, &range.end) {
        for key in list(&part) {
            if keys.len() == bulk {
                return Ok(None);
            }
            keys.push(key?);
        }
    }
    Ok(Some(keys))
}

/// The removal of these keys, which are in order.
pub(crate) fn removals(keys: Vec<Bytes>) -> Vec<Point> {
    keys.into_iter().map(|key| Point { key, value: None, place: 0 }).collect()
}
