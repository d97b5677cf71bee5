//! Data documents, which hold the chunks.
//!
//! ```json
//! {"_id":"dat:3f-001-9c0de1b2","chunks":{"h:1ecijke328qp3":"ZnJvbS1hCg=="}}
//! ```
//!
//! A data document only gains chunks, and keeps them until a collection replaces the document. It takes chunks
//! while it is small ([`OPEN_BELOW`]). After that it is not written again, so each chunk is sent a bounded number
//! of times.
//!
//! Leaves are united like those of an index. If leaves have two values under one id, the winner's stays, without a
//! comparison: ciphertexts of one piece differ, and each is valid.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::chunk::{Chunk, all_bytes};
use crate::error::{Error, Result};
use crate::store::{Body, Leaf};

/// Size in bytes below which a data document takes more chunks.
pub(crate) const OPEN_BELOW: usize = 32_000;

const CHUNKS: &str = "chunks";
/// `{"chunks":{}}`
pub(crate) const FRAME: usize = 13;

/// Content of a data document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Data {
    /// Encoded chunks by id.
    chunks: BTreeMap<String, String>,
    bytes: usize,
    /// Unknown members, which are kept.
    rest: Body,
}

impl Data {
    /// Reads a document.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn read(id: &str, body: &Body) -> Result<Data> {
        let mut data = Data::default();
        for (name, value) in body {
            if name != CHUNKS {
                data.rest.insert(name.clone(), value.clone());
                continue;
            }
            let chunks = value.as_object().ok_or_else(|| Error::malformed(id, "\"chunks\" is not an object"))?;
            for (chunk, value) in chunks {
                let value = value.as_str();
                let value =
                    value.ok_or_else(|| Error::malformed(id, format!("the data of {chunk} is not a string")))?;
                data.add(chunk.clone(), value.to_owned());
            }
        }
        Ok(data)
    }

    /// The union of a document's live leaves, the winner first; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn unite(id: &str, leaves: &[Leaf]) -> Result<Option<Data>> {
        let live = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| Data::read(id, &leaf.body));
        let joined = live.reduce(|united, data| {
            let mut united = united?;
            united.join(&data?);
            Ok(united)
        });
        joined.transpose()
    }

    /// The document.
    pub(crate) fn write(&self) -> Body {
        let mut body = self.rest.clone();
        body.insert(CHUNKS.into(), json!(self.chunks));
        body
    }

    /// Size of the document in bytes of compact JSON, without unknown members.
    pub(crate) fn bytes(&self) -> usize {
        FRAME + self.bytes
    }

    /// Size of a chunk in a data document, in bytes.
    pub(crate) fn cost(chunk: &str, value: &str) -> usize {
        quoted(chunk) + quoted(value) + 2
    }

    /// Adds an encoded chunk, unless its id is there.
    pub(crate) fn add(&mut self, chunk: String, value: String) {
        let cost = Data::cost(&chunk, &value);
        if let std::collections::btree_map::Entry::Vacant(place) = self.chunks.entry(chunk) {
            place.insert(value);
            self.bytes += cost;
        }
    }

    /// Whether a chunk is here.
    pub(crate) fn has(&self, chunk: &str) -> bool {
        self.chunks.contains_key(chunk)
    }

    /// The encoded chunks.
    pub(crate) fn chunks(&self) -> &BTreeMap<String, String> {
        &self.chunks
    }

    /// Unknown members.
    pub(crate) fn rest(&self) -> &Body {
        &self.rest
    }

    /// Adds the chunks of another one that are not here.
    pub(crate) fn join(&mut self, other: &Data) {
        for (chunk, value) in &other.chunks {
            if !self.has(chunk) {
                self.add(chunk.clone(), value.clone());
            }
        }
        for (name, value) in &other.rest {
            self.rest.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// A chunk; `None` if it is absent or malformed.
    pub(crate) fn get(&self, chunk: &str) -> Option<Chunk> {
        Chunk::decode(self.chunks.get(chunk)?)
    }
}

/// Length of a string in JSON, in bytes.
fn quoted(text: &str) -> usize {
    if all_bytes(text, |byte| (byte >= 0x20) & (byte != b'"') & (byte != b'\\')) {
        return text.len() + 2;
    }
    Value::from(text).to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(text: &str) -> Leaf {
        Leaf { rev: "1-a".into(), deleted: false, body: serde_json::from_str(text).unwrap(), ancestors: Vec::new() }
    }

    #[test]
    fn sizes_are_those_of_the_text() {
        let mut data = Data::default();
        for (chunk, value) in [("h:a", "ZnJvbS1hCg=="), ("h:\"", "*\\\u{1}\u{fc}"), ("h:c", "")] {
            data.add(chunk.into(), value.into());
        }
        // The last comma is counted too.
        assert_eq!(Value::Object(data.write()).to_string().len(), data.bytes() - 1);
    }

    #[test]
    fn the_first_of_two_values_stands() {
        let leaves = [
            leaf(r#"{"chunks":{"h:a":"*first","h:b":"=b"}}"#),
            leaf(r#"{"chunks":{"h:a":"*second","h:c":"=c"},"more":1}"#),
        ];
        let united = Data::unite("dat:3f-001", &leaves).unwrap().unwrap();
        assert_eq!(united.get("h:a"), Some(Chunk::encrypted("first")));
        assert!(united.has("h:b") && united.has("h:c") && !united.has("h:d"));
        assert_eq!(united.write().get("more"), Some(&json!(1)));
        assert_eq!(Data::unite("dat:3f-001", &[]).unwrap(), None);
    }

    #[test]
    fn damage_is_named() {
        for (text, wanted) in [
            (r#"{"chunks":[]}"#, "\"chunks\" is not an object"),
            (r#"{"chunks":{"h:a":1}}"#, "data of h:a is not a string"),
        ] {
            let refused = Data::unite("dat:3f-001", &[leaf(text)]).unwrap_err().to_string();
            assert!(refused.contains("dat:3f-001") && refused.contains(wanted), "{refused}");
        }
        let bad_value = Data::read("dat:3f-001", &leaf(r#"{"chunks":{"h:a":"from-a"}}"#).body).unwrap();
        assert_eq!(bad_value.get("h:a"), None, "a bad value does not affect the others");
    }
}
