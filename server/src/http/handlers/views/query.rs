//! The query of a view, and the rows that it reads.
//!
//! Source: `validate_args` of CouchDB's `couch_mrview_util.erl`.

use model::{Grouping, JsonRef, JsonText, ViewRequest, ViewResume};

use crate::http::error::{ApiError, Result};
use crate::http::wire::row_query::RowQuery;
use crate::http::wire::{paging, response};

/// How rows are grouped. A level overrides `group=true`, even level 0.
pub(super) fn grouping(query: &RowQuery) -> Grouping {
    match (query.group_level, query.group) {
        (Some(0), _) => Grouping::None,
        (Some(level), _) => Grouping::Level(level),
        (None, Some(true)) => Grouping::Exact,
        (None, _) => Grouping::None,
    }
}

/// Continues at the place of a bookmark.
pub(super) fn go_on_at(rows: &mut ViewRequest, place: JsonRef<'_>) -> Result<()> {
    let number = |name| place.get(name).and_then(JsonRef::as_u64);
    let resume = place.get("resume").and_then(ViewResume::read).ok_or_else(paging::no_place)?;
    rows.resume = Some(resume);
    (rows.skip, rows.limit) = (number("skip").unwrap_or(0), number("limit"));
    Ok(())
}

/// The rows to read. Refuses invalid combinations, in the order in which CouchDB checks them. `is_reduced`: rows are
/// reduced. `is_raw`: rows are in raw collation. `is_partitioned`: each partition has its own rows.
pub(super) fn request(query: &RowQuery, is_reduced: bool, is_raw: bool, is_partitioned: bool) -> Result<ViewRequest> {
    let grouping = grouping(query);
    let mut rows = rows(query);
    let refuse = |reason: &'static str| Err(ApiError::query_parse(reason));
    query.check_group()?;
    if query.reduce == Some(true) && !is_reduced {
        return refuse("Reduce is invalid for map-only views.");
    }
    if rows.keys.is_some() && is_reduced && grouping != Grouping::Exact {
        return refuse("Multi-key fetches for reduce views must use `group=true`");
    }
    query.check_keys()?;
    match &rows.keys {
        // Without keys there are no rows, whatever the range.
        Some(keys) if keys.is_empty() => (rows.start, rows.end) = (None, None),
        Some(_) if rows.start.is_some() || rows.end.is_some() => {
            return refuse("`keys` is incompatible with `key`, `start_key` and `end_key`");
        }
        _ => {}
    }
    if !is_reduced && grouping != Grouping::None {
        return refuse("Invalid use of grouping on a map view.");
    }
    if is_reduced && rows.include_docs {
        return refuse("`include_docs` is invalid for reduce");
    }
    if is_reduced && query.conflicts.is_some() {
        return refuse("`conflicts` is invalid for reduce views.");
    }
    match (&rows.partition, is_partitioned) {
        (None, true) => return refuse("`partition` parameter is mandatory for queries to this view."),
        (Some(_), false) => return refuse("`partition` parameter is not supported in this design doc"),
        _ => {}
    }
    if let (Some(start), Some(end)) = (&rows.start, &rows.end) {
        let order = match is_raw {
            true => mango::compare_terms(start.root(), end.root()),
            false => key_order(start).cmp(&key_order(end)),
        };
        if order.is_gt() && !rows.descending {
            return refuse(
                "No rows can match your key range, reverse your start_key and end_key or set descending=true",
            );
        }
        if order.is_lt() && rows.descending {
            return refuse(
                "No rows can match your key range, reverse your start_key and end_key or set descending=false",
            );
        }
    }
    // As in CouchDB, a document without a key is ignored. With `keys`, it is one of the rows of each key.
    if rows.start.is_none() && rows.keys.is_none() {
        rows.start_id = None;
    }
    if rows.end.is_none() && rows.keys.is_none() {
        rows.end_id = None;
    }
    Ok(rows)
}

fn rows(query: &RowQuery) -> ViewRequest {
    let RowQuery { start, start_id, end, end_id, keys, partition, .. } = query.clone();
    ViewRequest {
        partition,
        keys,
        start,
        start_id,
        end,
        end_id,
        inclusive_end: query.inclusive_end,
        descending: query.descending,
        skip: query.skip,
        limit: query.limit,
        include_docs: query.include_docs,
        conflicts: query.conflicts.unwrap_or(false),
        ..ViewRequest::default()
    }
}

/// The place where a query continues, for a bookmark.
pub(super) fn place(next: &ViewRequest) -> Option<JsonText> {
    let resume = next.resume.as_ref()?.write();
    JsonText::from_normalised(response::object_text(|json| {
        json.name("resume").text(&resume).name("skip").u64(next.skip);
        if let Some(limit) = next.limit {
            json.name("limit").u64(limit);
        }
    }))
}

fn key_order(key: &JsonText) -> Vec<u8> {
    let mut out = Vec::new();
    mango::append_key(&mut out, key.root());
    out
}
