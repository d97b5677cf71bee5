//! CouchDB's deterministic revision: the MD5 of an Erlang term.
//!
//! Sources: `new_revid` of CouchDB's `couch_db.erl`; "External Term Format" of Erlang's ERTS guide;
//! `enc_term` of Erlang's `external.c`.
//!
//! ```text
//! md5(term_to_binary([Deleted, OldPos, OldRev | 0, Body, Attachments], [{minor_version, 1}]))
//! ```
//! The same edit made in two places gets the same revision and replicates without a conflict, with
//! CouchDB itself too. So every byte counts:
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
//! The lengths of containers are known only at their end, so they are patched in afterwards; one
//! buffer, no recursion.

use md5::{Digest, Md5};

use crate::bigint::decimal_to_le_bytes;
use crate::json::{Event, JsonStr, JsonText};
use crate::revid::{InvalidRev, RevHash, RevId};

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

/// The longest list of bytes that is written as a string.
const MAX_STRING: u32 = 65_535;

/// An attachment as far as it enters the revision.
#[derive(Clone, Copy, Debug)]
pub struct AttachmentDigest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its content type.
    pub content_type: &'a str,
    /// The MD5 of its contents.
    pub md5: [u8; 16],
}

/// An edit as far as it enters the revision that it makes.
#[derive(Clone, Copy, Debug)]
pub struct RevisionTerm<'a> {
    /// Whether the edit deletes the document.
    pub deleted: bool,
    /// The revision that it replaces. For a document that is made anew over tombstones, the winning
    /// tombstone.
    pub parent: Option<&'a RevId>,
    /// The body as submitted, members in their order, without the special members (`_id`, `_rev`, …).
    pub body: &'a JsonText,
    /// The attachments in the order of the document.
    pub attachments: &'a [AttachmentDigest<'a>],
}

impl RevisionTerm<'_> {
    /// The revision that this edit makes.
    ///
    /// # Errors
    /// [`InvalidRev`] if the parent's position is the greatest there is.
    pub fn revision(&self) -> Result<RevId, InvalidRev> {
        let old_position = self.parent.map_or(0, RevId::position);
        let position = old_position.checked_add(1).ok_or(InvalidRev)?;
        let hash: [u8; 16] = Md5::digest(self.term()).into();
        RevId::new(position, RevHash::from(hash))
    }

    /// The term in external form.
    fn term(&self) -> Vec<u8> {
        let mut term = Term(Vec::with_capacity(self.body.len() * 2 + 64));
        term.0.push(VERSION);
        term.0.push(LIST);
        term.length(5);
        term.atom(if self.deleted { "true" } else { "false" });
        term.unsigned(self.parent.map_or(0, RevId::position));
        match self.parent {
            Some(parent) => term.binary(parent.hash().as_bytes()),
            None => term.unsigned(0),
        }
        term.json(self.body);
        if self.attachments.is_empty() {
            term.0.push(NIL);
        } else {
            term.0.push(LIST);
            term.length(self.attachments.len() as u32);
            for attachment in self.attachments.iter().rev() {
                term.0.extend_from_slice(&[SMALL_TUPLE, 3]);
                term.binary(attachment.name.as_bytes());
                term.binary(attachment.content_type.as_bytes());
                term.binary(&attachment.md5);
            }
            term.0.push(NIL);
        }
        term.0.push(NIL);
        term.0
    }
}

/// A list whose end has not come yet: an array, or the members of an object.
struct OpenList {
    /// Where its tag stands; its length follows.
    start: usize,
    count: u32,
    is_array: bool,
    /// Whether all elements so far are small integers, each of two bytes.
    all_small: bool,
}

struct Term(Vec<u8>);

impl Term {
    fn json(&mut self, value: &JsonText) {
        let mut open: Vec<OpenList> = Vec::with_capacity(8);
        for event in value.events() {
            match event {
                Event::EndObject | Event::EndArray => {
                    if let Some(list) = open.pop() {
                        self.end_list(&list);
                    }
                    continue;
                }
                Event::Name(name) => {
                    if let Some(list) = open.last_mut() {
                        list.count += 1;
                    }
                    self.0.extend_from_slice(&[SMALL_TUPLE, 2]);
                    self.json_str(name);
                    continue;
                }
                _ => {}
            }
            let start = self.0.len();
            match event {
                Event::BeginObject => self.0.extend_from_slice(&[SMALL_TUPLE, 1]),
                Event::Str(text) => self.json_str(text),
                Event::Int(digits) => self.integer(digits),
                Event::Float(value) => {
                    self.0.push(NEW_FLOAT);
                    self.0.extend_from_slice(&value.to_be_bytes());
                }
                Event::Bool(value) => self.atom(if value { "true" } else { "false" }),
                Event::Null => self.atom("null"),
                Event::BeginArray | Event::EndArray | Event::EndObject | Event::Name(_) => {}
            }
            if let Some(list) = open.last_mut().filter(|list| list.is_array) {
                list.count += 1;
                list.all_small &= self.0.get(start) == Some(&SMALL_INTEGER);
            }
            if let Event::BeginObject | Event::BeginArray = event {
                let is_array = event == Event::BeginArray;
                open.push(OpenList { start: self.0.len(), count: 0, is_array, all_small: is_array });
                self.0.push(LIST);
                self.length(0);
            }
        }
    }

    fn end_list(&mut self, list: &OpenList) {
        let contents = list.start + 5;
        if list.count == 0 {
            self.0.truncate(list.start);
            self.0.push(NIL);
        } else if list.all_small && list.count <= MAX_STRING {
            // Each element's value moves forward over its own tag and the shorter length.
            self.0[list.start] = STRING;
            self.0[list.start + 1..list.start + 3].copy_from_slice(&(list.count as u16).to_be_bytes());
            for index in 0..list.count as usize {
                self.0[list.start + 3 + index] = self.0[contents + index * 2 + 1];
            }
            self.0.truncate(list.start + 3 + list.count as usize);
        } else {
            self.0[list.start + 1..contents].copy_from_slice(&list.count.to_be_bytes());
            self.0.push(NIL);
        }
    }

    fn length(&mut self, length: u32) {
        self.0.extend_from_slice(&length.to_be_bytes());
    }

    fn atom(&mut self, name: &str) {
        self.0.push(ATOM);
        self.0.extend_from_slice(&(name.len() as u16).to_be_bytes());
        self.0.extend_from_slice(name.as_bytes());
    }

    fn binary(&mut self, bytes: &[u8]) {
        self.0.push(BINARY);
        self.length(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn json_str(&mut self, text: JsonStr<'_>) {
        let start = self.0.len();
        self.binary(&[]);
        text.for_each_run(|run| self.0.extend_from_slice(run.as_bytes()));
        let length = (self.0.len() - start - 5) as u32;
        self.0[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
    }

    fn integer(&mut self, digits: &str) {
        if let Ok(value) = digits.parse::<i32>() {
            match u8::try_from(value) {
                Ok(value) => self.0.extend_from_slice(&[SMALL_INTEGER, value]),
                Err(_) => {
                    self.0.push(INTEGER);
                    self.0.extend_from_slice(&value.to_be_bytes());
                }
            }
            return;
        }
        let (negative, magnitude) = match digits.strip_prefix('-') {
            Some(magnitude) => (true, magnitude),
            None => (false, digits),
        };
        self.big(negative, &decimal_to_le_bytes(magnitude));
    }

    fn unsigned(&mut self, value: u64) {
        if let Ok(value) = u8::try_from(value) {
            self.0.extend_from_slice(&[SMALL_INTEGER, value]);
        } else if let Ok(value) = i32::try_from(value) {
            self.0.push(INTEGER);
            self.0.extend_from_slice(&value.to_be_bytes());
        } else {
            let bytes = value.to_le_bytes();
            self.big(false, &bytes[..8 - value.leading_zeros() as usize / 8]);
        }
    }

    fn big(&mut self, negative: bool, magnitude: &[u8]) {
        match u8::try_from(magnitude.len()) {
            Ok(length) => self.0.extend_from_slice(&[SMALL_BIG, length]),
            Err(_) => {
                self.0.push(LARGE_BIG);
                self.length(magnitude.len() as u32);
            }
        }
        self.0.push(u8::from(negative));
        self.0.extend_from_slice(magnitude);
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
