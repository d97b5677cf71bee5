//! Settings of a database: `_security`, `_revs_limit`, `_keep_replaced`.

use hyper::StatusCode;
use model::{JsonText, JsonWriter, KeepReplaced};

use crate::http::app::stores::Documents;
use crate::http::authn::users;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::database_info::write_keep;
use crate::http::wire::response::{self, Response};

/// Maximum size of a security object: it is read for each request of a client that is not a server administrator.
const MOST_SECURITY_BYTES: usize = 1 << 20;

/// What [`security`] does.
pub(crate) const SECURITY: Operation =
    Operation::new("Who may read, write and administrate the database.", &[Reply::object(200)]);

/// `GET /{db}/_security`
pub(crate) async fn security(request: &Request, db: &str) -> Result<Response> {
    let security = request.with_database(db, |database| async move { Ok(database.security().await?) }).await?;
    Ok(response::json(StatusCode::OK, security.as_bytes().to_vec()))
}

/// What [`set_security`] does.
pub(crate) const SET_SECURITY: Operation =
    Operation::new("Sets who may read, write and administrate the database.", &[Reply::done(200)])
        .bodies(&[Content::members(&[
            Param::object("admins", "`names` and `roles`."),
            Param::object("members", "`names` and `roles`."),
        ])])
        .refusals(&[409]);

/// `PUT /{db}/_security`
pub(crate) async fn set_security(request: &mut Request, db: &str) -> Result<Response> {
    request.body.narrow(MOST_SECURITY_BYTES);
    let security = request.json().await?;
    validate(&security)?;
    let auth = &request.app.auth;
    if db == users::DATABASE && !auth.is_open_admin() && !auth.settings().users_security_editable {
        return Err(ApiError::forbidden("You can't edit the security object of the user database."));
    }
    let _turn = auth.admit_change(&request.app.layer, &request.principal).await?;
    let security = &security;
    let set = |database: Documents| async move { Ok(database.set_security(security.clone()).await?) };
    request.with_database(db, set).await?;
    request.audit("security_changed", &[("db", db)]);
    Ok(response::ok(StatusCode::OK))
}

/// As `validate_security_doc` in CouchDB's `couch_db.erl`: names and roles are lists of strings.
fn validate(security: &JsonText) -> Result<()> {
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

/// What [`revs_limit`] does.
pub(crate) const REVS_LIMIT: Operation =
    Operation::new("How many revisions of a branch are known.", &[Reply::new(200, &[Content::json(Kind::Count)])]);

/// `GET /{db}/_revs_limit`
pub(crate) async fn revs_limit(request: &Request, db: &str) -> Result<Response> {
    let limit = request.with_database(db, |database| async move { Ok(database.revs_limit().await?) }).await?;
    Ok(response::json(StatusCode::OK, limit.to_string().into_bytes()))
}

/// What [`set_revs_limit`] does.
pub(crate) const SET_REVS_LIMIT: Operation =
    Operation::new("Sets how many revisions of a branch are known.", &[Reply::done(200)])
        .bodies(&[Content::json(Kind::Count)]);

/// `PUT /{db}/_revs_limit`
pub(crate) async fn set_revs_limit(request: &mut Request, db: &str) -> Result<Response> {
    let limit = request.json().await?.root().as_u64().and_then(|limit| u32::try_from(limit).ok());
    let limit = limit.ok_or_else(|| ApiError::bad_request("`_revs_limit` must be a positive integer"))?;
    request.with_database(db, |database| async move { Ok(database.set_revs_limit(limit).await?) }).await?;
    Ok(response::ok(StatusCode::OK))
}

/// What [`keep_replaced`] does.
pub(crate) const KEEP_REPLACED: Operation = Operation::new(
    "How many replaced revisions are kept, or for how long.",
    &[Reply::new(200, &[Content::json(Kind::Json)])],
);

/// `GET /{db}/_keep_replaced`: a number of revisions, or a time as a string. 0 means that an edit removes the body that
/// it replaces.
pub(crate) async fn keep_replaced(request: &Request, db: &str) -> Result<Response> {
    let keep = request.with_database(db, |database| async move { Ok(database.keep_replaced().await?) }).await?;
    let mut text = Vec::new();
    write_keep(&mut JsonWriter::new(&mut text), keep);
    Ok(response::json(StatusCode::OK, text))
}

/// What [`set_keep_replaced`] does.
pub(crate) const SET_KEEP_REPLACED: Operation =
    Operation::new("Sets how many replaced revisions are kept, or for how long.", &[Reply::done(200)])
        .bodies(&[Content::json(Kind::Json)]);

/// `PUT /{db}/_keep_replaced`, with the same.
pub(crate) async fn set_keep_replaced(request: &mut Request, db: &str) -> Result<Response> {
    let value = request.json().await?;
    let number = value.root().as_u64().map(|number| number.to_string());
    let keep = read_keep(&value.root().as_str().map(|text| text.into_owned()).or(number).unwrap_or_default())?;
    request.with_database(db, |database| async move { Ok(database.set_keep_replaced(keep).await?) }).await?;
    request.audit("keep_replaced_changed", &[("db", db)]);
    Ok(response::ok(StatusCode::OK))
}

/// The setting for kept revisions: `None` for `0`.
pub(crate) fn read_keep(text: &str) -> Result<Option<KeepReplaced>> {
    Ok(if text == "0" { None } else { Some(text.parse()?) })
}
