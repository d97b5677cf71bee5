//! The requests of `_find` and `_explain`.
//!
//! Source: `mango_opts.erl`. The order of checks and the names of errors are the same.

use json::{JsonKind, JsonRef, JsonText};

use crate::error::{Error, echo};
use crate::partition::{check_partition, ids_of_partition, illegal_partition, partition_of};
use crate::path;
use crate::projection::Projection;
use crate::selector::{IdRange, Selector};

/// Default of the maximum number of documents.
const DEFAULT_LIMIT: u64 = 25;

/// Maximum number of fields to sort by. An index has far fewer.
const MAX_SORT: usize = 1_000;

/// The direction of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The lowest first.
    Ascending,
    /// The highest first.
    Descending,
}

impl Direction {
    /// Its name in requests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Direction::Ascending => "asc",
            Direction::Descending => "desc",
        }
    }
}

/// A valid query.
#[derive(Clone, Debug)]
pub struct Query {
    /// The documents to find.
    pub selector: Selector,
    /// The index to use: empty, a design document, or a design document and the name of an index in it.
    pub use_index: Vec<String>,
    /// The bookmark of the last answer.
    pub bookmark: Option<String>,
    /// Maximum number of documents.
    pub limit: u64,
    /// Number of matching documents to skip first.
    pub skip: u64,
    /// The fields to sort by, all in the same direction.
    pub sort: Vec<(String, Direction)>,
    /// The fields to return.
    pub fields: Projection,
    /// The partition to search; empty for none.
    pub partition: String,
    /// Whether the database is partitioned, as the caller says. Only an error's reason and `_explain` depend on it.
    pub in_partitioned: bool,
    /// Number of copies to read. There is one copy, so it only affects the statistics.
    pub r: u64,
    /// Include the losing leaves in the documents.
    pub conflicts: bool,
    /// Whether an index may be stale. Here an index never is.
    pub stale: bool,
    /// Whether an index is updated first. Here it always is.
    pub update: bool,
    /// Whether to read the same copies each time. There is one copy.
    pub stable: bool,
    /// Include statistics of the search.
    pub execution_stats: bool,
    /// Whether an index other than the requested one may be used.
    pub allow_fallback: bool,
}

impl Query {
    /// Parses the body of a request, a JSON object.
    ///
    /// # Errors
    /// [`Error`] names the first parameter that is wrong.
    pub fn parse(body: &JsonText) -> Result<Self, Error> {
        let root = body.root();
        let flag = |name: &str, default: bool| match root.get(name) {
            None => Ok(default),
            Some(value) => {
                let wrong = || Error::bad_value("invalid_boolean", "Invalid boolean value: ", value.text());
                value.as_bool().ok_or_else(wrong)
            }
        };
        let selector = match root.get("selector") {
            None => return Err(Error::plain("missing_required_key", "Missing required key: selector")),
            Some(selector) if !selector.is_object() => {
                let says = "Selector must be a JSON object, not: ";
                return Err(Error::bad_value("invalid_selector_json", says, selector.text()));
            }
            Some(selector) => Selector::parse(&body.slice_ref(selector))?,
        };
        let query = Query {
            selector,
            use_index: root.get("use_index").map_or(Ok(Vec::new()), use_index)?,
            bookmark: root.get("bookmark").map_or(Ok(None), bookmark)?,
            limit: root.get("limit").map_or(Ok(DEFAULT_LIMIT), count)?,
            skip: root.get("skip").map_or(Ok(0), count)?,
            sort: root.get("sort").map_or(Ok(Vec::new()), sort)?,
            fields: root.get("fields").map_or(Ok(Projection::default()), Projection::parse)?,
            partition: root.get("partition").map_or(Ok(String::new()), partition)?,
            in_partitioned: false,
            r: root.get("r").map_or(Ok(1), positive)?,
            conflicts: flag("conflicts", false)?,
            stale: root.get("stale").map_or(Ok(false), stale)?,
            update: flag("update", true)?,
            stable: flag("stable", false)?,
            execution_stats: flag("execution_stats", false)?,
            allow_fallback: flag("allow_fallback", true)?,
        };
        match root.members().find(|(name, _)| !KNOWN.contains(&name.as_ref())) {
            None => Ok(query),
            Some((unknown, _)) => {
                Err(Error::plain("invalid_key", &format!("Invalid key {} for this request.", echo(&unknown))))
            }
        }
    }

    /// A range that contains the ids of all documents that the query may find.
    pub fn id_range(&self) -> IdRange {
        let ids = self.selector.id_range();
        match self.partition.as_str() {
            "" => ids,
            partition => {
                let (first, beyond) = ids_of_partition(partition);
                ids.within(&first, &beyond)
            }
        }
    }

    /// Whether the query finds a document. The document must have its `_id`.
    ///
    /// # Errors
    /// As [`Selector::matches`].
    pub fn matches(&self, document: JsonRef<'_>) -> Result<bool, Error> {
        let is_in = || {
            let id = document.get("_id").and_then(JsonRef::as_str);
            id.is_some_and(|id| partition_of(&id) == Some(self.partition.as_str()))
        };
        Ok((self.partition.is_empty() || is_in()) && self.selector.matches(document)?)
    }
}

const KNOWN: [&str; 15] = [
    "selector",
    "use_index",
    "bookmark",
    "limit",
    "skip",
    "sort",
    "fields",
    "partition",
    "r",
    "conflicts",
    "stale",
    "update",
    "stable",
    "execution_stats",
    "allow_fallback",
];

/// A design document, with or without `_design/`, optionally with the name of an index in it.
pub(crate) fn use_index(value: JsonRef<'_>) -> Result<Vec<String>, Error> {
    let wrong = || Error::bad_value("invalid_index_name", "Invalid index name: ", value.text());
    let mut names: Vec<String> = match value.kind() {
        JsonKind::Null => Vec::new(),
        // A fourth part is already an error, so the rest is not read.
        JsonKind::String => value.as_str().unwrap_or_default().split('/').take(4).map(str::to_owned).collect(),
        JsonKind::Array => {
            let names = value.elements().take(3).map(|name| name.as_str().map(|name| name.into_owned()));
            return match names.collect::<Option<Vec<_>>>() {
                Some(names) if names.len() <= 2 => Ok(names),
                _ => Err(wrong()),
            };
        }
        _ => return Err(wrong()),
    };
    if names.len() > 1 && names[0] == "_design" {
        names.remove(0);
    }
    if names.len() <= 2 { Ok(names) } else { Err(wrong()) }
}

fn bookmark(value: JsonRef<'_>) -> Result<Option<String>, Error> {
    match value.as_str() {
        Some(word) => Ok(Some(word.into_owned()).filter(|word| !word.is_empty())),
        None if value.is_null() => Ok(None),
        None => Err(Error::bad_value("invalid_bookmark", "Invalid bookmark value: ", value.text())),
    }
}

/// A non-negative integer; the largest one of 64 bits if it does not fit.
fn count(value: JsonRef<'_>) -> Result<u64, Error> {
    integer(value).ok_or_else(|| {
        let reason = format!("{} is not an integer greater than or equal to zero", echo(value.text()));
        Error::plain("invalid_non_neg_integer", &reason)
    })
}

fn positive(value: JsonRef<'_>) -> Result<u64, Error> {
    integer(value).filter(|&value| value > 0).ok_or_else(|| {
        let reason = format!("{} is not an integer greater than zero", echo(value.text()));
        Error::plain("invalid_pos_integer", &reason)
    })
}

fn integer(value: JsonRef<'_>) -> Option<u64> {
    let is_count = value.kind() == JsonKind::Integer && !value.text().starts_with('-');
    is_count.then(|| value.as_u64().unwrap_or(u64::MAX))
}

/// An array of fields, all in the same direction.
pub(crate) fn sort(value: JsonRef<'_>) -> Result<Vec<(String, Direction)>, Error> {
    if !value.is_array() {
        let says = "Sort must be an array of sort specs, not: ";
        return Err(Error::bad_value("invalid_sort_json", says, value.text()));
    }
    if value.elements().nth(MAX_SORT).is_some() {
        let reason = format!("A query may sort by {MAX_SORT} fields at most.");
        return Err(Error::plain("invalid_sort_json", &reason));
    }
    let sort = value.elements().map(sort_field).collect::<Result<Vec<_>, _>>()?;
    match sort.windows(2).find(|two| two[0].1 != two[1].1) {
        None => Ok(sort),
        Some(_) => Err(Error::plain(
            "unsupported_mixed_sort",
            "Sorts currently only support a single direction for all fields.",
        )),
    }
}

/// A name, or `{"name": "asc"}`.
fn sort_field(value: JsonRef<'_>) -> Result<(String, Direction), Error> {
    let wrong = || Error::bad_value("invalid_sort_field", "Invalid sort field: ", value.text());
    let (name, direction) = match value.kind() {
        JsonKind::String => (value.as_str().unwrap_or_default().into_owned(), Direction::Ascending),
        JsonKind::Object => {
            let mut members = value.members();
            let (Some((name, direction)), None) = (members.next(), members.next()) else { return Err(wrong()) };
            let direction = match direction.as_str().as_deref() {
                Some("asc") => Direction::Ascending,
                Some("desc") => Direction::Descending,
                // CouchDB has an error for wrong directions, but never uses it.
                _ => return Err(wrong()),
            };
            (name.into_owned(), direction)
        }
        _ => return Err(wrong()),
    };
    if name.is_empty() {
        return Err(wrong());
    }
    path::parse(&name, &mut Vec::new())?;
    Ok((name, direction))
}

fn partition(value: JsonRef<'_>) -> Result<String, Error> {
    let name = value.as_str().ok_or_else(|| illegal_partition("Partition must be a string"))?;
    check_partition(&name)?;
    Ok(name.into_owned())
}

fn stale(value: JsonRef<'_>) -> Result<bool, Error> {
    match (value.as_str().as_deref(), value.as_bool()) {
        (Some("ok"), _) => Ok(true),
        (Some("false"), _) | (_, Some(false)) => Ok(false),
        _ => Err(Error::bad_value("invalid_ok_or_false_value", "Invalid value for stale: ", value.text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Query, Error> {
        Query::parse(&JsonText::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn what_is_not_said_is_as_in_couchdb() {
        let query = parse(r#"{"selector": {}}"#).unwrap();
        assert_eq!((query.limit, query.skip, query.r, query.bookmark.clone()), (25, 0, 1, None));
        assert!(query.update && query.allow_fallback && query.fields.is_everything());
        assert!(!(query.conflicts || query.stale || query.stable || query.execution_stats));
        assert!(query.use_index.is_empty() && query.sort.is_empty() && query.partition.is_empty());
    }

    #[test]
    fn indexes_and_sorts_have_several_spellings() {
        let query = |member: &str| parse(&format!(r#"{{"selector": {{}}, {member}}}"#)).unwrap();
        for (member, expected) in [
            (r#""use_index": null"#, &[][..]),
            (r#""use_index": []"#, &[]),
            (r#""use_index": "d""#, &["d"]),
            (r#""use_index": "_design/d""#, &["d"]),
            (r#""use_index": "d/n""#, &["d", "n"]),
            (r#""use_index": "_design/d/n""#, &["d", "n"]),
            (r#""use_index": ["_design/d", "n"]"#, &["_design/d", "n"]),
        ] {
            assert_eq!(query(member).use_index, expected, "{member}");
        }
        let sorted = query(r#""sort": [{"a.b": "desc"}, {"c": "desc"}]"#).sort;
        assert_eq!(sorted, [("a.b".to_owned(), Direction::Descending), ("c".to_owned(), Direction::Descending)]);
        assert_eq!(query(r#""sort": ["a"]"#).sort, [("a".to_owned(), Direction::Ascending)]);
        assert_eq!(query(r#""limit": 99999999999999999999999"#).limit, u64::MAX);
        assert_eq!(query(r#""bookmark": """#).bookmark, None);
    }

    #[test]
    fn what_is_wrong_is_named_as_in_couchdb() {
        for (member, error, reason) in [
            (r#""limit": -1"#, "invalid_non_neg_integer", "-1 is not an integer greater than or equal to zero"),
            (r#""limit": "1""#, "invalid_non_neg_integer", "\"1\" is not an integer greater than or equal to zero"),
            (r#""skip": 1.0"#, "invalid_non_neg_integer", "1.0 is not an integer greater than or equal to zero"),
            (r#""r": 0"#, "invalid_pos_integer", "0 is not an integer greater than zero"),
            (r#""conflicts": 1"#, "invalid_boolean", "Invalid boolean value: 1"),
            (r#""update": "true""#, "invalid_boolean", "Invalid boolean value: \"true\""),
            (r#""stale": "x""#, "invalid_ok_or_false_value", "Invalid value for stale: \"x\""),
            (r#""bookmark": 1"#, "invalid_bookmark", "Invalid bookmark value: 1"),
            (r#""use_index": 5"#, "invalid_index_name", "Invalid index name: 5"),
            (r#""use_index": "a/b/c""#, "invalid_index_name", "Invalid index name: \"a/b/c\""),
            (r#""use_index": "_design/a/b/c""#, "invalid_index_name", "Invalid index name: \"_design/a/b/c\""),
            (r#""use_index": ["a", "b", "c"]"#, "invalid_index_name", "Invalid index name: [\"a\",\"b\",\"c\"]"),
            (r#""use_index": ["a", 1]"#, "invalid_index_name", "Invalid index name: [\"a\",1]"),
            (r#""sort": "a""#, "invalid_sort_json", "Sort must be an array of sort specs, not: \"a\""),
            (r#""sort": [1]"#, "invalid_sort_field", "Invalid sort field: 1"),
            (r#""sort": [""]"#, "invalid_sort_field", "Invalid sort field: \"\""),
            (r#""sort": [{"a": "up"}]"#, "invalid_sort_field", "Invalid sort field: {\"a\":\"up\"}"),
            (
                r#""sort": ["a", {"b": "desc"}]"#,
                "unsupported_mixed_sort",
                "Sorts currently only support a single direction for all fields.",
            ),
            (r#""fields": 1"#, "invalid_fields", "Fields must be an array of strings, not: 1"),
            (r#""partition": 1"#, "illegal_partition", "Partition must be a string"),
            (r#""partition": "_a""#, "illegal_partition", "Partition must not start with an underscore"),
            (r#""partition": "a:b""#, "illegal_partition", "Partition must not contain a colon"),
            (r#""what": 1"#, "invalid_key", "Invalid key what for this request."),
        ] {
            let refused = parse(&format!(r#"{{"selector": {{}}, {member}}}"#)).unwrap_err();
            assert_eq!((refused.error(), refused.reason()), (error, reason), "{member}");
        }
        let many = vec![r#""a""#; MAX_SORT + 1].join(",");
        let refused = parse(&format!(r#"{{"selector": {{}}, "sort": [{many}]}}"#)).unwrap_err();
        assert_eq!(refused.error(), "invalid_sort_json");
        for (body, error) in [
            ("{}", "missing_required_key"),
            (r#"{"selector": 1}"#, "invalid_selector_json"),
            (r#"{"selector": {"a": {"$x": 1}}, "limit": -1}"#, "invalid_operator"),
        ] {
            assert_eq!(parse(body).unwrap_err().error(), error, "{body}");
        }
    }
}
