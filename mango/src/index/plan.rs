//! Which index answers a query, and which of its rows.
//!
//! An index can be used where every document that the query may find has a row in it, and where its order is the one
//! that is asked for. Of those the one that leaves the fewest conditions unused is chosen, then the one with the fewest
//! fields, then the first by design document and name. The documents by id are used where there is no other.
//!
//! Source: `mango_cursor:create/4`, `mango_idx:get_usable_indexes/4`, `mango_idx_view:is_usable/3`,
//! `mango_cursor_view:choose_best_index/1`.

use std::collections::BTreeMap;
use std::sync::Arc;

use json::JsonText;

use super::candidates::{self, Candidate};
use super::{Index, MAX_KEY};
use crate::error::Error;
use crate::path;
use crate::query::{Direction, Query};
use crate::selector::{ABOVE, FieldRange, Kind, Selector};

/// How a query is answered.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From what.
    pub choice: Choice,
    /// From the highest key to the lowest.
    pub is_descending: bool,
    /// The indexes that were not chosen, and why, in the order in which `_explain` lists them.
    pub candidates: Vec<Candidate>,
    /// What is to be said to the client.
    pub warnings: Vec<String>,
}

/// From what a query is answered.
#[derive(Clone, Debug)]
pub enum Choice {
    /// From nothing: no index has the order that is asked for. Only where a plan is to be explained.
    Nothing,
    /// From the documents by id.
    AllDocs,
    /// From rows of an index.
    Scan(Scan),
}

/// The rows of an index that answer a query.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The index.
    pub index: Arc<Index>,
    /// Their keys.
    pub range: KeyRange,
    /// No document can match, so that CouchDB does not even search.
    pub is_empty: bool,
    /// Rows tell all that the query asks for: no document is read where a row has its values.
    pub is_covering: bool,
    /// The low end of the range as `_explain` shows it.
    pub low: Vec<JsonText>,
    /// The high end; the highest value of all stands behind it.
    pub high: Vec<JsonText>,
}

/// Keys from `start`, and below `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key that may be in it.
    pub start: Vec<u8>,
    /// The first that is not.
    pub end: Vec<u8>,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To answer.
    Find,
    /// To show how it would be answered.
    Explain,
}

const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";

/// An index as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'i> {
    /// `None` for the documents by id.
    pub(super) index: Option<&'i Arc<Index>>,
}

impl Plan {
    /// Plans a query over the indexes that there are.
    ///
    /// # Errors
    /// `no_usable_index` where no index has the order that is asked for and the purpose is to answer; `invalid_index`
    /// where the client insists on an index that is not there or cannot be used.
    pub fn of(query: &Query, indexes: &[Arc<Index>], purpose: Purpose) -> Result<Plan, Error> {
        let known: Vec<Known<'_>> = std::iter::once(None).chain(indexes.iter().map(Some)).map(Known::new).collect();
        let sort = sort_paths(query);
        let reasons: Vec<Vec<&'static str>> = known.iter().map(|known| known.why_not(&query.selector, &sort)).collect();
        // A partial index is used only by those who name it.
        let is_eligible = |at: usize| !known[at].is_partial() || known[at].is_named(&query.use_index);
        let usable: Vec<usize> = (0..known.len()).filter(|&at| is_eligible(at) && reasons[at].is_empty()).collect();
        if usable.is_empty() && purpose == Purpose::Find {
            let reason = "No index exists for this sort, try indexing by the sort fields.";
            return Err(Error::plain("no_usable_index", reason));
        }
        let named: Vec<usize> = usable.iter().copied().filter(|&at| known[at].is_named(&query.use_index)).collect();
        let filtered = match &named[..] {
            [] if query.allow_fallback || (query.use_index.is_empty() && usable.len() > 1) => usable.clone(),
            [] => return Err(insisted(&query.use_index)),
            _ => named,
        };
        let ranges = query.selector.field_ranges();
        // Nothing else is looked at where one of them is empty.
        let ranges = match ranges.iter().find(|(_, range)| range.is_empty()) {
            Some((path, range)) => BTreeMap::from([(*path, range.clone())]),
            None => ranges,
        };
        // The documents by id are used where there is no other.
        let mut ranked: Vec<usize> = filtered.iter().copied().filter(|&at| known[at].index.is_some()).collect();
        if ranked.is_empty() {
            ranked.clone_from(&filtered);
        }
        let unused = |at: usize| ranges.len() - known[at].prefix(&ranges).len();
        ranked.sort_by_key(|&at| (unused(at), known[at].width(), known[at].names()));
        let winner = ranked.first().copied();
        let choice = match winner.map(|at| known[at].index) {
            None => Choice::Nothing,
            Some(None) => Choice::AllDocs,
            Some(Some(index)) => Choice::Scan(Scan::of(query, index, &Known::new(Some(index)).prefix(&ranges))),
        };
        let mut warnings = Vec::new();
        if let (Some(winner), [design, name @ ..]) = (winner, &query.use_index[..])
            && !known[winner].is_named(&query.use_index)
        {
            warnings.push(unused_warning(design, name.first().map(String::as_str)));
        }
        if matches!(choice, Choice::AllDocs) {
            warnings.push(NO_INDEX.to_owned());
        }
        let stages = candidates::Stages { known: &known, usable, filtered, ranked, winner };
        Ok(Plan {
            choice,
            is_descending: query.sort.first().is_some_and(|(_, direction)| *direction == Direction::Descending),
            candidates: stages.candidates(query, &reasons, is_eligible, unused),
            warnings,
        })
    }
}

/// The fields to sort by. The query has checked their names.
fn sort_paths(query: &Query) -> Vec<Vec<String>> {
    let parse = |(field, _): &(String, Direction)| {
        let mut path = Vec::new();
        path::parse(field, &mut path).ok().map(|()| path)
    };
    query.sort.iter().filter_map(parse).collect()
}

impl<'i> Known<'i> {
    fn new(index: Option<&'i Arc<Index>>) -> Self {
        Known { index }
    }

    pub(super) fn is_partial(self) -> bool {
        self.index.is_some_and(|index| index.filter.is_some())
    }

    /// How many fields it has.
    pub(super) fn width(self) -> usize {
        self.index.map_or(1, |index| index.columns.len())
    }

    /// By these they are in order, the documents by id first.
    pub(super) fn names(self) -> Option<(&'i str, &'i str)> {
        self.index.map(|index| (index.design_id(), index.name()))
    }

    fn is_named(self, use_index: &[String]) -> bool {
        let (Some((design_id, name)), [design, names @ ..]) = (self.names(), use_index) else { return false };
        without_prefix(design_id) == without_prefix(design) && names.first().is_none_or(|wanted| wanted == name)
    }

    /// Why it cannot be used, in CouchDB's words; nothing where it can.
    fn why_not(self, selector: &Selector, sort: &[Vec<String>]) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        let has_fields = match self.index {
            None => sort.is_empty() || selector.indexable_fields().iter().any(|field| field == "_id"),
            Some(index) => index.columns.iter().all(|path| {
                // What is sorted by is there in every result.
                sort.contains(path)
                    || matches!(&path[..], [name] if name == "_id" || name == "_rev")
                    || selector.requires(path)
            }),
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

    /// The ranges of its first fields, as many as have one.
    fn prefix<'r>(self, ranges: &'r BTreeMap<&[String], FieldRange>) -> Vec<&'r FieldRange> {
        match self.index {
            None => ranges.get(&["_id".to_owned()][..]).into_iter().collect(),
            Some(index) => index.columns.iter().map_while(|path| ranges.get(&path[..])).collect(),
        }
    }
}

/// Whether rows are in the order of `sort`: its fields are the first, but for fields that have one value in all
/// results.
fn is_sorted(columns: &[Vec<String>], sort: &[Vec<String>], selector: &Selector) -> bool {
    let Some(first) = sort.first() else { return true };
    let constants = columns.iter().take_while(|path| *path != first && selector.is_constant(path)).count();
    columns[constants..].starts_with(sort)
}

impl Scan {
    fn of(query: &Query, index: &Arc<Index>, ranges: &[&FieldRange]) -> Scan {
        let paths = query.fields.paths().chain(query.selector.paths());
        let low = ranges.iter().map_while(|range| range.low.as_ref());
        let high = ranges.iter().map_while(|range| range.high.as_ref());
        Scan {
            index: index.clone(),
            range: KeyRange::of(ranges),
            is_empty: query.selector.is_empty_combination() || ranges.iter().any(|range| range.is_empty()),
            is_covering: !query.fields.is_everything() && paths.into_iter().all(|path| index.tells(path)),
            low: low.map(|bound| bound.shown.clone()).collect(),
            high: high.map(|bound| bound.shown.clone()).collect(),
        }
    }
}

impl KeyRange {
    /// The keys of rows whose first values are in these ranges, and perhaps of others.
    fn of(ranges: &[&FieldRange]) -> KeyRange {
        let mut start = Vec::new();
        for range in ranges {
            let Some(low) = &range.low else { break };
            start.extend_from_slice(&low.key);
            match low.kind {
                Kind::Inclusive => continue,
                Kind::Exclusive => start.push(ABOVE),
                Kind::Prefix => {}
            }
            break;
        }
        // A key that was cut is not below this, and the selector decides.
        start.truncate(MAX_KEY);

        let mut end = Vec::new();
        let mut is_open = true;
        for range in ranges {
            let Some(high) = &range.high else { break };
            end.extend_from_slice(&high.key);
            is_open = high.kind == Kind::Inclusive;
            if !is_open {
                break;
            }
        }
        if end.len() > MAX_KEY {
            end.truncate(MAX_KEY);
            is_open = true;
        }
        if is_open {
            end.push(ABOVE);
        }
        KeyRange { start, end }
    }
}

fn without_prefix(design: &str) -> &str {
    design.strip_prefix("_design/").unwrap_or(design)
}

fn insisted(use_index: &[String]) -> Error {
    Error::invalid_index(match use_index {
        [] => "You must specify an index with the `use_index` parameter.".to_owned(),
        [design, names @ ..] => {
            let name: String = names.iter().map(|name| format!(", {name}")).collect();
            let design = without_prefix(design);
            format!("_design/{design}{name} specified by `use_index` could not be found or it is not suitable.")
        }
    })
}

fn unused_warning(design: &str, name: Option<&str>) -> String {
    let design = without_prefix(design);
    match name {
        None => format!("_design/{design} was not used because it does not contain a valid index for this query."),
        Some(name) => {
            format!("_design/{design}, {name} was not used because it is not a valid index for this query.")
        }
    }
}
