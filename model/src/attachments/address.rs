//! Contents of attachments: their addresses, their rows, and uploaded contents.
//!
//! ```text
//!  (9, Sha256, Length) = (Format = 1, Store, ChunkBytes, Md5)
//! ```

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use md5::Md5;
use sha2::{Digest, Sha256};

use super::Encoding;
use super::staging::Staged;
use crate::error::{Error, Result};
use crate::row::Reader;
use crate::tuple;

const FORMAT: u64 = 1;

/// Size of a part in bytes, unless the store allows only shorter values.
const CHUNK_BYTES: usize = 90_000;

/// Name of the chunks of one content: random bytes, chosen when they are first written.
pub(crate) type StoreId = [u8; 16];

/// Address of a content in its database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ContentId {
    pub(crate) sha256: [u8; 32],
    pub(crate) length: u64,
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.sha256[..8] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "…/{}", self.length)
    }
}

/// Size of a part in a store with this limit on values.
pub(super) fn chunk_bytes(max_value_bytes: usize) -> usize {
    CHUNK_BYTES.min(max_value_bytes).max(1)
}

/// Value of a content's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentRow {
    pub(crate) store: StoreId,
    /// Size of each part except the last.
    pub(crate) chunk_bytes: u64,
    pub(crate) md5: [u8; 16],
}

impl ContentRow {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_bytes(&mut out, &self.store);
        tuple::append_u64(&mut out, self.chunk_bytes);
        tuple::append_bytes(&mut out, &self.md5);
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<ContentRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a content in format {other}"))),
        }
        let torn = |_| Error::corrupt("a content whose row cannot be read");
        let store = reader.bytes()?.as_ref().try_into().map_err(torn)?;
        let chunk_bytes = reader.int()?;
        let md5 = reader.bytes()?.as_ref().try_into().map_err(torn)?;
        reader.end()?;
        if chunk_bytes == 0 {
            return Err(Error::corrupt("a content in parts of no bytes"));
        }
        Ok(ContentRow { store, chunk_bytes, md5 })
    }
}

/// Hashes of bytes that arrive in pieces.
#[derive(Clone, Default)]
pub(crate) struct Hashes {
    md5: Md5,
    sha256: Sha256,
    length: u64,
}

impl Hashes {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.md5.update(piece);
        self.sha256.update(piece);
        self.length += piece.len() as u64;
    }

    pub(crate) fn finish(self) -> (ContentId, [u8; 16]) {
        (ContentId { sha256: self.sha256.finalize().into(), length: self.length }, self.md5.finalize().into())
    }
}

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
    pub(super) chunk_bytes: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let row = ContentRow { store: [0; 16], chunk_bytes: 90_000, md5: [7; 16] };
        let written = row.write();
        assert_eq!(ContentRow::read(&written).unwrap(), row);
        for cut in 0..written.len() {
            assert!(ContentRow::read(&written[..cut]).is_err(), "cut at {cut}");
        }
    }
}
