//! Uploaded contents, which an edit can name.

use std::sync::Arc;

use bytes::Bytes;

use super::Encoding;
use super::address::ContentId;
use super::staging::Staged;

/// An uploaded content: its properties for a revision, and its place until an edit names it. A cheap handle. Edits
/// of the same database may name it any number of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content(Arc<Uploaded>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uploaded {
    pub(super) id: ContentId,
    pub(super) md5: [u8; 16],
    pub(super) length: u64,
    pub(super) encoding: Encoding,
    /// Size of each part except the last.
    pub(super) part_bytes: u64,
    pub(super) place: UploadedBytes,
}

/// Where the bytes of an upload are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UploadedBytes {
    /// In memory: the edit writes them.
    Memory(Bytes),
    /// In the store already.
    Staged(Staged),
}

impl Content {
    pub(super) fn new(uploaded: Uploaded) -> Self {
        Content(Arc::new(uploaded))
    }

    pub(super) fn uploaded(&self) -> &Uploaded {
        &self.0
    }

    /// The MD5 of the stored bytes.
    pub fn digest(&self) -> [u8; 16] {
        self.0.md5
    }

    /// Length in bytes, uncompressed; of a content that arrived compressed, the stored length.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Length in bytes as stored.
    pub fn encoded_length(&self) -> u64 {
        self.0.id.length
    }

    /// Compression of the stored bytes.
    pub fn encoding(&self) -> Encoding {
        self.0.encoding
    }

    pub(crate) fn id(&self) -> ContentId {
        self.0.id
    }

    /// Number of bytes that an edit that names it has to write.
    pub(crate) fn bytes_in_memory(&self) -> usize {
        match &self.0.place {
            UploadedBytes::Memory(bytes) => bytes.len(),
            UploadedBytes::Staged(_) => 0,
        }
    }
}
