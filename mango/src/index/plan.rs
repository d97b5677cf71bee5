//! Plans a query: chooses an index and the range of its rows.
//!
//! An index can be used if every document that the query may find has a row in it, and if it has the requested order.
//! The usable index with the fewest unused conditions is chosen; among equals the one with the fewest fields, then the
//! first by design document and name. Without a usable index, the documents are read by id.
//!
//! Source: `mango_cursor:create/4`, `mango_idx:get_usable_indexes/4`, `mango_idx_view:is_usable/3`,
//! `mango_cursor_view:choose_best_index/1`.

use std::collections::BTreeMap;
use std::sync::Arc;

use json::JsonText;

use super::candidates::{self, Candidate};
use super::definition::without_prefix;
use super::known::Known;
use super::{Index, MAX_KEY};
use crate::collate::Order;
use crate::error::Error;
use crate::partition::append_partition;
use crate::path;
use crate::query::{Direction, Query};
use crate::selector::{ABOVE, Bound, FieldRange, Kind};

/// The plan of a query.
#[derive(Clone, Debug)]
pub struct QueryPlan {
    /// The source of the answer.
    pub choice: Choice,
    /// Read from the highest key to the lowest.
    pub is_descending: bool,
    /// The indexes that were not chosen, with reasons, in the order of `_explain`.
    pub candidates: Vec<Candidate>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The selector's bounds of ids, for [`Choice::AllDocs`].
    pub id_bounds: IdBounds,
}

/// Bounds of ids as CouchDB sees them.
#[derive(Clone, Debug, Default)]
pub struct IdBounds {
    /// Whether the selector has a condition on ids that an index can serve.
    pub is_bounded: bool,
    /// Whether the bounds contradict each other. CouchDB does not search then.
    pub is_empty: bool,
    /// The low bound, as `_explain` shows it: any value.
    pub low: Option<JsonText>,
    /// The high bound.
    pub high: Option<JsonText>,
}

/// The source of the answer to a query.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Nothing: no index has the requested order. Only for [`Purpose::Explain`].
    Nothing,
    /// The documents by id.
    AllDocs,
    /// Rows of an index.
    Scan(Scan),
}

/// The rows of an index that are read for a query.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The index.
    pub index: Arc<Index>,
    /// The range of their keys.
    pub range: KeyRange,
    /// Whether no document can match. CouchDB does not search then.
    pub is_empty: bool,
    /// Whether rows have everything that the query requests. Then no document is read, unless a row lacks its values.
    pub is_covering: bool,
    /// The low end of the range, as `_explain` shows it.
    pub low: Vec<JsonText>,
    /// The high end. The highest possible value is appended to it.
    pub high: Vec<JsonText>,
}

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The lowest key, inclusive.
    pub start: Vec<u8>,
    /// The highest key, exclusive.
    pub end: Vec<u8>,
}

/// The purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To answer the query.
    Find,
    /// To show how the query would be answered.
    Explain,
}

/// The warning for a query without a usable index.
const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";

impl QueryPlan {
    /// Whether the query has no usable index.
    pub fn has_no_index(&self) -> bool {
        self.warnings.iter().any(|warning| warning == NO_INDEX)
    }

    /// Plans a query over these indexes.
    ///
    /// # Errors
    /// `no_usable_index` if no index has the requested order and the purpose is [`Purpose::Find`]; `invalid_index` if
    /// the client requires an index that does not exist or cannot be used.
    pub fn of(query: &Query, indexes: &[Arc<Index>], purpose: Purpose) -> Result<QueryPlan, Error> {
        let known: Vec<Known<'_>> = std::iter::once(None).chain(indexes.iter().map(Some)).map(Known::new).collect();
        let sort = sort_paths(query);
        let reasons: Vec<Vec<&'static str>> = known.iter().map(|known| known.why_not(&query.selector, &sort)).collect();
        // A partial index is used only if the query names it.
        let is_free_to_use = |at: usize| !known[at].is_partial() || known[at].is_named(&query.use_index);
        // A query of one partition uses only partitioned indexes, any other query only the others.
        let is_in_scope = |at: usize| known[at].is_for(query);
        let is_eligible = |at: usize| is_free_to_use(at) && is_in_scope(at);
        let usable: Vec<usize> = (0..known.len()).filter(|&at| is_eligible(at) && reasons[at].is_empty()).collect();
        if usable.is_empty() && purpose == Purpose::Find {
            let scope = match (query.in_partitioned, query.partition.is_empty()) {
                (false, _) => "",
                (true, true) => "global ",
                (true, false) => "partitioned ",
            };
            let reason = format!("No {scope}index exists for this sort, try indexing by the sort fields.");
            return Err(Error::plain("no_usable_index", &reason));
        }
        let named: Vec<usize> = usable.iter().copied().filter(|&at| known[at].is_named(&query.use_index)).collect();
        let filtered = match &named[..] {
            [] if query.allow_fallback || (query.use_index.is_empty() && usable.len() > 1) => usable.clone(),
            [] => return Err(insisted(&query.use_index)),
            _ => named,
        };
        let ranges = query.selector.field_ranges();
        // If one range is empty, the others do not matter.
        let ranges = match ranges.iter().find(|(_, range)| range.is_empty()) {
            Some((path, range)) => BTreeMap::from([(*path, range.clone())]),
            None => ranges,
        };
        // The documents are read by id if no index is left.
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
        Ok(QueryPlan {
            choice,
            is_descending: query.sort.first().is_some_and(|(_, direction)| *direction == Direction::Descending),
            candidates: stages.candidates(query, &reasons, is_eligible, unused),
            warnings,
            id_bounds: match &Known::new(None).prefix(&ranges)[..] {
                [range, ..] => IdBounds::of(range),
                [] => IdBounds::default(),
            },
        })
    }
}

impl IdBounds {
    fn of(range: &FieldRange) -> IdBounds {
        let shown = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.shown.clone());
        IdBounds { is_bounded: true, is_empty: range.is_empty(), low: shown(&range.low), high: shown(&range.high) }
    }
}

/// The paths to sort by. Parsing the query has validated their names.
fn sort_paths(query: &Query) -> Vec<Vec<String>> {
    let parse = |(field, _): &(String, Direction)| {
        let mut path = Vec::new();
        path::parse(field, &mut path).ok().map(|()| path)
    };
    query.sort.iter().filter_map(parse).collect()
}

impl Scan {
    fn of(query: &Query, index: &Arc<Index>, ranges: &[&FieldRange]) -> Scan {
        let paths = query.fields.paths().chain(query.selector.paths());
        let low = ranges.iter().map_while(|range| range.low.as_ref());
        let high = ranges.iter().map_while(|range| range.high.as_ref());
        Scan {
            index: index.clone(),
            range: KeyRange::of(ranges, &index.columns, &query.partition),
            is_empty: query.selector.is_empty_combination() || ranges.iter().any(|range| range.is_empty()),
            is_covering: !query.fields.is_everything() && paths.into_iter().all(|path| index.covers(path)),
            low: low.map(|bound| bound.shown.clone()).collect(),
            high: high.map(|bound| bound.shown.clone()).collect(),
        }
    }
}

impl KeyRange {
    /// A range of keys that includes all rows whose first values are in these ranges. It may include others.
    /// `partition`: the rows' partition; empty if the index is not partitioned.
    fn of(ranges: &[&FieldRange], columns: &[Vec<String>], partition: &str) -> KeyRange {
        // Ids with the same key may differ, and the selector tells them apart.
        let kind = |bound: &Bound, column: &[String]| match bound.kind {
            Kind::Exclusive if Order::of(column) == Order::Raw => Kind::Inclusive,
            kind => kind,
        };
        let mut start = Vec::new();
        if !partition.is_empty() {
            append_partition(&mut start, partition);
        }
        let mut end = start.clone();
        for (range, column) in ranges.iter().zip(columns) {
            let Some(low) = &range.low else { break };
            start.extend_from_slice(&low.key);
            match kind(low, column) {
                Kind::Inclusive => continue,
                Kind::Exclusive => start.push(ABOVE),
                Kind::Prefix => {}
            }
            break;
        }
        // A truncated key is not below the truncated bound. The selector decides.
        start.truncate(MAX_KEY);

        let mut is_open = true;
        for (range, column) in ranges.iter().zip(columns) {
            let Some(high) = &range.high else { break };
            end.extend_from_slice(&high.key);
            is_open = kind(high, column) == Kind::Inclusive;
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
