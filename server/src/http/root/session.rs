//! `/_session`: who the client is, logging in, logging out.

use hyper::header::{LOCATION, SET_COOKIE};
use hyper::{Method, StatusCode};

use crate::http::access::auth::{Auth, Proof, User};
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::content_type_is;
use crate::http::wire::params::Params;
use crate::http::wire::response::{self, Response};

pub(crate) async fn session(request: &mut Request) -> Result<Response> {
    match request.method {
        Method::GET => current(request),
        Method::POST => login(request).await,
        Method::DELETE => {
            let mut response = response::ok(StatusCode::OK);
            response.headers_mut().insert(SET_COOKIE, Auth::end_session());
            redirect(request, "next", &mut response);
            Ok(response)
        }
        _ => Err(ApiError::unrouted()),
    }
}

fn current(request: &Request) -> Result<Response> {
    let user = &request.user;
    if *user == User::Anonymous && request.params.is_true("basic") {
        return Err(ApiError::unauthorized("Please login."));
    }
    Ok(response::object(|json| {
        json.name("ok").bool(true);
        json.name("userCtx").begin_object();
        match user.name() {
            Some(name) => json.name("name").str(name),
            None => json.name("name").null(),
        };
        write_roles(json, user);
        json.end_object();
        json.name("info").begin_object();
        json.name("authentication_handlers").begin_array().str("cookie").str("default").end_array();
        match user {
            User::Party | User::Administrator { proof: Proof::Basic, .. } => {
                json.name("authenticated").str("default");
            }
            User::Administrator { proof: Proof::Cookie, .. } => {
                json.name("authenticated").str("cookie");
            }
            User::Anonymous => {}
        }
        json.end_object();
    }))
}

fn write_roles(json: &mut model::JsonWriter<'_>, user: &User) {
    json.name("roles").begin_array();
    if user.is_admin() {
        json.str("_admin");
    }
    json.end_array();
}

async fn login(request: &mut Request) -> Result<Response> {
    let (name, password) = credentials(request).await?;
    if !request.app.auth.knows(&name, &password) {
        let mut response = response::refusal(ApiError::unauthorized("Name or password is incorrect."));
        response.headers_mut().insert(SET_COOKIE, Auth::end_session());
        redirect(request, "fail", &mut response);
        return Ok(response);
    }
    let mut response = response::object(|json| {
        json.name("ok").bool(true);
        json.name("name").str(&name);
        json.name("roles").begin_array().str("_admin").end_array();
    });
    if let Some(cookie) = request.app.auth.begin_session() {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    redirect(request, "next", &mut response);
    Ok(response)
}

/// 302 to the path in the parameter `name`. Only to a path of this server: a login that sends its user
/// anywhere it is told to serves whoever wrote the link.
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
