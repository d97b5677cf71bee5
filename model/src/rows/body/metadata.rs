//! The `RevisionMetadata` of RFC 004: the layout of a body, and the means to check that it is complete.
//!
//! ```text
//! exploded: {1, leaves, text bytes, checksum}          members sorted like their keys
//!           {1, leaves, text bytes, checksum, b"…"}    otherwise: the order, see `order`
//! packed:   {2, text bytes, checksum, b"…"}            the text, or its start
//! ```
//! The first element is the RFC's enum; later layouts take the next numbers. The text is the
//! normalised text of the body, the checksum its CRC-32.

use std::borrow::Cow;

use super::stored::{BodyFormat, CorruptDocument};
use crate::rows::tuple::{self, Element};

const EXPLODED: u64 = 1;
const PACKED: u64 = 2;

/// Metadata of a stored body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionMetadata<'a> {
    format: BodyFormat,
    leaves: u64,
    text_bytes: u64,
    checksum: u32,
    /// Exploded: the order, empty if it equals that of the keys. Packed: the start of the text.
    payload: Cow<'a, [u8]>,
}

impl<'a> RevisionMetadata<'a> {
    /// Metadata of an exploded body whose order equals that of its keys.
    pub(super) fn exploded(text: &[u8], leaves: u64) -> RevisionMetadata<'a> {
        RevisionMetadata { format: BodyFormat::Exploded, leaves, ..RevisionMetadata::packed(text) }
    }

    /// Metadata of a packed body whose text is outside the metadata.
    pub(super) fn packed(text: &[u8]) -> RevisionMetadata<'a> {
        RevisionMetadata {
            format: BodyFormat::Packed,
            leaves: 0,
            text_bytes: text.len() as u64,
            checksum: crc32fast::hash(text),
            payload: Cow::Borrowed(&[]),
        }
    }

    /// The same with an order, or with the start of the text.
    pub(super) fn with_payload(self, payload: &'a [u8]) -> RevisionMetadata<'a> {
        RevisionMetadata { payload: Cow::Borrowed(payload), ..self }
    }

    /// Reads the value of a metadata row.
    ///
    /// # Errors
    /// [`CorruptDocument`] if it is malformed, or in an unknown layout.
    pub fn read(value: &'a [u8]) -> Result<RevisionMetadata<'a>, CorruptDocument> {
        let corrupt = CorruptDocument::new("its metadata cannot be read");
        let mut rest = value;
        let mut integer = || {
            let (element, behind) = tuple::read(rest)?;
            rest = behind;
            match element {
                Element::Integer(value) => value.as_u64(),
                _ => None,
            }
        };
        let (format, leaves) = match integer().ok_or(corrupt)? {
            EXPLODED => (BodyFormat::Exploded, integer().ok_or(corrupt)?),
            PACKED => (BodyFormat::Packed, 0),
            _ => return Err(CorruptDocument::UNKNOWN_FORMAT),
        };
        let text_bytes = integer().ok_or(corrupt)?;
        let checksum = integer().and_then(|checksum| u32::try_from(checksum).ok()).ok_or(corrupt)?;
        let payload = match tuple::read(rest) {
            Some((Element::Bytes(payload), [])) => payload,
            None if rest.is_empty() && format == BodyFormat::Exploded => Cow::Borrowed(&[][..]),
            _ => return Err(corrupt),
        };
        Ok(RevisionMetadata { format, leaves, text_bytes, checksum, payload })
    }

    /// Length of the metadata row's value, if the payload has no NUL.
    pub(super) fn len(&self) -> usize {
        let format = match self.format {
            BodyFormat::Exploded => tuple::u64_len(EXPLODED) + tuple::u64_len(self.leaves),
            BodyFormat::Packed => tuple::u64_len(PACKED),
        };
        let has_payload = self.format == BodyFormat::Packed || !self.payload.is_empty();
        let payload = if has_payload { self.payload.len() + 2 } else { 0 };
        format + tuple::u64_len(self.text_bytes) + tuple::u64_len(self.checksum.into()) + payload
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        match self.format {
            BodyFormat::Exploded => {
                tuple::append_u64(out, EXPLODED);
                tuple::append_u64(out, self.leaves);
            }
            BodyFormat::Packed => tuple::append_u64(out, PACKED),
        }
        tuple::append_u64(out, self.text_bytes);
        tuple::append_u64(out, self.checksum.into());
        if self.format == BodyFormat::Packed || !self.payload.is_empty() {
            tuple::append_bytes(out, &self.payload);
        }
    }

    /// Layout of the body.
    pub fn format(&self) -> BodyFormat {
        self.format
    }

    /// Number of leaves of an exploded body; 0 for a packed one.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Length of the body's text in bytes.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// CRC-32 of the body's text.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }
}
