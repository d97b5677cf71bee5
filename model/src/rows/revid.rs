//! Revision identifiers: a position in the edit branch and a hash.
//!
//! Sources: `parse_rev`, `parse_revid` and `revid_to_str` of CouchDB's `couch_doc.erl`; RFC 001,
//! "Detailed Description".
//!
//! As text a revision is `position-hash`. A hash of 32 characters is hexadecimal and means 16 bytes. Any other hash
//! means its own bytes, since replicators do send such hashes. Sixteen bytes print as 32 lower-case digits, whatever
//! their origin.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use json::{JsonWriter, append_u64};
use thiserror::Error;

/// Maximum length of a hash in bytes.
pub const MAX_REV_HASH_BYTES: usize = 255;

/// The error for a text that is not a revision identifier. CouchDB answers 400 `bad_request` with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("Invalid rev format")]
pub struct InvalidRev;

/// The hash of a revision: up to [`MAX_REV_HASH_BYTES`] bytes, compared as bytes. It may be empty, as in CouchDB.
///
/// Sixteen bytes, the length of all but foreign revisions, are stored inline: a branch of a thousand ancestors is one
/// allocation. Shorter hashes are too: a client may send millions of them.
#[derive(Clone)]
pub struct RevHash(Repr);

#[derive(Clone)]
enum Repr {
    Md5([u8; 16]),
    /// The number of bytes, and the bytes.
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

/// Maximum number of bytes in a `Repr`, next to its tag and its length, that does not make it larger than a box does.
const SHORT: usize = 22;

impl RevHash {
    /// The hash of these bytes.
    ///
    /// # Errors
    /// [`InvalidRev`] if there are more than [`MAX_REV_HASH_BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> Result<RevHash, InvalidRev> {
        if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
            return Ok(RevHash(Repr::Md5(bytes)));
        }
        if bytes.len() > MAX_REV_HASH_BYTES {
            return Err(InvalidRev);
        }
        Ok(RevHash(match bytes.len() {
            length @ 0..=SHORT => {
                let mut inline = [0; SHORT];
                inline[..length].copy_from_slice(bytes);
                Repr::Short(length as u8, inline)
            }
            _ => Repr::Long(bytes.into()),
        }))
    }

    /// Parses a hash without its position, as in `_revisions.ids`.
    ///
    /// # Errors
    /// [`InvalidRev`] if it is too long, or has 32 bytes that are not hexadecimal.
    pub fn from_text(text: &str) -> Result<RevHash, InvalidRev> {
        let text = text.as_bytes();
        if text.len() != 32 {
            return RevHash::from_bytes(text);
        }
        let mut bytes = [0; 16];
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digits.iter().try_fold(0, |value, &digit| {
                let digit = char::from(digit).to_digit(16).ok_or(InvalidRev)?;
                Ok(value << 4 | digit as u8)
            })?;
        }
        Ok(RevHash(Repr::Md5(bytes)))
    }

    /// The bytes, as they are stored, compared and hashed.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Md5(bytes) => bytes,
            Repr::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Repr::Long(bytes) => bytes,
        }
    }
}

impl From<[u8; 16]> for RevHash {
    fn from(bytes: [u8; 16]) -> RevHash {
        RevHash(Repr::Md5(bytes))
    }
}

impl FromStr for RevHash {
    type Err = InvalidRev;

    fn from_str(text: &str) -> Result<RevHash, InvalidRev> {
        RevHash::from_text(text)
    }
}

impl fmt::Display for RevHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Md5(bytes) => f.write_str(std::str::from_utf8(&hexadecimal(bytes)).unwrap_or_default()),
            Repr::Short(..) | Repr::Long(_) => f.write_str(&String::from_utf8_lossy(self.as_bytes())),
        }
    }
}

/// Writes bytes as hexadecimal digits, two each, in lower case.
fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
}

fn hexadecimal(bytes: &[u8; 16]) -> [u8; 32] {
    let mut digits = [0; 32];
    write_hex(bytes, &mut digits);
    digits
}

/// Bytes as hexadecimal digits, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = vec![0; 2 * bytes.len()];
    write_hex(bytes, &mut digits);
    String::from_utf8(digits).unwrap_or_default()
}

impl fmt::Debug for RevHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for RevHash {
    fn eq(&self, other: &RevHash) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for RevHash {}

impl PartialOrd for RevHash {
    fn partial_cmp(&self, other: &RevHash) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RevHash {
    fn cmp(&self, other: &RevHash) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for RevHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// A revision: its position in the edit branch, from 1, and its hash. Sorts by position, then by the bytes of the
/// hash, like winners.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevId {
    position: u64,
    hash: RevHash,
}

impl RevId {
    /// The revision with this hash at this position.
    ///
    /// # Errors
    /// [`InvalidRev`] if the position is 0.
    pub fn new(position: u64, hash: RevHash) -> Result<RevId, InvalidRev> {
        if position == 0 { Err(InvalidRev) } else { Ok(RevId { position, hash }) }
    }

    /// The position in the edit branch, at least 1.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The hash.
    pub fn hash(&self) -> &RevHash {
        &self.hash
    }

    /// The hash, owned.
    pub fn into_hash(self) -> RevHash {
        self.hash
    }

    /// Parses `position-hash`. Everything after the first hyphen is the hash, including further hyphens.
    ///
    /// # Errors
    /// [`InvalidRev`] for anything else.
    pub fn parse(text: &str) -> Result<RevId, InvalidRev> {
        let (position, hash) = text.split_once('-').ok_or(InvalidRev)?;
        RevId::new(position.parse().map_err(|_| InvalidRev)?, RevHash::from_text(hash)?)
    }

    /// Appends the text, `position-hash`. Nearly every answer has one, and `Display` takes three times as long.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        append_u64(out, self.position);
        out.push(b'-');
        match &self.hash.0 {
            Repr::Md5(bytes) => out.extend_from_slice(&hexadecimal(bytes)),
            Repr::Short(..) | Repr::Long(_) => {
                out.extend_from_slice(String::from_utf8_lossy(self.hash.as_bytes()).as_bytes());
            }
        }
    }

    /// Writes the text as a JSON string.
    pub fn write_json(&self, json: &mut JsonWriter<'_>) {
        match &self.hash.0 {
            Repr::Md5(_) => json.unescaped(|out| self.append_to(out)),
            Repr::Short(..) | Repr::Long(_) => json.display(self),
        };
    }
}

impl FromStr for RevId {
    type Err = InvalidRev;

    fn from_str(text: &str) -> Result<RevId, InvalidRev> {
        RevId::parse(text)
    }
}

impl fmt::Display for RevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.position, self.hash)
    }
}

impl fmt::Debug for RevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let check = |text: &str| {
            let rev = RevId::parse(text).unwrap();
            assert_eq!(rev.to_string(), text);
            let (mut appended, mut written, mut displayed) = (Vec::new(), Vec::new(), Vec::new());
            rev.append_to(&mut appended);
            assert_eq!(appended, text.as_bytes());
            rev.write_json(&mut JsonWriter::new(&mut written));
            JsonWriter::new(&mut displayed).display(&rev);
            assert_eq!(written, displayed);
        };
        let (short, long) = (format!("1-{}", "s".repeat(SHORT)), format!("1-{}", "l".repeat(SHORT + 1)));
        for text in [
            &*short,
            &*long,
            "1-967a00dff5e02add41819138abb3284d",
            "3-abc",
            "18446744073709551615-x",
            "1-a-b-c",
            "7-é",
            "1-",
        ] {
            check(text);
        }
        check("2-a\"\\\n");
        for position in [9, 10, 907, 1_000_000, u64::MAX] {
            check(&format!("{position}-967a00dff5e02add41819138abb3284d"));
        }
        assert_eq!(RevId::parse("1-abc").unwrap().hash().as_bytes(), b"abc");
        assert_eq!(RevId::parse("1-967A00DFF5E02ADD41819138ABB3284D").unwrap().hash().as_bytes()[0], 0x96);
        // Sixteen characters are sixteen bytes, which print as digits, as in CouchDB.
        assert_eq!(RevId::parse("1-abcdefghijklmnop").unwrap().to_string(), "1-6162636465666768696a6b6c6d6e6f70");
    }

    #[test]
    fn what_is_no_revision() {
        let long = format!("1-{}", "x".repeat(256));
        for text in
            ["", "-", "1", "0-", "-abc", "0-abc", "x-abc", "1.0-abc", "18446744073709551616-x", " 1-x", long.as_str()]
        {
            assert_eq!(RevId::parse(text), Err(InvalidRev), "{text:?}");
        }
        assert_eq!(
            RevId::parse("1-967a00dff5e02add41819138abb3284g"),
            Err(InvalidRev),
            "32 characters, not hexadecimal"
        );
        assert!(RevId::parse(&format!("1-{}", "x".repeat(255))).is_ok());
        assert_eq!(InvalidRev.to_string(), "Invalid rev format");
    }

    #[test]
    fn order_is_position_then_bytes() {
        let mut revisions: Vec<RevId> =
            ["10-a", "9-zz", "2-b", "2-00000000000000000000000000000062", "2-ba", "2-ff000000000000000000000000000000"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
        revisions.sort();
        let sorted: Vec<String> = revisions.iter().map(RevId::to_string).collect();
        assert_eq!(
            sorted,
            ["2-00000000000000000000000000000062", "2-b", "2-ba", "2-ff000000000000000000000000000000", "9-zz", "10-a"]
        );
    }

    #[test]
    fn the_common_hash_is_inline() {
        assert!(std::mem::size_of::<RevHash>() <= 24);
    }
}
