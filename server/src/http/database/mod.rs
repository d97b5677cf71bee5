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
use model::{ConflictPolicy, CreateOptions, DatabaseInfo, JsonText, JsonWriter};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::users;
use crate::http::authz::auth_design;
use crate::http::authz::rights::is_of_the_system;
use crate::http::config::settings::DefaultSecurity;
use crate::http::error::{ApiError, Result};
use crate::http::replicator;
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

pub(crate) async fn create(request: &Request, name: &str) -> Result<Response> {
    create_with(&request.app, name, request.params.iter()).await?;
    request.audit("database_created", &[("db", name)]);
    let mut response = response::ok(StatusCode::CREATED);
    response::set_location(&mut response, request.absolute(&[name]));
    Ok(response)
}

/// Creates a database, as these parameters and the settings have it.
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
        replicator::documents::follow_anew(app, name).await?;
    }
    if name == users::DATABASE {
        auth_design::ensure(&created).await?;
    }
    Ok(created)
}

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

pub(crate) async fn info(request: &Request, name: &str) -> Result<Response> {
    let info = described(request, name).await?;
    Ok(response::object(|json| write_info(json, name, &info)))
}

/// The information about a database, with its quota.
pub(crate) async fn described(request: &Request, name: &str) -> Result<DatabaseInfo> {
    let quota = request.app.auth.settings().quotas.of(name);
    request.with_database(name, |database| async move { Ok(database.limited_to(quota).info().await?) }).await
}

/// Writes the members that describe a database into an open object.
pub(crate) fn write_info(json: &mut JsonWriter<'_>, name: &str, info: &DatabaseInfo) {
    json.name("instance_start_time").display(info.created_ms / 1000);
    json.name("db_name").str(name);
    json.name("purge_seq").display(info.purge_seq);
    json.name("update_seq").display(info.update_seq);
    json.name("sizes").begin_object();
    json.name("file").u64(info.sizes.file);
    json.name("external").u64(info.sizes.external);
    json.name("active").u64(info.sizes.active);
    if let Some(quota) = info.quota {
        json.name("quota").u64(quota);
    }
    json.end_object();
    json.name("props").begin_object();
    if info.conflicts == ConflictPolicy::LastWriteWins {
        json.name("conflicts").str("last-write-wins");
    }
    if let Some(keep) = info.keep_replaced {
        settings::write_keep(json.name("keep_replaced"), Some(keep));
    }
    if info.partitioned {
        json.name("partitioned").bool(true);
    }
    json.end_object();
    json.name("doc_del_count").u64(info.doc_del_count);
    json.name("doc_count").u64(info.doc_count);
    json.name("disk_format_version").u64(1);
    json.name("compact_running").bool(info.is_compacting);
    json.name("cluster").begin_object();
    for name in ["q", "n", "w", "r"] {
        json.name(name).u64(1);
    }
    json.end_object();
}
