//! Attachments of the tape. There are few contents, so many leaves share them. Python's zlib and hashlib computed what
//! the layer must store.

use model::{Attachment, AttachmentDigest, AttachmentEdit, AttachmentSource, Encoding};

/// A content: a repeated byte, and its stored forms, plain and compressed.
struct Sample {
    byte: u8,
    length: usize,
    md5: &'static str,
    packed_length: u64,
    packed_md5: &'static str,
}

const SAMPLES: [Sample; 3] = [
    Sample {
        byte: 0,
        length: 0,
        md5: "d41d8cd98f00b204e9800998ecf8427e",
        packed_length: 20,
        packed_md5: "7029066c27ac6f5ef18d660d5741979a",
    },
    Sample {
        byte: b'a',
        length: 1,
        md5: "0cc175b9c0f1b6a831c399e269772661",
        packed_length: 21,
        packed_md5: "43d6024138e1f62eec0af04755d1cced",
    },
    Sample {
        byte: b'b',
        length: 100_000,
        md5: "09bfb3d92f4ec0691eec3644563f3ef4",
        packed_length: 133,
        packed_md5: "bc24f8cb8d0167c51c9a1578d1eec2f9",
    },
];

/// Number of contents.
pub(super) const CONTENTS: usize = SAMPLES.len() * 2;

/// An attachment of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) name: String,
    pub(super) revpos: u64,
    /// The content's index: a sample, plain or compressed.
    pub(super) content: usize,
}

impl Attached {
    fn sample(&self) -> &'static Sample {
        &SAMPLES[self.content / 2]
    }

    fn is_packed(&self) -> bool {
        self.content % 2 == 1
    }

    fn content_type(&self) -> &'static str {
        if self.is_packed() { "text/plain" } else { "image/x" }
    }

    fn md5(&self) -> [u8; 16] {
        let digits = if self.is_packed() { self.sample().packed_md5 } else { self.sample().md5 };
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
        std::array::from_fn(|at| byte(2 * at))
    }

    pub(super) fn digest(&self) -> AttachmentDigest<'_> {
        AttachmentDigest { name: &self.name, content_type: self.content_type(), md5: self.md5() }
    }

    /// The attachment as an edit has it, with its data.
    pub(super) fn inline(&self) -> AttachmentEdit {
        let Sample { byte, length, .. } = *self.sample();
        AttachmentEdit {
            name: self.name.clone(),
            content_type: self.content_type().to_owned(),
            revpos: Some(self.revpos),
            source: AttachmentSource::Data(vec![byte; length].into()),
        }
    }

    /// The attachment of an edit with data.
    pub(super) fn of(edit: &AttachmentEdit, data: &[u8], revpos: u64) -> Attached {
        let sample = SAMPLES.iter().position(|sample| sample.length == data.len()).expect("a sample");
        let content = 2 * sample + usize::from(edit.content_type == "text/plain");
        Attached { name: edit.name.clone(), revpos, content }
    }

    /// Whether this is the attachment that was read.
    pub(super) fn is(&self, read: &Attachment) -> bool {
        let (sample, packed) = (self.sample(), self.is_packed());
        let stored = if packed { sample.packed_length } else { sample.length as u64 };
        let encoding = if packed { Encoding::Gzip } else { Encoding::Identity };
        (read.name.as_str(), read.content_type.as_str(), read.revpos) == (&self.name, self.content_type(), self.revpos)
            && (read.digest, read.length) == (self.md5(), sample.length as u64)
            && (read.encoding, read.encoded_length) == (encoding, stored)
    }

    /// Whether these are its bytes.
    pub(super) fn is_content(&self, bytes: &[u8]) -> bool {
        let Sample { byte, length, .. } = *self.sample();
        bytes.len() == length && bytes.iter().all(|found| *found == byte)
    }
}
