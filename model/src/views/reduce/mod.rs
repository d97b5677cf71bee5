//! CouchDB's built-in reduce functions.
//!
//! Each reduces rows, and reduces its own results again. Results are JSON, so that nodes of a tree can hold them. The
//! client's result is computed from the last of them ([`finished`]): intermediate results may need more data than the
//! client sees.
//!
//! Source: `builtin_reduce` and `finalize` of CouchDB's `couch_query_servers.erl`.

mod distinct;
mod numbers;
mod ranked;
mod result;

use json::JsonText;

use super::errors::FunctionError;
use super::group::{Reduce, Reduced, Reduction};
use result::elements;
pub(super) use result::{count, overflow};

/// Reduces rows, in their order, or earlier results, in the order of their rows.
pub(super) fn reduce(reduce: Reduce, reduction: &Reduction) -> Reduced {
    match (reduce, reduction) {
        (Reduce::Count, Reduction::Rows(rows)) => Ok(count(rows.len() as u64)),
        (Reduce::ApproxCountDistinct, Reduction::Rows(rows)) => {
            Ok(distinct::of_keys(rows.iter().map(|row| &row.key)).write())
        }
        (Reduce::ApproxCountDistinct, Reduction::Values(values)) => distinct::together(values),
        (Reduce::Top(count) | Reduce::Bottom(count), _) => {
            let is_top = matches!(reduce, Reduce::Top(_));
            Ok(match reduction {
                Reduction::Rows(rows) => ranked::most(rows.iter().map(|row| row.value.clone()), count, is_top),
                Reduction::Values(values) => ranked::most(values.iter().flat_map(elements), count, is_top),
            })
        }
        (Reduce::First | Reduce::Last, _) => ranked::outermost(reduction, reduce == Reduce::First),
        (Reduce::Sum | Reduce::Count, _) => numbers::sum(values_of(reduction)),
        (Reduce::Stats, _) => numbers::stats(values_of(reduction)),
        (Reduce::Custom, _) => Err(FunctionError::new("not_found", "This program does not have the reduce function.")),
    }
}

/// The result for a client.
pub(super) fn finished(reduce: Reduce, reduced: Reduced) -> Reduced {
    let reduced = reduced?;
    match reduce {
        Reduce::ApproxCountDistinct => distinct::estimate(&reduced),
        Reduce::First | Reduce::Last => {
            let value = elements(&reduced).nth(2);
            Ok(value.unwrap_or(reduced))
        }
        _ => Ok(reduced),
    }
}

fn values_of(reduction: &Reduction) -> Vec<&JsonText> {
    match reduction {
        Reduction::Rows(rows) => rows.iter().map(|row| &row.value).collect(),
        Reduction::Values(values) => values.iter().collect(),
    }
}
