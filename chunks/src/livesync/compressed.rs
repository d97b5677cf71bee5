//! LiveSync's data compression, a setting: `data` of a chunk as it is sent to the server.
//!
//! ```text
//!  "\u{e}LZ\u{1d}"  base64( deflate( UTF-8 of the text ) )
//!  "\u{e}LZ\u{1d}~" base64( deflate( bytes ) )               of a text that is base64 of these bytes
//! ```
//!
//! Deflate is raw, without a header. A client compresses before it encrypts, and only what becomes shorter; it opens a
//! compressed chunk whatever its own setting is. Source: `compress.ts` in livesync-commonlib.

use std::borrow::Cow;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::DeflateDecoder;

/// Beginning of compressed data.
const MARK: &str = "\u{e}LZ\u{1d}";
/// What follows it if the text is base64.
const OF_BYTES: &str = "~";
/// Most bytes that come out of one chunk. LiveSync cuts files into pieces of a few megabytes at most.
const MOST: u64 = 32 << 20;

/// The data of a chunk as it was before it was compressed.
///
/// # Errors
/// The reason why it cannot be had, as a predicate of the chunk.
pub(crate) fn inflated(data: Cow<'_, str>) -> Result<Cow<'_, str>, String> {
    let Some(compressed) = data.strip_prefix(MARK) else { return Ok(data) };
    let bytes_of = compressed.strip_prefix(OF_BYTES);
    let deflated = STANDARD.decode(bytes_of.unwrap_or(compressed));
    let deflated = deflated.map_err(|_| "is damaged: its compressed data is not in base64")?;
    let mut bytes = Vec::new();
    // Clients write nothing instead of deflated nothing.
    if !deflated.is_empty() {
        let read = DeflateDecoder::new(&deflated[..]).take(MOST + 1).read_to_end(&mut bytes);
        read.map_err(|_| "is damaged: its compressed data is not deflate's")?;
    }
    if bytes.len() as u64 > MOST {
        return Err(format!("is compressed, and has more than {MOST} bytes"));
    }
    match bytes_of {
        Some(_) => Ok(STANDARD.encode(bytes).into()),
        None => {
            String::from_utf8(bytes).map(Cow::Owned).map_err(|_| "is damaged: its compressed data is not text".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn deflated(bytes: &[u8]) -> String {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        STANDARD.encode(encoder.finish().unwrap())
    }

    #[test]
    fn what_the_plugin_compressed_is_opened() {
        // By fflate 0.8.2 at level 8, as the plugin does it.
        let text = format!("Größe: {}", "a line that is written again and again\n".repeat(6));
        let compressed = "\u{e}LZ\u{1d}cy86vO3w/FQrhUSFnMy8VIWSjMQShcxihfKizJKS1DyFxPTETCCZlwJhcQ0DZQA=";
        assert_eq!(inflated(compressed.into()).unwrap(), text);
        let bytes: Vec<u8> = (0..300_u32).map(|number| (number % 7) as u8).collect();
        assert_eq!(inflated("\u{e}LZ\u{1d}~Y2BkYmZhZRuliKAA".into()).unwrap(), STANDARD.encode(bytes));
        assert_eq!(inflated("\u{e}LZ\u{1d}".into()).unwrap(), "");
        for plain in ["", "from-a\n", "\u{e}LZ", "LZ\u{1d}~"] {
            assert_eq!(inflated(plain.into()).unwrap(), plain);
        }
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        for (data, wanted) in [
            ("not base64".to_owned(), "not in base64"),
            ("/////w==".into(), "not deflate's"),
            (deflated(b"\xff\xfe"), "no text"),
            (deflated(b"cut off, so that nothing of it can be trusted")[..24].to_owned(), "not deflate's"),
        ] {
            let refused = inflated(format!("{MARK}{data}").into()).unwrap_err();
            assert!(refused.contains(wanted), "{data}: {refused}");
        }
        let bomb = deflated(&vec![0; MOST as usize + 1]);
        assert!(inflated(format!("{MARK}~{bomb}").into()).unwrap_err().contains("more than"));
    }
}
