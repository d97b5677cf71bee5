//! Functions of design documents.
//!
//! They run in sandboxes on their own threads ([`javascript::Pool`]). A build without the feature `javascript` has
//! no functions, and answers requests that need one with 501.

pub(crate) mod filter;
mod index_views;
pub(crate) mod request;
pub(crate) mod validate;
#[cfg(feature = "javascript")]
mod view;
pub(crate) mod view_group;

use std::borrow::Cow;
use std::sync::Arc;

use hyper::StatusCode;
use model::{GetOptions, JsonText, View, ViewFunctions};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::memory::Memory;

/// A design document whose functions may be called.
#[cfg(feature = "javascript")]
pub(crate) type Design = javascript::Design;

/// A design document. Nothing can call its functions.
#[cfg(not(feature = "javascript"))]
pub(crate) type Design = JsonText;

/// A filter function.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "javascript"), allow(dead_code, reason = "nothing runs it"))]
pub(crate) struct FilterFunction {
    /// The design document.
    pub(crate) design: Design,
    /// The name of the filter, or of the view.
    pub(crate) name: String,
    /// The function's second argument. `None`: it is the map function of a view.
    pub(crate) request: Option<Arc<str>>,
}

/// The threads that run functions.
#[derive(Debug)]
pub(crate) struct Functions {
    #[cfg(feature = "javascript")]
    pool: javascript::Pool,
}

impl Functions {
    /// Uses this many threads, each with heaps of the usual size.
    pub(crate) fn new(threads: usize) -> Functions {
        Functions::within(threads, &Memory::default())
    }

    /// The same, limited to the threads and the heap size that the memory allows.
    #[cfg_attr(not(feature = "javascript"), expect(unused_variables, reason = "nothing runs"))]
    pub(crate) fn within(threads: usize, memory: &Memory) -> Functions {
        Functions {
            #[cfg(feature = "javascript")]
            pool: {
                let limits = javascript::Limits { memory: memory.heap, ..javascript::Limits::default() };
                javascript::Pool::new(memory.function_threads(threads), limits)
            },
        }
    }

    /// Number of runs that wait for a thread. `None` where nothing runs.
    pub(crate) fn waiting(&self) -> Option<usize> {
        #[cfg(feature = "javascript")]
        return Some(self.pool.waiting());
        #[cfg(not(feature = "javascript"))]
        None
    }

    /// Which documents pass a filter.
    #[cfg(feature = "javascript")]
    pub(crate) async fn filter(&self, filter: &FilterFunction, documents: Vec<JsonText>) -> Result<Vec<bool>> {
        let (name, request) = (filter.name.clone(), filter.request.clone());
        let call = move |sandbox: &mut javascript::Sandbox, document: &JsonText| match &request {
            Some(request) => sandbox.filter(&name, document.as_str(), request).map(Some),
            None => sandbox.filter_by_view(&name, document.as_str()).map(Some),
        };
        Ok(self.pool.run_in_turns(&filter.design, documents, |_| Ok(()), call).await?)
    }

    /// The result of an update function for a document, or `null`, and a request.
    #[cfg(feature = "javascript")]
    pub(crate) async fn update(
        &self,
        design: &Design,
        name: &str,
        document: JsonText,
        request: String,
    ) -> Result<String> {
        let name = name.to_owned();
        let ran = self.pool.run(design, move |sandbox| sandbox.update(&name, document.as_str(), &request)).await;
        ran.flatten().map_err(|error| match error.kind() {
            javascript::ErrorKind::Input => {
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "document_too_large", error.to_string())
            }
            javascript::ErrorKind::Thrown => thrown(&error),
            _ => error.into(),
        })
    }

    /// The functions of these views of a design document.
    #[cfg(feature = "javascript")]
    pub(crate) fn of_views(
        &self,
        database: &Documents,
        design: &JsonText,
        views: &[View],
    ) -> Result<Arc<dyn ViewFunctions>> {
        let design = design_of(database.instance_id(), design);
        Ok(Arc::new(view::OfViews { pool: self.pool.clone(), design, views: views.into() }))
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) fn of_views(&self, _: &Documents, _: &JsonText, _: &[View]) -> Result<Arc<dyn ViewFunctions>> {
        Err(absent())
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) async fn filter(&self, _: &FilterFunction, _: Vec<JsonText>) -> Result<Vec<bool>> {
        Err(absent())
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) async fn update(&self, _: &Design, _: &str, _: JsonText, _: String) -> Result<String> {
        Err(absent())
    }
}

#[cfg(not(feature = "javascript"))]
const ABSENT: &str =
    "this couch-layer was built without the feature javascript, which functions of design documents need";

#[cfg(not(feature = "javascript"))]
fn absent() -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", ABSENT)
}

/// The error for a result of an update function that cannot be an answer.
pub(crate) fn render_error(reason: impl Into<Cow<'static, str>>) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "render_error", reason)
}

/// The answer to an error that an update function threw.
#[cfg(feature = "javascript")]
fn thrown(error: &javascript::Error) -> ApiError {
    match named(error) {
        Some((status, name, reason)) => ApiError::new(status, name, reason),
        None => render_error(error.to_string()),
    }
}

/// The status, the name and the reason of the error that a function reports by throwing `["error", NAME, REASON]`.
#[cfg(feature = "javascript")]
fn named(error: &javascript::Error) -> Option<(StatusCode, String, String)> {
    let thrown = JsonText::parse(error.thrown()?.as_bytes()).ok()?;
    let parts: Vec<String> = thrown.root().elements().map(|part| part.str_or_text().into_owned()).collect();
    let Ok([kind, name, mut reason]) = <[String; 3]>::try_from(parts) else { return None };
    if kind != "error" && kind != "fatal" {
        return None;
    }
    let status = match name.as_str() {
        "bad_request" | "query_parse_error" | "illegal_docid" | "doc_validation" => StatusCode::BAD_REQUEST,
        "unauthorized" => StatusCode::UNAUTHORIZED,
        "forbidden" => StatusCode::FORBIDDEN,
        "not_found" => StatusCode::NOT_FOUND,
        "method_not_allowed" => StatusCode::METHOD_NOT_ALLOWED,
        "not_acceptable" => StatusCode::NOT_ACCEPTABLE,
        "conflict" => {
            reason = model::ErrorKind::Conflict.to_string();
            StatusCode::CONFLICT
        }
        "gone" => StatusCode::GONE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Some((status, name, reason))
}

#[cfg(feature = "javascript")]
impl From<javascript::Error> for ApiError {
    fn from(error: javascript::Error) -> ApiError {
        use javascript::ErrorKind;
        let name = match error.kind() {
            ErrorKind::Missing => return ApiError::not_found(error.to_string()),
            ErrorKind::Compilation => "compilation_error".to_owned(),
            ErrorKind::Thrown => error.name().unwrap_or("unknown_error").to_owned(),
            // CouchDB's process for functions ends in this case.
            _ => "os_process_error".to_owned(),
        };
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, name, error.to_string())
    }
}

/// A design document with a function at this path of members. 404 if one of them is missing. 501 if nothing here can
/// run it, even for a feed that would be empty.
pub(crate) async fn design(database: &Documents, id: &str, path: [&str; 2]) -> Result<Design> {
    let design = database.get(id, &GetOptions::default()).await?.to_text();
    let mut at = Some(design.root());
    for name in path {
        at = at.and_then(|value| value.get(name));
        if at.is_none() {
            return Err(ApiError::not_found(format!("missing json key: {name}")));
        }
    }
    #[cfg(not(feature = "javascript"))]
    return Err(absent());
    #[cfg(feature = "javascript")]
    Ok(design_of(database.instance_id(), &design))
}

/// The id of an instance, not the name: a database that was dropped and created again is another one.
#[cfg(feature = "javascript")]
fn design_of(database: [u8; 16], design: &JsonText) -> Design {
    Design { database, text: design.as_str().into() }
}
