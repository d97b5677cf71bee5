//! The `RevisionMetadata` of RFC 004: how a body is laid out and how to know it is whole.
//!
//! ```text
//! exploded: {1, leaves, text bytes, checksum}          members sorted as their keys are
//!           {1, leaves, text bytes, checksum, b"…"}    else: the order, see `order`
//! packed:   {2, text bytes, checksum, b"…"}            the text, or its beginning
//! ```
//! The first element is the RFC's enum; layouts to come take the next number. The text is the
//! normalised text of the body, the checksum its CRC-32.

use std::borrow::Cow;

use super::{BodyFormat, CorruptDocument};
use crate::tuple::{self, Element};

const EXPLODED: u64 = 1;
const PACKED: u64 = 2;

/// What the metadata of a stored body say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionMetadata<'a> {
    format: BodyFormat,
    leaves: u64,
    text_bytes: u64,
    checksum: u32,
    /// Exploded: the order, empty if it is that of the keys. Packed: the beginning of the text.
    payload: Cow<'a, [u8]>,
}

impl<'a> RevisionMetadata<'a> {
    /// For an exploded body whose order is that of its keys.
    pub(super) fn exploded(text: &[u8], leaves: u64) -> RevisionMetadata<'a> {
        RevisionMetadata { format: BodyFormat::Exploded, leaves, ..RevisionMetadata::packed(text) }
    }

    /// For a packed body of which nothing stands in the metadata.
    pub(super) fn packed(text: &[u8]) -> RevisionMetadata<'a> {
        RevisionMetadata {
            format: BodyFormat::Packed,
            leaves: 0,
            text_bytes: text.len() as u64,
            checksum: crc32fast::hash(text),
            payload: Cow::Borrowed(&[]),
        }
    }

    /// The same with an order, or with the beginning of the text.
    pub(super) fn with_payload(self, payload: &'a [u8]) -> RevisionMetadata<'a> {
        RevisionMetadata { payload: Cow::Borrowed(payload), ..self }
    }

    /// Reads the value of a metadata row.
    ///
    /// # Errors
    /// [`CorruptDocument`] if it is none that this version knows.
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

    /// The length of the value of the metadata's row, if the payload holds no NUL.
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

    /// How the body is laid out.
    pub fn format(&self) -> BodyFormat {
        self.format
    }

    /// How many leaves an exploded body has; 0 for a packed one.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// The length of the body's text in bytes.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The CRC-32 of the body's text.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }
}
