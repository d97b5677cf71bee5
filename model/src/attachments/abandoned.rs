//! Dropped uploads, until their parts are removed.

use parking_lot::Mutex;

/// Keys of dropped uploads, which [`Guard::give_back`](crate::write::txids::Guard::give_back) removes.
#[derive(Debug, Default)]
pub(crate) struct Abandoned(Mutex<Vec<Vec<u8>>>);

impl Abandoned {
    /// Adds the key of an upload.
    pub(super) fn push(&self, key: Vec<u8>) {
        self.0.lock().push(key);
    }

    /// Takes the keys.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock())
    }
}
