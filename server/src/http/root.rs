//! Endpoints of the server itself: `/`, `/_up`, `/_uuids`, `/_all_dbs`, `/_dbs_info`, `/_active_tasks`.

use hyper::header::{CACHE_CONTROL, EXPIRES, HeaderValue, PRAGMA};
use hyper::{Method, StatusCode};
use model::{JsonWriter, NameRange};

use super::database::write_info;
use super::error::{ApiError, Result};
use super::params::{self, Params};
use super::relocate;
use super::request::Request;
use super::response::{self, Response};

/// The release of CouchDB whose API this is; clients parse it.
const API_VERSION: &str = concat!("3.5.1+couch-layer.", env!("CARGO_PKG_VERSION"));

/// Ids in one answer of `/_uuids`.
const MAX_UUIDS: usize = 1000;

/// Databases in one request to `/_dbs_info`.
const MAX_INFO_KEYS: usize = 100;

pub(crate) fn welcome(request: &Request) -> Result<Response> {
    Ok(response::object(|json| {
        json.name("couchdb").str("Welcome");
        json.name("version").str(API_VERSION);
        json.name("uuid").str(&request.app.uuid);
        json.name("features").begin_array().end_array();
        json.name("vendor").begin_object();
        json.name("name").str("couch-layer");
        json.name("version").str(env!("CARGO_PKG_VERSION"));
        json.end_object();
    }))
}

pub(crate) fn up() -> Result<Response> {
    Ok(response::object(|json| {
        json.name("status").str("ok");
        json.name("seeds").begin_object().end_object();
    }))
}

pub(crate) fn active_tasks(request: &Request) -> Result<Response> {
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    relocate::write_tasks(&request.app.relocations, &mut json);
    json.end_array();
    Ok(response::json(StatusCode::OK, body))
}

pub(crate) fn uuids(request: &Request) -> Result<Response> {
    let count = match request.params.get("count") {
        None => 1,
        Some(text) => match text.parse::<i64>() {
            Ok(count) if count > MAX_UUIDS as i64 => {
                return Err(ApiError::bad_request("count parameter too large"));
            }
            Ok(count) => usize::try_from(count).ok(),
            Err(_) => None,
        }
        .ok_or_else(|| ApiError::bad_request("count must be a positive integer"))?,
    };
    let made = fresh_ids(request, count)?;
    let mut response = response::object(|json| {
        json.name("uuids").begin_array();
        for uuid in &made {
            json.str(uuid);
        }
        json.end_array();
    });
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
    // A date in the past, as CouchDB has it: nobody shall hand the same ids out twice.
    headers.insert(EXPIRES, HeaderValue::from_static("Mon, 01 Jan 1990 00:00:00 GMT"));
    Ok(response)
}

/// New document ids.
pub(crate) fn fresh_ids(request: &Request, count: usize) -> Result<Vec<String>> {
    request.app.uuids.next(count).map_err(|error| {
        tracing::error!(%error, "the system gives no random numbers");
        ApiError::internal()
    })
}

pub(crate) async fn all_dbs(request: &Request) -> Result<Response> {
    let names = request.app.layer.database_names(&name_range(&request.params)?).await?;
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for name in &names {
        json.str(name);
    }
    json.end_array();
    Ok(response::json(StatusCode::OK, body))
}

/// The infos of the databases that the body names, or of all.
pub(crate) async fn dbs_info(request: &mut Request) -> Result<Response> {
    let named = match request.method {
        Method::GET => false,
        Method::POST => true,
        _ => return Err(ApiError::unrouted()),
    };
    let names = if named {
        let json = request.json_object().await?;
        let keys = json.get("keys").filter(|keys| keys.is_array());
        let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` member must exist."))?;
        let keys: Option<Vec<String>> = keys.elements().map(|key| key.as_str().map(|key| key.into_owned())).collect();
        let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` must be an array of names."))?;
        if keys.len() > MAX_INFO_KEYS {
            return Err(ApiError::bad_request("too_many_keys"));
        }
        keys
    } else {
        request.app.layer.database_names(&name_range(&request.params)?).await?
    };
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for name in &names {
        let info = match request.app.stores.database(name).await {
            Ok(database) => database.info().await.map_err(ApiError::from),
            Err(error) => Err(error),
        };
        match info {
            Ok(info) => {
                json.begin_object().name("key").str(name);
                json.name("info").begin_object();
                write_info(&mut json, name, &info);
                json.end_object().end_object();
            }
            Err(error) if named && error.status().is_client_error() => {
                json.begin_object().name("key").str(name).name("error").str("not_found").end_object();
            }
            // Dropped since it was listed.
            Err(error) if error.is_no_database() => {}
            Err(error) => return Err(error),
        }
    }
    json.end_array();
    Ok(response::json(StatusCode::OK, body))
}

fn name_range(params: &Params) -> Result<NameRange> {
    let mut range = NameRange::default();
    for (name, value) in params.iter() {
        match name {
            "startkey" | "start_key" => range.start = Some(key(value)?),
            "endkey" | "end_key" => range.end = Some(key(value)?),
            "key" => {
                range.start = Some(key(value)?);
                range.end = range.start.clone();
            }
            "limit" => range.limit = Some(usize::try_from(params::parse_count(value)?).unwrap_or(usize::MAX)),
            "skip" => range.skip = usize::try_from(params::parse_count(value)?).unwrap_or(usize::MAX),
            "descending" => range.descending = params::parse_bool(value)?,
            _ => {}
        }
    }
    Ok(range)
}

fn key(value: &str) -> Result<String> {
    let json = params::parse_json(value)?;
    json.root().as_str().map(|key| key.into_owned()).ok_or_else(|| ApiError::bad_request("keys must be strings"))
}
