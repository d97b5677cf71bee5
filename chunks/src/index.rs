//! Index documents, which map each chunk of a prefix to its data document.
//!
//! ```json
//! {"_id":"idx:3f",
//!  "chunks":{"h:1ecijke328qp3":"dat:3f-001-9c0de1b2"},
//!  "condemned":{"h:1ecijke328qp3":1795221368666},
//!  "spare":{"dat:3f-002-00c0ffee":{"h:1ecijke328qp3":1795221368666}},
//!  "open":"dat:3f-001-9c0de1b2"}
//! ```
//!
//! `chunks` is the index. `condemned` has the time (milliseconds since 1970) since when no file refers to a chunk;
//! `spare` the time since when a data document holds a copy that the index does not name. `open` is a hint at the data
//! document that still takes chunks. All but `chunks` are optional, and only this crate knows them.
//!
//! # Leaves are united
//! Two clients that wrote separately leave two leaves. An index is read as the union of its leaves. A writer writes
//! that union and ends the losing leaves. An entry stays if any leaf has it. A mark stays only if all leaves have it: a
//! mark leads to removal, so a doubtful one is dropped.
//!
//! An entry is *doubtful* if some leaf lacks it or has it in another place: a collection may have removed it since
//! the other leaf was written. Then the data documents decide (see
//! [`lookup`](crate::lookup)).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::store::Body;

const CHUNKS: &str = "chunks";
const CONDEMNED: &str = "condemned";
const SPARE: &str = "spare";
const OPEN: &str = "open";

/// Times in milliseconds since 1970, by chunk id.
pub(crate) type Marks = BTreeMap<String, u64>;

/// Content of an index document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Index {
    /// Data documents by chunk id.
    pub(crate) entries: BTreeMap<String, String>,
    /// Times since when no file refers to a chunk.
    pub(crate) condemned: Marks,
    /// For data documents and their chunks: since when the document holds a copy that `entries` does not name.
    pub(crate) spare: BTreeMap<String, Marks>,
    /// The data document that may take more chunks.
    pub(crate) open: Option<String>,
    /// Unknown members, which are kept.
    rest: Body,
}

impl Index {
    /// Reads a document.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(crate) fn read(id: &str, body: &Body) -> Result<Index> {
        let mut index = Index::default();
        for (name, value) in body {
            match name.as_str() {
                CHUNKS => {
                    for (chunk, place) in members(id, name, value)? {
                        let place = place.as_str();
                        let place = place.ok_or_else(|| Error::malformed(id, format!("{chunk} is in no document")))?;
                        index.entries.insert(chunk.clone(), place.to_owned());
                    }
                }
                CONDEMNED => index.condemned = marks(id, name, value)?,
                SPARE => {
                    for (place, chunks) in members(id, name, value)? {
                        index.spare.insert(place.clone(), marks(id, name, chunks)?);
                    }
                }
                OPEN => index.open = value.as_str().map(str::to_owned),
                _ => drop(index.rest.insert(name.clone(), value.clone())),
            }
        }
        Ok(index)
    }

    /// The document.
    pub(crate) fn write(&self) -> Body {
        let mut body = self.rest.clone();
        body.insert(CHUNKS.into(), json!(self.entries));
        if !self.condemned.is_empty() {
            body.insert(CONDEMNED.into(), json!(self.condemned));
        }
        if !self.spare.is_empty() {
            body.insert(SPARE.into(), json!(self.spare));
        }
        if let Some(open) = &self.open {
            body.insert(OPEN.into(), json!(open));
        }
        body
    }

    /// Size of the document in bytes of compact JSON.
    pub(crate) fn bytes(&self) -> usize {
        Value::Object(self.write()).to_string().len()
    }

    /// Whether it could be deleted without a loss.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.spare.is_empty() && self.rest.is_empty()
    }

    /// Enters a chunk with its data document, and removes its marks.
    pub(crate) fn place(&mut self, chunk: &str, data: &str) {
        self.entries.insert(chunk.to_owned(), data.to_owned());
        self.condemned.remove(chunk);
        self.forget_spare(data, chunk);
    }

    /// Removes a chunk.
    pub(crate) fn remove(&mut self, chunk: &str) {
        self.entries.remove(chunk);
        self.condemned.remove(chunk);
    }

    /// Removes the mark of a copy.
    pub(crate) fn forget_spare(&mut self, data: &str, chunk: &str) {
        if let Some(chunks) = self.spare.get_mut(data) {
            chunks.remove(chunk);
            if chunks.is_empty() {
                self.spare.remove(data);
            }
        }
    }
}

/// The union of an index's live leaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct United {
    /// The union. A doubtful entry has the first of its places.
    pub(crate) index: Index,
    /// The doubtful entries: all places that leaves name, in order.
    pub(crate) doubtful: BTreeMap<String, BTreeSet<String>>,
}

impl United {
    /// Unites leaves. The winner comes first.
    pub(crate) fn of(leaves: Vec<Index>) -> United {
        let Some(first) = leaves.first() else { return United::default() };
        if leaves.len() == 1 {
            return United { index: first.clone(), doubtful: BTreeMap::new() };
        }
        let mut places: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
        let mut index = Index::default();
        for leaf in &leaves {
            for (chunk, place) in &leaf.entries {
                let (count, all) = places.entry(chunk.clone()).or_default();
                *count += 1;
                all.insert(place.clone());
            }
            for (name, value) in &leaf.rest {
                index.rest.entry(name.clone()).or_insert_with(|| value.clone());
            }
            // Any hint is good, as long as all uniting clients choose the same.
            index.open = index.open.max(leaf.open.clone());
        }
        index.condemned = common_marks(leaves.iter().map(|leaf| &leaf.condemned));
        for place in first.spare.keys() {
            if leaves.iter().all(|leaf| leaf.spare.contains_key(place)) {
                let common = common_marks(leaves.iter().filter_map(|leaf| leaf.spare.get(place)));
                if !common.is_empty() {
                    index.spare.insert(place.clone(), common);
                }
            }
        }
        let mut doubtful = BTreeMap::new();
        for (chunk, (count, all)) in places {
            if let Some(place) = all.first() {
                index.entries.insert(chunk.clone(), place.clone());
            }
            if count < leaves.len() || all.len() > 1 {
                doubtful.insert(chunk, all);
            }
        }
        United { index, doubtful }
    }
}

/// The marks that all have, each with its latest time.
fn common_marks<'m>(mut all: impl Iterator<Item = &'m Marks>) -> Marks {
    let Some(mut common) = all.next().cloned() else { return Marks::new() };
    for marks in all {
        common.retain(|chunk, _| marks.contains_key(chunk));
        for (chunk, time) in &mut common {
            *time = (*time).max(marks.get(chunk).copied().unwrap_or(0));
        }
    }
    common
}

fn members<'v>(id: &str, name: &str, value: &'v Value) -> Result<&'v Body> {
    value.as_object().ok_or_else(|| Error::malformed(id, format!("\"{name}\" is not an object")))
}

fn marks(id: &str, name: &str, value: &Value) -> Result<Marks> {
    let mut marks = Marks::new();
    for (chunk, time) in members(id, name, value)? {
        let time = time.as_u64();
        marks.insert(
            chunk.clone(),
            time.ok_or_else(|| Error::malformed(id, format!("\"{name}\" has no time for {chunk}")))?,
        );
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &str) -> Index {
        Index::read("idx:3f", &serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn documents_are_read_and_written_with_what_others_put_there() {
        let text = r#"{"more":[1],"chunks":{"h:a":"dat:3f-001"},"condemned":{"h:a":5},"spare":{"dat:3f-002":{"h:a":6}},"open":"dat:3f-001"}"#;
        assert_eq!(Value::Object(index(text).write()).to_string(), text);
        assert_eq!(index(text).bytes(), text.len());
        assert_eq!(Value::Object(index("{}").write()).to_string(), r#"{"chunks":{}}"#);
        assert!(index(r#"{"condemned":{"h:a":5},"open":"x"}"#).is_empty());
    }

    #[test]
    fn damage_is_named() {
        for (text, wanted) in [
            (r#"{"chunks":7}"#, "\"chunks\" is not an object"),
            (r#"{"chunks":{"h:a":7}}"#, "h:a is in no document"),
            (r#"{"condemned":{"h:a":"x"}}"#, "\"condemned\" has no time for h:a"),
            (r#"{"spare":{"dat:3f-001":7}}"#, "\"spare\" is not an object"),
        ] {
            let refused = Index::read("idx:3f", &serde_json::from_str(text).unwrap()).unwrap_err().to_string();
            assert!(refused.contains("idx:3f") && refused.contains(wanted), "{refused}");
        }
    }

    #[test]
    fn entries_are_united_and_marks_are_common() {
        let one = index(
            r#"{"chunks":{"a":"X","b":"X","c":"X"},"condemned":{"a":5,"b":5},"spare":{"Z":{"a":1,"b":1},"Y":{"a":1}}}"#,
        );
        let other =
            index(r#"{"chunks":{"a":"X","b":"Y","d":"Y"},"condemned":{"a":7},"spare":{"Z":{"b":9}},"open":"Y"}"#);
        let united = United::of(vec![one.clone(), other.clone()]);
        let places = |united: &United| serde_json::to_string(&united.index.entries).unwrap();
        assert_eq!(places(&united), r#"{"a":"X","b":"X","c":"X","d":"Y"}"#);
        assert_eq!(serde_json::to_string(&united.doubtful).unwrap(), r#"{"b":["X","Y"],"c":["X"],"d":["Y"]}"#);
        assert_eq!(united.index.condemned, Marks::from([("a".to_owned(), 7)]));
        assert_eq!(united.index.spare, BTreeMap::from([("Z".to_owned(), Marks::from([("b".to_owned(), 9)]))]));
        assert_eq!(united.index.open.as_deref(), Some("Y"));
        // Commutative and idempotent: an index united with itself is itself, without doubtful entries.
        assert_eq!(United::of(vec![other, one.clone()]).index, united.index);
        assert_eq!(United::of(vec![one.clone(), one.clone()]), United { index: one, doubtful: BTreeMap::new() });
    }
}
