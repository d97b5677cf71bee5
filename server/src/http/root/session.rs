//! `/_session`: the current user, login, logout.

use hyper::StatusCode;
use hyper::header::{LOCATION, SET_COOKIE};

use crate::http::access::auth::Auth;
use crate::http::access::principal::{Principal, Proof};
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::content_type_is;
use crate::http::wire::params::Params;
use crate::http::wire::response::{self, Response};

/// `DELETE /_session`
pub(crate) fn logout(request: &Request) -> Result<Response> {
    let mut response = response::ok(StatusCode::OK);
    response.headers_mut().insert(SET_COOKIE, Auth::end_session());
    redirect(request, "next", &mut response);
    Ok(response)
}

/// `GET /_session`
pub(crate) fn current(request: &Request) -> Result<Response> {
    let principal = &request.principal;
    if principal.proof == Proof::Nothing && request.params.is_true("basic") {
        return Err(ApiError::unauthorized("Please login."));
    }
    Ok(response::object(|json| {
        json.name("ok").bool(true);
        json.name("userCtx").begin_object();
        match &principal.name {
            Some(name) => json.name("name").str(name),
            None => json.name("name").null(),
        };
        write_roles(json, principal);
        json.end_object();
        json.name("info").begin_object();
        json.name("authentication_handlers").begin_array().str("cookie").str("default").end_array();
        match principal.proof {
            Proof::Party | Proof::Basic => json.name("authenticated").str("default"),
            Proof::Cookie => json.name("authenticated").str("cookie"),
            Proof::Nothing => json,
        };
        json.end_object();
    }))
}

fn write_roles(json: &mut model::JsonWriter<'_>, principal: &Principal) {
    json.name("roles").begin_array();
    for role in &principal.roles {
        json.str(role);
    }
    json.end_array();
}

/// `POST /_session`
pub(crate) async fn login(request: &mut Request) -> Result<Response> {
    let (name, password) = credentials(request).await?;
    let principal = match request.app.auth.login(&name, &password, Proof::Cookie).await {
        Ok(principal) => principal,
        Err(refused) => {
            let mut response = response::refusal(refused);
            response.headers_mut().insert(SET_COOKIE, Auth::end_session());
            redirect(request, "fail", &mut response);
            return Ok(response);
        }
    };
    let mut response = response::object(|json| {
        json.name("ok").bool(true);
        json.name("name").str(&name);
        write_roles(json, &principal);
    });
    if let Some(cookie) = request.app.auth.begin_session() {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    redirect(request, "next", &mut response);
    Ok(response)
}

/// 302 to the path in the parameter `name`. Only to a path of this server: a login that redirects anywhere would
/// help whoever wrote the link (an open redirect).
fn redirect(request: &Request, name: &str, response: &mut Response) {
    let Some(target) = request.params.get(name).filter(|path| path.starts_with('/') && !path.starts_with("//")) else {
        return;
    };
    let base = request.absolute(&[]);
    if let Ok(location) = format!("{base}{target}").try_into() {
        response.headers_mut().insert(LOCATION, location);
        *response.status_mut() = StatusCode::FOUND;
    }
}

async fn credentials(request: &mut Request) -> Result<(String, String)> {
    let missing = || ApiError::bad_request("request body must contain a username");
    let different = || ApiError::bad_request("request body contains different usernames");
    let (name, username, password) = if content_type_is(&request.headers, "application/json") {
        let json = request.json_object().await?;
        let text = |name: &str| json.get(name).and_then(|value| value.as_str()).map(|value| value.into_owned());
        (text("name"), text("username"), text("password"))
    } else if content_type_is(&request.headers, "application/x-www-form-urlencoded") {
        let bytes = request.body.bytes(&request.headers).await?;
        let form = std::str::from_utf8(&bytes).map_err(|_| ApiError::bad_request("the form is not UTF-8"))?;
        let form = Params::parse(form)?;
        let text = |name: &str| form.get(name).map(str::to_owned);
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
