//! `_security`, `_compact`, `_view_cleanup`, `_ensure_full_commit`.

use hyper::{Method, StatusCode};

use super::error::{ApiError, Result};
use super::json_body::require_json;
use super::request::Request;
use super::response::{self, Response};

pub(crate) async fn security(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.database(db).await?;
    match request.method {
        Method::GET => {
            let security = database.security().await?;
            Ok(response::json(StatusCode::OK, security.as_bytes().to_vec()))
        }
        Method::PUT => {
            let security = request.json().await?;
            validate(&security)?;
            database.set_security(security).await?;
            Ok(response::ok(StatusCode::OK))
        }
        _ => Err(ApiError::unrouted()),
    }
}

/// As `validate_security_doc` of CouchDB's `couch_db.erl`: lists of names and roles are lists of
/// strings.
fn validate(security: &model::JsonText) -> Result<()> {
    if !security.root().is_object() {
        return Err(ApiError::bad_request("Security object must be a JSON object"));
    }
    for group in ["admins", "members", "readers"] {
        let Some(group) = security.get(group) else { continue };
        if !group.is_object() {
            return Err(ApiError::bad_request("the groups of a security object must be JSON objects"));
        }
        for list in ["names", "roles"] {
            let Some(entries) = group.get(list) else { continue };
            if !entries.is_array() || !entries.elements().all(|entry| entry.as_json_str().is_some()) {
                return Err(ApiError::bad_request(format!("{list} must be a JSON list of strings")));
            }
        }
    }
    Ok(())
}

/// Nothing is left behind that a compaction could remove: an edit clears the rows that it replaces,
/// and engines tidy their files by themselves. 202, as CouchDB answers whether or not it finds any.
pub(crate) async fn compact(request: &Request, db: &str) -> Result<Response> {
    accepted(request, db).await
}

/// There are no views whose leftovers could be removed.
pub(crate) async fn view_cleanup(request: &Request, db: &str) -> Result<Response> {
    accepted(request, db).await
}

async fn accepted(request: &Request, db: &str) -> Result<Response> {
    request.database(db).await?;
    require_json(&request.headers)?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Every write that was acknowledged is as durable as the engine makes it already.
pub(crate) async fn ensure_full_commit(request: &Request, db: &str) -> Result<Response> {
    let database = request.database(db).await?;
    require_json(&request.headers)?;
    let info = database.info().await?;
    Ok(response::object_with(StatusCode::CREATED, |json| {
        json.name("ok").bool(true);
        json.name("instance_start_time").display(info.created_ms / 1000);
    }))
}
