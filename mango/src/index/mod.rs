//! Indexes of type `json`: their definitions, their rows, and plans that answer queries from them.
//!
//! ```text
//!   POST _index ── NewIndex ── a view in a design document of the language "query"
//!                                            │
//!                                          Index ── row(document) ── key and values, or no row
//!                                            │
//!   Query ────────────────────────────────  QueryPlan ── a range of keys
//! ```
//!
//! A row's key is the concatenation of the keys of the fields' values. It does not depend on directions: as in CouchDB,
//! an index is read forwards or backwards as a whole. In a partitioned index, the partition comes before it
//! ([`partition`](crate::partition)).
//!
//! Source: `mango_idx_view.erl`, `mango_native_proc.erl`; RFC 006.

mod candidates;
mod definition;
mod known;
#[cfg(test)]
mod oracle;
mod plan;
#[cfg(test)]
mod tests;

use json::{JsonRef, JsonText, JsonWriter};
use md5::{Digest, Md5};

pub use candidates::Candidate;
pub use definition::{MAX_COLUMNS, MAX_DEFINITION, NewIndex, parse_bulk_delete};
use definition::{with_member, without_prefix};
pub use plan::{Choice, IdBounds, KeyRange, Purpose, QueryPlan, Scan};

use crate::collate::{COLLATION_VERSION, append_key};
use crate::partition::{append_partition, partition_of};
use crate::path::{self, AtPath, look_up};
use crate::projection::{put, write_members};
use crate::selector::Selector;

/// Maximum length of a row's key in bytes. Longer keys are truncated.
pub const MAX_KEY: usize = 1_000;

/// Maximum size of a row's values in bytes. Larger ones are not stored.
pub const MAX_VALUES: usize = 1_000;

/// The member of a definition that is the partial filter.
const FILTER: &str = "partial_filter_selector";

/// Whether the views and indexes of a design document are partitioned: in a partitioned database they are, unless its
/// `options` say otherwise.
pub fn has_partitions(design: JsonRef<'_>, in_partitioned: bool) -> bool {
    let option = design.get("options").and_then(|options| options.get("partitioned"));
    in_partitioned && option.and_then(JsonRef::as_bool).unwrap_or(true)
}

/// An index: one view of a design document of the language `query`.
#[derive(Clone, Debug)]
pub struct Index {
    design_id: String,
    name: String,
    /// The view as in its design document, except that its filter has no empty names for elements.
    definition: JsonText,
    columns: Vec<Vec<String>>,
    /// Only documents that match it have rows.
    filter: Option<Selector>,
    /// Whether the keys of its rows begin with the partitions of the documents.
    is_partitioned: bool,
}

/// The row of a document in an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRow {
    /// The concatenated keys of the values: at most [`MAX_KEY`] bytes, exactly that many if truncated.
    pub key: Vec<u8>,
    /// The values as an array; `None` if they have more than [`MAX_VALUES`] bytes.
    pub values: Option<JsonText>,
}

impl Index {
    /// The indexes that a design document defines, in order; empty if its language is not `query`. Views that do not
    /// define a valid index are left out, as in CouchDB. `in_partitioned`: whether the database is partitioned. Its
    /// indexes are too, unless the design document says otherwise.
    pub fn all_in(design_id: &str, document: JsonRef<'_>, in_partitioned: bool) -> Vec<Index> {
        let is_partitioned = has_partitions(document, in_partitioned);
        let is_query = document.get("language").and_then(JsonRef::as_str).is_some_and(|language| language == "query");
        let views = document.get("views").filter(|_| is_query);
        let views = views.into_iter().flat_map(JsonRef::members);
        views.filter_map(|(name, view)| Index::of_view(design_id, &name, view, is_partitioned)).collect()
    }

    /// Whether `use_index` of a query names it: its design document, with or without its own name.
    pub fn is_named(&self, use_index: &[String]) -> bool {
        let [design, names @ ..] = use_index else { return false };
        without_prefix(self.design_id()) == without_prefix(design)
            && names.first().is_none_or(|name| name == self.name())
    }

    /// An index from its stored definition; `None` if this program cannot read it.
    pub fn parse(design_id: &str, name: &str, definition: &JsonText, is_partitioned: bool) -> Option<Index> {
        Index::of_view(design_id, name, definition.root(), is_partitioned)
    }

    fn of_view(design_id: &str, name: &str, view: JsonRef<'_>, is_partitioned: bool) -> Option<Index> {
        if view.text().len() > MAX_DEFINITION || !view.get("options").is_some_and(JsonRef::is_object) {
            return None;
        }
        let mut definition = JsonText::parse(view.text().as_bytes()).ok()?;
        let map = definition.get("map")?;
        let fields = map.get("fields").filter(|fields| fields.is_object())?;
        let mut columns = Vec::new();
        for (field, _) in fields.members() {
            let mut path = Vec::new();
            path::parse(&field, &mut path).ok()?;
            columns.push(path);
        }
        let filter = match map.get(FILTER) {
            Some(filter) if filter.members().next().is_some() => {
                Some(Selector::parse(&definition.slice_ref(filter)).ok()?)
            }
            Some(filter) if !filter.is_object() => return None,
            _ => None,
        };
        // Equal filters are equal definitions, however they were written.
        if let Some(filter) = filter.as_ref().filter(|_| map.text().contains(r#""":"#)) {
            let map = with_member(Some(map), FILTER, Some(filter.to_bare_json().root())).ok()?;
            definition = with_member(Some(definition.root()), "map", Some(map.root())).ok()?;
        }
        (columns.len() <= MAX_COLUMNS && definition.len() <= MAX_DEFINITION).then(|| Index {
            design_id: design_id.to_owned(),
            name: name.to_owned(),
            columns,
            filter,
            definition,
            is_partitioned,
        })
    }

    /// Whether each partition's rows are in a range of their own.
    pub fn is_partitioned(&self) -> bool {
        self.is_partitioned
    }

    /// Whether both have the same rows under the same name.
    pub fn is_same(&self, other: &Index) -> bool {
        self.name == other.name && self.definition == other.definition && self.is_partitioned == other.is_partitioned
    }

    /// The id of its design document.
    pub fn design_id(&self) -> &str {
        &self.design_id
    }

    /// Its name in the design document.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its definition: the view, without empty names in its filter. At most [`MAX_DEFINITION`] bytes.
    pub fn definition(&self) -> &JsonText {
        &self.definition
    }

    /// A hash that differs between indexes with different rows. It does not depend on the index's name.
    pub fn signature(&self) -> [u8; 16] {
        let mut digest = Md5::new();
        digest.update(COLLATION_VERSION);
        digest.update([0]);
        digest.update(self.definition.as_bytes());
        if self.is_partitioned {
            digest.update("partitioned");
        }
        digest.finalize().into()
    }

    /// Writes `def` as CouchDB lists it.
    pub fn write_def(&self, json: &mut JsonWriter<'_>) {
        json.begin_object();
        for (name, value) in self.definition.get("map").into_iter().flat_map(JsonRef::members) {
            match &*name {
                "fields" => {
                    json.name("fields").begin_array();
                    for (field, direction) in value.members() {
                        json.begin_object().name(&field).value(direction).end_object();
                    }
                    json.end_array();
                }
                FILTER => {
                    // Unlike the definition, CouchDB's normal form has the empty names.
                    if let Some(filter) = &self.filter {
                        let normal = filter.to_json();
                        let is_normal = filter.to_bare_json().as_str() == value.text();
                        json.name(FILTER).value(if is_normal { normal.root() } else { value });
                    }
                }
                name => {
                    json.name(name).value(value);
                }
            }
        }
        json.end_object();
    }

    /// The parts of a document on which its rows in these indexes depend: sorted paths of names, without paths below
    /// others. A document with only these parts has the same rows. `_id` and `_rev` are left out: it must have them.
    /// `None` if the rows may depend on the whole document.
    pub fn parts<'i>(indexes: impl IntoIterator<Item = &'i Index>) -> Option<Vec<&'i [String]>> {
        let mut parts: Vec<&[String]> = Vec::new();
        for index in indexes {
            let columns = index.columns.iter().map(|path| (path.as_slice(), false));
            let conditions = index.filter.iter().flat_map(Selector::paths_to_read);
            for (path, depends_on_all) in columns.chain(conditions) {
                match path.first()?.as_str() {
                    "_id" | "_rev" => continue,
                    special if special.starts_with('_') => return None,
                    _ => {}
                }
                // A number may be a step into an array. The path ends before it, because an element's place depends on
                // the others.
                let names = path.iter().skip(1).take_while(|step| step.parse::<usize>().is_err()).count();
                parts.push(&path[..if depends_on_all { 1 } else { 1 + names }]);
            }
        }
        parts.sort_unstable();
        parts.dedup_by(|next, kept| next.starts_with(kept));
        Some(parts)
    }

    /// The row of a live document, as a plain read returns it, with `_id` and `_rev`. `None` if it lacks a field, or if
    /// the partial filter does not match. Design documents have no rows and must not be passed.
    pub fn row(&self, document: JsonRef<'_>) -> Option<IndexRow> {
        let mut key = self.whole_key(document)?;
        key.truncate(MAX_KEY);
        let mut values = vec![b'['];
        let mut found = self.values(document);
        let are_short = found.all(|value| {
            let value = value.map_or("", JsonRef::text);
            if values.len() > 1 {
                values.push(b',');
            }
            // Each value is followed by a comma or by the end.
            let fits = values.len() + value.len() < MAX_VALUES;
            if fits {
                values.extend_from_slice(value.as_bytes());
            }
            fits
        });
        values.push(b']');
        // Normalised values between brackets and commas.
        let values = are_short.then(|| JsonText::from_normalised(values)).flatten();
        Some(IndexRow { key, values })
    }

    /// Whether the filter admits a document. As in CouchDB, it does not if an expression takes too many steps: that
    /// must not fail an edit.
    fn has(&self, document: JsonRef<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(document).unwrap_or(false))
    }

    /// The key of a document's row before truncation.
    pub fn whole_key(&self, document: JsonRef<'_>) -> Option<Vec<u8>> {
        if !self.has(document) {
            return None;
        }
        let mut key = Vec::new();
        if self.is_partitioned {
            append_partition(&mut key, partition_of(&document.get("_id")?.as_str()?)?);
        }
        for value in self.values(document) {
            append_key(&mut key, value?);
        }
        Some(key)
    }

    /// The key of a document's row in CouchDB's view of the index: an array of the values. `None` as in
    /// [`row`](Self::row).
    pub fn view_key(&self, document: JsonRef<'_>) -> Option<JsonText> {
        if !self.has(document) {
            return None;
        }
        let mut key = Vec::new();
        let mut json = JsonWriter::new(&mut key);
        json.begin_array();
        for value in self.values(document) {
            json.value(value?);
        }
        json.end_array();
        JsonText::from_normalised(key)
    }

    /// The values of the fields.
    fn values<'d>(&self, document: JsonRef<'d>) -> impl Iterator<Item = Option<JsonRef<'d>>> {
        self.columns.iter().map(move |path| match look_up(document, path) {
            AtPath::Value(value) => Some(value),
            AtPath::Nothing | AtPath::BadPath => None,
        })
    }

    /// Whether it depends on the member `_conflicts`. Documents have it when they are searched, but not when their rows
    /// are written.
    fn depends_on_conflicts(&self) -> bool {
        let conditions = self.filter.iter().flat_map(Selector::paths);
        self.columns
            .iter()
            .map(Vec::as_slice)
            .chain(conditions)
            .any(|path| path.first().is_some_and(|name| name == "_conflicts"))
    }

    /// Whether a row has the value at a path.
    fn covers(&self, path: &[String]) -> bool {
        matches!(path, [id] if id == "_id") || self.columns.iter().any(|own| own == path)
    }

    /// The part of a document that its row has: the `_id` and the fields.
    pub fn document(&self, id: &str, values: &JsonText) -> Option<JsonText> {
        let mut id_json = Vec::new();
        JsonWriter::new(&mut id_json).str(id);
        let id_json = JsonText::from_normalised(id_json)?;
        let id_path = ["_id".to_owned()];
        let mut members = Vec::new();
        put(&mut members, &id_path, id_json.root());
        for (path, value) in self.columns.iter().zip(values.root().elements()) {
            put(&mut members, path, value);
        }
        let mut document = Vec::new();
        write_members(&members, &mut JsonWriter::new(&mut document));
        JsonText::from_normalised(document)
    }
}
