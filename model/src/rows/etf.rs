//! CouchDB's deterministic revision: the MD5 hash of an Erlang term.
//!
//! Sources: `new_revid` of CouchDB's `couch_db.erl`; "External Term Format" of Erlang's ERTS guide;
//! `enc_term` of Erlang's `external.c`.
//!
//! ```text
//! md5(term_to_binary([Deleted, OldPos, OldRev | 0, Body, Attachments], [{minor_version, 1}]))
//! ```
//! The same edit made in two places gets the same revision, and so replicates without a conflict, even between CouchDB
//! and this layer. One edit differs: if a document with attachments is created again over a tombstone, CouchDB hashes
//! `{undefined, undefined, undefined}` for each attachment, since it has already serialised them. So documents with
//! different attachments get the same revision, and replicas stay different forever. Here the attachments are hashed as
//! in every other edit.
//!
//! Otherwise every byte counts:
//!
//! | JSON | term | bytes |
//! |---|---|---|
//! | `null`, `true`, `false` | atom | 100, length in 2 bytes, name |
//! | 0..=255 | small integer | 97, value |
//! | other integers of 32 bits | integer | 98, 4 bytes |
//! | longer integers | big | 110, length in 1 byte (or 111, in 4), sign, magnitude from its least byte |
//! | float | new float | 70, 8 bytes |
//! | string | binary | 109, length in 4 bytes, UTF-8 |
//! | `[]` | nil | 106 |
//! | array of 0..=255, at most 65,535 long | string | 107, length in 2 bytes, the values |
//! | other arrays | list | 108, length in 4 bytes, the elements, 106 |
//! | object | `{[{Key, Value}, …]}` | 104 1, the list of 104 2 key value |
//!
//! The length of a container is known only at its end, and is filled in then. There is one buffer and no
//! recursion.

use md5::{Digest, Md5};

use crate::rows::bigint::decimal_to_le_bytes;
use crate::rows::revid::{InvalidRev, RevHash, RevId};
use json::{JsonText, RawStr, Token};

const VERSION: u8 = 131;
const NEW_FLOAT: u8 = 70;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;

/// Maximum length of a list of bytes that is written as a string.
const MAX_STRING: u32 = 65_535;

/// The part of an attachment that the revision depends on.
#[derive(Clone, Copy, Debug)]
pub struct AttachmentDigest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its content type.
    pub content_type: &'a str,
    /// The MD5 of its contents.
    pub md5: [u8; 16],
}

/// The Erlang term of a JSON value in external term format, without the version byte.
pub fn erlang_term(value: &JsonText) -> Vec<u8> {
    let mut term = Term::default();
    term.json(value);
    term.bytes
}

/// The part of an edit that its revision depends on.
#[derive(Clone, Copy, Debug)]
pub struct RevisionTerm<'a> {
    /// Whether the edit deletes the document.
    pub deleted: bool,
    /// The revision that the edit replaces. For a document that is created again after a deletion: the winning
    /// tombstone.
    pub parent: Option<&'a RevId>,
    /// The body as submitted, with its members in order and without special members (`_id`, `_rev`, …).
    pub body: &'a JsonText,
    /// The attachments in the order of the document.
    pub attachments: &'a [AttachmentDigest<'a>],
}

impl RevisionTerm<'_> {
    /// The revision of this edit.
    ///
    /// # Errors
    /// [`InvalidRev`] if the parent has the highest possible position.
    pub fn revision(&self) -> Result<RevId, InvalidRev> {
        self.revision_in(&mut Term::default())
    }

    /// The same, reusing memory.
    pub(crate) fn revision_in(&self, memory: &mut Term) -> Result<RevId, InvalidRev> {
        let old_position = self.parent.map_or(0, RevId::position);
        let position = old_position.checked_add(1).ok_or(InvalidRev)?;
        self.write(memory);
        let hash: [u8; 16] = Md5::digest(&memory.bytes).into();
        RevId::new(position, RevHash::from(hash))
    }

    /// Writes the term in external term format.
    fn write(&self, term: &mut Term) {
        term.bytes.clear();
        term.bytes.reserve(self.body.len() * 2 + 64);
        term.bytes.push(VERSION);
        term.bytes.push(LIST);
        term.length(5);
        term.atom(if self.deleted { "true" } else { "false" });
        term.unsigned(self.parent.map_or(0, RevId::position));
        match self.parent {
            Some(parent) => term.binary(parent.hash().as_bytes()),
            None => term.unsigned(0),
        }
        term.json(self.body);
        if self.attachments.is_empty() {
            term.bytes.push(NIL);
        } else {
            term.bytes.push(LIST);
            term.length(self.attachments.len() as u32);
            for attachment in self.attachments.iter().rev() {
                term.bytes.extend_from_slice(&[SMALL_TUPLE, 3]);
                term.binary(attachment.name.as_bytes());
                term.binary(attachment.content_type.as_bytes());
                term.binary(&attachment.md5);
            }
            term.bytes.push(NIL);
        }
        term.bytes.push(NIL);
    }
}

/// An incomplete list: an array, or the members of an object.
#[derive(Debug)]
struct OpenList {
    /// Position of its tag. Its length comes after the tag.
    start: usize,
    count: u32,
    is_array: bool,
    /// Whether all elements so far are small integers of two bytes each.
    all_small: bool,
}

/// An Erlang term in external term format, being written.
#[derive(Debug, Default)]
pub struct Term {
    bytes: Vec<u8>,
    open: Vec<OpenList>,
}

impl Term {
    /// A new term.
    pub fn new() -> Self {
        Term { bytes: vec![VERSION], open: Vec::new() }
    }

    /// Starts a tuple of this number of elements, which follow.
    pub fn tuple(&mut self, elements: u8) -> &mut Self {
        self.bytes.extend_from_slice(&[SMALL_TUPLE, elements]);
        self
    }

    /// Appends a list of this number of elements, which `write` appends.
    pub fn list(&mut self, elements: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        if elements > 0 {
            self.bytes.push(LIST);
            self.length(elements);
            write(self);
        }
        self.bytes.push(NIL);
        self
    }

    /// Appends text like Erlang's strings: as a list of bytes.
    pub fn text(&mut self, text: &str) -> &mut Self {
        match u16::try_from(text.len()) {
            Ok(0) => self.bytes.push(NIL),
            Ok(length) => {
                self.bytes.push(STRING);
                self.bytes.extend_from_slice(&length.to_be_bytes());
                self.bytes.extend_from_slice(text.as_bytes());
            }
            Err(_) => {
                let bytes = text.as_bytes();
                self.list(bytes.len() as u32, |term| bytes.iter().for_each(|byte| term.unsigned(u64::from(*byte))));
            }
        }
        self
    }

    /// The MD5 hash of the term.
    pub fn md5(&self) -> [u8; 16] {
        Md5::digest(&self.bytes).into()
    }

    /// Appends JSON as CouchDB represents it in Erlang terms.
    pub fn json(&mut self, value: &JsonText) {
        self.open.clear();
        for token in value.scan() {
            let start = self.bytes.len();
            match token {
                Token::Name(name) => {
                    self.bytes.extend_from_slice(&[SMALL_TUPLE, 2]);
                    self.string(name);
                    if let Some(list) = self.open.last_mut() {
                        list.count += 1;
                    }
                    continue;
                }
                Token::End => {
                    if let Some(list) = self.open.pop() {
                        self.end_list(&list);
                    }
                    continue;
                }
                Token::Str(text) => self.string(text),
                Token::Begin { is_array: true } => {}
                Token::Begin { is_array: false } => self.bytes.extend_from_slice(&[SMALL_TUPLE, 1]),
                Token::Int(value) => self.integer(value),
                Token::LongInt(digits) => self.long_integer(digits),
                Token::Float(value) => {
                    self.bytes.push(NEW_FLOAT);
                    self.bytes.extend_from_slice(&value.to_be_bytes());
                }
                Token::Bool(value) => self.atom(if value { "true" } else { "false" }),
                Token::Null => self.atom("null"),
            }
            if let Some(list) = self.open.last_mut().filter(|list| list.is_array) {
                list.count += 1;
                list.all_small &= self.bytes.get(start) == Some(&SMALL_INTEGER);
            }
            if let Token::Begin { is_array } = token {
                self.open.push(OpenList { start: self.bytes.len(), count: 0, is_array, all_small: is_array });
                self.bytes.extend_from_slice(&[LIST, 0, 0, 0, 0]);
            }
        }
    }

    fn end_list(&mut self, list: &OpenList) {
        let contents = list.start + 5;
        if list.count == 0 {
            self.bytes.truncate(list.start);
            self.bytes.push(NIL);
        } else if list.all_small && list.count <= MAX_STRING {
            // Each value moves to the front, over the tags of the elements and the shorter header.
            self.bytes[list.start] = STRING;
            self.bytes[list.start + 1..list.start + 3].copy_from_slice(&(list.count as u16).to_be_bytes());
            for index in 0..list.count as usize {
                self.bytes[list.start + 3 + index] = self.bytes[contents + index * 2 + 1];
            }
            self.bytes.truncate(list.start + 3 + list.count as usize);
        } else {
            self.bytes[list.start + 1..contents].copy_from_slice(&list.count.to_be_bytes());
            self.bytes.push(NIL);
        }
    }

    fn length(&mut self, length: u32) {
        self.bytes.extend_from_slice(&length.to_be_bytes());
    }

    /// Appends an atom.
    pub fn atom(&mut self, name: &str) {
        self.bytes.push(ATOM);
        self.bytes.extend_from_slice(&(name.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
    }

    /// Appends a binary.
    pub fn binary(&mut self, bytes: &[u8]) {
        let [a, b, c, d] = (bytes.len() as u32).to_be_bytes();
        self.bytes.extend_from_slice(&[BINARY, a, b, c, d]);
        self.bytes.extend_from_slice(bytes);
    }

    fn string(&mut self, text: RawStr<'_>) {
        if let Some(plain) = text.plain() {
            return self.binary(plain);
        }
        let start = self.bytes.len();
        self.binary(&[]);
        text.json_str().for_each_run(|run| self.bytes.extend_from_slice(run.as_bytes()));
        let length = (self.bytes.len() - start - 5) as u32;
        self.bytes[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
    }

    fn integer(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.bytes.extend_from_slice(&[SMALL_INTEGER, value]);
        } else if let Ok(value) = i32::try_from(value) {
            let [a, b, c, d] = value.to_be_bytes();
            self.bytes.extend_from_slice(&[INTEGER, a, b, c, d]);
        } else {
            let magnitude = value.unsigned_abs();
            self.big(value < 0, &magnitude.to_le_bytes()[..8 - magnitude.leading_zeros() as usize / 8]);
        }
    }

    fn long_integer(&mut self, digits: &str) {
        let (negative, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => (true, magnitude),
            None => (false, digits),
        };
        self.big(negative, &decimal_to_le_bytes(magnitude));
    }

    /// Appends an integer.
    pub fn unsigned(&mut self, value: u64) {
        if let Ok(value) = u8::try_from(value) {
            self.bytes.extend_from_slice(&[SMALL_INTEGER, value]);
        } else if let Ok(value) = i32::try_from(value) {
            self.bytes.push(INTEGER);
            self.bytes.extend_from_slice(&value.to_be_bytes());
        } else {
            let bytes = value.to_le_bytes();
            self.big(false, &bytes[..8 - value.leading_zeros() as usize / 8]);
        }
    }

    fn big(&mut self, negative: bool, magnitude: &[u8]) {
        match u8::try_from(magnitude.len()) {
            Ok(length) => self.bytes.extend_from_slice(&[SMALL_BIG, length]),
            Err(_) => {
                self.bytes.push(LARGE_BIG);
                self.length(magnitude.len() as u32);
            }
        }
        self.bytes.push(u8::from(negative));
        self.bytes.extend_from_slice(magnitude);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(parent: Option<&RevId>, deleted: bool, body: &str) -> RevId {
        let body = JsonText::parse(body.as_bytes()).unwrap();
        RevisionTerm { deleted, parent, body: &body, attachments: &[] }.revision().unwrap()
    }

    #[test]
    fn couchdb_makes_the_same_revisions() {
        assert_eq!(revision(None, false, "{}").to_string(), "1-967a00dff5e02add41819138abb3284d");
        assert_eq!(revision(None, false, r#"{"key":1}"#).to_string(), "1-c77eb5d5af83163c996ea42b61a9f0d8");
        let first = revision(None, false, r#"{"val":"r0"}"#);
        let second = revision(Some(&first), false, r#"{"val":"r1"}"#);
        let third = revision(Some(&second), false, r#"{"val":"r2"}"#);
        assert_eq!(first.to_string(), "1-47f3268e7546965196b57572099f4372");
        assert_eq!(second.to_string(), "2-1d8171ab3a91475cfece749291e6f897");
        assert_eq!(third.to_string(), "3-3fb0a342d2ce092fdcc77856dbe8a2ef");
    }

    #[test]
    fn the_last_position_has_no_child() {
        let parent = RevId::new(u64::MAX, RevHash::from([0; 16])).unwrap();
        let body = JsonText::empty_object();
        assert_eq!(
            RevisionTerm { deleted: false, parent: Some(&parent), body: &body, attachments: &[] }.revision(),
            Err(InvalidRev)
        );
    }
}
