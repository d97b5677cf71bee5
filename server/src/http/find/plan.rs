//! How a query is answered.
//!
//! Source: `mango_cursor:create/4`, `mango_idx_special:is_usable/3`.

use hyper::StatusCode;
use mango::{Bookmark, Direction, IdRange, Query};
use model::AllDocsRequest;

use crate::http::error::{ApiError, Result};
use crate::http::find::design_name;

/// A query, and how it is answered: from the documents by id.
pub(crate) struct Plan {
    pub(crate) query: Query,
    /// The ids between which every match is.
    pub(crate) ids: IdRange,
    /// Why documents by id cannot answer it, in CouchDB's words; nothing where they can.
    pub(crate) unusable: Vec<&'static str>,
}

impl Plan {
    /// # Errors
    /// `invalid_index` where the client insists on another index.
    pub(crate) fn of(query: Query) -> Result<Plan> {
        let mut unusable = Vec::new();
        if !query.sort.is_empty() {
            if !query.selector.indexable_fields().iter().any(|field| field == "_id") {
                unusable.push("field_mismatch");
            }
            if !matches!(&query.sort[..], [(field, _)] if field == "_id") {
                unusable.push("sort_order_mismatch");
            }
        }
        if !query.allow_fallback {
            let reason = match &query.use_index[..] {
                [] => "You must specify an index with the `use_index` parameter.".to_owned(),
                [design, rest @ ..] => {
                    let name: String = rest.iter().map(|name| format!(", {name}")).collect();
                    let design = design_name(design);
                    format!("_design/{design}{name} specified by `use_index` could not be found or it is not suitable.")
                }
            };
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_index", reason));
        }
        let ids = query.selector.id_range();
        Ok(Plan { query, ids, unusable })
    }

    /// Whether there is nothing to search: CouchDB then answers without a bookmark.
    pub(crate) fn finds_nothing(&self) -> bool {
        self.ids.is_empty || self.query.selector.is_empty_combination()
    }

    pub(crate) fn is_descending(&self) -> bool {
        self.query.sort.first().is_some_and(|(_, direction)| *direction == Direction::Descending)
    }

    /// The documents to look at, behind a bookmark where there is one.
    pub(crate) fn listing(&self, bookmark: Option<&Bookmark>) -> AllDocsRequest {
        let descending = self.is_descending();
        let (from, to) = if descending { (&self.ids.high, &self.ids.low) } else { (&self.ids.low, &self.ids.high) };
        let part = |bound: &Option<(String, bool)>| match bound {
            Some((id, inclusive)) => (Some(id.clone()), *inclusive),
            None => (None, true),
        };
        let (mut start, mut inclusive_start) = part(from);
        let (end, inclusive_end) = part(to);
        if let Some(Bookmark { id }) = bookmark {
            // One from another query may lie before the range.
            let is_within = start.as_ref().is_none_or(|start| if descending { id <= start } else { id >= start });
            if is_within {
                (start, inclusive_start) = (Some(id.clone()), false);
            }
        }
        let (include_docs, conflicts) = (true, self.query.conflicts);
        AllDocsRequest {
            start,
            inclusive_start,
            end,
            inclusive_end,
            descending,
            include_docs,
            conflicts,
            ..AllDocsRequest::default()
        }
    }

    /// What CouchDB says about an index that was asked for and is not there.
    pub(crate) fn index_warning(&self) -> Option<String> {
        match &self.query.use_index[..] {
            [] => None,
            [design] => Some(format!(
                "_design/{} was not used because it does not contain a valid index for this query.",
                design_name(design)
            )),
            [design, name, ..] => Some(format!(
                "_design/{}, {name} was not used because it is not a valid index for this query.",
                design_name(design)
            )),
        }
    }
}
