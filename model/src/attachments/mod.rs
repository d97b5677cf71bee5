//! Attachments: files beside a document's body.
//!
//! ```text
//!  docs         (6, DocID, NotDeleted, RevPosition, RevHash, true, Part)      the list of a leaf's attachments
//!                    │ names a content by its address
//!  contents     (9, Sha256, Length) = (Format, Store, ChunkBytes, Md5)        one for each content of the database
//!                    │ names the store of its bytes
//!  chunks       (10, Store, Part) = bytes                                     up to ChunkBytes each
//!  references   (11, Sha256, Length, DocID, NotDeleted, RevPosition, RevHash) every leaf that has the content
//!
//!  staging      (7, Deadline, Number, Store), outside the database            chunks that no content names yet
//! ```
//!
//! A content is what is stored: packed bytes, where the attachment is packed. Its address is their SHA-256 and length,
//! so that a content which is replicated, copied or edited again is stored once; CouchDB's digest is an MD5, of which
//! different contents may have the same.
//!
//! # Invariants
//! * The attachments' list is part of a leaf's rows: it is written, read and removed with the body. The row of the leaf
//!   in `revisions` says whether there is one (its format), so that an edit of a document without attachments reads
//!   nothing for them.
//! * Each content that a leaf's list names exists, and has a row in `references` for that leaf. Rows, not a counter:
//!   two edits that refer to one content do not conflict.
//! * A content goes only in a transaction that reads, serializably, that nobody refers to it any more. An edit that
//!   refers to it reads the content's row, serializably. So one of the two fails and looks again.
//! * Chunks belong to a content or to an upload. An upload's row in `staging` is read by whoever makes a content of it,
//!   and cleared in the same transaction; whoever sweeps after the deadline reads and clears it as well.

mod address;
mod json;
mod ledger;
mod list;
mod reader;
mod resolve;
mod single;
mod staging;
mod upload;
mod zip;

use bytes::Bytes;

pub(crate) use self::json::read_attachments;
pub(crate) use self::json::{JsonForm, write_attachments};
pub use address::Content;
pub(crate) use address::{ContentId, ContentRow, Hashes, StoreId};
pub(crate) use ledger::{Added, Change, Ledger, clear_content, list_of};
pub(crate) use list::{list_rows, read_list, split_rows};
pub use reader::AttachmentReader;
pub(crate) use resolve::resolve;
pub(crate) use staging::sweep;
pub use upload::{Upload, UploadAs};

use crate::error::{Error, Result};
use crate::limits::{MAX_ATTACHMENT_NAME_BYTES, check_attachment_count};

/// How the stored bytes of an attachment are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// As gzip.
    Gzip,
}

impl Encoding {
    /// The word CouchDB and HTTP have for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
        }
    }
}

/// An attachment of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its content type.
    pub content_type: String,
    /// The position of the revision that it came with.
    pub revpos: u64,
    /// The MD5 of the stored bytes.
    pub digest: [u8; 16],
    /// How many bytes it has, unpacked; those that are stored where a client sent them packed.
    pub length: u64,
    /// How many bytes are stored.
    pub encoded_length: u64,
    /// How these are packed.
    pub encoding: Encoding,
    /// Whether the reader asked for its content.
    pub wanted: bool,
    /// The content, unpacked, where it was [loaded](crate::Documents::load_attachments).
    pub data: Option<Bytes>,
    pub(crate) content: ContentId,
}

impl Attachment {
    /// The digest as JSON has it: `md5-…`.
    pub fn digest_text(&self) -> String {
        format!("md5-{}", self.etag())
    }

    /// The digest in base 64, which is what an `ETag` holds between its quotes.
    pub fn etag(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(self.digest)
    }
}

/// An attachment of an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentEdit {
    /// Its name.
    pub name: String,
    /// Its content type. A stub's is that of what it stands for.
    pub content_type: String,
    /// The position of the revision that it came with. A replicated edit's is kept, 0 where there is none; an
    /// interactive edit's is made here, and a stub's only compared.
    pub revpos: Option<u64>,
    /// Where its content comes from.
    pub source: AttachmentSource,
}

impl AttachmentEdit {
    /// An attachment with a content that was uploaded.
    pub fn new(name: impl Into<String>, content_type: impl Into<String>, content: Content) -> Self {
        let source = AttachmentSource::Content(content);
        AttachmentEdit { name: name.into(), content_type: content_type.into(), revpos: None, source }
    }

    /// An attachment as another leaf of the same database has it, its `revpos` included.
    pub fn same(attachment: Attachment) -> Self {
        AttachmentEdit {
            name: attachment.name.clone(),
            content_type: attachment.content_type.clone(),
            revpos: Some(attachment.revpos),
            source: AttachmentSource::Same(Box::new(attachment)),
        }
    }

    /// What the replaced leaf has under this name.
    pub fn stub(name: impl Into<String>) -> Self {
        AttachmentEdit { name: name.into(), content_type: String::new(), revpos: None, source: AttachmentSource::Stub }
    }
}

/// Where the content of an edit's attachment comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentSource {
    /// It is here.
    Data(Bytes),
    /// It is what the replaced leaf has under the same name.
    Stub,
    /// It follows the document in a multipart body. Whoever reads that puts an uploaded content in its place.
    Follows(Follows),
    /// It was uploaded.
    Content(Content),
    /// It is that of an attachment of any leaf of the same database.
    Same(Box<Attachment>),
}

/// What a part of a multipart body has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follows {
    /// How many bytes the part has.
    pub length: u64,
    /// How they are packed.
    pub encoding: Encoding,
    /// How many they are unpacked, as the sender says.
    pub unpacked: u64,
    /// The MD5 of the part, where the sender says it.
    pub digest: Option<[u8; 16]>,
}

/// Whether an attachment may have this name.
///
/// # Errors
/// `bad_request`, with CouchDB's reason.
pub fn check_attachment_name(name: &str) -> Result<()> {
    if name.starts_with('_') {
        let reason = format!("Attachment name '{name}' starts with prohibited character '_'");
        return Err(Error::bad_request(reason));
    }
    if name.len() > MAX_ATTACHMENT_NAME_BYTES {
        return Err(Error::bad_request("Attachment name is too long"));
    }
    Ok(())
}

/// Whether a document may have these attachments; the id names it in the answer.
///
/// # Errors
/// 413 where they are too many; `bad_request` for a name or a content type that no attachment may have.
pub(crate) fn check_attachments(id: &str, attachments: &[AttachmentEdit]) -> Result<()> {
    check_attachment_count(id, attachments.len())?;
    for attachment in attachments {
        check_attachment_name(&attachment.name)?;
        if attachment.content_type.len() > MAX_ATTACHMENT_NAME_BYTES {
            return Err(Error::bad_request("Attachment content type is too long"));
        }
    }
    Ok(())
}
