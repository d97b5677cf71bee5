//! Sizes of ranges, and keys that split them. Small ranges are counted row by row. The size of a large one
//! comes from the byte sample, if there is one.

pub(crate) mod sample;

use bytes::Bytes;
use kv_api::{Direction, Result};

use crate::estimate::sample::Sample;
use crate::store::Snapshot;
use crate::sync::{Mutex, lock};
use crate::transaction::overlay::Overlay;

/// Number of rows that are counted before the sample is used. Every answer with a `pending` or an `offset` pays
/// for them: counting takes about 250 instructions a row in memory, and over 1,000 on disk. The error of the
/// sample is about one row in 128 KiB, so an estimate right above this number is coarse.
const MOST_COUNTED: usize = 1_000;

/// Bytes of keys and values between two keys, roughly.
pub(crate) fn range_size<V: Snapshot>(
    overlay: &Overlay<'_, V>,
    sample: &Mutex<Sample>,
    begin: &[u8],
    end: &[u8],
) -> Result<u64> {
    if begin >= end {
        return Ok(0);
    }
    let mut bytes = 0;
    for (counted, row) in overlay.scan(begin, end, Direction::Forward).enumerate() {
        let (key, value) = row?;
        if counted == MOST_COUNTED
            && let Some(rest) = lock(sample).bytes(&key, end)
        {
            return Ok(bytes + rest);
        }
        bytes += (key.len() + value.len()) as u64;
    }
    Ok(bytes)
}

/// Keys that split the range into parts of about `chunk_bytes`, with both ends.
pub(crate) fn split_points<V: Snapshot>(
    overlay: &Overlay<'_, V>,
    begin: &[u8],
    end: &[u8],
    chunk_bytes: u64,
) -> Result<Vec<Bytes>> {
    let mut points = vec![Bytes::copy_from_slice(begin)];
    let mut bytes = 0;
    for row in overlay.scan(begin, end, Direction::Forward) {
        let (key, value) = row?;
        // This part is full: the row begins the next one.
        if bytes >= chunk_bytes.max(1) {
            points.push(key.clone());
            bytes = 0;
        }
        bytes += (key.len() + value.len()) as u64;
    }
    points.push(Bytes::copy_from_slice(end));
    Ok(points)
}
