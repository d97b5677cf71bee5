//! Design documents as view groups.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::StatusCode;
use mango::Index;
use model::limits::DESIGN_PREFIX;
use model::{Document, GetOptions, JsonRef, JsonText, JsonWriter, Reduce, View, ViewGroup, ViewOptions};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::functions::Functions;
use crate::http::functions::index_views::OfIndexes;

const JAVASCRIPT: &str = "javascript";

/// The language of design documents that define Mango's indexes.
const QUERY: &str = "query";

/// The views of a design document.
pub(crate) struct ViewDesign {
    pub(crate) group: ViewGroup,
    pub(crate) language: &'static str,
    /// The views that ask for an unknown reduction, and the reason for the refusal.
    refused: HashMap<String, String>,
}

/// The builtin reduce function of this name, or CouchDB's reason why there is none.
pub(crate) fn builtin(name: &str) -> std::result::Result<Reduce, String> {
    let found = Reduce::named(name)?;
    found.ok_or_else(|| format!("`{name}` is not a supported reduce function."))
}

impl ViewDesign {
    /// Reads a design document.
    pub(crate) async fn read(functions: &Functions, database: &Documents, id: &str) -> Result<ViewDesign> {
        let document = database.get(id, &GetOptions::default()).await?;
        ViewDesign::of(functions, database, &document)
    }

    pub(crate) fn of(functions: &Functions, database: &Documents, document: &Document) -> Result<ViewDesign> {
        ViewDesign::of_body(functions, database, document.id.as_str(), &document.body)
    }

    /// The same, of a design document that need not be stored.
    pub(crate) fn of_body(
        functions: &Functions,
        database: &Documents,
        id: &str,
        body: &JsonText,
    ) -> Result<ViewDesign> {
        let text = |value: Option<JsonRef<'_>>| value.and_then(|value| value.as_str()).map(|text| text.into_owned());
        let language = text(body.get("language")).unwrap_or_else(|| JAVASCRIPT.to_owned());
        if language == QUERY {
            return Ok(ViewDesign::of_indexes(database, id, body));
        }
        if language != JAVASCRIPT {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "unknown_query_language", language));
        }
        let (mut views, mut refused) = (Vec::new(), HashMap::new());
        for (name, view) in body.get("views").into_iter().flat_map(|views| views.members()) {
            // A member without a map function is a library.
            if text(view.get("map")).is_none() || name == "lib" {
                continue;
            }
            // An option of the view. CouchDB does not look for it in those of the design document.
            let collation = text(view.get("options").and_then(|options| options.get("collation")));
            let is_raw = collation.as_deref() == Some("raw");
            // Stored names may be empty or have spaces around them. They are not refused.
            let reduce = match text(view.get("reduce")).as_deref().map(str::trim) {
                None | Some("") => None,
                Some(reduce) if reduce.starts_with('_') => {
                    builtin(reduce).map_err(|reason| refused.insert(name.to_string(), reason)).ok()
                }
                Some(_) => Some(Reduce::Custom),
            };
            views.push(View { name: name.into_owned(), reduce, is_raw });
        }
        let flag = |name| body.get("options").and_then(|options| options.get(name)?.as_bool()).unwrap_or(false);
        let (include_design, local_seq) = (flag("include_design"), flag("local_seq"));
        let is_partitioned = mango::has_partitions(body.root(), database.is_partitioned());
        let options = ViewOptions { is_of_design: true, include_design, local_seq, is_partitioned };
        let sources = sources(body);
        let functions = functions.of_views(database, &sources, &views)?;
        let group = ViewGroup::new(id, sources.as_str(), options, views, functions);
        Ok(ViewDesign { group, language: JAVASCRIPT, refused })
    }

    /// The indexes of a design document as views. As in CouchDB, a member that does not define an index is not a view.
    fn of_indexes(database: &Documents, id: &str, body: &JsonText) -> ViewDesign {
        let indexes: Arc<[Index]> = Index::all_in(id, body.root(), database.is_partitioned()).into();
        let view = |index: &Index| {
            let reduce = index.definition().get("reduce").and_then(|reduce| reduce.as_str());
            let reduce = reduce.and_then(|reduce| builtin(reduce.trim()).ok());
            View { name: index.name().to_owned(), reduce, is_raw: false }
        };
        let views = indexes.iter().map(view).collect();
        let is_partitioned = mango::has_partitions(body.root(), database.is_partitioned());
        let options = ViewOptions { is_of_design: true, is_partitioned, ..ViewOptions::default() };
        let functions = Arc::new(OfIndexes(indexes));
        let group = ViewGroup::new(id, sources(body).as_str(), options, views, functions);
        ViewDesign { group, language: QUERY, refused: HashMap::new() }
    }

    /// A view, and its group.
    pub(crate) fn view(&self, name: &str) -> Result<(&ViewGroup, &View)> {
        let view = self.group.view(name).ok_or_else(|| ApiError::not_found("missing_named_view"))?;
        Ok((&self.group, &self.group.views()[view]))
    }

    /// The error for a view with an unknown reduction.
    pub(crate) fn refuse_unknown(&self, view: &str) -> Result<()> {
        self.refused.get(view).map_or(Ok(()), |reason| Err(ApiError::bad_request(reason.clone())))
    }
}

/// The sources of the functions: nothing else of the design document reaches them.
fn sources(body: &JsonText) -> JsonText {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object().name("_id").str(DESIGN_PREFIX);
    if let Some(views) = body.get("views") {
        json.name("views").value(views);
    }
    json.end_object();
    // All values are normalised.
    JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
}
