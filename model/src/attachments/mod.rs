//! Attachments: files in addition to a document's body.
//!
//! ```text
//!  docs         (6, DocID, NotDeleted, RevPosition, RevHash, true, Part)      the list of a leaf's attachments
//!                    │ names a content by its address
//!  contents     (9, Sha256, Length) = (Format, Store, PartBytes, Md5)         a row for each content of the database
//!                    │ names the store of its bytes
//!  parts        (10, Store, Part) = bytes                                     up to PartBytes each
//!  references   (11, Sha256, Length, DocID, NotDeleted, RevPosition, RevHash) a row for each leaf that has the content
//!
//!  staging      (7, Deadline, Number, Store), outside the database            parts that no content names yet
//! ```
//!
//! A content is the stored bytes: compressed, if the attachment is. Its address is their SHA-256 hash and their length.
//! So a content that is replicated, copied or edited again is stored only once. CouchDB's digest is an MD5 hash, which
//! different contents may share.
//!
//! # Invariants
//! * The list of attachments is part of a leaf's rows: it is written, read and removed with the body. The format of the
//!   leaf's row in `revisions` tells whether there is a list. So an edit of a document without attachments reads
//!   nothing for them.
//! * Each content that a leaf's list names exists, and has a row in `references` for that leaf. References are rows
//!   instead of a counter, so two edits that refer to one content do not conflict.
//! * A content is removed only in a transaction that reads, serializably, that no leaf refers to it. An edit that
//!   refers to it reads the content's row serializably. So one of the two conflicts and is retried.
//! * Parts belong to a content or to an upload. The transaction that makes a content of an upload reads and clears its
//!   row in `staging`. So does the transaction that removes the upload after the deadline.

mod abandoned;
mod address;
mod json;
mod ledger;
mod list;
mod reader;
mod resolve;
mod single;
mod staging;
mod sweep;
mod upload;
mod uploaded;
mod zip;

use bytes::Bytes;

pub(crate) use self::json::read_attachments;
pub(crate) use self::json::{JsonForm, write_attachments};
pub(crate) use abandoned::Abandoned;
pub(crate) use address::{ContentId, ContentRow, Hashes, StoreId};
pub(crate) use ledger::{Added, Change, Ledger, clear_content, list_at, list_of};
pub(crate) use list::{list_rows, read_list, split_rows};
pub use reader::{AttachmentReader, ContentAhead, ContentStep};
pub(crate) use resolve::resolve;
pub(crate) use sweep::sweep;
pub use upload::{Upload, UploadAs};
pub use uploaded::Content;

use crate::error::{Error, Result};
use crate::limits::{MAX_ATTACHMENT_NAME_BYTES, check_attachment_count};

/// The compression of an attachment's stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// None.
    Identity,
    /// Gzip.
    Gzip,
}

impl Encoding {
    /// Its name in CouchDB and HTTP.
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
    /// Position of the revision that added or replaced it.
    pub revpos: u64,
    /// The MD5 hash of the stored bytes.
    pub digest: [u8; 16],
    /// Its length in bytes, uncompressed. If a client sent it compressed, the length of the stored bytes.
    pub length: u64,
    /// Number of stored bytes.
    pub encoded_length: u64,
    /// The compression of the stored bytes.
    pub encoding: Encoding,
    /// Whether the reader requested its content.
    pub wanted: bool,
    /// The uncompressed content, if it was [loaded](crate::Documents::load_attachments).
    pub data: Option<Bytes>,
    pub(crate) content: ContentId,
}

impl Attachment {
    /// The digest as in JSON: `md5-…`.
    pub fn digest_text(&self) -> String {
        format!("md5-{}", self.etag())
    }

    /// The SHA-256 hash of the stored bytes.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.content.sha256
    }

    /// The digest in Base64, as in the quotes of an `ETag`.
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
    /// Its content type. Ignored for a stub, which keeps that of the replaced leaf's attachment.
    pub content_type: String,
    /// Position of the revision that added or replaced it. Replicated edits keep it, or 0 without one. Interactive
    /// edits get a new one; that of a stub is only compared.
    pub revpos: Option<u64>,
    /// The source of its content.
    pub source: AttachmentSource,
}

impl AttachmentEdit {
    /// An attachment with an uploaded content.
    pub fn new(name: impl Into<String>, content_type: impl Into<String>, content: Content) -> Self {
        let source = AttachmentSource::Content(content);
        AttachmentEdit { name: name.into(), content_type: content_type.into(), revpos: None, source }
    }

    /// An attachment that another leaf of the same database has, with its `revpos`.
    pub fn same(attachment: Attachment) -> Self {
        AttachmentEdit {
            name: attachment.name.clone(),
            content_type: attachment.content_type.clone(),
            revpos: Some(attachment.revpos),
            source: AttachmentSource::Same(Box::new(attachment)),
        }
    }

    /// The attachment that the replaced leaf has under this name.
    pub fn stub(name: impl Into<String>) -> Self {
        AttachmentEdit { name: name.into(), content_type: String::new(), revpos: None, source: AttachmentSource::Stub }
    }
}

/// The source of the content of an edit's attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentSource {
    /// These bytes.
    Data(Bytes),
    /// The content that the replaced leaf has under the same name.
    Stub,
    /// A part after the document in a multipart body. The reader of the body replaces this by the uploaded content.
    Follows(Follows),
    /// An uploaded content.
    Content(Content),
    /// The content of an attachment of any leaf of the same database.
    Same(Box<Attachment>),
}

/// The announced properties of a part of a multipart body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follows {
    /// Number of bytes in the part.
    pub length: u64,
    /// Their compression.
    pub encoding: Encoding,
    /// Number of uncompressed bytes, according to the sender.
    pub unpacked: u64,
    /// The MD5 hash of the part, if the sender has it.
    pub digest: Option<[u8; 16]>,
}

/// Checks that an attachment may have this name.
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

/// Checks that a document may have these attachments. The id is for the error.
///
/// # Errors
/// 413 if there are too many; `bad_request` for an invalid name or content type.
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
