//! Reads a content in pieces, each in a short transaction of its own.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::ops::Range;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};
use sha2::{Digest, Sha256};

use super::address::ContentRow;
use super::zip;
use super::{Attachment, ContentId, Encoding};
use crate::document::{Document, GetOptions};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::keys::DatabaseKey;

/// Number of parts that are read in one transaction.
const CHUNKS_AT_ONCE: u64 = 8;

/// Number of compressed bytes that are decompressed at a time: they may become a thousand times as many.
const UNPACKED_AT_ONCE: usize = 1_024;

/// Number of bytes that a document's attachments may have, decompressed, beyond their stated lengths. A client may
/// state a wrong length, and a few megabytes of gzip may become gigabytes.
const UNSAID_BYTES: u64 = 1 << 30;

impl<D: Database> Documents<D> {
    /// A reader of an attachment of a document. Reads nothing yet.
    pub fn attachment_reader(&self, attachment: &Attachment) -> AttachmentReader<D> {
        AttachmentReader {
            documents: self.clone(),
            attachment: attachment.clone(),
            row: None,
            range: 0..attachment.encoded_length,
            hash: Some(Sha256::default()),
            unpacker: None,
            ready: VecDeque::new(),
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

/// A reader of an attachment's content.
pub struct AttachmentReader<D> {
    documents: Documents<D>,
    attachment: Attachment,
    row: Option<ContentRow>,
    /// The rest of the stored bytes.
    range: Range<u64>,
    /// Hash of the stored bytes, if all of them are read. It is their address, and processors compute it faster than MD5.
    hash: Option<Sha256>,
    unpacker: Option<MultiGzDecoder<Vec<u8>>>,
    /// Stored bytes that were read, and not returned or decompressed yet.
    ready: VecDeque<Bytes>,
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
            self.unpacker = Some(zip::unpacker(Vec::new()));
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

    /// The next bytes, up to 100 kB; `None` at the end. The last bytes of a whole content are returned only if its hash
    /// is right. Reads several parts at once, and returns them one after the other as they are in the store.
    ///
    /// # Errors
    /// 404 if the attachment or the database was removed meanwhile; damage; the store's errors.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let piece = if self.unpacker.is_some() { self.unpack()? } else { self.ready.pop_front() };
            if piece.is_some() {
                return Ok(piece);
            }
            if !self.fetch().await? {
                let Some(mut unpacker) = self.unpacker.take() else { return Ok(None) };
                unpacker.try_finish().map_err(|error| self.damaged(&error))?;
                let rest = std::mem::take(unpacker.get_mut());
                return Ok(Some(Bytes::from(rest)).filter(|rest| !rest.is_empty()));
            }
        }
    }

    /// The next bytes, if they were read already and need not be decompressed.
    pub fn ready(&mut self) -> Option<Bytes> {
        if self.unpacker.is_some() { None } else { self.ready.pop_front() }
    }

    /// Decompresses some of the bytes that were read.
    fn unpack(&mut self) -> Result<Option<Bytes>> {
        const ENOUGH: usize = 64 * 1024;
        while let Some(piece) = self.ready.front_mut() {
            let some = piece.split_to(piece.len().min(UNPACKED_AT_ONCE));
            if piece.is_empty() {
                self.ready.pop_front();
            }
            let Some(unpacker) = &mut self.unpacker else { break };
            if let Err(error) = unpacker.write_all(&some) {
                return Err(self.damaged(&error));
            }
            if unpacker.get_ref().len() >= ENOUGH {
                return Ok(Some(std::mem::take(unpacker.get_mut()).into()));
            }
        }
        Ok(None)
    }

    /// Reads the next stored bytes. Returns whether there were any.
    async fn fetch(&mut self) -> Result<bool> {
        if self.range.is_empty() {
            return Ok(false);
        }
        let (row, parts) = self.read().await?;
        self.row = Some(row);
        self.range.start += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if let Some(hash) = &mut self.hash {
            parts.iter().for_each(|part| hash.update(part));
            if self.range.is_empty() {
                let found: [u8; 32] = std::mem::take(hash).finalize().into();
                if found != self.attachment.content.sha256 {
                    return Err(self.damaged(&"its hash does not match"));
                }
            }
        }
        self.ready.extend(parts);
        Ok(true)
    }

    /// Reads some parts, beginning with the one in which the range begins.
    async fn read(&self) -> Result<(ContentRow, Vec<Bytes>)> {
        let (documents, keys, content) = (&self.documents, self.documents.keys(), self.attachment.content);
        let key = keys.key(DatabaseKey::Content(&content));
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
                    let first = self.range.start / row.chunk_bytes;
                    let upto = self.range.end.div_ceil(row.chunk_bytes).min(first + CHUNKS_AT_ONCE);
                    let begin = keys.key(DatabaseKey::Chunk(&row.store, first));
                    let end = keys.key(DatabaseKey::Chunk(&row.store, upto));
                    let chunks = transaction.get_all(RangeRequest::keys(begin, end), Read::Snapshot).await?;
                    let mut parts = Vec::with_capacity(chunks.len());
                    for (part, chunk) in (first..upto).zip(chunks) {
                        let length = part_bytes(&content, &row, part);
                        if keys.read_chunk(&chunk.key)? != (row.store, part) || chunk.value.len() as u64 != length {
                            return Err(self.damaged(&"a part of it is another"));
                        }
                        // The first and the last part may begin before the range, and end after it.
                        let begin = part * row.chunk_bytes;
                        let inside = |at: u64| at.saturating_sub(begin).min(length) as usize;
                        parts.push(chunk.value.slice(inside(self.range.start)..inside(self.range.end)));
                    }
                    if parts.len() as u64 != upto - first {
                        return Err(self.damaged(&"a part of it is missing"));
                    }
                    Ok((row, parts))
                }
            })
            .await
    }

    fn damaged(&self, what: &dyn fmt::Display) -> Error {
        Error::corrupt(format!("the content of the attachment {:?}: {what}", self.attachment.name))
    }
}

/// Number of bytes in a part of a content.
fn part_bytes(content: &ContentId, row: &ContentRow, part: u64) -> u64 {
    content.length.saturating_sub(part.saturating_mul(row.chunk_bytes)).min(row.chunk_bytes)
}
