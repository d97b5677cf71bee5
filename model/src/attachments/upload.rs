//! Uploads a content in pieces, before the edit that names it.
//!
//! ```text
//!  pieces ─► limit ─► compressed, or checked as gzip ─► hashed ─► held, up to 2 MB ─► staged, 2 MB a transaction
//!                                                                │ at the end, up to 1 MB
//!                                                                └─► kept here, and written by the edit itself
//! ```

use std::fmt;
use std::io::Write;

use bytes::{Bytes, BytesMut};
use flate2::write::GzEncoder;
use kv_api::Database;
use md5::{Digest, Md5};

use super::address::Hashes;
use super::staging::Stager;
use super::uploaded::{Uploaded, UploadedBytes};
use super::zip::{self, Proof};
use super::{AttachmentEdit, AttachmentSource, Content, Encoding};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result};

/// Size up to which the edit that names a content writes it.
const MEMORY_BYTES: usize = 1_000_000;

/// Number of bytes that are compressed and hashed at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Form of an upload's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadAs<'a> {
    /// Uncompressed. They are compressed here if CouchDB compresses their type.
    Plain {
        /// The content type.
        content_type: &'a str,
    },
    /// Compressed by gzip already.
    Gzip {
        /// Stated length after decompression. With `None` the attachment has the compressed length, as in CouchDB
        /// for a `PUT` with `Content-Encoding: gzip`.
        length: Option<u64>,
    },
}

/// An upload in progress. It accepts bytes as fast as [`write`](Upload::write) is awaited, and holds about 2 MB of
/// them. The rows of a dropped upload are removed by the next one, or by
/// [`Layer::give_back_uploads`](crate::Layer::give_back_uploads).
pub struct Upload<D> {
    /// Name of the attachment, for errors.
    name: String,
    limit: u64,
    received: u64,
    /// Whether a step was started but not finished: it failed, or its future was dropped. Then hashed bytes may be
    /// missing.
    is_torn: bool,
    /// The stated number of bytes.
    expected_length: Option<u64>,
    /// The stated MD5 of the bytes as received, and the MD5 of those received so far.
    expected_md5: Option<([u8; 16], Md5)>,
    pack: Pack,
    /// Hashes of the stored bytes.
    hashes: Hashes,
    /// Bytes to store that are not in the store yet.
    held: BytesMut,
    stager: Stager<D>,
}

impl<D> fmt::Debug for Upload<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("name", &self.name).field("received", &self.received).finish_non_exhaustive()
    }
}

enum Pack {
    /// Nothing is compressed.
    Plain,
    /// Bytes are compressed here.
    Packing(GzEncoder<Vec<u8>>),
    /// Bytes arrived compressed.
    Packed { proof: Proof, length: Option<u64> },
}

impl Pack {
    fn new(how: UploadAs<'_>) -> Pack {
        match how {
            UploadAs::Plain { content_type } if zip::is_compressible(content_type) => {
                Pack::Packing(zip::packer(Vec::new()))
            }
            UploadAs::Plain { .. } => Pack::Plain,
            UploadAs::Gzip { length } => Pack::Packed { proof: Proof::new(), length },
        }
    }
}

impl<D: Database> Documents<D> {
    /// Starts an upload of an attachment with this name, which is used in errors only. Reads and writes nothing.
    pub fn upload(&self, name: &str, how: UploadAs<'_>) -> Upload<D> {
        Upload {
            name: name.to_owned(),
            limit: self.max_attachment_size(),
            received: 0,
            is_torn: false,
            expected_length: None,
            expected_md5: None,
            pack: Pack::new(how),
            hashes: Hashes::default(),
            held: BytesMut::new(),
            stager: Stager::new(self),
        }
    }

    /// Starts the upload of a part of a multipart body, for an attachment that follows.
    ///
    /// # Errors
    /// `bad_request` for an attachment that does not follow.
    pub fn upload_part(&self, attachment: &AttachmentEdit) -> Result<Upload<D>> {
        let AttachmentSource::Follows(follows) = attachment.source else {
            return Err(Error::bad_request(format!("The attachment {} does not follow", attachment.name)));
        };
        let how = match follows.encoding {
            Encoding::Identity => UploadAs::Plain { content_type: &attachment.content_type },
            Encoding::Gzip => UploadAs::Gzip { length: Some(follows.unpacked) },
        };
        let mut upload = self.upload(&attachment.name, how);
        upload.expected_length = Some(follows.length);
        Ok(match follows.digest {
            Some(digest) => upload.expect_md5(digest),
            None => upload,
        })
    }

    /// Removes an upload that no edit has named at once, instead of some time after it was dropped.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn discard(&self, content: Content) -> Result<()> {
        let uploaded = content.uploaded();
        match &uploaded.place {
            UploadedBytes::Memory(_) => Ok(()),
            UploadedBytes::Staged(staged) => staged.discard(&self.shared.guard).await,
        }
    }

    /// Moves a content from memory into the store. Uploads of up to a megabyte stay in memory, so a caller with
    /// many of them stages some.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn staged(&self, content: &Content) -> Result<Content> {
        let uploaded = content.uploaded();
        let UploadedBytes::Memory(bytes) = &uploaded.place else { return Ok(content.clone()) };
        let mut stager = Stager::new(self);
        stager.write(bytes).await?;
        Ok(Content::new(Uploaded { place: place(&mut stager, Bytes::new()), ..*uploaded }))
    }

    /// The content of these bytes.
    pub(crate) async fn content_of(&self, name: &str, content_type: &str, bytes: &[u8]) -> Result<Content> {
        let mut upload = self.upload(name, UploadAs::Plain { content_type });
        for piece in bytes.chunks(PIECE_BYTES) {
            upload.take(piece)?;
            let_others_run(piece).await;
        }
        upload.close()?;
        let held = std::mem::take(&mut upload.held).freeze();
        Ok(upload.content(UploadedBytes::Memory(held)))
    }
}

fn place<D>(stager: &mut Stager<D>, held: Bytes) -> UploadedBytes {
    match stager.staged.take() {
        Some(staged) => UploadedBytes::Staged(staged),
        None => UploadedBytes::Memory(held),
    }
}

impl<D: Database> Upload<D> {
    /// The same upload, which fails at its end if the received bytes have another MD5. To be called before the first
    /// [`write`](Self::write).
    #[must_use]
    pub fn expect_md5(mut self, md5: [u8; 16]) -> Self {
        self.expected_md5 = Some((md5, Md5::default()));
        self
    }

    /// Accepts the next bytes, any number of them.
    ///
    /// # Errors
    /// 413 `attachment_too_large`; 400 if they are more than stated, or not gzip; 404 if the database is gone; 503
    /// if the upload took too long; the store's errors. A failed upload cannot be continued.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.begin()?;
        let written = self.write_pieces(bytes).await;
        self.is_torn = written.is_err();
        Self::discard_on_error(&mut self.stager, written).await
    }

    /// Removes the staged parts if a step failed. Parts that cannot be removed now are swept later.
    async fn discard_on_error(stager: &mut Stager<D>, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            drop(stager.discard().await);
        }
        outcome
    }

    async fn write_pieces(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.take(piece)?;
            if self.held.len() >= self.stager.bytes_at_once() {
                let whole = self.held.len() / self.stager.part_bytes * self.stager.part_bytes;
                let held = self.held.split_to(whole).freeze();
                self.stager.write(&held).await?;
            }
            let_others_run(piece).await;
        }
        Ok(())
    }

    /// Starts a step. A step that is not finished leaves the upload torn.
    fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_torn, true) { Err(ErrorKind::UploadGone.into()) } else { Ok(()) }
    }

    /// Ends the upload.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and 400 if the bytes are fewer than stated, or wrong. If their MD5 differs from
    /// the stated one, that is [`ErrorKind::Md5Mismatch`].
    pub async fn finish(mut self) -> Result<Content> {
        self.begin()?;
        let closed = self.close();
        Self::discard_on_error(&mut self.stager, closed).await?;
        let held = std::mem::take(&mut self.held).freeze();
        if self.stager.staged.is_some() || held.len() > MEMORY_BYTES {
            let written = self.stager.write(&held).await;
            Self::discard_on_error(&mut self.stager, written).await?;
        }
        let place = place(&mut self.stager, held);
        Ok(self.content(place))
    }

    fn content(self, place: UploadedBytes) -> Content {
        let (id, md5) = self.hashes.finish();
        let (length, encoding) = match self.pack {
            Pack::Plain => (id.length, Encoding::Identity),
            Pack::Packing(_) => (self.received, Encoding::Gzip),
            Pack::Packed { length, .. } => (length.unwrap_or(id.length), Encoding::Gzip),
        };
        let part_bytes = self.stager.part_bytes as u64;
        Content::new(Uploaded { id, md5, length, encoding, part_bytes, place })
    }

    /// Compresses and hashes a piece.
    fn take(&mut self, piece: &[u8]) -> Result<()> {
        self.received += piece.len() as u64;
        self.check_limit(self.received)?;
        if self.expected_length.is_some_and(|length| self.received > length) {
            return Err(Error::bad_request("attachment longer than expected"));
        }
        if let Some((_, md5)) = &mut self.expected_md5 {
            md5.update(piece);
        }
        match &mut self.pack {
            Pack::Plain => self.keep(piece),
            Pack::Packing(packer) => {
                packer.write_all(piece).map_err(|error| no_gzip(&self.name, &error))?;
                let packed = std::mem::take(packer.get_mut());
                self.keep(&packed);
            }
            Pack::Packed { proof, .. } => {
                proof.take(piece).map_err(|error| no_gzip(&self.name, &error))?;
                let unpacked = proof.unpacked();
                self.keep(piece);
                self.check_limit(unpacked)?;
            }
        }
        Ok(())
    }

    fn check_limit(&self, bytes: u64) -> Result<()> {
        if bytes > self.limit { Err(ErrorKind::AttachmentTooLarge(self.name.clone()).into()) } else { Ok(()) }
    }

    fn keep(&mut self, stored: &[u8]) {
        self.hashes.update(stored);
        let most = self.stager.bytes_at_once() + PIECE_BYTES;
        if self.held.capacity() < most && self.held.len() + stored.len() > MEMORY_BYTES {
            // If the buffer doubled step by step, it would take up to twice that. After the first bytes were staged,
            // this reuses their memory.
            self.held.reserve(most.saturating_sub(self.held.len()));
        }
        self.held.extend_from_slice(stored);
    }

    /// Ends the compression, and compares with the stated properties.
    fn close(&mut self) -> Result<()> {
        if self.expected_length.is_some_and(|length| self.received < length) {
            return Err(Error::bad_request("attachment shorter than expected"));
        }
        if let Some((expected, md5)) = self.expected_md5.take()
            && expected != <[u8; 16]>::from(md5.finalize())
        {
            return Err(ErrorKind::Md5Mismatch.into());
        }
        match &mut self.pack {
            Pack::Plain => {}
            Pack::Packing(packer) => {
                packer.try_finish().map_err(|error| no_gzip(&self.name, &error))?;
                let packed = std::mem::take(packer.get_mut());
                self.keep(&packed);
            }
            Pack::Packed { proof, length } => {
                proof.finish().map_err(|error| no_gzip(&self.name, &error))?;
                let (unpacked, length) = (proof.unpacked(), *length);
                self.check_limit(unpacked)?;
                // CouchDB states the compressed length for data that a client compressed.
                if length.is_some_and(|length| length != unpacked && length != self.received) {
                    let reason = format!("The length of the attachment {} does not match", self.name);
                    return Err(Error::bad_request(reason));
                }
            }
        }
        Ok(())
    }
}

/// Yields after each whole piece: compressing one takes a millisecond, decompressing one up to a hundred.
async fn let_others_run(piece: &[u8]) {
    if piece.len() >= PIECE_BYTES {
        kv_api::yield_now().await;
    }
}

fn no_gzip(name: &str, error: &std::io::Error) -> Error {
    Error::bad_request(format!("The attachment {name} is not gzip: {error}"))
}
