//! The request as functions see it.

use std::collections::HashMap;

use model::JsonWriter;

use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::authn::users;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::database_info::write_info;
use crate::http::wire::headers::text;
use crate::http::wire::params;

/// Maximum number of fields of a form.
const MOST_FIELDS: usize = 100_000;

/// Headers that prove who sends the request. CouchDB keeps them from functions too (`scrub_json_request`).
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-auth-couchdb-token"];

/// The `req` object of CouchDB's functions, as JSON text: the members in CouchDB's documentation. `path` has the names
/// in the path of the request.
pub(crate) async fn request_object(
    request: &Request,
    database: &Documents,
    path: &[&str],
    id: Option<&str>,
    body: Option<&str>,
) -> Result<String> {
    let (info, security) = (database.info().await?, database.security().await?);
    let principal = users::with_stored_roles(&request.app.databases, &request.principal).await?;
    let uuid = request.app.fresh_ids(1)?.pop().unwrap_or_default();
    let mut out = Vec::with_capacity(1_000);
    let mut json = JsonWriter::new(&mut out);
    json.begin_object();
    json.name("info").begin_object();
    write_info(&mut json, path[0], &info);
    json.end_object();
    json.name("uuid").str(&uuid);
    match id {
        Some(id) => json.name("id").str(id),
        None => json.name("id").null(),
    };
    json.name("method").str(request.method.as_str());
    for name in ["requested_path", "path"] {
        json.name(name).begin_array();
        path.iter().for_each(|name| {
            json.str(name);
        });
        json.end_array();
    }
    let mut raw = String::new();
    for name in path {
        raw.push('/');
        raw.extend(params::encode(name));
    }
    json.name("raw_path").str(&raw);
    json.name("query").begin_object();
    write_pairs(&mut json, request.params.all());
    json.end_object();
    json.name("headers").begin_object();
    let headers = request.headers.iter().filter(|(name, _)| !SECRET.contains(&name.as_str()));
    let headers: Vec<_> = headers.map(|(name, value)| (capitalised(name.as_str()), text(value))).collect();
    write_pairs(&mut json, headers.iter().map(|(name, value)| (name.as_str(), &**value)));
    json.end_object();
    json.name("body").str(body.unwrap_or("undefined"));
    json.name("peer").str("");
    json.name("form").begin_object();
    let form = request.header("content-type").is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    let form = body.filter(|_| form);
    if form.is_some_and(|form| form.split(['&', ';']).nth(MOST_FIELDS).is_some()) {
        return Err(ApiError::too_many("a form has", MOST_FIELDS, "fields"));
    }
    if let Some(form) = form.and_then(|body| params::Params::parse(body).ok()) {
        write_pairs(&mut json, form.iter());
    }
    json.end_object();
    json.name("cookie").begin_object().end_object();
    json.name("userCtx");
    principal.write_user(&mut json, path[0]);
    json.name("secObj").text(&security);
    json.end_object();
    // The writer's output is always UTF-8.
    Ok(String::from_utf8(out).unwrap_or_default())
}

/// The same for a replication that reads a database of this server without a request: what a request for its feed would
/// contain, without headers.
pub(crate) async fn replication_object(
    database: &Documents,
    principal: &Principal,
    params: &[(String, String)],
) -> Result<String> {
    let (info, security) = (database.info().await?, database.security().await?);
    let (name, mut out) = (database.name(), Vec::with_capacity(1_000));
    let mut json = JsonWriter::new(&mut out);
    json.begin_object().name("info").begin_object();
    write_info(&mut json, name, &info);
    json.end_object().name("id").null().name("method").str("GET");
    for member in ["requested_path", "path"] {
        json.name(member).begin_array().str(name).str("_changes").end_array();
    }
    json.name("query").begin_object();
    write_pairs(&mut json, params.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    json.end_object();
    for member in ["headers", "form", "cookie"] {
        json.name(member).begin_object().end_object();
    }
    json.name("body").str("undefined").name("peer").str("").name("userCtx");
    principal.write_user(&mut json, name);
    json.name("secObj").text(&security).end_object();
    Ok(String::from_utf8(out).unwrap_or_default())
}

/// The name of a header as CouchDB gives it to functions: each part starts with a capital letter.
fn capitalised(name: &str) -> String {
    let mut begins = true;
    let letter = |c: char| {
        let letter = if begins { c.to_ascii_uppercase() } else { c };
        begins = c == '-';
        letter
    };
    name.chars().map(letter).collect()
}

fn write_pairs<'p>(json: &mut JsonWriter<'_>, pairs: impl Iterator<Item = (&'p str, &'p str)>) {
    // If a name is repeated, the last one counts, as in a parsed query. A form may have millions.
    let mut last: Vec<(&str, &str)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (name, value) in pairs {
        let place = *places.entry(name).or_insert(last.len());
        match last.get_mut(place) {
            Some(known) => known.1 = value,
            None => last.push((name, value)),
        }
    }
    for (name, value) in last {
        json.name(name).str(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_capital_letters() {
        for (name, expected) in
            [("host", "Host"), ("x-forwarded-for", "X-Forwarded-For"), ("dnt", "Dnt"), ("x--1a", "X--1a")]
        {
            assert_eq!(capitalised(name), expected);
        }
    }

    #[test]
    fn of_a_repeated_name_the_last_value_counts_however_many_there_are() {
        let names: Vec<String> = (0..300_000).map(|n| n.to_string()).collect();
        let pairs = names.iter().map(|name| (name.as_str(), "a")).chain([("7", "b"), ("x", "c")]);
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object();
        write_pairs(&mut json, pairs);
        json.end_object();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with(r#"{"0":"a","1":"a""#) && text.ends_with(r#","299999":"a","x":"c"}"#));
        assert!(text.contains(r#","7":"b","8":"a""#) && !text.contains(r#""7":"a""#));
    }
}
