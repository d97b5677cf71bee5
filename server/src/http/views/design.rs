//! Design documents as view groups.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Document, GetOptions, JsonRef, JsonText, JsonWriter, Reduce, View, ViewGroup, ViewOptions};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};

/// The views of a design document.
pub(super) struct Design {
    group: Result<ViewGroup, Refusal>,
    /// The views that ask for a reduction that this program does not have.
    unknown: HashMap<String, String>,
}

/// Why a design document has no views here.
#[derive(Clone, Debug)]
enum Refusal {
    /// Its language is another one.
    Language(String),
    /// This program was built without JavaScript.
    #[cfg_attr(feature = "javascript", expect(dead_code, reason = "this program has JavaScript"))]
    NotBuilt,
}

impl Design {
    /// Reads a design document.
    pub(super) async fn read(app: &App, database: &Documents, id: &str) -> Result<Design> {
        let document = database.get(id, &GetOptions::default()).await?;
        Ok(Design::of(app, &document))
    }

    pub(super) fn of(app: &App, document: &Document) -> Design {
        let body = &document.body;
        let text = |value: Option<JsonRef<'_>>| value.and_then(|value| value.as_str()).map(|text| text.into_owned());
        let language = text(body.get("language")).unwrap_or_else(|| "javascript".to_owned());
        let mut unknown = HashMap::new();
        if language != "javascript" {
            return Design { group: Err(Refusal::Language(language)), unknown };
        }
        let mut views = Vec::new();
        for (name, view) in body.get("views").into_iter().flat_map(|views| views.members()) {
            // What has no map function is a library.
            if text(view.get("map")).is_none() || name == "lib" {
                continue;
            }
            let reduce = match text(view.get("reduce")).as_deref().map(str::trim) {
                None | Some("") => None,
                Some("_count") => Some(Reduce::Count),
                Some("_sum") => Some(Reduce::Sum),
                Some("_stats") => Some(Reduce::Stats),
                Some(other) if other.starts_with('_') => {
                    unknown.insert(name.to_string(), other.to_owned());
                    None
                }
                Some(_) => Some(Reduce::Custom),
            };
            views.push(View { name: name.into_owned(), reduce });
        }
        let flag = |name| body.get("options").and_then(|options| options.get(name)?.as_bool()).unwrap_or(false);
        let (include_design, local_seq) = (flag("include_design"), flag("local_seq"));
        let options = ViewOptions { is_of_design: true, include_design, local_seq };
        let sources = sources(body);
        let group = functions(&sources, &views).map(|functions| {
            let group = ViewGroup::new(document.id.as_str(), sources.as_str(), options, views, functions);
            app.views.ready(group)
        });
        Design { group, unknown }
    }

    /// The group.
    pub(super) fn group(&self) -> Result<&ViewGroup> {
        self.group.as_ref().map_err(|refusal| match refusal {
            Refusal::Language(language) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                ApiError::new(status, "unknown_query_language", language.clone())
            }
            Refusal::NotBuilt => {
                ApiError::not_implemented("functions in JavaScript, without which this program was built,")
            }
        })
    }

    /// A view, and whether it can be reduced.
    pub(super) fn view(&self, name: &str) -> Result<(&ViewGroup, bool)> {
        let group = self.group()?;
        let view = group.view(name).ok_or_else(|| ApiError::not_found("missing_named_view"))?;
        Ok((group, group.views()[view].reduce.is_some()))
    }

    /// The error for a view whose reduction this program does not have.
    pub(super) fn refuse_unknown(&self, view: &str) -> Result<()> {
        match self.unknown.get(view) {
            None => Ok(()),
            Some(name)
                if name.starts_with("_approx_count_distinct") || name.contains("top_") || name.contains("bottom_") =>
            {
                Err(ApiError::not_implemented("_approx_count_distinct, _top and _bottom"))
            }
            Some(name) => Err(ApiError::bad_request(format!("`{name}` is not a supported reduce function."))),
        }
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

#[cfg(feature = "javascript")]
fn functions(sources: &JsonText, views: &[View]) -> Result<Arc<dyn model::ViewFunctions>, Refusal> {
    Ok(Arc::new(super::functions::Functions::new(sources.clone(), views)))
}

#[cfg(not(feature = "javascript"))]
fn functions(_: &JsonText, _: &[View]) -> Result<Arc<dyn model::ViewFunctions>, Refusal> {
    Err(Refusal::NotBuilt)
}
