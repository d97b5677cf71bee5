//! Reads a content in pieces, each in a short transaction of its own.
//!
//! ```text
//!  read, decompressed  parts 1 … 8    9 … 16             17 … 24           by another thread, if the caller has one
//!  hashed, returned                   1 … 8              9 … 16            the last ones only if the hash is right
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use kv_api::{BoxFuture, Database, RangeRequest, Read, Transaction, TransactionExt};
use sha2::{Digest, Sha256};

use super::address::ContentRow;
use super::zip::Unpacker;
use super::{Attachment, ContentId, Encoding};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::keys::DatabaseKey;
use crate::read::document::{Document, GetOptions};

/// Number of parts that are read in one transaction.
const PARTS_AT_ONCE: u64 = 8;

/// Number of decompressed bytes in a piece, at most.
const UNPACKED_AT_ONCE: u64 = 256 << 10;

/// Number of decompressed pieces in a step, at most, since a few kilobytes of gzip may become a gigabyte.
const PIECES_AT_ONCE: usize = 4;

/// Number of bytes that a document's attachments may have, decompressed, beyond their stated lengths. A client may
/// state a wrong length, and a few megabytes of gzip may become gigabytes.
const UNSAID_BYTES: u64 = 1 << 30;

impl<D: Database> Documents<D> {
    /// A reader of an attachment of a document, which decompresses it. Reads nothing yet.
    pub fn attachment_reader(&self, attachment: &Attachment) -> AttachmentReader<D> {
        let (documents, range) = (self.clone(), 0..attachment.encoded_length);
        let unpacking = (attachment.encoding == Encoding::Gzip).then(|| Unpacking::of(attachment));
        AttachmentReader {
            attachment: attachment.clone(),
            hash: Some(Sha256::default()),
            ready: VecDeque::new(),
            rest: Some(Rest { documents, attachment: attachment.clone(), range, unpacking }),
            ahead: None,
            spawn: Box::new(|step| step),
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
            let mut reader = self.attachment_reader(attachment);
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

/// The next step of a read, which may run on another thread. `None` if that thread gave up.
pub type ContentAhead<D> = BoxFuture<Option<Result<ContentStep<D>>>>;

/// The result of a step of a read.
pub struct ContentStep<D> {
    /// The parts as stored, to be hashed.
    stored: Vec<Bytes>,
    /// The parts as the caller gets them: the same, or decompressed.
    pieces: Vec<Bytes>,
    rest: Rest<D>,
}

/// A content whose rest is still to be read.
struct Rest<D> {
    documents: Documents<D>,
    attachment: Attachment,
    /// The stored bytes that were not read yet.
    range: Range<u64>,
    unpacking: Option<Unpacking>,
}

/// Stored bytes that are decompressed.
struct Unpacking {
    unpacker: Unpacker,
    packed: VecDeque<Bytes>,
    /// Size of a decompressed piece.
    piece_bytes: usize,
}

impl Unpacking {
    fn of(attachment: &Attachment) -> Self {
        // With room for one byte more, so that the end of a small content is noticed. `length` may be the compressed
        // length, if the content arrived compressed.
        let Attachment { length, encoded_length, .. } = *attachment;
        let piece_bytes = if length == encoded_length { UNPACKED_AT_ONCE } else { length.saturating_add(1) };
        let piece_bytes = piece_bytes.min(UNPACKED_AT_ONCE) as usize;
        Unpacking { unpacker: Unpacker::new(), packed: VecDeque::new(), piece_bytes }
    }

    /// Decompresses some pieces. `packed` is empty afterwards, or there are more.
    fn pieces(&mut self) -> io::Result<Vec<Bytes>> {
        let mut pieces = Vec::new();
        while pieces.len() < PIECES_AT_ONCE && !self.packed.is_empty() {
            let (mut piece, mut length) = (vec![0; self.piece_bytes], 0);
            while let Some(part) = self.packed.front_mut()
                && length < piece.len()
            {
                length += self.unpacker.unpack(part, &mut piece[length..])?;
                if length < piece.len() {
                    self.packed.pop_front();
                }
            }
            if length > 0 {
                piece.truncate(length);
                pieces.push(piece.into());
            }
        }
        Ok(pieces)
    }
}

impl<D: Database> Rest<D> {
    fn is_empty(&self) -> bool {
        self.range.is_empty() && self.unpacking.as_ref().is_none_or(|unpacking| unpacking.packed.is_empty())
    }

    /// Reads some parts, and decompresses them. If earlier parts are not decompressed yet, it continues with those.
    async fn step(mut self) -> Result<ContentStep<D>> {
        let mut stored = Vec::new();
        if self.unpacking.as_ref().is_none_or(|unpacking| unpacking.packed.is_empty()) {
            stored = read(&self.documents, &self.attachment, self.range.clone()).await?;
            self.range.start += stored.iter().map(|part| part.len() as u64).sum::<u64>();
        }
        let pieces = match &mut self.unpacking {
            None => stored.clone(),
            Some(unpacking) => {
                unpacking.packed.extend(stored.iter().cloned());
                let mut pieces = unpacking.pieces();
                if self.range.is_empty() && unpacking.packed.is_empty() {
                    pieces = pieces.and_then(|pieces| unpacking.unpacker.finish().map(|()| pieces));
                }
                pieces.map_err(|error| damaged(&self.attachment.name, &error))?
            }
        };
        Ok(ContentStep { stored, pieces, rest: self })
    }
}

/// A reader of an attachment's content.
pub struct AttachmentReader<D> {
    attachment: Attachment,
    /// Hash of the stored bytes, if all of them are read. It is their address, and processors compute it faster than
    /// MD5.
    hash: Option<Sha256>,
    /// Pieces that were read and hashed, and not returned yet.
    ready: VecDeque<Bytes>,
    /// The rest, if no step is running.
    rest: Option<Rest<D>>,
    /// The running step. After a failed step, this and `rest` are both `None`.
    ahead: Option<ContentAhead<D>>,
    spawn: Box<dyn Fn(ContentAhead<D>) -> ContentAhead<D> + Send>,
}

impl<D> fmt::Debug for AttachmentReader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachmentReader").field("name", &self.attachment.name).finish_non_exhaustive()
    }
}

impl<D> fmt::Debug for ContentStep<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentStep").field("range", &self.rest.range).finish_non_exhaustive()
    }
}

impl<D: Database> AttachmentReader<D> {
    /// The attachment.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// The same content as it is stored: compressed, if its [`encoding`](Attachment::encoding) says so. Before the
    /// first [`next`](Self::next).
    #[must_use]
    pub fn stored(mut self) -> Self {
        if let Some(rest) = &mut self.rest {
            rest.unpacking = None;
        }
        self
    }

    /// A part of the stored bytes, up to their end. Before the first [`next`](Self::next).
    #[must_use]
    pub fn range(self, bytes: Range<u64>) -> Self {
        let mut this = self.stored();
        let end = this.attachment.encoded_length;
        let bytes = bytes.start.min(end)..bytes.end.min(end);
        if bytes != (0..end) {
            this.hash = None;
        }
        if let Some(rest) = &mut this.rest {
            rest.range = bytes;
        }
        this
    }

    /// The same reader, which reads and decompresses the next parts while it hashes and returns the current ones.
    /// `spawn` gets each step, and starts it on another thread.
    #[must_use]
    pub fn ahead(mut self, spawn: impl Fn(ContentAhead<D>) -> ContentAhead<D> + Send + 'static) -> Self {
        self.spawn = Box::new(spawn);
        self
    }

    /// The next bytes, up to 256 kB; `None` at the end. The last bytes of a whole content are returned only if its hash
    /// is right. Reads several parts at once, and returns them one after the other as they are in the store.
    ///
    /// # Errors
    /// 404 if the attachment or the database was removed meanwhile; damage; the store's errors. The reader cannot be
    /// used afterwards. The same holds if this future was dropped.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            let ahead = match (self.ahead.take(), self.rest.take()) {
                (Some(ahead), _) => ahead,
                (None, Some(rest)) if rest.is_empty() => {
                    self.rest = Some(rest);
                    return Ok(None);
                }
                (None, Some(rest)) => self.start(rest),
                (None, None) => return Err(cancelled()),
            };
            let ContentStep { stored, pieces, rest } = ahead.await.ok_or_else(cancelled)??;
            let is_read = rest.range.is_empty();
            if rest.is_empty() {
                self.rest = Some(rest);
            } else {
                self.ahead = Some(self.start(rest));
            }
            if let Some(hash) = &mut self.hash {
                stored.iter().for_each(|part| hash.update(part));
            }
            if is_read && let Some(hash) = self.hash.take() {
                let found: [u8; 32] = hash.finalize().into();
                if found != self.attachment.content.sha256 {
                    (self.rest, self.ahead) = (None, None);
                    return Err(damaged(&self.attachment.name, &"its hash does not match"));
                }
            }
            self.ready.extend(pieces);
        }
    }

    fn start(&self, rest: Rest<D>) -> ContentAhead<D> {
        (self.spawn)(Box::pin(async move { Some(rest.step().await) }))
    }
}

/// The error of a reader whose step was abandoned, or failed before.
fn cancelled() -> Error {
    kv_api::Error::new(kv_api::error::TRANSACTION_CANCELLED).into()
}

/// Reads some parts of a content, from the one in which the range starts.
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
                let first = range.start / row.part_bytes;
                let upto = range.end.div_ceil(row.part_bytes).min(first + PARTS_AT_ONCE);
                let begin = keys.key(DatabaseKey::Part(&row.store, first));
                let end = keys.key(DatabaseKey::Part(&row.store, upto));
                let rows = transaction.get_all(RangeRequest::keys(begin, end), Read::Snapshot).await?;
                let mut parts = Vec::with_capacity(rows.len());
                for (part, stored) in (first..upto).zip(rows) {
                    let length = part_bytes(content, &row, part);
                    if keys.read_part(&stored.key)? != (row.store, part) || stored.value.len() as u64 != length {
                        return Err(damaged(name, &"a part of it is another"));
                    }
                    // The first part may start before the range, and the last part may end after it.
                    let begin = part * row.part_bytes;
                    let inside = |at: u64| at.saturating_sub(begin).min(length) as usize;
                    parts.push(stored.value.slice(inside(range.start)..inside(range.end)));
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
    content.length.saturating_sub(part.saturating_mul(row.part_bytes)).min(row.part_bytes)
}
