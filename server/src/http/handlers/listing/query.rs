//! The query of a listing, and its range of ids.

use mango::Projection;
use model::{AllDocsRequest, JsonArray, JsonRef, JsonText};

use crate::http::error::{ApiError, Result};
use crate::http::operation::Param;
use crate::http::wire::row_query::{RowQuery, plain};
use crate::http::wire::{fields, paging, response};

/// An end of a range of ids. Keys do not sort as in views: a value that is not a string sorts before all ids, objects
/// too. That is the order of Erlang's terms in CouchDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    BelowAll,
    Id(String),
}

impl Key {
    fn of(key: &JsonText) -> Key {
        key.root().as_str().map_or(Key::BelowAll, |id| Key::Id(id.into_owned()))
    }
}

/// The parameter that listings have besides those of all queries for rows.
pub(crate) const FIELDS: &[Param] =
    &[Param::text("fields", "With `include_docs`: only these members, with commas or as a JSON array.")];

/// The query of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) rows: RowQuery,
    /// The id of the last row of the previous page.
    after: Option<String>,
    /// With `include_docs`: the requested members of documents.
    pub(crate) fields: Option<Projection>,
}

impl Query {
    /// Sets a parameter of the URL.
    pub(crate) fn set_text(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "fields" => self.fields = Some(fields::parse(value)?),
            _ => self.rows.set_text(name, value)?,
        }
        Ok(())
    }

    /// Sets a member of a JSON body.
    pub(crate) fn set(&mut self, name: &str, value: &JsonText) -> Result<()> {
        match name {
            "fields" => self.fields = Some(fields::parse(&plain(value))?),
            _ => self.rows.set(name, value)?,
        }
        Ok(())
    }

    /// Refuses invalid combinations, in the order in which CouchDB checks them. Call it after all parameters are set.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |reason: &'static str| Err(ApiError::query_parse(reason));
        let RowQuery { start, end, keys, group, group_level, .. } = &self.rows;
        self.rows.check_group()?;
        if self.rows.reduce == Some(true) {
            return refuse("Reduce is invalid for map-only views.");
        }
        self.rows.check_keys()?;
        let (start, end) = (start.as_ref().map(Key::of), end.as_ref().map(Key::of));
        let is_one = |keys: &JsonArray| match (keys.len(), keys.get_text(0)) {
            (1, Some(key)) => Some(Key::of(&key)) == start && start == end,
            (count, _) => count == 0,
        };
        if (start.is_some() || end.is_some()) && keys.as_ref().is_some_and(|keys| !is_one(keys)) {
            return refuse("`keys` is incompatible with `key`, `start_key` and `end_key`");
        }
        if group_level.unwrap_or(0) > 0 || (*group == Some(true) && group_level.is_none()) {
            return refuse("Invalid use of grouping on a map view.");
        }
        Ok(())
    }

    /// Refuses a partition of a database without partitions. Call it after [`check`](Self::check).
    pub(crate) fn check_partition(&self, is_partitioned: bool) -> Result<()> {
        match self.rows.partition {
            Some(_) if !is_partitioned => {
                Err(ApiError::query_parse("`partition` parameter is not supported on this db"))
            }
            _ => Ok(()),
        }
    }

    /// Takes one key in `keys` as `key`, as CouchDB does in one of several queries.
    pub(crate) fn unwrap_key(&mut self) {
        self.rows.keys.take_if(|keys| keys.len() == 1);
    }

    /// The end of the range at which the listing starts, and whether the row there is included.
    fn from(&self) -> Option<(Key, bool)> {
        match &self.after {
            Some(id) => Some((Key::Id(id.clone()), false)),
            None => key(&self.rows.start, &self.rows.start_id).map(|key| (key, true)),
        }
    }

    /// Continues at the place of a bookmark.
    pub(crate) fn go_on_at(&mut self, place: JsonRef<'_>) -> Result<()> {
        let number = |name| place.get(name).and_then(JsonRef::as_u64);
        let start = place.get("after").and_then(|id| id.as_str()).ok_or_else(paging::no_place)?;
        self.after = Some(start.into_owned());
        (self.rows.skip, self.rows.limit) = (number("skip").unwrap_or(0), number("limit"));
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

/// An end of a range: a key, or an id that is used without a key for that end (`startkey_docid`, `endkey_docid`).
fn key(key: &Option<JsonText>, id: &Option<String>) -> Option<Key> {
    key.as_ref().map(Key::of).or_else(|| id.clone().map(Key::Id))
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

/// The first id that may be listed, and the first id after the last one; `None` if all ids may be listed.
fn edges(query: &Query, namespace: Namespace) -> Option<(String, String)> {
    match (namespace.prefix(), &query.rows.partition) {
        // `0` is the character after the slash.
        (Some(prefix), _) => Some((prefix.to_owned(), prefix.replace('/', "0"))),
        (None, Some(partition)) => Some(mango::ids_of_partition(partition)),
        (None, None) => None,
    }
}

/// The range of all rows that may be listed.
pub(crate) fn whole(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let mut all = Query::default();
    (all.rows.descending, all.rows.partition) = (query.rows.descending, query.rows.partition.clone());
    range(&all, namespace)
}

/// The query's range as a request to the model; `None` if the range is empty.
pub(crate) fn range(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let RowQuery { end, end_id, inclusive_end, descending, .. } = &query.rows;
    let to = key(end, end_id).map(|key| (key, *inclusive_end));
    let from = query.from();
    let (low, high) = if *descending { (to, from) } else { (from, to) };
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
    let (start, end) = if *descending { (high, low) } else { (low, high) };
    let (start, inclusive_start) = start.map_or((None, true), |(id, inclusive)| (Some(id), inclusive));
    let (end, inclusive_end) = end.map_or((None, true), |(id, inclusive)| (Some(id), inclusive));
    Some(AllDocsRequest { start, inclusive_start, end, inclusive_end, ..fetch(query) })
}

/// The range of rows before the query's first one; `None` if the query starts with the first row of all.
pub(crate) fn before(query: &Query, namespace: Namespace) -> Option<AllDocsRequest> {
    let (start, has_start) = query.from()?;
    let all = whole(query, namespace)?;
    let end = match (start, query.rows.descending) {
        (Key::Id(id), _) => id,
        // All rows come before the start.
        (Key::BelowAll, true) => return Some(all),
        (Key::BelowAll, false) => return None,
    };
    let has_passed = |bound: &String| if query.rows.descending { end < *bound } else { end > *bound };
    match &all.end {
        Some(last) if has_passed(last) => Some(all),
        _ => Some(AllDocsRequest { end: Some(end), inclusive_end: !has_start, ..all }),
    }
}

/// A request to the model with the query's options, without its range.
pub(crate) fn fetch(query: &Query) -> AllDocsRequest {
    let rows = &query.rows;
    AllDocsRequest {
        descending: rows.descending,
        limit: rows.limit.and_then(|limit| usize::try_from(limit).ok()),
        skip: usize::try_from(rows.skip).unwrap_or(usize::MAX),
        include_docs: rows.include_docs,
        conflicts: rows.conflicts.unwrap_or(false),
        update_seq: rows.update_seq,
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
