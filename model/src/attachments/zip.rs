//! Compresses exactly as CouchDB does, byte for byte.
//!
//! Digests, and therefore revision identifiers, are those of the compressed bytes. So these must equal CouchDB's:
//! zlib's own deflate at level 8, with a header without name and time, for Unix. Another implementation of deflate
//! finds other matches, and would give other revisions. Decompression has the same result in every implementation, so
//! zlib-rs does it: it needs 0.5 ms for 400 KB of English text, while zlib's own inflate needs 1.2.
//!
//! Source: `compressible_types` and `compression_level` of CouchDB's `default.ini`; `zlib:deflateInit/6` in
//! `couch_stream.erl`.

use std::io;

use bytes::Buf;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use zlib_rs::{Inflate, InflateFlush, Status};

/// CouchDB's `compression_level`.
const LEVEL: u32 = 8;

/// Unix, in gzip's header.
const SYSTEM: u8 = 3;

/// Whether CouchDB compresses attachments of this type: `text/*, application/javascript, application/json,
/// application/xml`.
pub(super) fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.split_once('/') {
        Some(("text", _)) => true,
        Some(("application", kind)) => matches!(kind, "javascript" | "json" | "xml"),
        _ => false,
    }
}

/// A writer that compresses.
pub(super) fn packer(out: Vec<u8>) -> GzEncoder<Vec<u8>> {
    GzBuilder::new().operating_system(SYSTEM).write(out, Compression::new(LEVEL))
}

/// For [`Inflate`]: gzip with a window of 32 KB. It checks the header, the CRC and the length of each member.
const GZIP: u8 = 16 + 15;

/// Decompresses gzip, which has one member or several.
pub(super) struct Unpacker {
    /// The current member, or the last one.
    member: Inflate,
    /// Whether `member` is at its end.
    is_ended: bool,
}

impl Unpacker {
    pub(super) fn new() -> Self {
        Unpacker { member: Inflate::new(true, GZIP), is_ended: false }
    }

    /// Decompresses bytes of `packed` until `out` is full or all of them are taken. Returns the number of decompressed
    /// bytes. If they fill `out`, there may be more of them, even if `packed` is empty.
    pub(super) fn unpack(&mut self, packed: &mut impl Buf, out: &mut [u8]) -> io::Result<usize> {
        let mut length = 0;
        loop {
            if self.is_ended {
                if !packed.has_remaining() {
                    return Ok(length);
                }
                *self = Self::new();
            }
            let before = (self.member.total_in(), self.member.total_out());
            let status = self.member.decompress(packed.chunk(), &mut out[length..], InflateFlush::NoFlush);
            packed.advance((self.member.total_in() - before.0) as usize);
            length += (self.member.total_out() - before.1) as usize;
            match status {
                Ok(Status::StreamEnd) => self.is_ended = true,
                Ok(Status::Ok | Status::BufError) => return Ok(length),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.as_str())),
            }
        }
    }

    /// Checks that the last member is whole.
    pub(super) fn finish(&self) -> io::Result<()> {
        if self.is_ended { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Checks that its input is gzip, and keeps only the decompressed length.
pub(super) struct Proof {
    unpacker: Unpacker,
    unpacked: u64,
    out: Vec<u8>,
}

impl Proof {
    pub(super) fn new() -> Self {
        Proof { unpacker: Unpacker::new(), unpacked: 0, out: vec![0; 64 << 10] }
    }

    pub(super) fn take(&mut self, mut piece: &[u8]) -> io::Result<()> {
        loop {
            let length = self.unpacker.unpack(&mut piece, &mut self.out)?;
            self.unpacked += length as u64;
            if length < self.out.len() {
                return Ok(());
            }
        }
    }

    /// Decompressed length in bytes.
    pub(super) fn unpacked(&self) -> u64 {
        self.unpacked
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        self.unpacker.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use md5::{Digest, Md5};

    use super::*;

    #[test]
    fn types_are_packed_as_in_couchdb() {
        for packed in ["text/plain", "TEXT/html; charset=utf-8", "application/json", "application/javascript;x=1"] {
            assert!(is_compressible(packed), "{packed}");
        }
        for plain in ["text", "", "image/svg+xml", "application/octet-stream", "application/json5", "xtext/plain"] {
            assert!(!is_compressible(plain), "{plain}");
        }
    }

    /// Contents of several kinds, the same in every run. `tests/gzip.py` makes the same.
    fn sample(kind: &str, length: usize) -> Vec<u8> {
        let mut state = 0x2545_f491u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        match kind {
            "zeros" => vec![0; length],
            "noise" => (0..length).map(|_| next() as u8).collect(),
            "words" => {
                const WORDS: [&str; 8] =
                    ["couch ", "layer ", "leaf ", "branch ", "tombstone ", "key ", "value ", "a\n"];
                let words = std::iter::repeat_with(|| WORDS[next() as usize % 8].bytes()).flatten();
                words.take(length).collect()
            }
            _ => unreachable!("{kind}"),
        }
    }

    fn packed(content: &[u8], piece: usize) -> Vec<u8> {
        let mut packer = packer(Vec::new());
        content.chunks(piece.max(1)).for_each(|piece| packer.write_all(piece).unwrap());
        packer.finish().unwrap()
    }

    #[test]
    fn bytes_are_those_of_zlib_in_pieces_of_any_size() {
        let vectors = include_str!("../../tests/gzip.txt");
        for line in vectors.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [kind, length, packed_length, digest] = fields[..] else { panic!("{line}") };
            let content = sample(kind, length.parse().unwrap());
            for piece in [content.len(), 1 << 16, 4_096, 65_521, 997] {
                let packed = packed(&content, piece);
                assert_eq!(packed[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]);
                let found: String = Md5::digest(&packed).iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!((packed.len().to_string().as_str(), found.as_str()), (packed_length, digest), "{line}");
            }
        }
    }

    #[test]
    fn only_gzip_is_gzip() {
        let prove = |bytes: &[u8]| {
            let mut proof = Proof::new();
            bytes.chunks(7).try_for_each(|piece| proof.take(piece)).and_then(|()| proof.finish())
        };
        let whole = packed(b"hello hello hello", 5);
        prove(&whole).unwrap();
        for cut in 1..whole.len() {
            assert!(prove(&whole[..cut]).is_err(), "cut at {cut}");
        }
        assert!(prove(b"").is_err() && prove(b"no gzip at all").is_err());
        assert!(prove(&[&whole[..], b"more"].concat()).is_err());
        let mut flipped = whole.clone();
        let crc = whole.len() - 6;
        flipped[crc] ^= 1;
        assert!(prove(&flipped).is_err());
    }

    fn unpacked(packed: &[u8], piece: usize, at_once: usize) -> io::Result<Vec<u8>> {
        let (mut unpacker, mut unpacked, mut out) = (Unpacker::new(), Vec::new(), vec![0; at_once]);
        for mut piece in packed.chunks(piece) {
            loop {
                let length = unpacker.unpack(&mut piece, &mut out)?;
                unpacked.extend_from_slice(&out[..length]);
                if length < out.len() {
                    break;
                }
            }
            assert!(piece.is_empty());
        }
        unpacker.finish().map(|()| unpacked)
    }

    #[test]
    fn members_come_out_one_after_the_other_in_pieces_of_any_size() {
        let contents = [sample("words", 70_000), Vec::new(), sample("noise", 999), sample("zeros", 200_000)];
        let whole = contents.concat();
        let members: Vec<u8> = contents.iter().flat_map(|content| packed(content, 1_000)).collect();
        for (piece, at_once) in
            [(members.len(), whole.len() + 1), (members.len(), whole.len()), (1, 1), (7, 64), (900, 3)]
        {
            assert!(unpacked(&members, piece, at_once).unwrap() == whole, "{piece}, {at_once}");
        }
        let mut proof = Proof::new();
        members.chunks(100).for_each(|piece| proof.take(piece).unwrap());
        proof.finish().unwrap();
        assert_eq!(proof.unpacked(), whole.len() as u64);
    }

    #[test]
    fn each_part_of_gzip_is_checked() {
        // A header as written by other programs.
        let mut builder =
            GzBuilder::new().filename("a").comment("b").extra(vec![1, 2, 3]).write(Vec::new(), Compression::new(1));
        builder.write_all(b"hello hello hello").unwrap();
        let whole = builder.finish().unwrap();
        assert_eq!(unpacked(&whole, 3, 5).unwrap(), b"hello hello hello");
        let plain = packed(b"hello hello hello", 17);
        // The magic number, the method, a reserved flag; the CRC and the length.
        for at in [0, 1, 2, plain.len() - 8, plain.len() - 5, plain.len() - 4, plain.len() - 1] {
            let mut flipped = plain.clone();
            flipped[at] ^= 1;
            assert!(unpacked(&flipped, 5, 64).is_err(), "byte {at}");
        }
        let mut flag = plain.clone();
        flag[3] = 0x80;
        assert!(unpacked(&flag, 5, 64).is_err());
        for rest in [&b"\0"[..], &plain[..9], &plain[..plain.len() - 1]] {
            assert!(unpacked(&[&plain[..], rest].concat(), 5, 64).is_err(), "{rest:?}");
        }
    }
}
