//! `/_session`: the current user, login, logout.

use hyper::StatusCode;
use hyper::header::{LOCATION, SET_COOKIE};

use crate::http::authn::principal::Proof;
use crate::http::authn::{session, users};
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::content_type_is;
use crate::http::wire::params::Params;
use crate::http::wire::response::{self, Response};

/// Maximum size of the body of a login, which anyone may send.
const MOST_BYTES: usize = 64 * 1024;

/// What [`logout`] does.
pub(crate) const LOGOUT: Operation = Operation::new(
    "Ends the session.",
    &[Reply::done(200), Reply::new(302, &[Content::members(&[Param::flag("ok", "`true`").required()])])],
)
.query(&[&[Param::text("next", "A path of this server to redirect to afterwards.")]]);

/// `DELETE /_session`
pub(crate) fn logout(request: &Request) -> Result<Response> {
    let mut response = response::ok(StatusCode::OK);
    end_session(request, &mut response);
    redirect(request, "next", &mut response)?;
    Ok(response)
}

/// What [`current`] does.
pub(crate) const CURRENT: Operation =
    Operation::new("Who sends the request, and how that was proved.", &[Reply::object(200)])
        .query(&[&[Param::flag("basic", "401 for a client without a user, so that a browser asks for a password.")]]);

/// `GET /_session`
pub(crate) async fn current(request: &Request) -> Result<Response> {
    let principal = users::with_stored_roles(&request.app.databases, &request.principal).await?;
    if principal.proof == Proof::Nothing && request.params.is_true("basic") {
        return Err(ApiError::unauthorized("Please login."));
    }
    Ok(response::object(|json| {
        json.name("ok").bool(true);
        json.name("userCtx").begin_object();
        principal.write_context(json);
        json.end_object();
        json.name("info").begin_object();
        let settings = request.app.auth.settings();
        json.name("authentication_handlers").begin_array();
        if settings.tokens.is_some() {
            json.str("jwt");
        }
        if settings.proxy.is_some() {
            json.str("proxy");
        }
        json.str("cookie").str("default").end_array();
        match principal.proof {
            Proof::OpenAdmin | Proof::Setup | Proof::Basic => json.name("authenticated").str("default"),
            Proof::Cookie => json.name("authenticated").str("cookie"),
            Proof::Token(_) => json.name("authenticated").str("jwt"),
            Proof::Proxy(_) => json.name("authenticated").str("proxy"),
            Proof::Nothing => json,
        };
        json.end_object();
        if request.app.auth.is_open_admin() {
            // No member of CouchDB's. The console asks for the token.
            json.name("needs_administrator").bool(true);
        }
    }))
}

fn end_session(request: &Request, response: &mut Response) {
    if let Some(cookie) =
        session::end(&request.app.auth.settings().session, request.is_secure(), session::seconds_now())
    {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}

/// What [`login`] does.
pub(crate) const LOGIN: Operation = Operation::new(
    "Begins a session: the answer sets the cookie `AuthSession`.",
    &[Reply::object(200), Reply::new(302, &[Content::json(Kind::Object)])],
)
.query(&[&[
    Param::text("next", "A path of this server to redirect to after a login."),
    Param::text("fail", "A path of this server to redirect to after a refused login."),
]])
.bodies(&[
    Content::members(&[
        Param::text("name", "The name of the user."),
        Param::text("username", "The same."),
        Param::text("password", "Empty by default."),
    ]),
    Content::of("application/x-www-form-urlencoded"),
]);

/// `POST /_session`
pub(crate) async fn login(request: &mut Request) -> Result<Response> {
    request.body.narrow(MOST_BYTES);
    let (name, password) = credentials(request).await?;
    let app = &request.app;
    let (principal, cookie) =
        match app.auth.begin(&app.databases, &name, &password, request.address, request.is_secure()).await {
            Ok(begun) => begun,
            // An existing session continues while the account is locked or the server is busy.
            Err(refused) if refused.status() != StatusCode::UNAUTHORIZED => {
                request.refused_login = refused.refuses_client().then_some(name);
                return Err(refused);
            }
            Err(refused) => {
                request.refused_login = Some(name);
                let mut response = response::refusal(refused);
                end_session(request, &mut response);
                redirect(request, "fail", &mut response)?;
                return Ok(response);
            }
        };
    let principal = users::with_stored_roles(&app.databases, &principal).await?;
    let mut response = response::object(|json| {
        json.name("ok").bool(true);
        json.name("name").str(&name);
        principal.write_roles(json);
    });
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    redirect(request, "next", &mut response)?;
    Ok(response)
}

/// 302 to the path in the parameter `name`, if there is one.
///
/// # Errors
/// 400 unless it is a path of this server, as in CouchDB: a login that redirects anywhere would be an open redirect.
fn redirect(request: &Request, name: &str, response: &mut Response) -> Result<()> {
    let Some(target) = request.params.get(name) else { return Ok(()) };
    if !target.starts_with('/') || target.starts_with("//") {
        return Err(ApiError::bad_request("path must begin with a /."));
    }
    let base = request.absolute(&[]);
    if let Ok(location) = format!("{base}{target}").try_into() {
        response.headers_mut().insert(LOCATION, location);
        *response.status_mut() = StatusCode::FOUND;
    }
    Ok(())
}

async fn credentials(request: &mut Request) -> Result<(String, String)> {
    let missing = || ApiError::bad_request("request body must contain a username");
    let different = || ApiError::bad_request("request body contains different usernames");
    let (name, username, password) = if content_type_is(&request.headers, "application/json") {
        let json = request.json_object().await?;
        let text = |name: &str| json.get(name).and_then(|value| value.as_str()).map(|value| value.into_owned());
        // Otherwise it would count as an empty password, which some user may have.
        if json.get("password").is_some() && text("password").is_none() {
            return Err(ApiError::bad_request("the password in the request body is not a string"));
        }
        (text("name"), text("username"), text("password"))
    } else if content_type_is(&request.headers, "application/x-www-form-urlencoded") {
        let bytes = request.body.bytes(&request.headers).await?;
        let form = std::str::from_utf8(&bytes).map_err(|_| ApiError::bad_request("the form is not UTF-8"))?;
        let form = Params::parse(form)?;
        let text = |name: &str| form.first(name).map(str::to_owned);
        (text("name"), text("username"), text("password"))
    } else {
        return Err(ApiError::bad_content_type(
            "Content-Type must be 'application/x-www-form-urlencoded' or 'application/json'",
        ));
    };
    let name = match (name, username) {
        (Some(name), Some(username)) if name != username => return Err(different()),
        (name, username) => username.or(name).ok_or_else(missing)?,
    };
    Ok((name, password.unwrap_or_default()))
}
