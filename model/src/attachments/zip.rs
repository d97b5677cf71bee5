//! Compresses exactly as CouchDB does, byte for byte.
//!
//! Digests, and therefore revision identifiers, are those of the compressed bytes. So these must equal CouchDB's:
//! zlib's own deflate at level 8, with a header without name and time, for Unix. Another implementation of deflate
//! finds other matches, and would give other revisions.
//!
//! Source: `compressible_types` and `compression_level` of CouchDB's `default.ini`; `zlib:deflateInit/6` in
//! `couch_stream.erl`.

use std::io::{self, Write};

use flate2::write::{GzEncoder, MultiGzDecoder};
use flate2::{Compression, GzBuilder};

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

/// A writer that decompresses.
pub(super) fn unpacker<W: Write>(out: W) -> MultiGzDecoder<W> {
    MultiGzDecoder::new(out)
}

/// A writer that checks that its input is gzip, and keeps only the decompressed length.
pub(super) struct Proof(MultiGzDecoder<Count>);

struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Proof {
    pub(super) fn new() -> Self {
        Proof(unpacker(Count(0)))
    }

    pub(super) fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.0.write_all(piece)
    }

    /// Decompressed length in bytes.
    pub(super) fn unpacked(&self) -> u64 {
        self.0.get_ref().0
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.0.try_finish()
    }
}

#[cfg(test)]
mod tests {
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
}
