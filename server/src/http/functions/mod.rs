//! Functions of design documents.
//!
//! They run in sandboxes on threads of their own ([`javascript::Pool`]). A build without the feature `javascript` has
//! none, and answers requests that need one with 501.

pub(crate) mod filter;
pub(crate) mod request;
pub(crate) mod update;
pub(crate) mod validate;
#[cfg(feature = "javascript")]
mod view;

use std::sync::Arc;

use hyper::StatusCode;
use model::{GetOptions, JsonText, View, ViewFunctions};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};

/// The threads that run functions.
#[derive(Debug)]
pub(crate) struct Functions {
    #[cfg(feature = "javascript")]
    pool: javascript::Pool,
}

impl Functions {
    /// Uses this many threads.
    #[cfg_attr(not(feature = "javascript"), expect(unused_variables, reason = "nothing runs"))]
    pub(crate) fn new(threads: usize) -> Functions {
        Functions {
            #[cfg(feature = "javascript")]
            pool: javascript::Pool::new(threads, javascript::Limits::default()),
        }
    }

    /// Runs work in the sandbox of a design document.
    #[cfg(feature = "javascript")]
    async fn run<T: Send + 'static>(
        &self,
        design: &Arc<str>,
        work: impl FnOnce(&mut javascript::Sandbox) -> Result<T, javascript::Error> + Send + 'static,
    ) -> Result<T> {
        Ok(self.pool.run(design, work).await.flatten()?)
    }

    /// Which of the documents pass a filter.
    #[cfg(feature = "javascript")]
    pub(crate) async fn filter(&self, filter: &filter::Function, documents: Vec<JsonText>) -> Result<Vec<bool>> {
        self.filter_in_turns(filter, documents.into(), filter::TURN).await
    }

    #[cfg(feature = "javascript")]
    async fn filter_in_turns(
        &self,
        filter: &filter::Function,
        documents: Arc<[JsonText]>,
        turn: std::time::Duration,
    ) -> Result<Vec<bool>> {
        let mut verdicts = Vec::with_capacity(documents.len());
        while verdicts.len() < documents.len() {
            let (name, request) = (filter.name.clone(), filter.request.clone());
            let (documents, from) = (documents.clone(), verdicts.len());
            let work = move |sandbox: &mut javascript::Sandbox| {
                let (begun, mut some) = (std::time::Instant::now(), Vec::new());
                for document in &documents[from..] {
                    some.push(match &request {
                        Some(request) => sandbox.filter(&name, document.as_str(), request)?,
                        None => sandbox.filter_by_view(&name, document.as_str())?,
                    });
                    if begun.elapsed() > turn {
                        break;
                    }
                }
                Ok(some)
            };
            verdicts.extend(self.run(&filter.design, work).await?);
        }
        Ok(verdicts)
    }

    /// What an update function returns for a document, or `null`, and a request.
    #[cfg(feature = "javascript")]
    pub(crate) async fn update(
        &self,
        design: &Arc<str>,
        name: &str,
        document: JsonText,
        request: String,
    ) -> Result<String> {
        let name = name.to_owned();
        let ran = self.pool.run(design, move |sandbox| sandbox.update(&name, document.as_str(), &request)).await;
        ran.flatten().map_err(|error| match error.kind() {
            javascript::ErrorKind::Thrown => update::render_error(error.to_string()),
            _ => error.into(),
        })
    }

    /// The functions of these views of a design document.
    #[cfg(feature = "javascript")]
    pub(crate) fn of_views(&self, design: &JsonText, views: &[View]) -> Result<Arc<dyn ViewFunctions>> {
        Ok(Arc::new(view::OfViews { pool: self.pool.clone(), design: design.as_str().into(), views: views.into() }))
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) fn of_views(&self, _: &JsonText, _: &[View]) -> Result<Arc<dyn ViewFunctions>> {
        Err(absent())
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) async fn filter(&self, _: &filter::Function, _: Vec<JsonText>) -> Result<Vec<bool>> {
        Err(absent())
    }

    #[cfg(not(feature = "javascript"))]
    pub(crate) async fn update(&self, _: &Arc<str>, _: &str, _: JsonText, _: String) -> Result<String> {
        Err(absent())
    }
}

#[cfg(not(feature = "javascript"))]
const ABSENT: &str = "this server was built without the feature javascript, which functions of design documents need";

#[cfg(not(feature = "javascript"))]
fn absent() -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", ABSENT)
}

#[cfg(feature = "javascript")]
impl From<javascript::Error> for ApiError {
    fn from(error: javascript::Error) -> ApiError {
        use javascript::ErrorKind;
        let name = match error.kind() {
            ErrorKind::Missing => return ApiError::not_found(error.to_string()),
            ErrorKind::Compilation => "compilation_error".to_owned(),
            ErrorKind::Thrown => error.name().unwrap_or("unknown_error").to_owned(),
            // The process that runs functions in CouchDB ends then.
            _ => "os_process_error".to_owned(),
        };
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, name, error.to_string())
    }
}

/// A design document with a function at this path of members. 404 if one of them is missing.
pub(crate) async fn design(database: &Documents, id: &str, path: [&str; 2]) -> Result<JsonText> {
    let design = database.get(id, &GetOptions::default()).await?.to_text();
    let mut at = Some(design.root());
    for name in path {
        at = at.and_then(|value| value.get(name));
        if at.is_none() {
            return Err(ApiError::not_found(format!("missing json key: {name}")));
        }
    }
    Ok(design)
}

#[cfg(all(test, feature = "javascript"))]
mod tests {
    use std::time::Duration;

    use futures_util::future::{Either, select};

    use super::*;

    #[tokio::test]
    async fn a_filter_of_many_documents_lets_others_have_their_turn() {
        let functions = Functions::new(1);
        let design = r#"{"filters":{"odd":"doc => doc.n % 2"}}"#;
        let filter = filter::Function { design: design.into(), name: "odd".to_owned(), request: Some("{}".into()) };
        let documents = |count: usize| -> Arc<[JsonText]> {
            (0..count).map(|n| JsonText::parse(format!(r#"{{"n":{n}}}"#).as_bytes()).unwrap()).collect()
        };
        let many = Box::pin(functions.filter_in_turns(&filter, documents(50), Duration::ZERO));
        let few = Box::pin(functions.filter_in_turns(&filter, documents(2), Duration::ZERO));
        let Either::Right((few, many)) = select(many, few).await else { panic!("the second had to wait") };
        assert_eq!(few.unwrap(), [false, true]);
        assert_eq!(many.await.unwrap(), (0..50).map(|n| n % 2 == 1).collect::<Vec<_>>());
    }
}
