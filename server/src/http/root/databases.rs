//! `/_all_dbs`, `/_dbs_info`: the list of databases.

use hyper::StatusCode;
use model::{JsonWriter, NameRange};

use crate::http::database::write_info;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::params::{self, Params};
use crate::http::wire::response::{self, Response};

/// Maximum number of databases in one request to `/_dbs_info`, unless the configuration has another.
const MAX_INFO_KEYS: usize = 100;

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

/// `GET /_dbs_info`: all databases.
pub(crate) async fn dbs_info(request: &Request) -> Result<Response> {
    let names = request.app.layer.database_names(&name_range(&request.params)?).await?;
    infos(request, &names, false).await
}

/// `POST /_dbs_info`: the databases that the body names.
pub(crate) async fn named_dbs_info(request: &mut Request) -> Result<Response> {
    let json = request.json_object().await?;
    let keys = json.get("keys").filter(|keys| keys.is_array());
    let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` member must exist."))?;
    let keys: Option<Vec<String>> = keys.elements().map(|key| key.as_str().map(|key| key.into_owned())).collect();
    let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` must be an array of names."))?;
    let most = request.app.auth.settings().rows.number("chttpd", "max_db_number_for_dbs_info_req");
    if keys.len() > most.map_or(MAX_INFO_KEYS, |most| usize::try_from(most).unwrap_or(usize::MAX)) {
        return Err(ApiError::bad_request("too_many_keys"));
    }
    infos(request, &keys, true).await
}

/// The infos of `names`. A missing database is reported if the client `named` it, and else left out.
async fn infos(request: &Request, names: &[String], named: bool) -> Result<Response> {
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for name in names {
        match request.with_database(name, |database| async move { Ok(database.info().await?) }).await {
            Ok(info) => {
                json.begin_object().name("key").str(name);
                json.name("info").begin_object();
                write_info(&mut json, name, &info);
                json.end_object().end_object();
            }
            Err(error) if named && error.status().is_client_error() => {
                json.begin_object().name("key").str(name).name("error").str("not_found").end_object();
            }
            // The database was dropped since it was listed.
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
