//! The query of a view, from the URL or from JSON.
//!
//! Source: `parse_param` and `validate_args` of CouchDB's `couch_mrview_http.erl` and `couch_mrview_util.erl`.

use model::{Grouping, JsonRef, JsonText, ViewRequest, ViewResume};

use crate::http::error::{ApiError, Result};
use crate::http::wire::{paging, params, response};

/// How fresh the view must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Update {
    /// As of the request.
    #[default]
    Before,
    /// As it is.
    None,
    /// As it is; it is updated afterwards.
    After,
}

/// The query of a view.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    pub(super) rows: ViewRequest,
    pub(super) reduce: Option<bool>,
    group: Option<bool>,
    group_level: Option<u64>,
    /// `keys` is no array.
    has_wrong_keys: bool,
    has_conflicts: bool,
    pub(super) update: Update,
    pub(super) update_seq: bool,
    pub(super) attachments: bool,
    pub(super) att_encoding_info: bool,
}

impl Query {
    /// Sets a parameter of the URL. Keys are JSON there, everything else is plain text.
    pub(super) fn set_text(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "key" | "keys" | "startkey" | "start_key" | "endkey" | "end_key" => {
                self.set(name, &params::parse_json(value)?)
            }
            _ => self.set_plain(name, value),
        }
    }

    /// Sets a member of a JSON body.
    pub(super) fn set(&mut self, name: &str, value: &JsonText) -> Result<()> {
        match name {
            "key" => (self.rows.start, self.rows.end) = (Some(value.clone()), Some(value.clone())),
            "startkey" | "start_key" => self.rows.start = Some(value.clone()),
            "endkey" | "end_key" => self.rows.end = Some(value.clone()),
            "keys" => match value.to_array() {
                // One key in a list is that key, so a reduce of it needs no group.
                Some(keys) if keys.len() == 1 => {
                    let key = keys.get_text(0);
                    (self.rows.start, self.rows.end) = (key.clone(), key);
                }
                Some(keys) => (self.rows.keys, self.has_wrong_keys) = (Some(keys), false),
                None => self.has_wrong_keys = true,
            },
            _ => {
                let text = value.root().as_str().unwrap_or(value.as_str().into()).into_owned();
                self.set_plain(name, &text)?;
            }
        }
        Ok(())
    }

    fn set_plain(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "startkey_docid" | "start_key_doc_id" => self.rows.start_id = Some(value.to_owned()),
            "endkey_docid" | "end_key_doc_id" => self.rows.end_id = Some(value.to_owned()),
            "inclusive_end" => self.rows.inclusive_end = params::parse_bool(value)?,
            "descending" => self.rows.descending = params::parse_bool(value)?,
            "limit" => self.rows.limit = Some(params::parse_limit(value)?),
            "skip" => self.rows.skip = params::parse_count(value)?,
            "include_docs" => self.rows.include_docs = params::parse_bool(value)?,
            "conflicts" => (self.rows.conflicts, self.has_conflicts) = (params::parse_bool(value)?, true),
            "reduce" => self.reduce = Some(params::parse_bool(value)?),
            "group" => self.group = Some(params::parse_bool(value)?),
            "group_level" => self.group_level = Some(params::parse_count(value)?),
            "update_seq" => self.update_seq = params::parse_bool(value)?,
            "attachments" => self.attachments = params::parse_bool(value)?,
            "att_encoding_info" => self.att_encoding_info = params::parse_bool(value)?,
            "sorted" => {
                params::parse_bool(value)?;
            }
            "stale" => {
                self.update = match value {
                    "ok" => Update::None,
                    "update_after" => Update::After,
                    _ => return Err(ApiError::query_parse("Invalid value for `stale`.")),
                }
            }
            "update" => {
                self.update = match value {
                    "true" => Update::Before,
                    "false" => Update::None,
                    "lazy" => Update::After,
                    _ => return Err(ApiError::query_parse("Invalid value for `update`.")),
                }
            }
            "stable" if !matches!(value, "true" | "false") => {
                return Err(ApiError::query_parse("Invalid value for `stable`."));
            }
            "partition" => {
                params::check_partition(value)?;
                self.rows.partition = Some(value.to_owned());
            }
            "page_size" | "bookmark" => return Err(ApiError::bad_request(paging::REFUSED)),
            _ => {}
        }
        Ok(())
    }

    /// How rows are grouped. A level overrides `group=true`, even level 0.
    pub(super) fn grouping(&self) -> Grouping {
        match (self.group_level, self.group) {
            (Some(0), _) => Grouping::None,
            (Some(level), _) => Grouping::Level(level),
            (None, Some(true)) => Grouping::Exact,
            (None, _) => Grouping::None,
        }
    }

    /// Goes to the place of a bookmark.
    pub(super) fn go_on_at(&mut self, place: JsonRef<'_>) -> Result<()> {
        let number = |name| place.get(name).and_then(JsonRef::as_u64);
        let resume = place.get("resume").and_then(ViewResume::read).ok_or_else(paging::no_place)?;
        self.rows.resume = Some(resume);
        (self.rows.skip, self.rows.limit) = (number("skip").unwrap_or(0), number("limit"));
        Ok(())
    }

    /// Refuses invalid combinations, in the order in which CouchDB looks at them. `is_reduced` tells whether rows are
    /// reduced, `is_raw` whether they are in raw collation, `is_partitioned` whether each partition has its own. Call
    /// it after all parameters are set.
    pub(super) fn check(&mut self, is_reduced: bool, is_raw: bool, is_partitioned: bool) -> Result<()> {
        let grouping = self.grouping();
        let refuse = |reason: &'static str| Err(ApiError::query_parse(reason));
        if self.group == Some(false) && self.group_level.is_some_and(|level| level > 0) {
            return refuse("Can't specify group=false and group_level>0 at the same time");
        }
        if self.reduce == Some(true) && !is_reduced {
            return refuse("Reduce is invalid for map-only views.");
        }
        if self.rows.keys.is_some() && is_reduced && grouping != Grouping::Exact {
            return refuse("Multi-key fetches for reduce views must use `group=true`");
        }
        if self.has_wrong_keys {
            return refuse("`keys` must be an array of strings.");
        }
        match &self.rows.keys {
            // No key has a row, whatever the range.
            Some(keys) if keys.is_empty() => (self.rows.start, self.rows.end) = (None, None),
            Some(_) if self.rows.start.is_some() || self.rows.end.is_some() => {
                return refuse("`keys` is incompatible with `key`, `start_key` and `end_key`");
            }
            _ => {}
        }
        if !is_reduced && grouping != Grouping::None {
            return refuse("Invalid use of grouping on a map view.");
        }
        if is_reduced && self.rows.include_docs {
            return refuse("`include_docs` is invalid for reduce");
        }
        if is_reduced && self.has_conflicts {
            return refuse("`conflicts` is invalid for reduce views.");
        }
        match (&self.rows.partition, is_partitioned) {
            (None, true) => return refuse("`partition` parameter is mandatory for queries to this view."),
            (Some(_), false) => return refuse("`partition` parameter is not supported in this design doc"),
            _ => {}
        }
        if let (Some(start), Some(end)) = (&self.rows.start, &self.rows.end) {
            let order = match is_raw {
                true => mango::compare_terms(start.root(), end.root()),
                false => key_order(start).cmp(&key_order(end)),
            };
            if order.is_gt() && !self.rows.descending {
                return refuse(
                    "No rows can match your key range, reverse your start_key and end_key or set descending=true",
                );
            }
            if order.is_lt() && self.rows.descending {
                return refuse(
                    "No rows can match your key range, reverse your start_key and end_key or set descending=false",
                );
            }
        }
        // As in CouchDB, a document without a key is ignored. With `keys`, it is one of the rows of each key.
        if self.rows.start.is_none() && self.rows.keys.is_none() {
            self.rows.start_id = None;
        }
        if self.rows.end.is_none() && self.rows.keys.is_none() {
            self.rows.end_id = None;
        }
        Ok(())
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
