//! Strings of normalised text: finds their ends, writes and reads them.
//!
//! A string is escaped minimally and in exactly one way, so two strings are equal exactly if their texts are. The
//! escapes are `\"`, `\\`, the short forms `\b \t \n \f \r`, and `\u00xx` in lower case for other control characters.
//! All other characters, even DEL and U+2028, are plain UTF-8.

use std::borrow::Cow;

/// Position of the first byte at or after `from` that ends a run of plain characters: a quote, a backslash or a control
/// character; otherwise the end of the text.
///
/// It checks eight bytes at a time. Only the lowest flag of each mask is used, which is exact: a borrow can only spoil
/// the flags above a true one.
#[inline]
pub(super) fn plain_run_end(text: &[u8], from: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut at = from;
    while let Some(chunk) = text.get(at..at + 8).and_then(|chunk| <[u8; 8]>::try_from(chunk).ok()) {
        let word = u64::from_le_bytes(chunk);
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        let flagged = (word.wrapping_sub(ONES * 0x20) & !word)
            | (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash);
        let flagged = flagged & HIGH;
        if flagged != 0 {
            return at + (flagged.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let tail = text.get(at..).unwrap_or_default();
    at + tail.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(tail.len())
}

/// Position of the closing quote of the string whose contents begin at `from`, and whether the string has escapes.
/// `None` if the text ends first.
#[inline]
pub(super) fn string_end(text: &[u8], from: usize) -> Option<(usize, bool)> {
    let mut at = from;
    let mut escaped = false;
    loop {
        at = plain_run_end(text, at);
        match text.get(at)? {
            b'"' => return Some((at, escaped)),
            b'\\' => {
                escaped = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
}

/// Appends text escaped, without quotes.
#[inline]
pub fn append_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let end = plain_run_end(bytes, 0);
    if end == bytes.len() {
        out.extend_from_slice(bytes);
    } else {
        append_escaped_from(out, bytes, end);
    }
}

/// The same for text that has to be escaped, for the first time at `end`.
#[inline(never)]
fn append_escaped_from(out: &mut Vec<u8>, bytes: &[u8], mut end: usize) {
    let mut from = 0;
    loop {
        out.extend_from_slice(&bytes[from..end]);
        let Some(&byte) = bytes.get(end) else { return };
        append_escape(out, byte);
        from = end + 1;
        end = plain_run_end(bytes, from);
    }
}

/// Appends the escape of one byte that must be escaped.
pub(super) fn append_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\u00");
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// The contents of a string in normalised text: escaped, without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonStr<'a> {
    raw: &'a str,
    escaped: bool,
}

impl<'a> JsonStr<'a> {
    pub(super) fn new(raw: &'a str, escaped: bool) -> JsonStr<'a> {
        JsonStr { raw, escaped }
    }

    /// The contents as in the text. Equal strings have equal raw contents.
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    /// The unescaped string, borrowed if it has no escapes.
    pub fn to_cow(&self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut text = String::with_capacity(self.raw.len());
        self.for_each_run(|run| text.push_str(run));
        Cow::Owned(text)
    }

    /// Whether the unescaped string is `other`.
    pub fn is(&self, other: &str) -> bool {
        if self.escaped { self.to_cow() == other } else { self.raw == other }
    }

    /// Calls `run` with the parts of the unescaped string, in order, without a buffer.
    pub fn for_each_run(&self, mut run: impl FnMut(&str)) {
        let mut rest = self.raw;
        if self.escaped {
            while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
                if at > 0 {
                    run(&rest[..at]);
                }
                let (meant, taken) = read_escape(&rest[at..]);
                run(meant.encode_utf8(&mut [0; 4]));
                rest = &rest[at + taken..];
            }
        }
        if !rest.is_empty() {
            run(rest);
        }
    }
}

/// The character of the escape at the front of `text`, and the escape's length in bytes. An invalid escape, which
/// [`append_escape`] never writes, is read as U+FFFD.
fn read_escape(text: &str) -> (char, usize) {
    let bytes = text.as_bytes();
    let meant = match bytes.get(1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'b') => '\u{8}',
        Some(b't') => '\t',
        Some(b'n') => '\n',
        Some(b'f') => '\u{c}',
        Some(b'r') => '\r',
        Some(b'u') => {
            let code = text.get(2..6).and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
            return match code {
                Some(meant) => (meant, 6),
                None => (char::REPLACEMENT_CHARACTER, 2),
            };
        }
        _ => return (char::REPLACEMENT_CHARACTER, 1),
    };
    (meant, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_the_first_byte_that_is_not_plain() {
        for length in 0..20 {
            let plain: Vec<u8> = (0..length).map(|at| [b'a', 0x7f, 0x80, 0xff, b'!', b'#', b'['][at % 7]).collect();
            for from in 0..=length {
                assert_eq!(plain_run_end(&plain, from), length);
                for at in 0..length {
                    for byte in 0..=255 {
                        let mut text = plain.clone();
                        text[at] = byte;
                        // Another one after it changes nothing.
                        text[length - 1] = if at + 2 < length { b'"' } else { text[length - 1] };
                        let ends = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
                        let end = text[from..].iter().position(ends).map_or(length, |end| from + end);
                        assert_eq!(plain_run_end(&text, from), end, "{text:?} from {from}");
                    }
                }
            }
        }
    }
}
