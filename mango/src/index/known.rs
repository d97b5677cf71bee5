//! An index as the planner sees it: whether a query can use it, and how well.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Index;
use crate::query::Query;
use crate::selector::{FieldRange, Selector};

/// An index as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'i> {
    /// `None` for the documents by id.
    pub(super) index: Option<&'i Arc<Index>>,
}

impl<'i> Known<'i> {
    pub(super) fn new(index: Option<&'i Arc<Index>>) -> Self {
        Known { index }
    }

    pub(super) fn is_partial(self) -> bool {
        self.index.is_some_and(|index| index.filter.is_some())
    }

    /// Whether it fits the scope: a partitioned index is for queries of one partition, any other for those of the whole
    /// database. The documents by id are for both.
    pub(super) fn is_for(self, query: &Query) -> bool {
        self.index.is_none_or(|index| index.is_partitioned != query.partition.is_empty())
    }

    /// Number of fields.
    pub(super) fn width(self) -> usize {
        self.index.map_or(1, |index| index.columns.len())
    }

    /// The sort key of candidates. The documents by id are first.
    pub(super) fn names(self) -> Option<(&'i str, &'i str)> {
        self.index.map(|index| (index.design_id(), index.name()))
    }

    pub(super) fn is_named(self, use_index: &[String]) -> bool {
        self.index.is_some_and(|index| index.is_named(use_index))
    }

    /// The reasons why it cannot be used, in CouchDB's words; empty if it can.
    pub(super) fn why_not(self, selector: &Selector, sort: &[Vec<String>]) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        let has_fields = match self.index {
            None => sort.is_empty() || selector.indexable_fields().iter().any(|field| field == "_id"),
            Some(index) => {
                !index.depends_on_conflicts()
                    && index.columns.iter().all(|path| {
                        // Every result has a value in the fields that the query sorts by.
                        sort.contains(path)
                            || matches!(&path[..], [name] if name == "_id" || name == "_rev")
                            || selector.requires(path)
                    })
            }
        };
        if !has_fields {
            reasons.push("field_mismatch");
        }
        let is_sorted = match self.index {
            None => sort.is_empty() || matches!(sort, [path] if path[..] == ["_id"]),
            Some(index) => is_sorted(&index.columns, sort, selector),
        };
        if !is_sorted {
            reasons.push("sort_order_mismatch");
        }
        reasons
    }

    /// The ranges of its first fields, up to the first field without one.
    pub(super) fn prefix<'r>(self, ranges: &'r BTreeMap<&[String], FieldRange>) -> Vec<&'r FieldRange> {
        match self.index {
            None => ranges.get(&["_id".to_owned()][..]).into_iter().collect(),
            Some(index) => index.columns.iter().map_while(|path| ranges.get(&path[..])).collect(),
        }
    }
}

/// Whether rows have the order `sort`: its fields are the first ones, not counting fields with the same value in all
/// results.
fn is_sorted(columns: &[Vec<String>], sort: &[Vec<String>], selector: &Selector) -> bool {
    let Some(first) = sort.first() else { return true };
    let constants = columns.iter().take_while(|path| *path != first && selector.is_constant(path)).count();
    columns[constants..].starts_with(sort)
}
