//! Which handler answers which path.

use hyper::Method;

use super::error::{ApiError, Result};
use super::request::Request;
use super::response::Response;
use super::{
    all_docs, bulk_docs, bulk_get, changes, check, database, document, local, maintenance, relocate, revs, root,
    session,
};

pub(crate) async fn route(request: &mut Request, segments: &[String]) -> Result<Response> {
    let path: Vec<&str> = segments.iter().map(String::as_str).collect();
    match path.as_slice() {
        [] => root::welcome(request),
        ["_up"] => root::up(request),
        ["_uuids"] => root::uuids(request),
        ["_all_dbs"] => root::all_dbs(request).await,
        ["_dbs_info"] => root::dbs_info(request).await,
        ["_active_tasks"] => root::active_tasks(request),
        ["_session"] => session::session(request).await,
        ["_utils", ..] | ["favicon.ico"] => Err(ApiError::not_found("missing")),
        ["_replicate"] => Err(ApiError::not_implemented("replications that the server runs itself")),
        ["_scheduler", ..] => Err(ApiError::not_implemented("replications that the server runs itself")),
        ["_node", ..] | ["_membership"] | ["_cluster_setup"] | ["_reshard", ..] => {
            Err(ApiError::not_implemented("nodes and clusters"))
        }
        ["_db_updates"] => Err(ApiError::not_implemented("feeds of all databases (_db_updates)")),

        [db] => database::database(request, db).await,
        [db, "_bulk_docs"] => bulk_docs::bulk_docs(request, db).await,
        [db, "_bulk_get"] => bulk_get::bulk_get(request, db).await,
        [db, kind @ ("_all_docs" | "_design_docs" | "_local_docs")] => all_docs::all_docs(request, db, kind).await,
        [db, kind @ ("_all_docs" | "_design_docs" | "_local_docs"), "queries"] => {
            all_docs::queries(request, db, kind).await
        }
        [db, "_changes"] => changes::changes(request, db).await,
        [db, "_couch_layer", "check"] => check::check(request, db).await,
        [db, "_couch_layer", "relocate"] => relocate::relocate(request, db).await,
        [db, "_revs_diff"] => revs::revs_diff(request, db).await,
        [db, "_missing_revs"] => revs::missing_revs(request, db).await,
        [db, "_revs_limit"] => revs::revs_limit(request, db).await,
        [db, "_security"] => maintenance::security(request, db).await,
        [db, "_compact"] => maintenance::compact(request, db).await,
        [db, "_compact", _] => missing(request, db, "views").await,
        [db, "_ensure_full_commit"] => maintenance::ensure_full_commit(request, db).await,
        [db, "_view_cleanup"] => maintenance::view_cleanup(request, db).await,
        [db, "_find" | "_index" | "_explain", ..] => missing(request, db, "Mango queries and indexes").await,
        [db, "_purge" | "_purged_infos" | "_purged_infos_limit", ..] => missing(request, db, "purges").await,
        [db, "_partition", ..] => missing(request, db, "partitions").await,
        [db, "_shards" | "_sync_shards" | "_auto_purge" | "_time_seq", ..] => {
            missing(request, db, "shards and their settings").await
        }
        [db, "_temp_view"] => missing(request, db, "views").await,

        [_, "_local"] | [_, "_local/"] => Err(ApiError::bad_request("Invalid _local document id.")),
        [db, "_local", name] => local::document(request, db, &format!("_local/{name}")).await,
        [_, "_local", ..] => Err(ApiError::bad_request("_local documents do not accept attachments.")),
        [db, id] if id.starts_with("_local/") => local::document(request, db, id).await,
        [db, "_design", name] => document::document(request, db, &format!("_design/{name}")).await,
        [db, "_design", name, rest @ ..] => missing_of(request, db, &format!("_design/{name}"), rest).await,
        [db, id] => document::document(request, db, id).await,
        [db, id, rest @ ..] => missing_of(request, db, id, rest).await,
    }
}

/// 501 for what belongs to a document, a function or an attachment; 404 first where that document is missing.
async fn missing_of(request: &Request, db: &str, id: &str, rest: &[&str]) -> Result<Response> {
    let is_function = id.starts_with("_design/") && rest.first().is_some_and(|name| name.starts_with('_'));
    // Writing an attachment may make its document.
    if is_function || request.method == Method::GET {
        document::require(request, db, id).await?;
    }
    let what = match is_function {
        true => "functions of design documents (views, shows, lists, updates, rewrites)",
        false => "attachments",
    };
    missing(request, db, what).await
}

/// 501 naming what there is in CouchDB and not here; 404 first where the database is missing too.
async fn missing(request: &Request, db: &str, what: &str) -> Result<Response> {
    request.database(db).await?;
    Err(ApiError::not_implemented(what))
}
