//! `/_cluster_setup`, `/_membership`, `/_node/{node}`: one node, as programs that set up a CouchDB expect it.
//!
//! Source: CouchDB's `setup.erl` and `setup_httpd.erl`.

use hyper::StatusCode;

use crate::http::authn::users;
use crate::http::config::settings::ADMINS;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::database::create_with;
use crate::http::handlers::root::configuration::{checked, member, set};
use crate::http::handlers::root::{NODE, require_node};
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// What [`node`] does.
pub(crate) const NODE_NAME: Operation = Operation::new("The name of the node.", &[Reply::object(200)]);

/// `GET /_node/{node}`
pub(crate) fn node(node: &str) -> Result<Response> {
    require_node(node)?;
    Ok(response::object(|json| {
        json.name("name").str(NODE);
    }))
}

/// What [`membership`] does.
pub(crate) const MEMBERSHIP: Operation = Operation::new("The only node.", &[Reply::object(200)]);

/// `GET /_membership`
pub(crate) fn membership() -> Result<Response> {
    Ok(response::object(|json| {
        for list in ["all_nodes", "cluster_nodes"] {
            json.name(list).begin_array().str(NODE).end_array();
        }
    }))
}

/// Maximum size of a set-up.
const MOST_BYTES: usize = 64 * 1024;

/// The databases that a set-up creates unless it names others.
const SYSTEM: [&str; 2] = [users::DATABASE, "_replicator"];

/// What [`state`] does.
pub(crate) const STATE: Operation = Operation::new("Whether the server is set up.", &[Reply::object(200)]);

/// `GET /_cluster_setup`
pub(crate) async fn state(request: &Request) -> Result<Response> {
    let mut is_enabled = request.app.auth.has_administrator();
    for name in SYSTEM {
        is_enabled = is_enabled && exists(request, name).await?;
    }
    let state = if is_enabled { "single_node_enabled" } else { "single_node_disabled" };
    Ok(response::object(|json| {
        json.name("state").str(state);
    }))
}

async fn exists(request: &Request, name: &str) -> Result<bool> {
    match request.app.databases.stores.database(name).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_no_database() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What [`set_up`] does.
pub(crate) const SET_UP: Operation =
    Operation::new("Stores the first administrator, and creates the system's databases.", &[Reply::done(201)])
        .bodies(&[Content::members(&[
            Param::choice("action", &["enable_single_node"], "What to do.").required(),
            Param::text("username", "The name of the first administrator."),
            Param::text("password", "The password."),
            Param::texts("ensure_dbs_exist", "The databases to create."),
        ])])
        .refusals(&[404, 409, 501]);

/// `POST /_cluster_setup`: stores an administrator, unless one exists, and creates the system's databases.
pub(crate) async fn set_up(request: &mut Request) -> Result<Response> {
    request.body.narrow(MOST_BYTES);
    let body = request.json_object().await?;
    let app = request.app.clone();
    let _turn = app.auth.admit_change(&app.layer, &request.principal).await?;
    match member(&body, "action").as_deref() {
        Some("enable_single_node") => {}
        Some("enable_cluster" | "add_node" | "remove_node" | "finish_cluster" | "receive_cookie") => {
            return Err(ApiError::not_implemented("clusters of nodes"));
        }
        _ => return Err(ApiError::bad_request("Invalid Action'")),
    }
    let names = match body.get("ensure_dbs_exist") {
        None => SYSTEM.map(str::to_owned).to_vec(),
        Some(names) => {
            let names: Option<_> = names.elements().map(|name| Some(name.as_str()?.into_owned())).collect();
            names.ok_or_else(|| ApiError::bad_request("`ensure_dbs_exist` must be an array of names"))?
        }
    };
    for name in &names {
        match create_with(&request.app, name, std::iter::empty()).await {
            Ok(_) => request.audit("database_created", &[("db", name)]),
            Err(error) if error.error() == "file_exists" => {}
            Err(error) => return Err(error),
        }
    }
    // Last, since the client must log in from then on.
    if !request.app.auth.has_administrator() {
        let required = || ApiError::bad_request("Cluster setup requires admin account to be configured.");
        let name = member(&body, "username").ok_or_else(required)?;
        let password = member(&body, "password").ok_or_else(required)?;
        // As in `_config`, but a password may have spaces around it.
        checked(ADMINS, &name, &password)?;
        set(request, ADMINS, &name, &password, true).await?;
    }
    Ok(response::ok(StatusCode::CREATED))
}
