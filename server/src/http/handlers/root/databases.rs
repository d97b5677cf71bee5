//! `/_all_dbs`, `/_dbs_info`: the list of databases.

use std::collections::HashSet;

use hyper::StatusCode;
use model::{JsonText, JsonWriter, NameRange};

use crate::http::error::{ApiError, Result};
use crate::http::handlers::database::described;
use crate::http::operation::{Content, IF_NONE_MATCH, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::at_most;
use crate::http::wire::database_info::write_info;
use crate::http::wire::paging::{self, Asked, PAGES};
use crate::http::wire::params;
use crate::http::wire::response::{self, Response};

/// Maximum number of databases in a page of `/_dbs_info`, as in RFC 014.
const MAX_PAGE: usize = 5_000;

/// The databases that a query asks for: a range, or those of a list (`keys`) in its order.
async fn names(request: &Request, range: &NameRange, keys: Option<&str>) -> Result<Vec<String>> {
    let Some(keys) = keys else { return Ok(request.app.layer.database_names(range).await?) };
    let keys = params::parse_json(keys)?;
    if !keys.root().is_array() {
        return Err(ApiError::bad_request("`keys` must be an array of names."));
    }
    let all: HashSet<String> = request.app.layer.database_names(&NameRange::default()).await?.into_iter().collect();
    let asked = keys.root().elements().filter_map(|key| key.as_str().map(|key| key.into_owned()));
    let mut names: Vec<String> = asked.filter(|name| all.contains(name)).collect();
    if range.descending {
        names.reverse();
    }
    Ok(names.into_iter().skip(range.skip).take(range.limit.unwrap_or(usize::MAX)).collect())
}

/// The parameters that [`name_range`] reads.
const RANGE: &[Param] = &[
    Param::json("startkey", "The first name, a JSON string."),
    Param::json("start_key", "The same."),
    Param::json("endkey", "The last name, a JSON string."),
    Param::json("end_key", "The same."),
    Param::json("key", "Only this name, a JSON string."),
    Param::flag("inclusive_end", "Whether the last name is listed too; `true` by default."),
    Param::flag("descending", "In descending order."),
    Param::count("limit", "How many names at most."),
    Param::count("skip", "How many names to leave out at the beginning."),
];

const KEYS: Param = Param::texts("keys", "Only these names, in this order.");

/// What [`all_dbs`] does.
pub(crate) const ALL_DBS: Operation =
    Operation::new("The names of the databases.", &[Reply::array(200), Reply::NOT_MODIFIED])
        .query(&[RANGE, &[KEYS]])
        .headers(&[IF_NONE_MATCH]);

pub(crate) async fn all_dbs(request: &Request) -> Result<Response> {
    let names = names(request, &name_range(request.params.iter())?, request.params.get("keys")).await?;
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for name in &names {
        json.str(name);
    }
    json.end_array();
    Ok(response::tagged(&request.headers, body))
}

/// What [`dbs_info`] does.
pub(crate) const DBS_INFO: Operation = Operation::new(
    "The databases with their information. With `page_size`, an object with `items` and bookmarks.",
    &[Reply::new(200, &[Content::json(Kind::Json)]), Reply::NOT_MODIFIED],
)
.query(&[RANGE, &[KEYS], PAGES])
.headers(&[IF_NONE_MATCH]);

/// `GET /_dbs_info`: all databases. A page is an object, since a list has no place for bookmarks.
pub(crate) async fn dbs_info(request: &Request) -> Result<Response> {
    let Asked { params, paging } = Asked::read(Some("_dbs_info"), request.params.iter(), MAX_PAGE)?;
    let mut range = name_range(params.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    let Some(paging) = paging else {
        let names = names(request, &range, request.params.get("keys")).await?;
        return Ok(response::tagged(&request.headers, infos(request, &names, false).await?));
    };
    if let Some(place) = paging.at() {
        range.start =
            Some(place.get("start").and_then(|name| name.as_str()).ok_or_else(paging::no_place)?.into_owned());
        range.limit = place.get("limit").and_then(|limit| usize::try_from(limit.as_u64()?).ok());
        range.skip = 0;
    }
    let limit = range.limit;
    // One more, with which the next page starts.
    range.limit = Some(limit.unwrap_or(usize::MAX).min(paging.left() + 1));
    let mut names = request.app.layer.database_names(&range).await?;
    let next = if names.len() > paging.left() { names.pop() } else { None };
    let next = next.and_then(|name| {
        JsonText::from_normalised(response::object_text(|json| {
            json.name("start").str(&name);
            if let Some(limit) = limit {
                json.name("limit").u64((limit - names.len()) as u64);
            }
        }))
    });
    let mut body = b"{\"items\":".to_vec();
    body.extend(infos(request, &names, false).await?);
    paging.write_members(&mut body, next);
    body.push(b'}');
    Ok(response::json(StatusCode::OK, body))
}

/// What [`named_dbs_info`] does.
pub(crate) const NAMED_DBS_INFO: Operation =
    Operation::new("The information about named databases.", &[Reply::array(200)])
        .bodies(&[Content::members(&[Param::texts("keys", "The names.").required()])]);

/// `POST /_dbs_info`: the databases that the body names.
pub(crate) async fn named_dbs_info(request: &mut Request) -> Result<Response> {
    let json = request.json_object().await?;
    let keys = json.get("keys").ok_or_else(|| ApiError::bad_request("`keys` member must exist."))?;
    if !keys.is_array() {
        return Err(ApiError::bad_request("`keys` member must be an array."));
    }
    let most = request.app.auth.settings().rows.count("chttpd", "max_db_number_for_dbs_info_req");
    let keys = at_most(keys, most, || ApiError::bad_request("too_many_keys"))?;
    let keys: Option<Vec<String>> = keys.map(|key| key.as_str().map(|key| key.into_owned())).collect();
    let keys = keys.ok_or_else(|| ApiError::bad_request("`keys` must be an array of names."))?;
    Ok(response::json(StatusCode::OK, infos(request, &keys, true).await?))
}

/// The infos of `names`. A missing database is reported if the client `named` it, and left out otherwise.
async fn infos(request: &Request, names: &[String], named: bool) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for name in names {
        match described(request, name).await {
            Ok(info) => {
                json.begin_object().name("key").str(name);
                json.name("info").begin_object();
                write_info(&mut json, name, &info);
                json.end_object().end_object();
            }
            Err(error) if named && error.status().is_client_error() => {
                json.begin_object().name("key").str(name).name("error").str("not_found").end_object();
            }
            // The database was dropped after it was listed.
            Err(error) if error.is_no_database() => {}
            Err(error) => return Err(error),
        }
    }
    json.end_array();
    Ok(body)
}

fn name_range<'p>(params: impl Iterator<Item = (&'p str, &'p str)>) -> Result<NameRange> {
    let mut range = NameRange::default();
    for (name, value) in params {
        match name {
            "startkey" | "start_key" => range.start = Some(key(value)?),
            "endkey" | "end_key" => range.end = Some(key(value)?),
            "key" => {
                range.start = Some(key(value)?);
                range.end = range.start.clone();
            }
            "limit" => range.limit = Some(usize::try_from(params::parse_count(value)?).unwrap_or(usize::MAX)),
            "skip" => range.skip = usize::try_from(params::parse_count(value)?).unwrap_or(usize::MAX),
            "inclusive_end" => range.exclusive_end = !params::parse_bool(value)?,
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

#[cfg(test)]
#[test]
fn each_parameter_that_is_described_is_read() {
    for param in RANGE {
        let range = name_range([(param.name, "true")].into_iter());
        let is_read = range.is_err() || format!("{:?}", range.unwrap()) != format!("{:?}", NameRange::default());
        // Its default is `true`.
        assert!(is_read || name_range([(param.name, "x")].into_iter()).is_err(), "{}", param.name);
    }
}
