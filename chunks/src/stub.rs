//! Stubs: data documents whose chunks are in an object.
//!
//! ```json
//! {"_id":"dat:3f-001-9c0de1b2",
//!  "chunks":"5e1f0c9a7b3d2468/3f-001-9c0de1b2.00c0ffee9c0de1b2",
//!  "bytes":899120,"sha256":"9f86…","sizes":{"h:1ecijke328qp3":38}}
//! ```
//!
//! `chunks` names the object: the place from the settings, and the object's own name, which is never used again. A
//! program that does not know objects finds a string instead of a JSON object, calls the document damaged, and leaves
//! it alone. `sizes` lists the chunks with their sizes in a data document, so that these are known without reading the
//! object.
//!
//! The object contains the data document, `{"_id":…,"chunks":{…}}`, as compact JSON with sorted ids.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::data::Data;
use crate::error::{Error, Result};
use crate::placement::{DATA_PREFIX, data_parts};
use crate::store::Body;

pub(crate) const CHUNKS: &str = "chunks";
const BYTES: &str = "bytes";
const SHA256: &str = "sha256";
pub(crate) const SIZES: &str = "sizes";

/// Number of digits in a place's name, and in the unique part of an object's name.
const DIGITS: usize = 16;

/// A data document's description of its object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stub {
    /// Place and name.
    pub(crate) object: String,
    /// Length of the object.
    pub(crate) bytes: u64,
    /// Hash of the object, in hexadecimal.
    pub(crate) sha256: String,
    /// Size of each chunk in a data document, in bytes.
    pub(crate) sizes: BTreeMap<String, usize>,
    /// Unknown members, which are kept.
    pub(crate) rest: Body,
}

impl Stub {
    /// Reads a stub; `None` if the chunks are in the document itself.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn read(id: &str, body: &Body) -> Result<Option<Stub>> {
        let Some(Value::String(object)) = body.get(CHUNKS) else { return Ok(None) };
        let damaged = |what: &str| Error::malformed(id, format!("as a stub it has {what}"));
        if parts(object).is_none() {
            return Err(damaged("no object's name"));
        }
        let bytes = body.get(BYTES).and_then(Value::as_u64).ok_or_else(|| damaged("no length"))?;
        let sha256 = body.get(SHA256).and_then(Value::as_str).ok_or_else(|| damaged("no hash"))?.to_owned();
        let mut sizes = BTreeMap::new();
        for (chunk, size) in body.get(SIZES).and_then(Value::as_object).ok_or_else(|| damaged("no sizes"))? {
            let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
            sizes.insert(chunk.clone(), size.ok_or_else(|| damaged("a size that is not a number"))?);
        }
        let is_ours = |name: &str| [CHUNKS, BYTES, SHA256, SIZES].contains(&name);
        let rest = body.iter().filter(|(name, _)| !is_ours(name));
        let rest = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
        Ok(Some(Stub { object: object.clone(), bytes, sha256, sizes, rest }))
    }

    /// The stub for this data in an object with that name, and the object's contents.
    pub(crate) fn of(id: &str, object: String, data: &Data) -> (Stub, Vec<u8>) {
        let content = json!({"_id": id, CHUNKS: data.chunks()}).to_string().into_bytes();
        let sizes = data.chunks().iter().map(|(chunk, value)| (chunk.clone(), Data::cost(chunk, value))).collect();
        let stub =
            Stub { object, bytes: content.len() as u64, sha256: hash(&content), sizes, rest: data.rest().clone() };
        (stub, content)
    }

    /// The data in the contents of this stub's object.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not the object that was written.
    pub(crate) fn open(&self, id: &str, content: &[u8]) -> Result<Data> {
        let damaged = |what: &str| Error::malformed(id, format!("its object {} {what}", self.object));
        if content.len() as u64 != self.bytes || hash(content) != self.sha256 {
            return Err(damaged("is not what was written there"));
        }
        let body = serde_json::from_slice::<Body>(content).map_err(|_| damaged("is not JSON"))?;
        if body.get("_id").and_then(Value::as_str) != Some(id) {
            return Err(damaged("is that of another document"));
        }
        let chunks = body.into_iter().filter(|(name, _)| name == CHUNKS);
        let data = Data::read(id, &chunks.chain(self.rest.clone()).collect())?;
        let costs = data.chunks().iter().map(|(chunk, value)| (chunk, Data::cost(chunk, value)));
        if !costs.eq(self.sizes.iter().map(|(chunk, size)| (chunk, *size))) {
            return Err(damaged("holds other chunks than its document says"));
        }
        Ok(data)
    }

    /// The document.
    pub(crate) fn write(&self) -> Body {
        let mut body = self.rest.clone();
        body.insert(CHUNKS.into(), json!(self.object));
        body.insert(BYTES.into(), json!(self.bytes));
        body.insert(SHA256.into(), json!(self.sha256));
        body.insert(SIZES.into(), json!(self.sizes));
        body
    }

    /// The object's place.
    pub(crate) fn place(&self) -> &str {
        parts(&self.object).map_or("", |(place, _)| place)
    }
}

/// The name of an object for a data document.
pub(crate) fn object_name(place: &str, id: &str, nonce: u64) -> String {
    format!("{place}/{}.{nonce:016x}", id.strip_prefix(DATA_PREFIX).unwrap_or(id))
}

/// A place's name.
pub(crate) fn place_name(nonce: u64) -> String {
    format!("{nonce:016x}")
}

/// Whether this can be a place's name. Nothing else becomes part of a path.
pub(crate) fn is_place(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The place and the name of an object; `None` for objects that are not ours.
pub(crate) fn parts(object: &str) -> Option<(&str, &str)> {
    let (place, name) = object.split_once('/')?;
    let (document, nonce) = name.split_once('.')?;
    let is_ours = is_place(place) && is_place(nonce) && data_parts(&format!("{DATA_PREFIX}{document}")).is_some();
    let is_plain = document.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_ours && is_plain).then_some((place, name))
}

fn hash(content: &[u8]) -> String {
    model::hex(&Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "dat:3f-001-9c0de1b2";

    fn data() -> Data {
        let text = r#"{"chunks":{"h:a":"ZnJvbS1hCg==","h:\"b":"*\\\u0001"},"more":1}"#;
        Data::read(ID, &serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn what_is_put_into_an_object_comes_back() {
        let name = object_name("5e1f0c9a7b3d2468", ID, 7);
        assert_eq!(name, "5e1f0c9a7b3d2468/3f-001-9c0de1b2.0000000000000007");
        let (stub, content) = Stub::of(ID, name, &data());
        assert_eq!(stub.place(), "5e1f0c9a7b3d2468");
        let read = Stub::read(ID, &stub.write()).unwrap().unwrap();
        assert_eq!(read, stub);
        assert_eq!(read.open(ID, &content).unwrap(), data());
        assert_eq!(Stub::read(ID, &data().write()).unwrap(), None);
        // A program without objects calls it damaged, and does not take it for an empty document.
        let refused = Data::read(ID, &stub.write()).unwrap_err().to_string();
        assert!(refused.contains("\"chunks\" is not an object"), "{refused}");
    }

    #[test]
    fn another_object_is_refused() {
        let (stub, content) = Stub::of(ID, object_name("5e1f0c9a7b3d2468", ID, 7), &data());
        let mut flipped = content.clone();
        flipped[20] ^= 1;
        for (content, wanted) in [(&flipped[..], "not what was written"), (&content[1..], "not what was written")] {
            let refused = stub.open(ID, content).unwrap_err().to_string();
            assert!(refused.contains(wanted) && refused.contains(&stub.object), "{refused}");
        }
        assert!(stub.open("dat:3f-002", &content).unwrap_err().to_string().contains("another document"));
        let mut other = stub.clone();
        other.sizes.insert("h:c".into(), 5);
        assert!(other.open(ID, &content).unwrap_err().to_string().contains("other chunks"));
    }

    #[test]
    fn damage_and_paths_that_lead_elsewhere_are_named() {
        let (stub, _) = Stub::of(ID, object_name("5e1f0c9a7b3d2468", ID, 7), &data());
        for (member, value, wanted) in [
            (CHUNKS, json!("../etc/passwd"), "no object's name"),
            (CHUNKS, json!("5e1f0c9a7b3d2468/.."), "no object's name"),
            (CHUNKS, json!("5e1f0c9a7b3d2468/3f-001-9/0.0000000000000007"), "no object's name"),
            (BYTES, json!("x"), "no length"),
            (SHA256, json!(1), "no hash"),
            (SIZES, json!([1]), "no sizes"),
            (SIZES, json!({"h:a": "x"}), "not a number"),
        ] {
            let mut body = stub.write();
            body.insert(member.into(), value);
            let refused = Stub::read(ID, &body).unwrap_err().to_string();
            assert!(refused.contains(wanted) && refused.contains(ID), "{refused}");
        }
    }
}
