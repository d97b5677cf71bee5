//! A batch on its way into fjall: of each key what is to become of it, once.
//!
//! fjall removes keys, not ranges. So a range that is cleared is listed, and its rows are removed one by one;
//! unless they are very many, when the range becomes pending ([`disk::clears`]).
//!
//! ```text
//!   batch     clear c..e, then set b, set d       stored: c d e
//!   settled   set b, remove c, set d
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use disk::clears::uncovered;
use kv_api::Result;
use occ::store::Batch;
use occ::{KeyRange, RangeSet};

/// A batch, settled.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) points: BTreeMap<Bytes, Option<Bytes>>,
    /// What is pending after the batch, where that has changed.
    pub(crate) pending: Option<RangeSet>,
}

/// Settles a batch. `list` gives the stored keys of a range, in order; ranges of more than `bulk` of them
/// become pending.
pub(crate) fn settle<Keys: Iterator<Item = Result<Bytes>>>(
    batch: Batch,
    pending: &RangeSet,
    bulk: usize,
    list: impl Fn(&KeyRange) -> Keys,
) -> Result<Settled> {
    let (clears, rows) = batch.into_parts();
    let mut pending = Cow::Borrowed(pending);
    let mut points = BTreeMap::new();
    for (begin, end) in clears.iter() {
        let range = KeyRange { begin: begin.clone(), end: end.clone() };
        match listed(&range, &pending, bulk, &list)? {
            Some(keys) => points.extend(keys.into_iter().map(|key| (key, None))),
            None => pending.to_mut().insert(range),
        }
    }
    for (key, value) in rows {
        if pending.contains(&key) {
            // It is absent already, or is there again.
            if value.is_none() {
                continue;
            }
            let point = KeyRange::point(&key);
            pending.to_mut().remove(&point.begin, &point.end);
        }
        points.insert(key, value);
    }
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
