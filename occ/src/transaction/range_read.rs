//! Reading a range in batches, and the conflict range of such a read.
//!
//! Source: `getRangeValue`, `getRangeValueBack` and `addConflictRange` in FoundationDB's
//! `fdbclient/ReadYourWrites.actor.cpp`.

use bytes::Bytes;
use kv_api::keys::key_after;
use kv_api::{Direction, KeySelector, RangeBatch, RangeRequest, Read, Result};

use super::overlay::{Edge, Most, Overlay, Resolved};
use crate::KeyRange;
use crate::store::Snapshot;

/// Size of a batch, in bytes of keys and values, if the request leaves it to the engine.
const DEFAULT_BATCH_BYTES: usize = 256 * 1024;

/// A batch, and the conflict range of a serializable read of it.
#[derive(Debug)]
pub(crate) struct RangeRead {
    pub(crate) batch: RangeBatch,
    /// `None` for a snapshot read, or if nothing was read.
    pub(crate) conflict: Option<KeyRange>,
}

/// Reads the first batch of a request. Selectors name keys up to `max_key`.
pub(crate) fn read<V: Snapshot>(
    overlay: &Overlay<'_, V>,
    request: &RangeRequest,
    read: Read,
    max_key: &[u8],
) -> Result<RangeRead> {
    if read == Read::Snapshot && is_first_at_or_after(&request.begin) && is_first_at_or_after(&request.end) {
        // Most reads are like this: nothing to resolve, and no conflict to compute.
        let batch = read_batch(overlay, &request.begin.key, &request.end.key, request)?;
        return Ok(RangeRead { batch, conflict: None });
    }
    let begin = request.begin.clone().without_or_equal();
    let end = request.end.clone().without_or_equal();
    if begin.offset >= end.offset && begin.key >= end.key {
        // The range is empty whatever the store holds.
        return Ok(RangeRead { batch: RangeBatch::default(), conflict: None });
    }
    let resolved_begin = resolve(overlay, &begin, max_key)?;
    let resolved_end = resolve(overlay, &end, max_key)?;
    let batch = read_batch(overlay, &resolved_begin.key, &resolved_end.key, request)?;
    if read == Read::Snapshot {
        return Ok(RangeRead { batch, conflict: None });
    }
    let off = |edge| resolved_begin.off == Some(edge) || resolved_end.off == Some(edge);
    // A batch that was stopped by a limit has not reached its far end.
    let ends = Ends {
        to_begin: off(Edge::Begin) && !(request.direction == Direction::Reverse && batch.more),
        through_end: off(Edge::End) && !(request.direction == Direction::Forward && batch.more),
    };
    let conflict = conflict(request.direction, &begin, &end, ends, &batch, max_key);
    Ok(RangeRead { batch, conflict: Some(conflict) })
}

/// Whether a selector bounds a range by its own key.
fn is_first_at_or_after(selector: &KeySelector) -> bool {
    selector.offset == 1 && !selector.or_equal
}

/// The conflict range of a selector: the keys that it walked over.
pub(crate) fn selector_conflict(selector: &KeySelector, resolved: &Bytes) -> KeyRange {
    let anchor = if selector.or_equal { key_after(&selector.key) } else { selector.key.clone() };
    if selector.offset <= 0 {
        KeyRange { begin: resolved.clone(), end: anchor }
    } else {
        KeyRange { begin: anchor, end: key_after(resolved) }
    }
}

fn resolve<V: Snapshot>(overlay: &Overlay<'_, V>, selector: &KeySelector, max_key: &[u8]) -> Result<Resolved> {
    if selector.offset == 1 {
        // "The first key at or after" bounds a range without being resolved.
        return Ok(Resolved { key: selector.key.clone(), off: None });
    }
    overlay.resolve(selector, max_key)
}

fn read_batch<V: Snapshot>(
    overlay: &Overlay<'_, V>,
    begin: &[u8],
    end: &[u8],
    request: &RangeRequest,
) -> Result<RangeBatch> {
    let most = Most {
        rows: if request.limit == 0 { usize::MAX } else { request.limit },
        bytes: if request.target_bytes == 0 { DEFAULT_BATCH_BYTES } else { request.target_bytes },
    };
    overlay.read(begin, end, request.direction, most)
}

/// The ends of the keyspace that the selectors ran past.
#[derive(Clone, Copy)]
struct Ends {
    to_begin: bool,
    through_end: bool,
}

/// The conflict range of a serializable read: what it returned, and what its selectors walked over.
fn conflict(
    direction: Direction,
    begin: &KeySelector,
    end: &KeySelector,
    ends: Ends,
    batch: &RangeBatch,
    max_key: &[u8],
) -> KeyRange {
    let (mut from, mut until) = (begin.key.clone(), end.key.clone());
    if from >= until {
        std::mem::swap(&mut from, &mut until);
    } else if batch.more {
        // A stopped batch does not depend on keys beyond it, unless the selector of its far end walked over them.
        match direction {
            Direction::Forward if end.offset > 0 => until = from.clone(),
            Direction::Reverse if begin.offset <= 1 => from = until.clone(),
            _ => {}
        }
    }
    if ends.to_begin && begin.offset <= 0 {
        from = Bytes::new();
    }
    if ends.through_end && end.offset > 0 {
        until = Bytes::copy_from_slice(max_key);
    }
    let (lowest, highest) = match direction {
        Direction::Forward => (batch.rows.first(), batch.rows.last()),
        Direction::Reverse => (batch.rows.last(), batch.rows.first()),
    };
    if let (Some(lowest), Some(highest)) = (lowest, highest) {
        if (direction == Direction::Reverse || begin.offset <= 0) && lowest.key < from {
            from = lowest.key.clone();
        }
        if (direction == Direction::Forward || end.offset > 0) && until <= highest.key {
            until = key_after(&highest.key);
        }
    }
    KeyRange { begin: from, end: until }
}
