//! Finds a selector's requirements on fields, for the planner of a search.
//!
//! Only conditions at the top or directly in `$and`s are true for every matching document, so others are ignored.
//!
//! Source: `mango_idx_view.erl` (`indexable_fields/1`, `range/2`), `mango_selector:fields/1`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use json::JsonRef;

use super::Selector;
use super::node::{Condition, Node, Relation};
use crate::path::Path;

/// A range that contains the ids of all matching documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    /// The lowest id, and whether it is included.
    pub low: Option<(String, bool)>,
    /// The highest id, and whether it is included.
    pub high: Option<(String, bool)>,
    /// The ids that can match, sorted, if the selector lists them: by `$in`, or by an `$or`.
    pub list: Option<Vec<String>>,
    /// Whether no id can match.
    pub is_empty: bool,
}

impl IdRange {
    /// The part of the range from `first` up to, not including, `beyond`.
    pub(crate) fn within(mut self, first: &str, beyond: &str) -> IdRange {
        let is_in = |id: &str| first <= id && id < beyond;
        if let Some(list) = &mut self.list {
            list.retain(|id| is_in(id));
            self.is_empty |= list.is_empty();
        }
        if self.low.as_ref().is_none_or(|(low, _)| low.as_str() < first) {
            self.low = Some((first.to_owned(), true));
        }
        if self.high.as_ref().is_none_or(|(high, _)| high.as_str() >= beyond) {
            self.high = Some((beyond.to_owned(), false));
        }
        if let (Some((low, with_low)), Some((high, with_high))) = (&self.low, &self.high) {
            self.is_empty |= low > high || (low == high && !(*with_low && *with_high));
        }
        self
    }
}

impl Selector {
    /// The fields in the selector, sorted.
    pub fn fields(&self) -> Vec<String> {
        let mut fields = Vec::new();
        if let Some(root) = &self.root {
            root.each_field(&mut |path, _| fields.push(path.name()));
        }
        sorted(fields)
    }

    /// The fields with conditions that an index can serve, sorted.
    pub fn indexable_fields(&self) -> Vec<String> {
        let mut fields = Vec::new();
        self.each_required(&mut |path, condition| {
            if condition.is_indexable() {
                fields.push(path.name());
            }
        });
        sorted(fields)
    }

    /// The paths in the selector.
    pub(crate) fn paths(&self) -> Vec<&[String]> {
        let mut paths = Vec::new();
        if let Some(root) = &self.root {
            root.each_field(&mut |path, _| paths.push(&**path));
        }
        paths
    }

    /// The paths in the selector, and whether a path that ends in a scalar must be distinguished from a missing field.
    pub(crate) fn paths_to_read(&self) -> Vec<(&[String], bool)> {
        let mut paths = Vec::new();
        if let Some(root) = &self.root {
            root.each_field(&mut |path, condition| {
                paths.push((&**path, matches!(condition, Condition::Exists(false))))
            });
        }
        paths
    }

    /// Whether each matching document has a value at the path.
    pub(crate) fn requires(&self, path: &[String]) -> bool {
        self.root.as_ref().is_some_and(|root| root.requires(path))
    }

    /// Whether all matching documents have the same value at the path.
    pub(crate) fn is_constant(&self, path: &[String]) -> bool {
        let mut is_constant = false;
        self.each_required(&mut |named, condition| {
            is_constant |= &named[..] == path && matches!(condition, Condition::Compare { relation: Relation::Eq, .. });
        });
        is_constant
    }

    /// The range of the ids of all matching documents.
    pub fn id_range(&self) -> IdRange {
        let mut range = IdRange::default();
        self.each_required(&mut |path, condition| {
            if matches!(&path[..], [id] if id == "_id") {
                range.narrow(condition);
            }
        });
        if let (Some((low, has_low)), Some((high, has_high))) = (&range.low, &range.high) {
            range.is_empty |= low > high || (low == high && !(*has_low && *has_high));
        }
        let named = self.root.as_ref().and_then(Node::ids);
        let list = named.map(|ids| ids.into_iter().filter(|id| range.has(id)).map(Cow::into_owned).collect::<Vec<_>>());
        range.is_empty |= list.as_deref() == Some(&[]);
        match list.as_deref() {
            Some([one]) => (range.low, range.high) = (Some((one.clone(), true)), Some((one.clone(), true))),
            _ => range.list = list,
        }
        range
    }

    /// Calls `each` for every condition that is true for each matching document.
    pub(super) fn each_required<'s>(&'s self, each: &mut impl FnMut(&'s Path, &'s Condition)) {
        if let Some(root) = &self.root {
            root.each_required(each);
        }
    }
}

fn sorted(mut fields: Vec<String>) -> Vec<String> {
    fields.sort();
    fields.dedup();
    fields
}

impl Node {
    fn each_field<'s>(&'s self, each: &mut impl FnMut(&'s Path, &'s Condition)) {
        match self {
            Node::And(parts) | Node::Or(parts) => parts.iter().for_each(|part| part.each_field(each)),
            Node::Not(part) => part.each_field(each),
            Node::Field { path, condition } => each(path, condition),
        }
    }

    fn each_required<'s>(&'s self, each: &mut impl FnMut(&'s Path, &'s Condition)) {
        match self {
            Node::And(parts) => parts.iter().for_each(|part| part.each_required(each)),
            Node::Field { path, condition } => each(path, condition),
            Node::Or(_) | Node::Not(_) => {}
        }
    }

    /// The ids of all matching documents, if the selector lists them.
    fn ids(&self) -> Option<BTreeSet<Cow<'_, str>>> {
        match self {
            Node::And(parts) => parts.iter().filter_map(Node::ids).reduce(|a, b| a.intersection(&b).cloned().collect()),
            // If it is empty, it is true for every document.
            Node::Or(parts) if parts.is_empty() => None,
            Node::Or(parts) => parts.iter().map(Node::ids).try_fold(BTreeSet::new(), |mut all, some| {
                all.extend(some?);
                Some(all)
            }),
            Node::Field { path, condition } if matches!(&path[..], [id] if id == "_id") => match condition {
                // Only strings are ids.
                Condition::Compare { relation: Relation::Eq, value, .. } => {
                    Some(value.root().as_str().into_iter().collect())
                }
                Condition::In(values) => Some(values.given.root().elements().filter_map(JsonRef::as_str).collect()),
                _ => None,
            },
            Node::Field { .. } | Node::Not(_) => None,
        }
    }

    fn requires(&self, path: &[String]) -> bool {
        match self {
            Node::And(parts) => parts.iter().any(|part| part.requires(path)),
            // If it is empty, it is true for every document.
            Node::Or(parts) => !parts.is_empty() && parts.iter().all(|part| part.requires(path)),
            Node::Not(_) => false,
            Node::Field { path: named, condition } => {
                &named[..] == path && !matches!(condition, Condition::Exists(false))
            }
        }
    }
}

impl Condition {
    pub(super) fn is_indexable(&self) -> bool {
        match self {
            Condition::Compare { relation, .. } => *relation != Relation::Ne,
            Condition::BeginsWith(_) | Condition::Exists(_) => true,
            _ => false,
        }
    }
}

impl IdRange {
    /// Whether an id is within the bounds.
    fn has(&self, id: &str) -> bool {
        let is_above = self.low.as_ref().is_none_or(|(low, has)| id > low.as_str() || (*has && id == low));
        is_above && self.high.as_ref().is_none_or(|(high, has)| id < high.as_str() || (*has && id == high))
    }

    fn narrow(&mut self, condition: &Condition) {
        match condition {
            Condition::Compare { relation, value, .. } => self.narrow_by(*relation, value.root()),
            Condition::BeginsWith(prefix) => {
                self.raise(prefix.clone(), true);
                if let Some(beyond) = beyond(prefix) {
                    self.lower(beyond, false);
                }
            }
            Condition::Exists(false) => self.is_empty = true,
            _ => {}
        }
    }

    fn narrow_by(&mut self, relation: Relation, value: JsonRef<'_>) {
        let Some(id) = value.as_str() else {
            // Every id sorts after every value that is not a string.
            self.is_empty |= matches!(relation, Relation::Lt | Relation::Lte | Relation::Eq);
            return;
        };
        let id = id.into_owned();
        match relation {
            Relation::Lt => self.lower(id, false),
            Relation::Lte => self.lower(id, true),
            Relation::Eq => {
                self.raise(id.clone(), true);
                self.lower(id, true);
            }
            Relation::Gte => self.raise(id, true),
            Relation::Gt => self.raise(id, false),
            Relation::Ne => {}
        }
    }

    fn raise(&mut self, id: String, inclusive: bool) {
        if self.low.as_ref().is_none_or(|(low, has)| id > *low || (id == *low && *has && !inclusive)) {
            self.low = Some((id, inclusive));
        }
    }

    fn lower(&mut self, id: String, inclusive: bool) {
        if self.high.as_ref().is_none_or(|(high, has)| id < *high || (id == *high && *has && !inclusive)) {
            self.high = Some((id, inclusive));
        }
    }
}

/// The first text after all that begin with `prefix`; `None` if it does not exist.
fn beyond(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        // Surrogates are not characters.
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use json::JsonText;

    use super::*;

    fn selector(text: &str) -> Selector {
        Selector::parse(&JsonText::parse(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn ids_that_are_named_are_listed() {
        for (text, ids) in [
            (r#"{"_id": {"$in": ["b", "a", 7, "b"]}, "x": 1}"#, &["a", "b"][..]),
            (r#"{"$or": [{"_id": "b"}, {"_id": "a", "x": 1}, {"_id": {"$in": ["c"]}}]}"#, &["a", "b", "c"]),
            (r#"{"_id": {"$in": ["a", "b", "c", "d"], "$gt": "a", "$lte": "c"}}"#, &["b", "c"]),
            (r#"{"$and": [{"_id": {"$in": ["a", "b", "c"]}}, {"$or": [{"_id": "c"}, {"_id": "b"}]}]}"#, &["b", "c"]),
        ] {
            let range = selector(text).id_range();
            assert_eq!(
                (range.list.as_deref().unwrap(), range.is_empty),
                (&ids.iter().map(|id| id.to_string()).collect::<Vec<_>>()[..], false),
                "{text}"
            );
        }
        for text in [
            r#"{"$or": [{"_id": "a"}, {"x": 1}]}"#,
            r#"{"$or": []}"#,
            r#"{"_id": {"$nin": ["a", "b"]}}"#,
            r#"{"$not": {"_id": {"$in": ["a", "b"]}}}"#,
            r#"{"_id": {"$elemMatch": {"$in": ["a", "b"]}}}"#,
        ] {
            assert_eq!(selector(text).id_range().list, None, "{text}");
        }
    }

    #[test]
    fn ids_are_narrowed_by_what_every_match_meets() {
        let some = |id: &str, inclusive| Some((id.to_owned(), inclusive));
        for (text, low, high) in [
            (r#"{}"#, None, None),
            (r#"{"_id": "a"}"#, some("a", true), some("a", true)),
            (r#"{"_id": {"$gt": "a", "$lte": "c"}, "x": 1}"#, some("a", false), some("c", true)),
            (r#"{"_id": {"$gt": "a", "$gte": "a"}}"#, some("a", false), None),
            (r#"{"_id": {"$gt": null}}"#, None, None),
            (r#"{"_id": {"$gt": {}}}"#, None, None),
            (r#"{"$or": [{"_id": "a"}, {"x": "b"}]}"#, None, None),
            (r#"{"$not": {"_id": {"$lt": "b"}}}"#, some("b", true), None),
            (r#"{"_id": {"$ne": "b"}}"#, None, None),
            (r#"{"_id": {"$beginsWith": "ab"}}"#, some("ab", true), some("ac", false)),
            ("{\"_id\": {\"$beginsWith\": \"a\u{d7ff}\"}}", some("a\u{d7ff}", true), some("a\u{e000}", false)),
            ("{\"_id\": {\"$beginsWith\": \"a\u{10ffff}\"}}", some("a\u{10ffff}", true), some("b", false)),
            (r#"{"a._id": "x"}"#, None, None),
            (r#"{"_id": {"$in": ["a", 7]}}"#, some("a", true), some("a", true)),
        ] {
            assert_eq!(selector(text).id_range(), IdRange { low, high, ..IdRange::default() }, "{text}");
        }
        for text in [
            r#"{"_id": {"$gt": "b", "$lt": "a"}}"#,
            r#"{"_id": {"$gt": "a", "$lte": "a"}}"#,
            r#"{"_id": 7}"#,
            r#"{"_id": {"$lt": {}}}"#,
            r#"{"_id": {"$exists": false}}"#,
            r#"{"_id": {"$in": []}}"#,
            r#"{"_id": {"$in": ["a", 1], "$gt": "a"}}"#,
            r#"{"$and": [{"_id": {"$in": ["a", "b"]}}, {"_id": {"$in": ["c"]}}]}"#,
            r#"{"$or": [{"_id": 1}, {"_id": null}]}"#,
        ] {
            assert!(selector(text).id_range().is_empty, "{text}");
        }
    }

    #[test]
    fn fields_are_told_apart_by_what_an_index_can_serve() {
        let selector = selector(
            r#"{"a": 1, "b.c": {"$gt": 1, "$ne": 2}, "d": {"$in": [1]}, "$or": [{"e": 1}, {"a": 2}],
                "f": {"$elemMatch": {"g": 1}}, "h": {"$exists": true}}"#,
        );
        assert_eq!(selector.fields(), ["a", "b.c", "d", "e", "f", "h"]);
        assert_eq!(selector.indexable_fields(), ["a", "b.c", "h"]);
    }

    #[test]
    fn a_selector_is_shown_as_it_was_understood() {
        for (text, shown) in [
            (r#"{}"#, r#"{}"#),
            (r#"{"a": 1}"#, r#"{"a":{"$eq":1}}"#),
            (r#"{"a": 1, "b": {"c": {"$gt": 2}}}"#, r#"{"$and":[{"a":{"$eq":1}},{"b.c":{"$gt":2}}]}"#),
            (
                r#"{"$nor": [{"a": 1}, {"b": {"$regex": "x"}}]}"#,
                r#"{"$and":[{"a":{"$ne":1}},{"b":{"$not":{"$regex":"x"}}}]}"#,
            ),
            (
                r#"{"a": {"$elemMatch": {"$gt": 1, "$mod": [2, 0]}}}"#,
                r#"{"a":{"$elemMatch":{"$and":[{"":{"$gt":1}},{"":{"$mod":[2,0]}}]}}}"#,
            ),
            (r#"{"a\\b": 1, "c": {"\\$d": {"e\\": 2}}}"#, r#"{"$and":[{"a\\b":{"$eq":1}},{"c.\\$d.e\\":{"$eq":2}}]}"#),
            (r#"{"a\\b.\\": {"c": 1}}"#, r#"{"ab.\\":{"c":{"$eq":1}}}"#),
            (r#"{"\\$a\\.b": {"c\\.d": 1}}"#, r#"{"\\$a\\.b.c\\.d":{"$eq":1}}"#),
            (r#"{"a.\\": {"\\": {"b": 1}}}"#, r#"{"a.\\":{"\\":{"b":{"$eq":1}}}}"#),
            (
                r#"{"a": {"$nin": [2, 1], "$size": 3, "$all": ["x"], "$type": "array"}}"#,
                r#"{"$and":[{"a":{"$nin":[2,1]}},{"a":{"$size":3}},{"a":{"$all":["x"]}},{"a":{"$type":"array"}}]}"#,
            ),
        ] {
            assert_eq!(selector(text).to_json().as_str(), shown, "{text}");
        }
    }
}
