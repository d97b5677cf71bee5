//! `/{db}`: creates a database, drops it, describes it.

pub(crate) mod conflicts;
pub(crate) mod format;
pub(crate) mod partition;
pub(crate) mod purge;
pub(crate) mod relocate;
pub(crate) mod settings;
pub(crate) mod upkeep;
pub(crate) mod vault;

use hyper::StatusCode;
use model::{ConflictPolicy, CreateOptions, DatabaseInfo, JsonText};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::users;
use crate::http::authz::auth_design;
use crate::http::authz::rights::is_of_the_system;
use crate::http::config::settings::DefaultSecurity;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator;
use crate::http::operation::{Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::database_info::write_info;
use crate::http::wire::response::{self, Response};

/// The parameters that [`create_with`] reads.
const OPTIONS: &[Param] = &[
    Param::count("q", "Checked, without effect: there are no shards."),
    Param::count("n", "The same."),
    Param::flag("partitioned", "Whether ids name partitions."),
    Param::choice("format", &["exploded", "packed"], "The layout of bodies."),
    Param::text("keep_replaced", "How many replaced revisions are kept, or for how long: `5`, `30d`."),
    Param::choice("conflicts", &["last-write-wins"], "How conflicts are resolved; CouchDB's way by default."),
];

/// What [`create`] does.
pub(crate) const CREATE: Operation =
    Operation::new("Creates a database.", &[Reply::done(201)]).query(&[OPTIONS]).refusals(&[412]);

pub(crate) async fn create(request: &Request, name: &str) -> Result<Response> {
    create_with(&request.app, name, request.params.iter()).await?;
    request.audit("database_created", &[("db", name)]);
    let mut response = response::ok(StatusCode::CREATED);
    response::set_location(&mut response, request.absolute(&[name]));
    Ok(response)
}

/// Creates a database with these parameters and the settings.
pub(crate) async fn create_with<'p>(
    app: &App,
    name: &str,
    parameters: impl Iterator<Item = (&'p str, &'p str)>,
) -> Result<Documents> {
    let mut options = CreateOptions::default();
    for (parameter, value) in parameters {
        match (parameter, value) {
            ("q" | "n", value) if !value.parse::<u32>().is_ok_and(|count| count > 0) => {
                let reason = format!("The `{parameter}` value should be a positive integer.");
                return Err(ApiError::bad_request(reason));
            }
            ("partitioned", "false") => options.partitioned = false,
            ("partitioned", "true") => options.partitioned = true,
            ("partitioned", _) => return Err(ApiError::bad_request("Invalid `partitioned` parameter")),
            ("format", name) => options.format = Some(format::read(Some(name))?),
            ("keep_replaced", keep) => options.keep_replaced = settings::read_keep(keep)?,
            ("conflicts", "last-write-wins") => options.conflicts = ConflictPolicy::LastWriteWins,
            ("conflicts", _) => {
                return Err(ApiError::bad_request("The `conflicts` value should be last-write-wins, or left out."));
            }
            _ => {}
        }
    }
    let created = app.layer.create_database(name, options).await?;
    if app.auth.settings().default_security == DefaultSecurity::Everyone && !is_of_the_system(name) {
        created.set_security(JsonText::empty_object()).await?;
    }
    if replicator::has_jobs(name) {
        replicator::documents::restart_follower(app, name).await?;
    }
    if name == users::DATABASE {
        auth_design::ensure(&created).await?;
    }
    Ok(created)
}

/// What [`drop_database`] does.
pub(crate) const DROP: Operation =
    Operation::new("Drops a database.", &[Reply::done(200)]).query(&[&[Param::refused("rev")]]);

pub(crate) async fn drop_database(request: &Request, name: &str) -> Result<Response> {
    // A request with a revision is meant for a document, whose id is empty.
    if request.params.get("rev").is_some() {
        return Err(ApiError::bad_request(
            "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?",
        ));
    }
    request.app.databases.stores.drop_database(name).await?;
    request.audit("database_dropped", &[("db", name)]);
    Ok(response::ok(StatusCode::OK))
}

/// What [`info`] does.
pub(crate) const INFO: Operation = Operation::new("Counts and sizes of a database.", &[Reply::object(200)]);

pub(crate) async fn info(request: &Request, name: &str) -> Result<Response> {
    let info = described(request, name).await?;
    Ok(response::object(|json| write_info(json, name, &info)))
}

/// The information about a database, with its quota.
pub(crate) async fn described(request: &Request, name: &str) -> Result<DatabaseInfo> {
    let quota = request.app.auth.settings().quotas.of(name);
    request.with_database(name, |database| async move { Ok(database.limited_to(quota).info().await?) }).await
}
