//! The query of a listing, from the URL or from JSON, and its range of ids.
//!
//! Source: `parse_param` of CouchDB's `couch_mrview_http.erl`.

use mango::Projection;
use model::{AllDocsRequest, JsonArray, JsonRef, JsonText};

use crate::http::error::{ApiError, Result};
use crate::http::wire::{fields, paging, params, response};

/// An end of a range of ids. Keys do not sort as in views: whatever is no string is before all ids, objects too. In
/// CouchDB that is the order of Erlang's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    BelowAll,
    Id(String),
}

impl Key {
    fn of(key: JsonRef<'_>) -> Key {
        key.as_str().map_or(Key::BelowAll, |id| Key::Id(id.into_owned()))
    }
}

/// The query of a listing.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) start: Option<Key>,
    /// The row at `start` itself was in the page before.
    after_start: bool,
    pub(crate) end: Option<Key>,
    /// Ends of the range, used without a key for that end (`startkey_docid`, `endkey_docid`).
    start_id: Option<String>,
    end_id: Option<String>,
    pub(crate) inclusive_end: bool,
    pub(crate) keys: Option<JsonArray>,
    /// `keys` is no array.
    has_wrong_keys: bool,
    reduce: bool,
    group: Option<bool>,
    group_level: Option<u64>,
    /// Only documents of this partition.
    pub(crate) partition: Option<String>,
    pub(crate) descending: bool,
    pub(crate) limit: u64,
    pub(crate) skip: u64,
    pub(crate) include_docs: bool,
    /// With `include_docs`: the requested members of documents.
    pub(crate) fields: Option<Projection>,
    pub(crate) conflicts: bool,
    pub(crate) update_seq: bool,
    pub(crate) attachments: bool,
    pub(crate) att_encoding_info: bool,
}

impl Default for Query {
    fn default() -> Self {
        Query {
            start: None,
            after_start: false,
            end: None,
            start_id: None,
            end_id: None,
            inclusive_end: true,
            keys: None,
            has_wrong_keys: false,
            reduce: false,
            group: None,
            group_level: None,
            partition: None,
            descending: false,
            limit: u64::MAX,
            skip: 0,
            include_docs: false,
            fields: None,
            conflicts: false,
            update_seq: false,
            attachments: false,
            att_encoding_info: false,
        }
    }
}

impl Query {
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
            "key" => {
                self.start = Some(Key::of(value.root()));
                self.end = self.start.clone();
            }
            "startkey" | "start_key" => self.start = Some(Key::of(value.root())),
            "endkey" | "end_key" => self.end = Some(Key::of(value.root())),
            "keys" => match value.to_array() {
                Some(keys) => {
                    // One key in `keys` also counts as `key`: it replaces a range given before it, and a different one
                    // after it is an error.
                    if let (1, Some(key)) = (keys.len(), keys.get(0)) {
                        self.start = Some(Key::of(key));
                        self.end = self.start.clone();
                    }
                    (self.keys, self.has_wrong_keys) = (Some(keys), false);
                }
                None => self.has_wrong_keys = true,
            },
            _ => {
                let text = value.root().as_str().unwrap_or(value.as_str().into()).into_owned();
                self.set_plain(name, &text)?;
            }
        }
        Ok(())
    }

    /// Refuses invalid combinations, in the order in which CouchDB looks at them. Call it after all parameters are set.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |reason: &'static str| Err(ApiError::query_parse(reason));
        let level = self.group_level.unwrap_or(0);
        if self.group == Some(false) && level > 0 {
            return refuse("Can't specify group=false and group_level>0 at the same time");
        }
        if self.reduce {
            return refuse("Reduce is invalid for map-only views.");
        }
        if self.has_wrong_keys {
            return refuse("`keys` must be an array of strings.");
        }
        let is_one = |keys: &JsonArray| match (keys.len(), keys.get(0)) {
            (1, Some(key)) => Some(Key::of(key)) == self.start && self.start == self.end,
            (count, _) => count == 0,
        };
        let has_range = self.start.is_some() || self.end.is_some();
        if has_range && self.keys.as_ref().is_some_and(|keys| !is_one(keys)) {
            return refuse("`keys` is incompatible with `key`, `start_key` and `end_key`");
        }
        if level > 0 || (self.group == Some(true) && self.group_level.is_none()) {
            return refuse("Invalid use of grouping on a map view.");
        }
        Ok(())
    }

    /// Refuses a partition of a database that has none. Call it after [`check`](Self::check).
    pub(crate) fn check_partition(&self, is_partitioned: bool) -> Result<()> {
        match self.partition {
            Some(_) if !is_partitioned => {
                Err(ApiError::query_parse("`partition` parameter is not supported on this db"))
            }
            _ => Ok(()),
        }
    }

    /// Takes one key in `keys` as `key`, as CouchDB does in one of several queries.
    pub(crate) fn unwrap_key(&mut self) {
        self.keys.take_if(|keys| keys.len() == 1);
    }

    fn set_plain(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "startkey_docid" | "start_key_doc_id" => self.start_id = Some(value.to_owned()),
            "endkey_docid" | "end_key_doc_id" => self.end_id = Some(value.to_owned()),
            "inclusive_end" => self.inclusive_end = params::parse_bool(value)?,
            "descending" => self.descending = params::parse_bool(value)?,
            "limit" => self.limit = params::parse_limit(value)?,
            "skip" => self.skip = params::parse_count(value)?,
            "include_docs" => self.include_docs = params::parse_bool(value)?,
            "fields" => self.fields = Some(fields::parse(value)?),
            "conflicts" => self.conflicts = params::parse_bool(value)?,
            "update_seq" => self.update_seq = params::parse_bool(value)?,
            "attachments" => self.attachments = params::parse_bool(value)?,
            "att_encoding_info" => self.att_encoding_info = params::parse_bool(value)?,
            "sorted" => {
                params::parse_bool(value)?;
            }
            "stale" if !matches!(value, "ok" | "update_after") => {
                return Err(ApiError::query_parse("Invalid value for `stale`."));
            }
            "stable" if !matches!(value, "true" | "false") => {
                return Err(ApiError::query_parse("Invalid value for `stable`."));
            }
            "update" if !matches!(value, "true" | "false" | "lazy") => {
                return Err(ApiError::query_parse("Invalid value for `update`."));
            }
            "reduce" => self.reduce = params::parse_bool(value)?,
            "group" => self.group = Some(params::parse_bool(value)?),
            "group_level" => self.group_level = Some(params::parse_count(value)?),
            "partition" => {
                params::check_partition(value)?;
                self.partition = Some(value.to_owned());
            }
            "page_size" | "bookmark" => return Err(ApiError::bad_request(paging::REFUSED)),
            _ => {}
        }
        Ok(())
    }

    /// Goes to the place of a bookmark.
    pub(crate) fn go_on_at(&mut self, place: JsonRef<'_>) -> Result<()> {
        let number = |name| place.get(name).and_then(JsonRef::as_u64);
        let start = place.get("after").and_then(|id| id.as_str()).ok_or_else(paging::no_place)?;
        (self.start, self.after_start) = (Some(Key::Id(start.into_owned())), true);
        (self.skip, self.limit) = (number("skip").unwrap_or(0), number("limit").unwrap_or(u64::MAX));
        Ok(())
    }
}

/// The place where a listing continues, for a bookmark.
pub(crate) fn place(next: &AllDocsRequest) -> Option<JsonText> {
    let start = next.start.as_ref()?;
    JsonText::from_normalised(response::object_text(|json| {
        json.name("after").str(start).name("skip").u64(next.skip as u64);
        if let Some(limit) = next.limit {
            json.name("limit").u64(limit as u64);
        }
    }))
}

/// The documents that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    All,
    Design,
    Local,
}

impl Namespace {
    /// Prefix of the ids.
    pub(crate) fn prefix(self) -> Option<&'static str> {
        match self {
            Namespace::All => None,
            Namespace::Design => Some("_design/"),
            Namespace::Local => Some("_local/"),
        }
    }
}

/// The first id that may be listed, and the first one after those; `None` if all may be.
fn edges(query: &Query, namespace: Namespace) -> Option<(String, String)> {
    match (namespace.prefix(), &query.partition) {
        // `0` is the character after the slash.
        (Some(prefix), _) => Some((prefix.to_owned(), prefix.replace('/', "0"))),
        (None, Some(partition)) => Some(mango::ids_of_partition(partition)),
        (None, None) => None,
    }
}

/// The range of all rows that may be listed.
pub(crate) fn whole(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let (descending, partition) = (query.descending, query.partition.clone());
    range(&Query { descending, partition, ..Query::default() }, namespace)
}

/// The query's range as a request to the model; `None` if the range is empty.
pub(crate) fn range(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let key = |key: &Option<Key>, id: &Option<String>| key.clone().or_else(|| id.clone().map(Key::Id));
    let from = key(&query.start, &query.start_id).map(|key| (key, !query.after_start));
    let to = key(&query.end, &query.end_id).map(|key| (key, query.inclusive_end));
    let (low, high) = if query.descending { (to, from) } else { (from, to) };
    let mut low = match low {
        None | Some((Key::BelowAll, _)) => None,
        Some((Key::Id(id), inclusive)) => Some((id, inclusive)),
    };
    let mut high = match high {
        None => None,
        Some((Key::Id(id), inclusive)) => Some((id, inclusive)),
        Some((Key::BelowAll, _)) => return None,
    };
    if let Some((first, beyond)) = edges(query, namespace) {
        if low.as_ref().is_none_or(|(id, _)| *id < first) {
            low = Some((first, true));
        }
        if high.as_ref().is_none_or(|(id, _)| *id >= beyond) {
            high = Some((beyond, false));
        }
    }
    let (start, end) = if query.descending { (high, low) } else { (low, high) };
    let (start, inclusive_start) = start.map_or((None, true), |(id, inclusive)| (Some(id), inclusive));
    let (end, inclusive_end) = end.map_or((None, true), |(id, inclusive)| (Some(id), inclusive));
    Some(AllDocsRequest { start, inclusive_start, end, inclusive_end, ..fetch(query) })
}

/// The range of rows before the query's first one; `None` if the query starts with the first row of all.
pub(crate) fn before(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let start = query.start.clone().or_else(|| query.start_id.clone().map(Key::Id))?;
    let all = whole(query, namespace)?;
    let end = match (start, query.descending) {
        (Key::Id(id), _) => id,
        // All rows are before the start.
        (Key::BelowAll, true) => return Some(all),
        (Key::BelowAll, false) => return None,
    };
    let has_passed = |bound: &String| if query.descending { end < *bound } else { end > *bound };
    match &all.end {
        Some(last) if has_passed(last) => Some(all),
        _ => Some(AllDocsRequest { end: Some(end), inclusive_end: query.after_start, ..all }),
    }
}

/// A request to the model with the query's options, without its range.
pub(crate) fn fetch(query: &Query) -> AllDocsRequest {
    AllDocsRequest {
        descending: query.descending,
        limit: usize::try_from(query.limit).ok(),
        skip: usize::try_from(query.skip).unwrap_or(usize::MAX),
        include_docs: query.include_docs,
        conflicts: query.conflicts,
        update_seq: query.update_seq,
        ..AllDocsRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(params: &[(&str, &str)]) -> Result<Query> {
        let mut query = Query::default();
        params.iter().try_for_each(|(name, value)| query.set_text(name, value))?;
        query.check()?;
        Ok(query)
    }

    #[test]
    fn ranges_follow_the_order_of_views() {
        let listed = |params: &[(&str, &str)]| {
            let request = range(&query(params).unwrap(), Namespace::All)?;
            Some((request.start, request.end, request.inclusive_end))
        };
        let id = |id: &str| Some(id.to_owned());
        assert_eq!(listed(&[]), Some((None, None, true)));
        assert_eq!(listed(&[("startkey", "\"a\""), ("end_key", "\"b\"")]), Some((id("a"), id("b"), true)));
        assert_eq!(listed(&[("key", "\"a\"")]), Some((id("a"), id("a"), true)));
        for below in ["null", "{}", "[]", "7", "true"] {
            assert_eq!(listed(&[("startkey", below)]), Some((None, None, true)), "{below}");
            assert_eq!(listed(&[("endkey", below)]), None, "{below}");
        }
        let down = [("endkey", "\"b\""), ("descending", "true"), ("inclusive_end", "false")];
        assert_eq!(listed(&down), Some((None, id("b"), false)));
    }

    #[test]
    fn what_comes_first_is_refused_first() {
        let reason = |params: &[(&str, &str)]| query(params).unwrap_err().reason().to_owned();
        let mut params = vec![("group_level", "1")];
        assert_eq!(reason(&params), "Invalid use of grouping on a map view.");
        params.extend([("key", "1"), ("keys", "[1,2]")]);
        assert_eq!(reason(&params), "`keys` is incompatible with `key`, `start_key` and `end_key`");
        params.push(("keys", "7"));
        assert_eq!(reason(&params), "`keys` must be an array of strings.");
        params.push(("reduce", "true"));
        assert_eq!(reason(&params), "Reduce is invalid for map-only views.");
        params.push(("group", "false"));
        assert_eq!(reason(&params), "Can't specify group=false and group_level>0 at the same time");
        query(&[("group", "true"), ("group_level", "0"), ("keys", "[]"), ("startkey", "1")]).unwrap();
        query(&[("startkey", "1"), ("keys", "[\"a\"]")]).unwrap();
        query(&[("keys", "[\"a\"]"), ("startkey", "1")]).unwrap_err();
    }

    #[test]
    fn a_partition_clamps_the_range() {
        let listed = |params: &[(&str, &str)]| {
            let request = range(&query(params).unwrap(), Namespace::All).unwrap();
            let text =
                |id: Option<String>, inclusive| format!("{}{}", id.unwrap(), if inclusive { "" } else { " not" });
            [text(request.start, request.inclusive_start), text(request.end, request.inclusive_end)]
        };
        let p = ("partition", "p");
        assert_eq!(listed(&[p]), ["p:", "p; not"]);
        assert_eq!(listed(&[p, ("descending", "true")]), ["p; not", "p:"]);
        assert_eq!(listed(&[p, ("startkey", "\"p:b\""), ("endkey", "\"z\"")]), ["p:b", "p; not"]);
        assert_eq!(
            listed(&[p, ("startkey", "\"a\""), ("endkey", "\"p:c\""), ("inclusive_end", "false")]),
            ["p:", "p:c not"]
        );
        let refused = query(&[p]).unwrap().check_partition(false).unwrap_err();
        assert_eq!(refused.reason(), "`partition` parameter is not supported on this db");
        query(&[p]).unwrap().check_partition(true).unwrap();
    }

    #[test]
    fn a_namespace_clamps_the_range() {
        let request = range(&query(&[("startkey", "\"a\""), ("descending", "true")]).unwrap(), Namespace::Design);
        let request = request.unwrap();
        assert_eq!((request.start.as_deref(), request.inclusive_start), (Some("_design0"), false));
        assert_eq!((request.end.as_deref(), request.inclusive_end), (Some("_design/"), true));
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused() {
        for (name, value) in [
            ("limit", "-1"),
            ("limit", "x"),
            ("skip", "1.5"),
            ("include_docs", "maybe"),
            ("descending", "1"),
            ("reduce", "true"),
            ("group_level", "1"),
            ("stale", "never"),
            ("stable", "TRUE"),
            ("keys", "null"),
        ] {
            assert_eq!(query(&[(name, value)]).unwrap_err().error(), "query_parse_error", "{name}={value}");
        }
        for (name, value) in [("startkey", "a"), ("keys", "{"), ("key", "")] {
            assert_eq!(query(&[(name, value)]).unwrap_err().error(), "bad_request", "{name}={value}");
        }
    }
}
