//! Design documents as view groups.

use std::collections::{HashMap, HashSet};

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Document, GetOptions, JsonRef, JsonText, JsonWriter, Reduce, View, ViewGroup, ViewOptions};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::functions::Functions;

/// The views of a design document.
pub(super) struct Design {
    pub(super) group: ViewGroup,
    /// The views that ask for a reduction that there is not, and why it is refused.
    refused: HashMap<String, String>,
    /// The views whose rows CouchDB orders by Erlang's terms and not by ICU. They are in no group, since nobody reads them.
    raw: HashSet<String>,
}

/// The builtin reduce function of this name, or CouchDB's reason why there is none.
pub(crate) fn builtin(name: &str) -> std::result::Result<Reduce, String> {
    let found = Reduce::named(name)?;
    found.ok_or_else(|| format!("`{name}` is not a supported reduce function."))
}

impl Design {
    /// Reads a design document.
    pub(super) async fn read(functions: &Functions, database: &Documents, id: &str) -> Result<Design> {
        let document = database.get(id, &GetOptions::default()).await?;
        Design::of(functions, database, &document)
    }

    pub(super) fn of(functions: &Functions, database: &Documents, document: &Document) -> Result<Design> {
        let body = &document.body;
        let text = |value: Option<JsonRef<'_>>| value.and_then(|value| value.as_str()).map(|text| text.into_owned());
        let language = text(body.get("language")).unwrap_or_else(|| "javascript".to_owned());
        if language != "javascript" {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "unknown_query_language", language));
        }
        let (mut views, mut refused, mut raw) = (Vec::new(), HashMap::new(), HashSet::new());
        for (name, view) in body.get("views").into_iter().flat_map(|views| views.members()) {
            // What has no map function is a library.
            if text(view.get("map")).is_none() || name == "lib" {
                continue;
            }
            // An option of the view. CouchDB does not look for it in those of the design document.
            if text(view.get("options").and_then(|options| options.get("collation"))).as_deref() == Some("raw") {
                raw.insert(name.into_owned());
                continue;
            }
            // Earlier versions stored names with spaces around them, and empty ones: what is stored is not refused.
            let reduce = match text(view.get("reduce")).as_deref().map(str::trim) {
                None | Some("") => None,
                Some(reduce) if reduce.starts_with('_') => {
                    builtin(reduce).map_err(|reason| refused.insert(name.to_string(), reason)).ok()
                }
                Some(_) => Some(Reduce::Custom),
            };
            views.push(View { name: name.into_owned(), reduce });
        }
        let flag = |name| body.get("options").and_then(|options| options.get(name)?.as_bool()).unwrap_or(false);
        let (include_design, local_seq) = (flag("include_design"), flag("local_seq"));
        let options = ViewOptions { is_of_design: true, include_design, local_seq };
        let sources = sources(body);
        let functions = functions.of_views(database, &sources, &views)?;
        let group = ViewGroup::new(document.id.as_str(), sources.as_str(), options, views, functions);
        Ok(Design { group, refused, raw })
    }

    /// A view, and whether it can be reduced.
    pub(super) fn view(&self, name: &str) -> Result<(&ViewGroup, bool)> {
        if self.raw.contains(name) {
            return Err(ApiError::not_implemented("views with the option `\"collation\": \"raw\"`"));
        }
        let view = self.group.view(name).ok_or_else(|| ApiError::not_found("missing_named_view"))?;
        Ok((&self.group, self.group.views()[view].reduce.is_some()))
    }

    /// The error for a view whose reduction there is not.
    pub(super) fn refuse_unknown(&self, view: &str) -> Result<()> {
        self.refused.get(view).map_or(Ok(()), |reason| Err(ApiError::bad_request(reason.clone())))
    }
}

/// What the functions are made of: nothing else of the design document reaches them.
fn sources(body: &JsonText) -> JsonText {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object().name("_id").str(DESIGN_PREFIX);
    if let Some(views) = body.get("views") {
        json.name("views").value(views);
    }
    json.end_object();
    // Of normalised values.
    JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
}
