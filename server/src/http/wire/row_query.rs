//! The parameters that queries of listings and of views share: which rows they read, and what rows contain.
//!
//! Source: `parse_param` of CouchDB's `couch_mrview_http.erl`.

use model::{JsonArray, JsonText};

use super::{paging, params};
use crate::http::error::{ApiError, Result};
use crate::http::operation::Param;

/// The parameters that [`RowQuery::set_text`] reads. They may be members of a body too.
pub(crate) const PARAMS: &[Param] = &[
    Param::json("key", "Only rows with this key."),
    Param::array("keys", "Only rows with these keys, in this order."),
    Param::json("startkey", "The first key."),
    Param::json("start_key", "The same."),
    Param::json("endkey", "The last key."),
    Param::json("end_key", "The same."),
    Param::text("startkey_docid", "The first id among rows with the first key."),
    Param::text("start_key_doc_id", "The same."),
    Param::text("endkey_docid", "The last id among rows with the last key."),
    Param::text("end_key_doc_id", "The same."),
    Param::flag("inclusive_end", "Whether rows with the last key are listed too; `true` by default."),
    Param::flag("descending", "In descending order; the first key is then the highest one."),
    Param::count("limit", "How many rows at most."),
    Param::count("skip", "How many rows to leave out at the beginning."),
    Param::flag("include_docs", "With the documents."),
    Param::flag("conflicts", "With `include_docs`: with their conflicts."),
    Param::flag("attachments", "With `include_docs`: with the contents of attachments."),
    Param::flag("att_encoding_info", "With `include_docs`: with the encodings of attachments."),
    Param::flag("reduce", "Whether the view's reduce function is applied; refused in a listing of documents."),
    Param::flag("group", "One row for each key; refused in a listing of documents."),
    Param::count("group_level", "One row for each beginning of a key of this length; as `group`."),
    Param::flag("update_seq", "With the sequence of the last change in the answer."),
    Param::flag("sorted", "Without effect: rows are always sorted."),
    Param::choice("stale", &["ok", "update_after"], "As `update` with `false` and `lazy`."),
    Param::choice("update", &["true", "false", "lazy"], "Whether the view is updated before the answer."),
    Param::flag("stable", "Without effect: there is one copy of the data."),
    Param::text("partition", "Only rows of this partition."),
];

/// How fresh a view must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Update {
    /// As of the request.
    #[default]
    Before,
    /// As it is.
    None,
    /// As it is; it is updated afterwards.
    After,
}

/// A query for rows with keys.
#[derive(Clone, Debug)]
pub(crate) struct RowQuery {
    pub(crate) start: Option<JsonText>,
    pub(crate) start_id: Option<String>,
    pub(crate) end: Option<JsonText>,
    pub(crate) end_id: Option<String>,
    pub(crate) inclusive_end: bool,
    pub(crate) keys: Option<JsonArray>,
    /// `keys` is not an array.
    has_wrong_keys: bool,
    /// A single key in `keys` counts as `key` only.
    unwraps_key: bool,
    /// Only rows of this partition.
    pub(crate) partition: Option<String>,
    pub(crate) descending: bool,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) include_docs: bool,
    pub(crate) conflicts: Option<bool>,
    pub(crate) attachments: bool,
    pub(crate) att_encoding_info: bool,
    pub(crate) reduce: Option<bool>,
    pub(crate) group: Option<bool>,
    pub(crate) group_level: Option<u64>,
    pub(crate) update: Update,
    pub(crate) update_seq: bool,
}

impl Default for RowQuery {
    fn default() -> Self {
        RowQuery {
            start: None,
            start_id: None,
            end: None,
            end_id: None,
            inclusive_end: true,
            keys: None,
            has_wrong_keys: false,
            unwraps_key: false,
            partition: None,
            descending: false,
            skip: 0,
            limit: None,
            include_docs: false,
            conflicts: None,
            attachments: false,
            att_encoding_info: false,
            reduce: None,
            group: None,
            group_level: None,
            update: Update::default(),
            update_seq: false,
        }
    }
}

impl RowQuery {
    /// An empty query of a view. A single key in `keys` counts as `key`, so a reduce needs no group.
    pub(crate) fn of_view() -> RowQuery {
        RowQuery { unwraps_key: true, ..RowQuery::default() }
    }

    /// Sets a parameter of the URL. Keys are JSON there, everything else is plain text.
    pub(crate) fn set_text(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "key" | "keys" | "startkey" | "start_key" | "endkey" | "end_key" => {
                self.set(name, &params::parse_json(value)?)
            }
            _ => self.set_plain(name, value),
        }
    }

    /// Sets a member of a JSON body.
    pub(crate) fn set(&mut self, name: &str, value: &JsonText) -> Result<()> {
        match name {
            "key" => (self.start, self.end) = (Some(value.clone()), Some(value.clone())),
            "startkey" | "start_key" => self.start = Some(value.clone()),
            "endkey" | "end_key" => self.end = Some(value.clone()),
            "keys" => match value.to_array() {
                Some(keys) => {
                    // One key in `keys` is also `key`: it replaces a range given before it.
                    let is_one = keys.len() == 1;
                    if is_one {
                        (self.start, self.end) = (keys.get_text(0), keys.get_text(0));
                    }
                    if !is_one || !self.unwraps_key {
                        (self.keys, self.has_wrong_keys) = (Some(keys), false);
                    }
                }
                None => self.has_wrong_keys = true,
            },
            _ => self.set_plain(name, &plain(value))?,
        }
        Ok(())
    }

    fn set_plain(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "startkey_docid" | "start_key_doc_id" => self.start_id = Some(value.to_owned()),
            "endkey_docid" | "end_key_doc_id" => self.end_id = Some(value.to_owned()),
            "inclusive_end" => self.inclusive_end = params::parse_bool(value)?,
            "descending" => self.descending = params::parse_bool(value)?,
            "limit" => self.limit = Some(params::parse_limit(value)?),
            "skip" => self.skip = params::parse_count(value)?,
            "include_docs" => self.include_docs = params::parse_bool(value)?,
            "conflicts" => self.conflicts = Some(params::parse_bool(value)?),
            "attachments" => self.attachments = params::parse_bool(value)?,
            "att_encoding_info" => self.att_encoding_info = params::parse_bool(value)?,
            "reduce" => self.reduce = Some(params::parse_bool(value)?),
            "group" => self.group = Some(params::parse_bool(value)?),
            "group_level" => self.group_level = Some(params::parse_count(value)?),
            "update_seq" => self.update_seq = params::parse_bool(value)?,
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
                self.partition = Some(value.to_owned());
            }
            "page_size" | "bookmark" => return Err(ApiError::bad_request(paging::REFUSED)),
            _ => {}
        }
        Ok(())
    }

    /// Refuses a grouping that contradicts itself.
    pub(crate) fn check_group(&self) -> Result<()> {
        if self.group == Some(false) && self.group_level.is_some_and(|level| level > 0) {
            let reason = "Can't specify group=false and group_level>0 at the same time";
            return Err(ApiError::query_parse(reason));
        }
        Ok(())
    }

    /// Refuses `keys` that are not an array.
    pub(crate) fn check_keys(&self) -> Result<()> {
        if self.has_wrong_keys {
            return Err(ApiError::query_parse("`keys` must be an array of strings."));
        }
        Ok(())
    }
}

/// The text of a member of a JSON body, as it would be in a URL.
pub(crate) fn plain(value: &JsonText) -> String {
    value.root().as_str().unwrap_or(value.as_str().into()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_that_is_described_is_read() {
        for param in PARAMS {
            let mut query = RowQuery::default();
            // Either it is refused by its value, or it is kept.
            let is_read = query.set_text(param.name, "7").is_err()
                || format!("{query:?}") != format!("{:?}", RowQuery::default());
            assert!(is_read, "{}", param.name);
        }
        let mut query = RowQuery::default();
        query.set_text("unknown", "7").unwrap();
        assert_eq!(format!("{query:?}"), format!("{:?}", RowQuery::default()));
    }
}
