//! Before-images: the values of keys before the batches that a snapshot must not see.
//!
//! sled has no snapshots. So a snapshot consists of the current tree and of the values that the tree has lost
//! since. Each batch gets the next epoch. Before it changes the tree, the old values of its keys are stored here
//! under that epoch.
//!
//! ```text
//!   epoch      4               5                6 (being applied)
//!   tree       a=1 b=1         a=2 b=1          a=2, then a=3
//!   images                     a before 5: 1    a before 6: 2
//!   a snapshot of 4 reads a: tree 2 or 3, then the first image after 4: 1
//! ```
//! Reads are right without a lock around tree and images, because of one invariant: an image is stored before its batch
//! changes the tree, and a reader reads the tree first. The first image after the snapshot's epoch is the key's value
//! at that epoch, whatever the tree returned. Without an image, the key has not changed. Images that no living snapshot
//! needs are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use occ::RangeSet;
use parking_lot::RwLock;
use sled::IVec;

/// The old value of a key; `None` if it was absent.
pub(crate) type Image = Option<IVec>;

#[derive(Debug, Default)]
pub(crate) struct Images {
    /// The newest epoch with stored images.
    newest: AtomicU64,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The images of a key, by ascending epoch.
    by_key: BTreeMap<Bytes, VecDeque<(u64, Image)>>,
    /// The keys of each epoch, oldest first.
    by_epoch: VecDeque<(u64, Vec<Bytes>)>,
    /// Number of snapshots of each epoch.
    living: BTreeMap<u64, usize>,
}

impl Images {
    /// Stores the images of the next epoch. The caller changes the tree afterwards.
    pub(crate) fn publish(&self, images: Vec<(Bytes, Image)>) {
        let mut inner = self.inner.write();
        let epoch = self.newest.load(Ordering::Relaxed) + 1;
        let mut keys = Vec::with_capacity(images.len());
        for (key, image) in images {
            inner.by_key.entry(key.clone()).or_default().push_back((epoch, image));
            keys.push(key);
        }
        inner.by_epoch.push_back((epoch, keys));
        self.newest.store(epoch, Ordering::SeqCst);
    }

    /// A snapshot of the newest epoch. The epoch's batch must be in the tree.
    pub(crate) fn newest(self: &Arc<Self>, cleared: Arc<RangeSet>) -> AtEpoch {
        let mut inner = self.inner.write();
        let epoch = self.newest.load(Ordering::Relaxed);
        *inner.living.entry(epoch).or_default() += 1;
        AtEpoch { images: self.clone(), epoch, cleared }
    }

    /// The newest epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// The oldest epoch of a living snapshot; the newest epoch without one.
    pub(crate) fn oldest_seen(&self) -> u64 {
        self.inner.read().living.first_key_value().map_or_else(|| self.epoch(), |(&oldest, _)| oldest)
    }

    /// Number of images.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.read().by_key.values().map(VecDeque::len).sum()
    }
}

/// The images since an epoch. Keeps them alive.
#[derive(Debug)]
pub(crate) struct AtEpoch {
    images: Arc<Images>,
    epoch: u64,
    /// The pending intervals of the epoch: keys in them are absent, whatever the tree holds.
    cleared: Arc<RangeSet>,
}

impl AtEpoch {
    /// Ranges that are cleared in the snapshot and may still have rows in the tree.
    pub(crate) fn cleared(&self) -> &RangeSet {
        &self.cleared
    }

    /// Whether the tree has batches that this snapshot must not see. Call it after reading the tree.
    pub(crate) fn is_behind(&self) -> bool {
        self.images.newest.load(Ordering::SeqCst) > self.epoch
    }

    /// The value of the key in the snapshot, if the tree may have changed it since.
    pub(crate) fn image(&self, key: &[u8]) -> Option<Image> {
        first_after(self.images.inner.read().by_key.get(key)?, self.epoch).cloned()
    }

    /// Calls `each` with the keys between two bounds that have changed since, in order, and with their old values.
    pub(crate) fn each_image(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), mut each: impl FnMut(&Bytes, &Image)) {
        for (key, images) in self.images.inner.read().by_key.range::<[u8], _>(bounds) {
            if let Some(image) = first_after(images, self.epoch) {
                each(key, image);
            }
        }
    }
}

impl Drop for AtEpoch {
    fn drop(&mut self) {
        let mut inner = self.images.inner.write();
        if let Some(count) = inner.living.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                inner.living.remove(&self.epoch);
            }
        }
        let Some((&oldest, _)) = inner.living.first_key_value() else { return };
        while let Some((epoch, _)) = inner.by_epoch.front()
            && *epoch <= oldest
        {
            let Some((epoch, keys)) = inner.by_epoch.pop_front() else { return };
            for key in keys {
                let Some(images) = inner.by_key.get_mut(&key) else { continue };
                while images.front().is_some_and(|(of, _)| *of <= epoch) {
                    images.pop_front();
                }
                if images.is_empty() {
                    inner.by_key.remove(&key);
                }
            }
        }
    }
}

fn first_after(images: &VecDeque<(u64, Image)>, epoch: u64) -> Option<&Image> {
    images.iter().find(|(of, _)| *of > epoch).map(|(_, image)| image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> Image {
        Some(IVec::from(text))
    }

    #[test]
    fn the_first_image_after_the_snapshot_counts() {
        let images = Arc::new(Images::default());
        let zero = images.newest(Arc::default());
        assert!(!zero.is_behind());
        images.publish(vec![("a".into(), None)]);
        let one = images.newest(Arc::default());
        images.publish(vec![("a".into(), image("1")), ("b".into(), image("x"))]);
        images.publish(vec![("a".into(), image("2"))]);
        let three = images.newest(Arc::default());
        assert_eq!(zero.image(b"a"), Some(None));
        assert_eq!(one.image(b"a"), Some(image("1")));
        assert_eq!(one.image(b"b"), Some(image("x")));
        assert_eq!(three.image(b"a"), None);
        assert!(one.is_behind() && !three.is_behind());
        let mut seen = Vec::new();
        one.each_image((Bound::Excluded(b"a"), Bound::Unbounded), |key, image| seen.push((key.clone(), image.clone())));
        assert_eq!(seen, [(Bytes::from("b"), image("x"))]);
    }

    #[test]
    fn images_go_with_the_snapshots_that_need_them() {
        let images = Arc::new(Images::default());
        let zero = images.newest(Arc::default());
        images.publish(vec![("a".into(), None)]);
        let one = images.newest(Arc::default());
        images.publish(vec![("a".into(), image("1"))]);
        let two = images.newest(Arc::default());
        assert_eq!(images.len(), 2);
        drop(one);
        assert_eq!(images.len(), 2, "the oldest snapshot needs them still");
        drop(zero);
        assert_eq!(images.len(), 0);
        drop(two);
    }
}
