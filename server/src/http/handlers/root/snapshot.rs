//! `POST /_couch_layer/snapshot`: copies the store while it is served, in milliseconds
//! ([`kv_api::Database::snapshot`]).
//!
//! `{"to": "/snapshots/monday"}`. The folder is one of the server's machine, and is created: a folder or a file of this
//! name is refused, so nothing that exists is written to or removed. It lies on the file system of the store, and not
//! inside of it. Only an administrator may name it. On a server without an administrator nobody may.

use std::path::PathBuf;

use hyper::StatusCode;
use kv_api::Database;
use kv_api::error::{
    CLIENT_INVALID_OPERATION, FILE_NOT_FOUND, FILE_NOT_WRITABLE, STORAGE_QUOTA_EXCEEDED, UNSUPPORTED_OPERATION,
};

use crate::http::error::{ApiError, Result};
use crate::http::handlers::root::backup::{absolute, require_administrator};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};

/// What [`make`] does.
pub(crate) const MAKE: Operation =
    Operation::new("Makes a snapshot of the store in a new folder of the server.", &[Reply::done(201)])
        .bodies(&[Content::members(&[Param::text("to", "The absolute path of the folder.").required()])])
        .refusals(&[412, 500, 501]);

/// `POST /_couch_layer/snapshot`
pub(crate) async fn make(request: &mut Request) -> Result<Response> {
    require_administrator(request)?;
    require_json(&request.headers)?;
    let json = request.json_object().await?;
    let to = absolute(&json, "to")
        .map(PathBuf::from)
        .ok_or_else(|| ApiError::bad_request("`to` must be the absolute path of a new folder"))?;
    let (engine, folder) = (request.app.layer.engine().clone(), to.clone());
    let made = tokio::task::spawn_blocking(move || engine.snapshot(&folder)).await.map_err(|error| {
        tracing::error!(%error, "a snapshot ended unexpectedly");
        ApiError::internal()
    })?;
    made.map_err(|error| {
        tracing::warn!(%error, to = %to.display(), "a snapshot failed");
        let reason = error.to_string();
        match error.code() {
            CLIENT_INVALID_OPERATION if to.symlink_metadata().is_ok() => {
                ApiError::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
            }
            CLIENT_INVALID_OPERATION | FILE_NOT_FOUND | FILE_NOT_WRITABLE => ApiError::bad_request(reason),
            UNSUPPORTED_OPERATION => ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason),
            STORAGE_QUOTA_EXCEEDED => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", reason),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", reason),
        }
    })?;
    request.audit("snapshot_made", &[("to", &to.display().to_string())]);
    Ok(response::ok(StatusCode::CREATED))
}
