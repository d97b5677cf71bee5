//! `/_node/{node}/_config`: reads and sets the configuration of the servers of this store.
//!
//! Settings are in the store, so they survive restarts and apply at once. With `X-Couch-Persist: false` they are in
//! this process only. As in CouchDB, any section and key may be set, except for a few sections; `docs/configuration.md`
//! lists those with an effect. Settings that are not set are listed with their defaults. Administrators' passwords are
//! hashed before they are stored or listed.
//!
//! Source: CouchDB's `chttpd_node.erl` and `config.erl`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use model::{JsonRef, JsonText, JsonWriter};

use crate::http::authn::auth::has_administrator_now;
use crate::http::authn::passwords::Verifier;
use crate::http::config::known::CLOSED_SECTIONS;
use crate::http::config::quotas;
use crate::http::config::settings::ADMINS;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::root::require_node;
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// `false` for a setting that must not be stored.
const PERSIST: &str = "x-couch-persist";

/// Whether a setting must survive this server's process.
fn is_kept(request: &Request) -> bool {
    request.headers.get(PERSIST).is_none_or(|value| value != "false")
}

fn unknown() -> ApiError {
    ApiError::not_found("unknown_config_value")
}

/// What [`all`] does.
pub(crate) const ALL: Operation = Operation::new("All settings.", &[Reply::object(200)]);

/// `GET /_node/{node}/_config`
pub(crate) async fn all(request: &Request, node: &str) -> Result<Response> {
    require_node(node)?;
    // Some settings are secrets: whoever knows them can sign a session or a token of an administrator.
    request.app.auth.require_setup_token(&request.principal)?;
    let settings = request.app.auth.settings();
    let mut listed = settings.rows.listed();
    listed.entry(ADMINS).or_default().extend(request.app.auth.own_listed(request.address).await?);
    Ok(response::object(|json| {
        for (section, values) in listed {
            write_values(json.name(section).begin_object(), values);
            json.end_object();
        }
    }))
}

fn write_values(json: &mut JsonWriter<'_>, values: BTreeMap<&str, &str>) {
    for (name, value) in values {
        json.name(name).str(value);
    }
}

/// What [`section`] does.
pub(crate) const SECTION: Operation = Operation::new("The settings of a section.", &[Reply::object(200)]);

/// `GET /_node/{node}/_config/{section}`. An unknown section is empty.
pub(crate) async fn section(request: &Request, node: &str, section: &str) -> Result<Response> {
    require_node(node)?;
    request.app.auth.require_setup_token(&request.principal)?;
    let settings = request.app.auth.settings();
    let mut values = settings.rows.listed().remove(section).unwrap_or_default();
    if section == ADMINS {
        values.extend(request.app.auth.own_listed(request.address).await?);
    }
    Ok(response::object(|json| write_values(json, values)))
}

/// What [`value`] does.
pub(crate) const VALUE: Operation = Operation::new("A setting.", &[Reply::new(200, &[Content::json(Kind::Text)])]);

/// `GET /_node/{node}/_config/{section}/{key}`
pub(crate) async fn value(request: &Request, names: &[&str]) -> Result<Response> {
    let &[node, section, key] = names else { return Err(unknown()) };
    require_node(node)?;
    request.app.auth.require_setup_token(&request.principal)?;
    let settings = request.app.auth.settings();
    if let Some(value) = settings.rows.listed_value(section, key) {
        return Ok(text(value));
    }
    let own = if section == ADMINS { request.app.auth.own_listed(request.address).await? } else { None };
    Ok(text(own.filter(|(name, _)| *name == key).ok_or_else(unknown)?.1))
}

/// The header that [`is_kept`] reads.
const PERSIST_HEADER: Param = Param::text("X-Couch-Persist", "`false`: until the server is restarted.");

/// What [`put`] does.
pub(crate) const PUT: Operation =
    Operation::new("Sets a setting. The answer is its old value.", &[Reply::new(200, &[Content::json(Kind::Text)])])
        .headers(&[PERSIST_HEADER])
        .bodies(&[Content::json(Kind::Text)])
        .refusals(&[409]);

/// `PUT /_node/{node}/_config/{section}/{key}`. Answers with the old value.
pub(crate) async fn put(request: &mut Request, names: &[&str]) -> Result<Response> {
    let &[node, section, key] = names else { return Err(unknown()) };
    require_node(node)?;
    require_open(section)?;
    let body = request.body.bytes(&request.headers).await?;
    let body = JsonText::parse(&body).map_err(|_| ApiError::invalid_json())?;
    let value = body.root().as_str().ok_or_else(|| ApiError::bad_request("a JSON string expected"))?;
    let value = checked(section, key, &value)?;
    // After the body is there: others wait for this turn.
    let _turn = request.app.auth.admit_change(&request.app.layer, &request.principal).await?;
    let shown = request.app.auth.settings().rows.listed_value(section, key).unwrap_or_default().to_owned();
    let old = set(request, section, key, &value, is_kept(request)).await?;
    Ok(text(&old.unwrap_or(shown)))
}

/// Refuses changes of the sections that CouchDB closes, with CouchDB's reason.
fn require_open(section: &str) -> Result<()> {
    match CLOSED_SECTIONS.contains(&section) {
        true => Err(ApiError::forbidden("Config section blacklisted for modification over HTTP API.")),
        false => Ok(()),
    }
}

/// What [`delete`] does.
pub(crate) const DELETE: Operation =
    Operation::new("Removes a setting. The answer is its old value.", &[Reply::new(200, &[Content::json(Kind::Text)])])
        .headers(&[PERSIST_HEADER])
        .refusals(&[409]);

/// `DELETE /_node/{node}/_config/{section}/{key}`. Answers with the old value.
pub(crate) async fn delete(request: &Request, names: &[&str]) -> Result<Response> {
    let &[node, section, key] = names else { return Err(unknown()) };
    require_node(node)?;
    require_open(section)?;
    let _turn = request.app.auth.admit_change(&request.app.layer, &request.principal).await?;
    // Another server may have changed it since.
    drop(request.app.auth.load(&request.app.layer).await?);
    if section == ADMINS && request.app.auth.has_administrator() && !leaves_an_administrator(request, Some(key)).await?
    {
        return Err(last_administrator());
    }
    let old = change(request, section, key, None, is_kept(request)).await?;
    Ok(text(&old.ok_or_else(unknown)?))
}

/// What [`reload`] does.
pub(crate) const RELOAD: Operation =
    Operation::new("Reads the settings again, and drops those that were set until now.", &[Reply::done(200)])
        .refusals(&[409]);

/// `POST /_node/{node}/_config/_reload`
pub(crate) async fn reload(request: &Request, node: &str) -> Result<Response> {
    require_node(node)?;
    let _turn = request.app.auth.admit_change(&request.app.layer, &request.principal).await?;
    if request.app.auth.has_administrator() && !leaves_an_administrator(request, None).await? {
        return Err(last_administrator());
    }
    request.app.auth.unkept.forget_all();
    request.audit("settings_reloaded", &[]);
    drop(request.app.auth.load(&request.app.layer).await?);
    Ok(response::ok(StatusCode::OK))
}

/// Sets a value, and applies it. Returns the old one.
///
/// # Errors
/// 400 for a hash of an administrator's password that no password can match: nobody could log in with it.
pub(crate) async fn set(
    request: &Request,
    section: &str,
    key: &str,
    value: &str,
    is_kept: bool,
) -> Result<Option<String>> {
    let app = &request.app;
    let hashed = match section {
        ADMINS if Verifier::of_admin(value).is_none() => {
            if ["-pbkdf2", "-hashed-"].into_iter().any(|begin| value.starts_with(begin)) {
                return Err(ApiError::bad_request(
                    "The hash of the password cannot be read, or has too many iterations",
                ));
            }
            let scheme = app.auth.settings().passwords.scheme()?;
            Some(app.auth.hashing.hash(request.address, value, scheme).await?.to_admin())
        }
        _ => None,
    };
    // It would end with this process. The next one has no administrator, and everyone would be one.
    if section == ADMINS && !is_kept && !leaves_an_administrator(request, None).await? {
        return Err(last_administrator());
    }
    change(request, section, key, Some(hashed.as_deref().unwrap_or(value)), is_kept).await
}

/// Changes a setting, in the store or in this process only, and applies it. Returns the value that applied before.
async fn change(
    request: &Request,
    section: &str,
    key: &str,
    value: Option<&str>,
    is_kept: bool,
) -> Result<Option<String>> {
    let app = &request.app;
    let shown = app.auth.settings().rows.stored(section, key).map(str::to_owned);
    let old = if is_kept {
        let stored = match value {
            // Of several servers of the store, one stores the first administrator.
            Some(value) if section == ADMINS && request.principal.is_unnamed_admin() => {
                if !app.layer.configure_first(section, key, value).await? {
                    return Err(has_administrator_now());
                }
                None
            }
            _ => app.layer.configure(section, key, value).await?,
        };
        if app.auth.unkept.forget(section, key) { shown } else { stored }
    } else {
        if shown.is_some() || value.is_some() {
            app.auth.unkept.set(section, key, value)?;
        }
        shown
    };
    if value.is_some() || old.is_some() {
        let event = match (section == ADMINS, value, &old) {
            (true, Some(_), None) => "administrator_named",
            (true, Some(_), Some(_)) => "administrator_changed",
            (true, None, _) => "administrator_removed",
            (false, Some(_), _) => "setting_changed",
            (false, None, _) => "setting_removed",
        };
        request.audit(event, &[("section", section), ("key", key)]);
    }
    drop(app.auth.load(&app.layer).await?);
    Ok(old)
}

/// Whether the server still has an administrator after a restart, after it reads the store again, and without
/// `removed`: one of its own, or one in the store.
async fn leaves_an_administrator(request: &Request, removed: Option<&str>) -> Result<bool> {
    let auth = &request.app.auth;
    let (stored, _) = request.app.layer.configuration().await?;
    let settings = auth.settings();
    let is_left =
        |name: &str| removed.is_none_or(|removed| removed != name && settings.rows.stored(ADMINS, name).is_some());
    let mut stored = stored.iter().filter(|setting| setting.section == ADMINS);
    Ok(auth.has_own_administrator() || stored.any(|setting| is_left(&setting.name)))
}

fn last_administrator() -> ApiError {
    let reason = "This would remove the last administrator: store another one first.";
    ApiError::new(StatusCode::CONFLICT, "conflict", reason)
}

/// The value as it is stored: trimmed, and in one line.
///
/// CouchDB checks the bytes of the UTF-8 text, and so refuses about half of the letters beyond ASCII. Here all letters
/// are allowed.
pub(crate) fn checked(section: &str, key: &str, value: &str) -> Result<String> {
    let value = value.trim();
    let is_plain = |text: &str| !text.chars().any(|letter| letter.is_control() && letter != '\t');
    let is_name = |text: &str| is_plain(text) && !text.contains(['[', ']']);
    for (what, is_right) in [("section", is_name(section)), ("key", is_name(key)), ("value", is_plain(value))] {
        if !is_right {
            return Err(ApiError::bad_request(format!("Invalid configuration {what}")));
        }
    }
    if section == ADMINS && (key.contains(':') || key.starts_with('_') || value.is_empty()) {
        return Err(ApiError::bad_request(
            "An administrator's name must not contain a colon or start with an underscore, and the password must not be empty",
        ));
    }
    if (section == quotas::SECTION || (section, key) == ("couch_peruser", "quota")) && quotas::bytes(value).is_none() {
        return Err(ApiError::bad_request("A quota is a number of bytes"));
    }
    Ok(value.to_owned())
}

fn text(value: &str) -> Response {
    let mut body = Vec::with_capacity(value.len() + 2);
    JsonWriter::new(&mut body).str(value);
    response::json(StatusCode::OK, body)
}

/// The text of a member of a request.
pub(crate) fn member(body: &JsonText, name: &str) -> Option<String> {
    body.get(name).and_then(JsonRef::as_str).map(|text| text.into_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_line_and_administrators_can_log_in() {
        assert_eq!(checked("cors", "origins", "  * \t").unwrap(), "*");
        assert_eq!(checked("admins", "anna", "\u{e9}\u{3a9}\u{1f600}").unwrap(), "\u{e9}\u{3a9}\u{1f600}");
        assert_eq!(checked("chttpd", "server_options", "[]").unwrap(), "[]");
        for (section, key, value) in [
            ("a[", "b", "x"),
            ("a", "]b", "x"),
            ("a", "b", "x\ny"),
            ("a\r", "b", ""),
            ("admins", "a:b", "x"),
            ("admins", "_a", "x"),
            ("admins", "a", " "),
            ("quotas", "notes", "1 lot"),
            ("couch_peruser", "quota", "-1"),
        ] {
            assert_eq!(checked(section, key, value).unwrap_err().status(), 400, "{section} {key} {value}");
        }
    }
}
