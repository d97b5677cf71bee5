//! Reads a content in pieces, each in a short transaction of its own.
//!
//! ```text
//!  read                parts 1 … 8    9 … 16             17 … 24           by another thread, if the caller has one
//!  hashed, returned                   1, 2, … 8          9, 10, … 16       the last ones only if the hash is right
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use kv_api::{BoxFuture, Database, RangeRequest, Read, Transaction, TransactionExt};
use sha2::{Digest, Sha256};

use super::address::ContentRow;
use super::zip::Unpacker;
use super::{Attachment, ContentId, Encoding};
use crate::document::{Document, GetOptions};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::keys::DatabaseKey;

/// Number of parts that are read in one transaction.
const CHUNKS_AT_ONCE: u64 = 8;

/// Number of decompressed bytes that are returned at a time.
const UNPACKED_AT_ONCE: usize = 64 << 10;

/// Number of bytes that a document's attachments may have, decompressed, beyond their stated lengths. A client may
/// state a wrong length, and a few megabytes of gzip may become gigabytes.
const UNSAID_BYTES: u64 = 1 << 30;

impl<D: Database> Documents<D> {
    /// A reader of an attachment of a document. Reads nothing yet.
    pub fn attachment_reader(&self, attachment: &Attachment) -> AttachmentReader<D> {
        AttachmentReader {
            documents: self.clone(),
            attachment: attachment.clone(),
            range: 0..attachment.encoded_length,
            hash: Some(Sha256::default()),
            unpacker: None,
            packed: Bytes::new(),
            ready: VecDeque::new(),
            ahead: None,
            spawn: Box::new(|parts| parts),
        }
    }

    /// A reader of a content.
    pub(crate) fn content_reader(&self, id: &ContentId, row: &ContentRow) -> AttachmentReader<D> {
        self.attachment_reader(&Attachment {
            name: String::new(),
            content_type: String::new(),
            revpos: 0,
            digest: row.md5,
            length: id.length,
            encoded_length: id.length,
            encoding: Encoding::Identity,
            wanted: true,
            data: None,
            content: *id,
        })
    }

    /// Reads the contents of all requested attachments of a document into memory.
    ///
    /// # Errors
    /// As for [`AttachmentReader::next`]; 413 if contents that arrived compressed exceed their stated lengths by a
    /// gigabyte in all.
    pub async fn load_attachments(&self, document: &mut Document) -> Result<()> {
        let mut left = UNSAID_BYTES;
        for attachment in document.attachments.iter_mut().filter(|attachment| attachment.wanted) {
            let mut reader = self.attachment_reader(attachment).unpacked();
            let mut data = Vec::new();
            while let Some(piece) = reader.next().await? {
                data.extend_from_slice(&piece);
                if (data.len() as u64).saturating_sub(attachment.length) > left {
                    return Err(ErrorKind::AttachmentTooLarge(attachment.name.clone()).into());
                }
            }
            left -= (data.len() as u64).saturating_sub(attachment.length);
            attachment.data = Some(data.into());
        }
        Ok(())
    }

    /// Reads the contents of all attachments of a winner. If another writer removes one of them meanwhile, the
    /// document becomes the new winner.
    ///
    /// # Errors
    /// As for [`load_attachments`](Self::load_attachments); 404 if the document was deleted meanwhile.
    pub async fn load_all_attachments(&self, document: &mut Document) -> Result<()> {
        loop {
            document.want_attachments();
            match self.load_attachments(document).await {
                Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Attachment) => {
                    let options = GetOptions {
                        conflicts: document.conflicts.is_some(),
                        att_encoding_info: document.att_encoding_info,
                        ..GetOptions::default()
                    };
                    let winner = self.get(&document.id, &options).await?;
                    if winner.rev == document.rev {
                        return Err(error);
                    }
                    *document = winner;
                }
                loaded => return loaded,
            }
        }
    }

    /// Reads the contents of all requested attachments of a leaf. Returns whether the leaf still existed.
    ///
    /// # Errors
    /// As for [`load_attachments`](Self::load_attachments).
    pub async fn load_attachments_of_leaf(&self, document: &mut Document) -> Result<bool> {
        match self.load_attachments(document).await {
            Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Attachment) => {
                let options = GetOptions { rev: Some(document.rev.clone()), ..GetOptions::default() };
                match self.get(&document.id, &options).await {
                    Err(gone) if matches!(gone.kind(), ErrorKind::NotFound(NotFound::Missing)) => Ok(false),
                    _ => Err(error),
                }
            }
            loaded => loaded.map(|()| true),
        }
    }
}

/// The reading of some parts of a content, which may run on another thread. `None` if it fails: then they are read again.
pub type PartsAhead = BoxFuture<Option<Vec<Bytes>>>;

/// A reader of an attachment's content.
pub struct AttachmentReader<D> {
    documents: Documents<D>,
    attachment: Attachment,
    /// The rest of the stored bytes.
    range: Range<u64>,
    /// Hash of the stored bytes, if all of them are read. It is their address, and processors compute it faster than MD5.
    hash: Option<Sha256>,
    unpacker: Option<Unpacker>,
    /// The rest of the part that is being decompressed.
    packed: Bytes,
    /// Stored bytes that were read, and not returned or decompressed yet.
    ready: VecDeque<Bytes>,
    /// The reading of the first parts of `range`.
    ahead: Option<PartsAhead>,
    spawn: Box<dyn Fn(PartsAhead) -> PartsAhead + Send>,
}

impl<D> fmt::Debug for AttachmentReader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, range) = (&self.attachment.name, &self.range);
        f.debug_struct("AttachmentReader").field("name", name).field("range", range).finish_non_exhaustive()
    }
}

impl<D: Database> AttachmentReader<D> {
    /// The attachment.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The same content, decompressed.
    #[must_use]
    pub fn unpacked(mut self) -> Self {
        if self.attachment.encoding == Encoding::Gzip {
            self.unpacker = Some(Unpacker::new());
        }
        self
    }

    /// A part of the stored bytes, up to their end. Not for decompressed contents.
    #[must_use]
    pub fn range(mut self, bytes: Range<u64>) -> Self {
        let end = self.attachment.encoded_length;
        self.range = bytes.start.min(end)..bytes.end.min(end);
        if self.range != (0..end) {
            self.hash = None;
        }
        self
    }

    /// The same reader, which reads the next parts while it hashes and returns those that it has. `spawn` gets each reading,
    /// and starts it on another thread.
    #[must_use]
    pub fn ahead(mut self, spawn: impl Fn(PartsAhead) -> PartsAhead + Send + 'static) -> Self {
        self.spawn = Box::new(spawn);
        self
    }

    /// The next bytes, up to 100 kB; `None` at the end. The last bytes of a whole content are returned only if its hash
    /// is right. Reads several parts at once, and returns them one after the other as they are in the store.
    ///
    /// # Errors
    /// 404 if the attachment or the database was removed meanwhile; damage; the store's errors.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let piece = if self.unpacker.is_some() { self.unpack()? } else { self.take() };
            if piece.is_some() || !self.fetch().await? {
                return Ok(piece);
            }
        }
    }

    /// Takes one of the parts that were read, and hashes it. The last ones are hashed already.
    fn take(&mut self) -> Option<Bytes> {
        let part = self.ready.pop_front()?;
        if let Some(hash) = self.hash.as_mut().filter(|_| !self.range.is_empty()) {
            hash.update(&part);
        }
        Some(part)
    }

    /// Decompresses some of the bytes that were read.
    fn unpack(&mut self) -> Result<Option<Bytes>> {
        let (mut out, mut length) = (vec![0; UNPACKED_AT_ONCE], 0);
        let outcome = loop {
            let Some(unpacker) = &mut self.unpacker else { return Ok(None) };
            match unpacker.unpack(&mut self.packed, &mut out[length..]) {
                Ok(more) => length += more,
                Err(error) => break Err(error),
            }
            if length == out.len() {
                break Ok(());
            }
            if self.ready.is_empty() && self.range.is_empty() {
                break unpacker.finish();
            }
            match self.take() {
                Some(part) => self.packed = part,
                None => break Ok(()),
            }
        };
        outcome.map_err(|error| self.damaged(&error))?;
        out.truncate(length);
        Ok(Some(Bytes::from(out)).filter(|out| !out.is_empty()))
    }

    /// Reads the next stored bytes. Returns whether there were any.
    async fn fetch(&mut self) -> Result<bool> {
        if self.range.is_empty() {
            return Ok(false);
        }
        let ahead = self.ahead.take().unwrap_or_else(|| self.read_ahead());
        let parts = match ahead.await {
            Some(parts) => parts,
            None => read(&self.documents, &self.attachment, self.range.clone()).await?,
        };
        self.range.start += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if !self.range.is_empty() {
            // They are hashed when they are taken, while these are read.
            self.ahead = Some(self.read_ahead());
        } else if let Some(mut hash) = self.hash.take() {
            parts.iter().for_each(|part| hash.update(part));
            let found: [u8; 32] = hash.finalize().into();
            if found != self.attachment.content.sha256 {
                return Err(self.damaged(&"its hash does not match"));
            }
        }
        self.ready.extend(parts);
        Ok(true)
    }

    /// Starts to read the first parts of the range.
    fn read_ahead(&self) -> PartsAhead {
        let (documents, attachment, range) = (self.documents.clone(), self.attachment.clone(), self.range.clone());
        (self.spawn)(Box::pin(async move { read(&documents, &attachment, range).await.ok() }))
    }

    fn damaged(&self, what: &dyn fmt::Display) -> Error {
        damaged(&self.attachment.name, what)
    }
}

/// Reads some parts of a content, beginning with the one in which the range begins.
async fn read<D: Database>(documents: &Documents<D>, attachment: &Attachment, range: Range<u64>) -> Result<Vec<Bytes>> {
    let (keys, range, name, content) = (documents.keys(), &range, &attachment.name, &attachment.content);
    let key = keys.key(DatabaseKey::Content(content));
    let key = key.as_slice();
    documents
        .read(|transaction| {
            let instance = documents.instance(&transaction, Read::Snapshot);
            // Its store id differs if the content was removed meanwhile and added again.
            let row = transaction.get(key, Read::Snapshot);
            async move {
                instance.await?;
                let row = row.await?.ok_or_else(|| Error::not_found(NotFound::Attachment))?;
                let row = ContentRow::read(&row)?;
                let first = range.start / row.chunk_bytes;
                let upto = range.end.div_ceil(row.chunk_bytes).min(first + CHUNKS_AT_ONCE);
                let begin = keys.key(DatabaseKey::Chunk(&row.store, first));
                let end = keys.key(DatabaseKey::Chunk(&row.store, upto));
                let chunks = transaction.get_all(RangeRequest::keys(begin, end), Read::Snapshot).await?;
                let mut parts = Vec::with_capacity(chunks.len());
                for (part, chunk) in (first..upto).zip(chunks) {
                    let length = part_bytes(content, &row, part);
                    if keys.read_chunk(&chunk.key)? != (row.store, part) || chunk.value.len() as u64 != length {
                        return Err(damaged(name, &"a part of it is another"));
                    }
                    // The first and the last part may begin before the range, and end after it.
                    let begin = part * row.chunk_bytes;
                    let inside = |at: u64| at.saturating_sub(begin).min(length) as usize;
                    parts.push(chunk.value.slice(inside(range.start)..inside(range.end)));
                }
                if parts.len() as u64 != upto - first {
                    return Err(damaged(name, &"a part of it is missing"));
                }
                Ok(parts)
            }
        })
        .await
}

fn damaged(name: &str, what: &dyn fmt::Display) -> Error {
    Error::corrupt(format!("the content of the attachment {name:?}: {what}"))
}

/// Number of bytes in a part of a content.
fn part_bytes(content: &ContentId, row: &ContentRow, part: u64) -> u64 {
    content.length.saturating_sub(part.saturating_mul(row.chunk_bytes)).min(row.chunk_bytes)
}
