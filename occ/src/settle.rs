//! A batch settled: of each key what is to become of it, once. For stores that take rows in order.

use bytes::Bytes;

use crate::KeyRange;

/// What a batch does to a key.
#[derive(Debug)]
pub struct Point {
    /// The key.
    pub key: Bytes,
    /// Its value; `None` removes it.
    pub value: Option<Bytes>,
    /// Its place in the batch.
    pub place: usize,
}

/// Leaves the last point of each key, in key order, and of those that one of `clears` (with their places in the
/// batch) covers later a removal: so the clears may come before all of them.
pub fn settle(points: &mut Vec<Point>, clears: &[(usize, KeyRange)]) {
    // Stable: of one key, the order of the batch.
    points.sort_by(|one, other| one.key.cmp(&other.key));
    points.dedup_by(|next, kept| {
        let same = next.key == kept.key;
        if same {
            std::mem::swap(next, kept);
        }
        same
    });
    for (place, range) in clears {
        let from = points.partition_point(|point| point.key < range.begin);
        let covered = points[from..].iter_mut().take_while(|point| point.key < range.end);
        covered.filter(|point| point.place < *place).for_each(|point| point.value = None);
    }
}
