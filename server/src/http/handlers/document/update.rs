//! `/{db}/_design/{ddoc}/_update/{name}`: a function creates or changes a document, and answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use model::{Edit, ErrorKind, GetOptions, JsonText, NotFound, RevId, WriteMode};

use crate::http::app::stores::Documents;
use crate::http::config::sandbox::Foreign;
use crate::http::error::{ApiError, Result};
use crate::http::functions::request::request_object;
use crate::http::functions::{self, render_error};
use crate::http::handlers::document::write::write_edit;
use crate::http::operation::{Content, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::params;
use crate::http::wire::response::{self, Body, Response};

/// The type of answers that are text.
const HTML: &str = "text/html; charset=utf-8";

/// Maximum size of a body. The body and the JSON text that contains it share the 64 MiB of the function's heap.
const MOST_BODY: usize = 32 << 20;

/// What [`update`] does.
pub(crate) const UPDATE: Operation = Operation::new(
    "Calls an update function, which may write a document, and answers. It gets all parameters of the query.",
    &[Reply::new(200, &[Content::of("*/*")]), Reply::new(201, &[Content::of("*/*")])],
)
.bodies(&[Content::of("*/*")])
.refusals(&[405, 406, 409, 410, 412, 500, 501]);

/// `rest`: the name of the function, and the parts of the document's id, if one is named.
pub(crate) async fn update(request: &mut Request, db: &str, design_id: &str, rest: &[&str]) -> Result<Response> {
    if request.method == Method::GET {
        let reason = "Update functions do not allow GET";
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason));
    }
    let Some((name, id)) = rest.split_first() else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "update_error", "Invalid path."));
    };
    let id = Some(id.join("/")).filter(|id| !id.is_empty());
    request.body.narrow(MOST_BODY);
    let body = request.body.bytes(&request.headers).await?;
    let body = String::from_utf8_lossy(&body);
    let (request, id, body) = (&*request, id.as_deref(), body.as_ref());
    let run = |database: Documents| async move {
        let design = functions::design(&database, design_id, ["updates", name]).await?;
        let document = match id {
            Some(id) => current(&database, id).await?,
            None => None,
        };
        let path: Vec<&str> =
            [db].into_iter().chain(design_id.split('/')).chain(["_update"]).chain(rest.iter().copied()).collect();
        let asked = request_object(request, &database, &path, id, Some(body)).await?;
        let document = document.unwrap_or_else(null);
        request.app.functions.update(&design, name, document, asked).await
    };
    let result = request.with_database(db, run).await?;
    let result = JsonText::parse(result.as_bytes()).map_err(|_| render_error("the result is not JSON"))?;
    let mut parts = result.root().elements();
    let (document, answer) = (parts.next(), parts.next());
    let answer = answer.filter(|answer| !answer.is_null());
    let answer = answer.ok_or_else(|| render_error("undefined response from update function"))?;
    // Only an object is written, and only if there is a response to report it.
    let document = document.filter(|document| document.is_object());
    let mut response = respond(&result.slice_ref(answer), document.is_some())?;
    if let Some(document) = document {
        let (id, rev) = save(request, db, &result.slice_ref(document)).await?;
        let values = [
            ("x-couch-id", HeaderValue::try_from(params::encode(&id).to_string())),
            ("x-couch-update-newrev", HeaderValue::try_from(rev.to_string())),
        ];
        for (name, value) in values {
            if let Ok(value) = value {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
    }
    Ok(response)
}

fn null() -> JsonText {
    JsonText::from_normalised("null").unwrap_or_else(JsonText::empty_object)
}

/// The current document with its conflicts and its history; `None` if it does not exist.
async fn current(database: &Documents, id: &str) -> Result<Option<JsonText>> {
    let options = GetOptions { conflicts: true, revs: true, ..GetOptions::default() };
    match database.get(id, &options).await {
        Ok(document) => Ok(Some(document.to_text())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn save(request: &Request, db: &str, document: &JsonText) -> Result<(String, RevId)> {
    let edit = Edit::from_json(None, document, WriteMode::Interactive)?;
    if edit.id.is_empty() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "illegal_docid", "Document id must not be empty"));
    }
    write_edit(request, db, edit).await
}

/// The function's response object, or text. `is_saved`: whether a document was written.
fn respond(answer: &JsonText, is_saved: bool) -> Result<Response> {
    let invalid =
        |what: &'static str| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "external_response_error", what);
    let mut status = if is_saved { StatusCode::CREATED } else { StatusCode::OK };
    let (mut content_type, mut body) = ("application/json", Vec::new());
    let mut headers = Vec::new();
    if let Some(text) = answer.root().as_str() {
        content_type = HTML;
        body = text.into_owned().into_bytes();
    } else if !answer.root().is_object() {
        return Err(invalid("the response is neither text nor an object"));
    }
    for (name, value) in answer.root().members() {
        match name.as_ref() {
            "code" => {
                let code = value.str_or_text().parse::<u16>().ok();
                let code = code.filter(|code| (200..600).contains(code));
                status =
                    code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or_else(|| invalid("invalid code"))?;
            }
            "json" => {
                content_type = "application/json";
                body = value.text().as_bytes().to_vec();
            }
            "body" => {
                content_type = HTML;
                body = value.as_str().ok_or_else(|| invalid("the body is not text"))?.into_owned().into_bytes();
            }
            "base64" => {
                content_type = "application/binary";
                let text = value.as_str().ok_or_else(|| invalid("the base64 is not text"))?;
                body = STANDARD.decode(text.as_bytes()).map_err(|_| invalid("the base64 is invalid"))?;
            }
            "headers" => {
                // Values that cannot be a header, such as several lines, are left out.
                headers.extend(value.members().filter_map(|(name, value)| {
                    let name = HeaderName::try_from(name.as_ref()).ok();
                    name.zip(HeaderValue::try_from(value.str_or_text().as_ref()).ok())
                }));
            }
            // `stop` has no meaning here.
            _ => {}
        }
    }
    let mut response = response::typed(content_type, Body::whole(body));
    *response.status_mut() = status;
    for (name, value) in headers {
        // The server decides about the framing.
        if !matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection") {
            response.headers_mut().insert(name, value);
        }
    }
    // As in CouchDB: a page made by a function must not act with the rights of the user who opens it.
    response::confine(&mut response, Foreign::Function);
    Ok(response)
}
