//! The contents of a data document without the chunks' bytes, whether those are in the document or in an object.
//! Collections and indexes need no more.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::data::{Data, FRAME};
use crate::error::Result;
use crate::store::{Body, Leaf};
use crate::stub::{CHUNKS, SIZES, Stub};

/// The ids of a data document's chunks, with their sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Contents {
    sizes: BTreeMap<String, usize>,
    bytes: usize,
}

impl Contents {
    /// Reads a document.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    pub(crate) fn read(id: &str, body: &Body) -> Result<Contents> {
        let mut contents = Contents::default();
        match Stub::read(id, body)? {
            Some(stub) => stub.sizes.into_iter().for_each(|(chunk, size)| contents.add(chunk, size)),
            None => {
                for (chunk, value) in Data::read(id, body)?.chunks() {
                    contents.add(chunk.clone(), Data::cost(chunk, value));
                }
            }
        }
        Ok(contents)
    }

    /// The union of a document's live leaves, the winner first; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    pub(crate) fn unite(id: &str, leaves: &[Leaf]) -> Result<Option<Contents>> {
        let live = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| Contents::read(id, &leaf.body));
        let joined = live.reduce(|united, contents| {
            let mut united = united?;
            contents?.sizes.into_iter().for_each(|(chunk, size)| united.add(chunk, size));
            Ok(united)
        });
        joined.transpose()
    }

    /// Adds a chunk, unless its id is there.
    pub(crate) fn add(&mut self, chunk: String, size: usize) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.sizes.entry(chunk) {
            place.insert(size);
            self.bytes += size;
        }
    }

    /// Whether a chunk is there.
    pub(crate) fn has(&self, chunk: &str) -> bool {
        self.sizes.contains_key(chunk)
    }

    /// The chunks, with their sizes in a data document.
    pub(crate) fn sizes(&self) -> &BTreeMap<String, usize> {
        &self.sizes
    }

    /// Size of a data document with these chunks, as in [`Data::bytes`].
    pub(crate) fn bytes(&self) -> usize {
        FRAME + self.bytes
    }
}

/// The readable chunks of a leaf of a data document; for a stub, the chunks that should be in its object.
pub(crate) enum Legible {
    Data(Data),
    Stub(Stub),
}

impl Legible {
    /// Reads a document.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed).
    pub(crate) fn read(id: &str, body: &Body) -> Result<Legible> {
        match Stub::read(id, body)? {
            Some(stub) => Ok(Legible::Stub(stub)),
            None => Data::read(id, body).map(Legible::Data),
        }
    }

    /// The chunks that can be read.
    pub(crate) fn chunks(&self) -> Vec<&String> {
        match self {
            Legible::Data(data) => data.chunks().keys().filter(|chunk| data.get(chunk).is_some()).collect(),
            Legible::Stub(stub) => stub.sizes.keys().collect(),
        }
    }
}

/// Whether a leaf of a data document has a chunk, judged by its members only.
pub(crate) fn mentions(body: &Body, chunk: &str) -> bool {
    let has = |member: &str| body.get(member).and_then(Value::as_object).is_some_and(|all| all.contains_key(chunk));
    has(CHUNKS) || has(SIZES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::object_name;

    #[test]
    fn a_stub_and_its_data_have_the_same_contents() {
        let id = "dat:3f-001-9c0de1b2";
        let text = r#"{"chunks":{"h:a":"ZnJvbS1hCg==","h:b":"*\\\u0001"}}"#;
        let body: Body = serde_json::from_str(text).unwrap();
        let data = Data::read(id, &body).unwrap();
        let (stub, _) = Stub::of(id, object_name("5e1f0c9a7b3d2468", id, 7), &data);
        let contents = Contents::read(id, &body).unwrap();
        assert_eq!(Contents::read(id, &stub.write()).unwrap(), contents);
        assert_eq!(contents.bytes(), data.bytes());
        assert!(contents.has("h:a") && !contents.has("h:c"));
        for body in [&body, &stub.write()] {
            assert!(mentions(body, "h:a") && !mentions(body, "h:c") && !mentions(body, "bytes"));
        }
        let leaf = |body: Body| Leaf { rev: "1-a".into(), deleted: false, body, ancestors: Vec::new() };
        let other: Body = serde_json::from_str(r#"{"chunks":{"h:c":"=c"}}"#).unwrap();
        let united = Contents::unite(id, &[leaf(stub.write()), leaf(other)]).unwrap().unwrap();
        assert_eq!(united.sizes().len(), 3);
        assert_eq!(Contents::unite(id, &[]).unwrap(), None);
    }
}
