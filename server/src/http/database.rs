//! `/{db}`: create, drop, describe, and add a document without naming it.

use hyper::{Method, StatusCode};
use model::{BodyFormat, CreateOptions, DatabaseInfo, Edit, JsonWriter, WriteMode};

use super::document::require_design_admin;
use super::error::{ApiError, Result};
use super::json_body::require_json;
use super::local::{LocalEdit, local_id};
use super::params::Params;
use super::request::Request;
use super::response::{self, Response};
use super::root::fresh_ids;

pub(crate) async fn database(request: &mut Request, name: &str) -> Result<Response> {
    match request.method {
        Method::PUT => create(request, name).await,
        Method::DELETE => drop_database(request, name).await,
        Method::GET => info(request, name).await,
        Method::POST => add_document(request, name).await,
        _ => Err(ApiError::unrouted()),
    }
}

async fn create(request: &Request, name: &str) -> Result<Response> {
    let mut options = CreateOptions::default();
    for (parameter, value) in request.params.iter() {
        match (parameter, value) {
            ("q" | "n", value) if !value.parse::<u32>().is_ok_and(|count| count > 0) => {
                let reason = format!("The `{parameter}` value should be a positive integer.");
                return Err(ApiError::bad_request(reason));
            }
            ("partitioned", "false") => {}
            ("partitioned", "true") => return Err(ApiError::not_implemented("partitioned databases")),
            ("partitioned", _) => return Err(ApiError::bad_request("Invalid `partitioned` parameter")),
            ("format", "exploded") => options.format = Some(BodyFormat::Exploded),
            ("format", "packed") => options.format = Some(BodyFormat::Packed),
            ("format", _) => return Err(ApiError::bad_request("The `format` value should be exploded or packed.")),
            _ => {}
        }
    }
    request.app.layer.create_database(name, options).await?;
    let mut response = response::ok(StatusCode::CREATED);
    response::set_location(&mut response, request.absolute(&[name]));
    Ok(response)
}

async fn drop_database(request: &Request, name: &str) -> Result<Response> {
    // Whoever sends a revision means a document, and left its id empty.
    if request.params.get("rev").is_some() {
        return Err(ApiError::bad_request(
            "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?",
        ));
    }
    request.app.stores.drop_database(name).await?;
    Ok(response::ok(StatusCode::OK))
}

async fn info(request: &Request, name: &str) -> Result<Response> {
    let info = request.database(name).await?.info().await?;
    Ok(response::object(|json| write_info(json, name, &info)))
}

/// The members that describe a database, into the object that is open.
pub(crate) fn write_info(json: &mut JsonWriter<'_>, name: &str, info: &DatabaseInfo) {
    json.name("instance_start_time").display(info.created_ms / 1000);
    json.name("db_name").str(name);
    json.name("purge_seq").str("0");
    json.name("update_seq").display(info.update_seq);
    json.name("sizes").begin_object();
    json.name("file").u64(info.sizes.active);
    json.name("external").u64(info.sizes.external);
    json.name("active").u64(info.sizes.active);
    json.end_object();
    json.name("props").begin_object().end_object();
    json.name("doc_del_count").u64(info.doc_del_count);
    json.name("doc_count").u64(info.doc_count);
    json.name("disk_format_version").u64(1);
    json.name("compact_running").bool(false);
    json.name("cluster").begin_object();
    for name in ["q", "n", "w", "r"] {
        json.name(name).u64(1);
    }
    json.end_object();
}

async fn add_document(request: &mut Request, name: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let database = request.database(name).await?;
    let json = request.json().await?;
    if let Some(id) = local_id(&json) {
        let rev = LocalEdit::from_json(&json)?.write(&database, &id).await?;
        let mut response = super::local::written(&id, rev, StatusCode::CREATED);
        response::set_location(&mut response, request.absolute(&[name, &id]));
        return Ok(response);
    }
    let mut edit = Edit::from_json(None, &json, WriteMode::Interactive)?;
    if edit.id.is_empty() {
        edit.id = fresh_ids(request, 1)?.pop().unwrap_or_default();
    }
    require_design_admin(request, &edit.id)?;
    let id = edit.id.clone();
    let rev = database.put(edit).await?;
    let batch = is_batch(&request.params);
    let status = if batch { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    let mut response = response::object_with(status, |json| {
        json.name("ok").bool(true);
        json.name("id").str(&id);
        if !batch {
            json.name("rev").display(&rev);
        }
    });
    response::set_location(&mut response, request.absolute(&[name, &id]));
    Ok(response)
}

/// `batch=ok`: the client does not wait for the disk in CouchDB, which then answers 202 without a
/// revision. Here the write is as durable as any other by the time of the same answer.
pub(crate) fn is_batch(params: &Params) -> bool {
    params.get("batch") == Some("ok")
}
