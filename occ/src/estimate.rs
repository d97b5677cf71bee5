//! Sizes of ranges, and where to split them: counted row by row, unless the store knows better.

use bytes::Bytes;
use kv_api::{Direction, Result};

use crate::overlay::Overlay;
use crate::store::View;

/// The bytes of keys and values between two keys.
pub(crate) fn range_size<V: View>(overlay: &Overlay<'_, V>, begin: &[u8], end: &[u8]) -> Result<u64> {
    if begin >= end {
        return Ok(0);
    }
    if let Some(estimate) = overlay.view.estimate(begin, end) {
        return Ok(estimate);
    }
    overlay.scan(begin, end, Direction::Forward).try_fold(0, |bytes, row| {
        let (key, value) = row?;
        Ok(bytes + (key.len() + value.len()) as u64)
    })
}

/// Keys that split the range into parts of about `chunk_bytes`, the two ends included.
pub(crate) fn split_points<V: View>(
    overlay: &Overlay<'_, V>,
    begin: &[u8],
    end: &[u8],
    chunk_bytes: u64,
) -> Result<Vec<Bytes>> {
    let mut points = vec![Bytes::copy_from_slice(begin)];
    let mut bytes = 0;
    for row in overlay.scan(begin, end, Direction::Forward) {
        let (key, value) = row?;
        // A row begins the next part when this one is full.
        if bytes >= chunk_bytes.max(1) {
            points.push(key.clone());
            bytes = 0;
        }
        bytes += (key.len() + value.len()) as u64;
    }
    points.push(Bytes::copy_from_slice(end));
    Ok(points)
}
