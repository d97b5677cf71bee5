//! Requests to create or delete indexes, and the design documents that define indexes.
//!
//! ```text
//!   {"language": "query",
//!    "views": {NAME: {"map": {"fields": {FIELD: DIRECTION, …}, "partial_filter_selector": {…}},
//!                     "reduce": "_count",
//!                     "options": {"def": the member "index" of the request}}}}
//! ```
//!
//! Source: `mango_opts:validate_idx_create/1`, `mango_idx:new/2`, `mango_idx_view:add/2` and `remove/2`.

use json::{JsonKind, JsonRef, JsonText, JsonWriter};

use crate::error::{Error, echo};
use crate::query::{Direction, sort, use_index};
use crate::selector::Selector;

/// Maximum size of the view that defines an index, in bytes.
pub const MAX_DEFINITION: usize = 50_000;

/// Maximum number of fields of an index.
pub const MAX_COLUMNS: usize = 100;

/// Maximum number of design documents whose indexes one request deletes.
const MAX_DELETED: usize = 10_000;

/// A valid request for a new index.
#[derive(Clone, Debug)]
pub struct NewIndex {
    /// The design document that the client named; `None` to make a name up.
    pub ddoc: Option<String>,
    /// The index's name in the design document; `None` to make one up.
    pub name: Option<String>,
    /// Whether the index has separate rows for each partition; `None` if the client does not say.
    pub partitioned: Option<bool>,
    /// Number of copies to write. There is one copy, so this only affects made-up names.
    pub copies: u64,
    /// The member `index` of the request.
    pub def: JsonText,
    fields: Vec<(String, Direction)>,
    filter: JsonText,
}

impl NewIndex {
    /// Parses the body of a request, a JSON object.
    ///
    /// # Errors
    /// [`Error`] names the first wrong member.
    pub fn parse(body: &JsonText) -> Result<NewIndex, Error> {
        let root = body.root();
        let def = root.get("index").ok_or_else(|| missing("index"))?;
        let kind = root.get("type").map_or(Ok("json".to_owned()), |kind| {
            let wrong = || Error::bad_value("invalid_string", "Invalid string: ", kind.text());
            kind.as_str().map(|kind| kind.into_owned()).ok_or_else(wrong)
        })?;
        let name = root.get("name").map(name).transpose()?;
        let ddoc = root.get("ddoc").map(self::name).transpose()?;
        let copies = copies(root)?;
        let partitioned = root.get("partitioned").map(|partitioned| {
            let says = "Invalid value for partitioned: ";
            let wrong = || Error::bad_value("invalid_partitioned_value", says, partitioned.text());
            partitioned.as_bool().ok_or_else(wrong)
        });
        let partitioned = partitioned.transpose()?;
        no_others(root, &["index", "type", "name", "ddoc", "w", "partitioned"])?;
        match kind.as_str() {
            "json" => {}
            "text" | "nouveau" => return Err(Error::no_service(&kind)),
            other => return Err(Error::invalid_index(format!("Invalid type for index: {}", echo(other)))),
        }
        if !def.is_object() {
            return Err(Error::bad_value("invalid_index", "JSON indexes must be an object, not: ", def.text()));
        }
        let mut fields = sort(def.get("fields").ok_or_else(|| missing("fields"))?)?;
        if fields.len() > MAX_COLUMNS {
            return Err(Error::invalid_index(format!("An index has at most {MAX_COLUMNS} fields.")));
        }
        // The last of repeated fields counts, as in CouchDB, where the fields become members of an object.
        let mut known = std::collections::HashSet::new();
        fields.reverse();
        fields.retain(|(field, _)| known.insert(field.clone()));
        fields.reverse();
        let filter = match def.get("partial_filter_selector") {
            None => JsonText::empty_object(),
            Some(filter) if !filter.is_object() => {
                let says = "Selector must be a JSON object, not: ";
                return Err(Error::bad_value("invalid_selector_json", says, filter.text()));
            }
            Some(filter) => Selector::parse(&body.slice_ref(filter))?.to_json(),
        };
        no_others(def, &["fields", "partial_filter_selector"])?;
        let index = NewIndex { ddoc, name, partitioned, copies, def: body.slice_ref(def), fields, filter };
        if index.view().len() > MAX_DEFINITION {
            return Err(Error::invalid_index(format!("An index is defined by at most {MAX_DEFINITION} bytes.")));
        }
        Ok(index)
    }

    /// The view that defines the index.
    fn view(&self) -> Vec<u8> {
        let mut view = Vec::new();
        let mut json = JsonWriter::new(&mut view);
        json.begin_object();
        json.name("map").begin_object();
        json.name("fields").begin_object();
        for (field, direction) in &self.fields {
            json.name(field).str(direction.as_str());
        }
        json.end_object();
        json.name("partial_filter_selector").text(&self.filter);
        json.end_object();
        json.name("reduce").str("_count");
        json.name("options").begin_object().name("def").text(&self.def).end_object();
        json.end_object();
        view
    }

    /// The design document's body with this index added; `None` if it has the index already. `design` is the current
    /// body, `None` if the document does not exist.
    ///
    /// # Errors
    /// `invalid_ddoc_lang` and `invalid_partitioned_option` if the document cannot have the index; `bad_request` if the
    /// body would be nested too deeply.
    pub fn add_to(&self, design_id: &str, name: &str, design: Option<&JsonText>) -> Result<Option<JsonText>, Error> {
        let options = design.and_then(|design| design.get("options"));
        let partitioned = options.and_then(|options| options.get("partitioned")).and_then(JsonRef::as_bool);
        if let Some(design) = design {
            is_query(design)?;
            if partitioned != self.partitioned {
                let says = "Requested partitioned option does not match existing value on design document ";
                return Err(Error::plain("invalid_partitioned_option", &format!("{says}{}", echo(design_id))));
            }
        }
        let view = self.view();
        let views = design.and_then(|design| design.get("views"));
        if views.and_then(|views| views.get(name)).is_some_and(|known| known.text().as_bytes() == view) {
            return Ok(None);
        }
        let view = read(&view)?;
        let views = with_member(views, name, Some(view.root()))?;
        let new = read(br#"{"language":"query"}"#)?;
        let body = with_member(Some(design.unwrap_or(&new).root()), "views", Some(views.root()))?;
        Ok(Some(match self.partitioned {
            Some(partitioned) if design.is_none() => {
                let options = read(format!("{{\"partitioned\":{partitioned}}}").as_bytes())?;
                with_member(Some(body.root()), "options", Some(options.root()))?
            }
            _ => body,
        }))
    }

    /// The design document's body without an index; `None` if only its language is left, and the document should be
    /// deleted.
    ///
    /// # Errors
    /// `invalid_ddoc_lang`; `invalid_index` if it has no such index.
    pub fn remove_from(name: &str, design: &JsonText) -> Result<Option<JsonText>, Error> {
        is_query(design)?;
        let views = design.get("views").filter(|views| views.get(name).is_some());
        let Some(views) = views else {
            return Err(Error::invalid_index(format!("JSON index {} not found in this design doc.", echo(name))));
        };
        let left = with_member(Some(views), name, None)?;
        let left = Some(left.root()).filter(|left| left.members().next().is_some());
        let body = with_member(Some(design.root()), "views", left)?;
        Ok(Some(body).filter(|body| body.as_str() != r#"{"language":"query"}"#))
    }
}

/// Parses the body of a request that deletes many indexes: the names of their design documents.
///
/// # Errors
/// [`Error`] names the first wrong member.
pub fn parse_bulk_delete(body: &JsonText) -> Result<Vec<String>, Error> {
    let root = body.root();
    let ids = root.get("docids").ok_or_else(|| missing("docids"))?;
    let wrong = || {
        let says = "Bulk Delete requires an array of non-null docids. Docids: ";
        Error::bad_value("invalid_bulk_docs", says, ids.text())
    };
    if !ids.is_array() {
        return Err(wrong());
    }
    if ids.elements().nth(MAX_DELETED).is_some() {
        let reason = format!("A request may delete the indexes of {MAX_DELETED} design documents at most.");
        return Err(Error::plain("invalid_bulk_docs", &reason));
    }
    // As in CouchDB, each is checked like a `use_index`, and then its text counts.
    for id in ids.elements() {
        use_index(id)?;
    }
    copies(root)?;
    no_others(root, &["docids", "w"])?;
    ids.elements().map(|id| id.as_str().map(|id| id.into_owned()).ok_or_else(wrong)).collect()
}

fn missing(key: &str) -> Error {
    Error::plain("missing_required_key", &format!("Missing required key: {key}"))
}

fn copies(root: JsonRef<'_>) -> Result<u64, Error> {
    match root.get("w") {
        None => Ok(2),
        Some(w) if w.kind() == JsonKind::Integer && w.as_u64() != Some(0) && !w.text().starts_with('-') => {
            Ok(w.as_u64().unwrap_or(u64::MAX))
        }
        Some(w) => {
            let reason = format!("{} is not an integer greater than zero", echo(w.text()));
            Err(Error::plain("invalid_pos_integer", &reason))
        }
    }
}

fn name(value: JsonRef<'_>) -> Result<String, Error> {
    let name = value.as_str().ok_or_else(|| Error::bad_value("invalid_string", "Invalid string: ", value.text()))?;
    if name.is_empty() {
        return Err(Error::plain("invalid_empty_string", "Index name or ddoc cannot be empty string"));
    }
    Ok(name.into_owned())
}

fn no_others(object: JsonRef<'_>, known: &[&str]) -> Result<(), Error> {
    match object.members().find(|(name, _)| !known.contains(&name.as_ref())) {
        None => Ok(()),
        Some((name, _)) => Err(Error::plain("invalid_key", &format!("Invalid key {} for this request.", echo(&name)))),
    }
}

fn is_query(design: &JsonText) -> Result<(), Error> {
    let language = design.get("language");
    if language.and_then(JsonRef::as_str).is_some_and(|language| language == "query") {
        return Ok(());
    }
    let language = language.map_or("none", JsonRef::text);
    Err(Error::bad_value("invalid_ddoc_lang", "Existing design doc has an invalid language: ", language))
}

/// An object with a new value of a member, in place or at the end, or without the member.
pub(super) fn with_member(
    object: Option<JsonRef<'_>>,
    name: &str,
    value: Option<JsonRef<'_>>,
) -> Result<JsonText, Error> {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    let mut value = value;
    json.begin_object();
    for (known, old) in object.into_iter().flat_map(JsonRef::members) {
        if known != name {
            json.name(&known).value(old);
        } else if let Some(new) = value.take() {
            json.name(name).value(new);
        }
    }
    if let Some(new) = value {
        json.name(name).value(new);
    }
    json.end_object();
    read(&out)
}

/// Parses JSON that was just written. It may be nested too deeply.
fn read(json: &[u8]) -> Result<JsonText, Error> {
    JsonText::parse(json).map_err(|problem| Error::plain("bad_request", &problem.to_string()))
}

/// The name of a design document. The prefix may be missing.
pub(super) fn without_prefix(design: &str) -> &str {
    design.strip_prefix("_design/").unwrap_or(design)
}
