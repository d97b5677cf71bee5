//! Arrays whose elements are found by their number.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::view::{JsonRef, value_at};
use super::{JsonText, JsonWriter};

/// An array whose elements are found by their number, and can be sorted: its text, and where each element begins in it.
///
/// An element takes four bytes in addition to its text, which has at least two. So an array of millions of small values
/// takes at most three times its text. A vector of values would take twenty times as much. Clones share the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonArray {
    text: JsonText,
    starts: Arc<Vec<u32>>,
}

impl JsonText {
    /// This array; `None` if the value is not an array, or has more than four gigabytes.
    pub fn to_array(&self) -> Option<JsonArray> {
        let root = self.root();
        if !root.is_array() || u32::try_from(self.len()).is_err() {
            return None;
        }
        let begin = self.as_bytes().as_ptr() as usize;
        let start = |element: JsonRef<'_>| (element.text().as_ptr() as usize - begin) as u32;
        let mut starts = Vec::with_capacity(root.elements().count());
        starts.extend(root.elements().map(start));
        Some(JsonArray { text: self.clone(), starts: Arc::new(starts) })
    }
}

impl JsonArray {
    /// An array of these values; `None` if it would have more than four gigabytes.
    pub fn of(values: impl IntoIterator<Item = JsonText>) -> Option<JsonArray> {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_array();
        for value in values {
            json.text(&value);
        }
        json.end_array();
        JsonText::from_normalised(out)?.to_array()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The element with this number.
    pub fn get(&self, number: usize) -> Option<JsonRef<'_>> {
        self.at(*self.starts.get(number)?)
    }

    /// The same as a separate text that shares the buffer.
    pub fn get_text(&self, number: usize) -> Option<JsonText> {
        Some(self.text.slice_ref(self.get(number)?))
    }

    /// The elements in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = JsonRef<'_>> {
        self.starts.iter().filter_map(|start| self.at(*start))
    }

    fn at(&self, start: u32) -> Option<JsonRef<'_>> {
        value_at(self.text.as_bytes(), start as usize)
    }

    /// The array with its elements in another order. Its text stays.
    #[must_use]
    pub fn sorted_by(mut self, compare: impl Fn(JsonRef<'_>, JsonRef<'_>) -> Ordering) -> JsonArray {
        let mut starts = std::mem::take(Arc::make_mut(&mut self.starts));
        starts.sort_by(|a, b| match (self.at(*a), self.at(*b)) {
            (Some(a), Some(b)) => compare(a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        });
        self.starts = Arc::new(starts);
        self
    }

    /// Whether there is an element for which `compare` is equal. The elements must be sorted by it.
    pub fn has_by(&self, compare: impl Fn(JsonRef<'_>) -> Ordering) -> bool {
        let found = self.starts.binary_search_by(|start| self.at(*start).map_or(Ordering::Less, &compare));
        found.is_ok()
    }
}

impl fmt::Debug for JsonArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(JsonRef::text)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(text: &str) -> Option<JsonArray> {
        JsonText::parse(text.as_bytes()).unwrap().to_array()
    }

    #[test]
    fn elements_are_found_by_their_number() {
        let found = array(r#"[1, {"a": [2, "]"]}, "x,\"y", [], null]"#).unwrap();
        let texts: Vec<&str> = found.iter().map(JsonRef::text).collect();
        assert_eq!(texts, ["1", r#"{"a":[2,"]"]}"#, r#""x,\"y""#, "[]", "null"]);
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(found.get(number).unwrap().text(), *text);
            assert_eq!(found.get_text(number).unwrap().as_str(), *text);
        }
        assert_eq!((found.len(), found.get(5), found.is_empty()), (5, None, false));
        assert_eq!(found.iter().next_back().unwrap().text(), "null");
        assert!(array("[]").unwrap().is_empty());
        // A part of a longer text.
        let whole = JsonText::parse(br#"{"a":0,"keys":["b",7],"z":0}"#).unwrap();
        let part = whole.slice_ref(whole.get("keys").unwrap()).to_array().unwrap();
        assert_eq!(format!("{part:?}"), r#"["\"b\"", "7"]"#);
        let again = JsonArray::of((0..found.len()).filter_map(|number| found.get_text(number)));
        assert_eq!(again.unwrap(), found);
        for none in ["{}", "7", "\"[]\"", "null"] {
            assert!(array(none).is_none(), "{none}");
        }
    }

    #[test]
    fn sorted_elements_are_found_by_comparing() {
        let by_text = |a: JsonRef<'_>, b: JsonRef<'_>| a.text().cmp(b.text());
        let sorted = array(r#"[5,3,"a",1,3]"#).unwrap().sorted_by(by_text);
        let texts: Vec<&str> = sorted.iter().map(JsonRef::text).collect();
        assert_eq!(texts, [r#""a""#, "1", "3", "3", "5"]);
        for (text, is_there) in [("3", true), ("1", true), ("\"a\"", true), ("4", false), ("", false)] {
            assert_eq!(sorted.has_by(|one| one.text().cmp(text)), is_there, "{text}");
        }
    }
}
