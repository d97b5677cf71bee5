//! `_purge`, `_purged_infos`, `_purged_infos_limit`, `_auto_purge`, `_couch_layer/purge_tombstones`: removes leaves without a trace.
//!
//! As in CouchDB 3.5, only leaves are removed, other revisions are ignored, and the purge sequence rises with each
//! document named.

use std::collections::HashSet;
use std::time::Duration;

use hyper::StatusCode;
use model::{JsonRef, JsonWriter, Purge};

use crate::http::app::stores::Documents;
use crate::http::config::auto_purge::Ttl;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::revs_diff::write_revs;
use crate::http::jobs::auto_purge::{self, Asked};
use crate::http::jobs::replicator;
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, Response};
use crate::http::wire::revisions;

/// What [`purge`] does.
pub(crate) const PURGE: Operation =
    Operation::new("Removes revisions without a trace.", &[Reply::object(201)]).bodies(&[Content::json(Kind::Object)]);

/// `POST /{db}/_purge`
pub(crate) async fn purge(request: &mut Request, db: &str) -> Result<Response> {
    let asked = revisions::read(request, "Invalid list of revisions").await?;
    let ids: Vec<_> = asked.root().members().map(|(id, _)| id).collect();
    let named: &Vec<&str> = &ids.iter().map(AsRef::as_ref).collect();
    let check = |database: Documents| async move { Ok(database.check_partitions(named).await?) };
    request.with_database(db, check).await?;
    let mut members = asked.root().members();
    let mut status = StatusCode::CREATED;
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_object();
    json.name("purge_seq").null();
    json.name("purged").begin_object();
    let mut has_begun = false;
    loop {
        let page = revisions::next_page(&mut members);
        let purges: Vec<Purge> = page.into_iter().map(|(id, revs)| Purge::new(id, revs)).collect();
        if purges.is_empty() {
            break;
        }
        let named = &purges;
        let purge = |database: Documents| async move { Ok(database.purge(named).await?) };
        let mut refuse = |json: &mut JsonWriter<'_>, error: &ApiError| {
            status = status.max(error.status());
            json.begin_object();
            error.write_members(json);
            json.end_object();
        };
        match request.with_database(db, purge).await {
            Ok(results) => {
                if replicator::has_jobs(db) {
                    for purge in &purges {
                        replicator::documents::purged(&request.app, db, &purge.id).await?;
                    }
                }
                for (purge, result) in purges.iter().zip(results) {
                    if result.as_ref().is_ok_and(|revs| !revs.is_empty()) {
                        request.audit("document_purged", &[("db", db), ("id", &purge.id)]);
                    }
                    json.name(&purge.id);
                    match result {
                        Ok(revs) => write_revs(&mut json, &revs),
                        Err(error) => refuse(&mut json, &error.into()),
                    }
                }
            }
            Err(error) if !has_begun => return Err(error),
            // Earlier ones are purged, so each document reports its own result.
            Err(error) => purges.iter().for_each(|purge| refuse(json.name(&purge.id), &error)),
        }
        has_begun = true;
    }
    if !has_begun {
        request.fresh_database(db).await?;
    }
    json.end_object().end_object();
    Ok(response::json(status, body))
}

/// What [`infos`] does.
pub(crate) const INFOS: Operation = Operation::new("The last purges.", &[Reply::object(200)]);

/// `GET /{db}/_purged_infos`: a purge requested twice is listed once.
pub(crate) async fn infos(request: &Request, db: &str) -> Result<Response> {
    let infos = |database: Documents| async move {
        let (mut infos, mut seen, mut after) = (Vec::new(), HashSet::new(), 0);
        loop {
            let page = database.purged_infos(after).await?;
            let Some(last) = page.last() else { return Ok(infos) };
            after = last.seq;
            for info in page {
                let info = (info.id, info.revs);
                if seen.insert(info.clone()) {
                    infos.push(info);
                }
            }
        }
    };
    let infos = request.with_database(db, infos).await?;
    Ok(response::object(|json| {
        json.name("purged_infos").begin_array();
        for (id, revs) in &infos {
            json.begin_object();
            json.name("id").str(id);
            json.name("revs");
            write_revs(json, revs);
            json.end_object();
        }
        json.end_array();
    }))
}

/// What [`limit`] does.
pub(crate) const LIMIT: Operation =
    Operation::new("How many purges are kept.", &[Reply::new(200, &[Content::json(Kind::Count)])]);

/// `GET /{db}/_purged_infos_limit`
pub(crate) async fn limit(request: &Request, db: &str) -> Result<Response> {
    let limit = request.with_database(db, |database| async move { Ok(database.purged_infos_limit().await?) }).await?;
    Ok(response::json(StatusCode::OK, limit.to_string().into_bytes()))
}

/// What [`set_limit`] does.
pub(crate) const SET_LIMIT: Operation =
    Operation::new("Sets how many purges are kept.", &[Reply::done(200)]).bodies(&[Content::json(Kind::Count)]);

/// `PUT /{db}/_purged_infos_limit`
pub(crate) async fn set_limit(request: &mut Request, db: &str) -> Result<Response> {
    let limit = request.json().await?.root().as_u64();
    let limit = limit.ok_or_else(|| ApiError::bad_request("`purged_infos_limit` must be positive integer"))?;
    request.with_database(db, |database| async move { Ok(database.set_purged_infos_limit(limit).await?) }).await?;
    Ok(response::ok(StatusCode::OK))
}

/// Maximum size of a request to purge tombstones.
const MOST_BYTES: usize = 1_000;

/// The time between two rounds that is assumed here: that of the job by default.
const APART: Duration = Duration::from_secs(86_400);

/// What [`purge_tombstones`] does.
pub(crate) const PURGE_TOMBSTONES: Operation = Operation::new("Purges old tombstones.", &[Reply::object(200)])
    .bodies(&[Content::members(&[
        Param::text("older", "Only tombstones that are older: a time such as `90d`.").required(),
        Param::flag("dry_run", "Counts them, and purges none."),
    ])])
    .refusals(&[412]);

/// `POST /{db}/_couch_layer/purge_tombstones`: a round of the job `auto_purge`, when an administrator asks for it.
/// CouchDB has no such endpoint.
///
/// ```text
///   {"older": "90d", "dry_run": true}  ─►  {"dry_run": true, "old": 1200, "most": 500, "purged": 0, "failed": 0,
///                                           "left": 1200}
/// ```
///
/// # Errors
/// 412 if nothing is purged: the database is or was a vault, or no recent time is known.
pub(crate) async fn purge_tombstones(request: &mut Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    request.body.narrow(MOST_BYTES);
    let body = request.json_object().await?;
    if body.root().members().any(|(name, _)| !["older", "dry_run"].contains(&&*name)) {
        return Err(ApiError::bad_request("only `older` and `dry_run` may be given"));
    }
    let older = body.get("older").and_then(JsonRef::as_str);
    let older = older.and_then(|text| model::parse_time(&text)).filter(|ms| *ms > 0);
    let older = older.ok_or_else(|| ApiError::bad_request("`older` must be a time, for example 90d"))?;
    let ttl = Duration::from_millis(older);
    let dry_run = match body.get("dry_run") {
        None => false,
        Some(flag) => flag.as_bool().ok_or_else(|| ApiError::bad_request("`dry_run` must be true or false"))?,
    };
    let database = request.fresh_database(db).await?;
    let asked = Asked { ttl, apart: APART, dry_run };
    let actor = request.actor();
    let app = &request.app;
    let round = auto_purge::round(app, &actor, &database, asked, &|| app.is_stopping()).await?;
    let round = round.map_err(|kept| ApiError::precondition_failed(kept.to_string()))?;
    Ok(response::object(|json| {
        json.name("dry_run").bool(dry_run).name("old").u64(round.old).name("most").u64(round.most);
        json.name("purged").u64(round.purged).name("failed").u64(round.failed);
        json.name("left").u64(round.old.saturating_sub(round.purged));
    }))
}

/// The one member of `_auto_purge`.
const TTL: &str = "deleted_document_ttl";

/// What [`auto_purge()`] does.
pub(crate) const AUTO_PURGE: Operation = Operation::new("How long tombstones are kept.", &[Reply::object(200)]);

/// `GET /{db}/_auto_purge`
pub(crate) async fn auto_purge(request: &Request, db: &str) -> Result<Response> {
    let ttl = request.with_database(db, |database| async move { Ok(database.deleted_document_ttl().await?) }).await?;
    Ok(response::object(|json| {
        if let Some(ttl) = &ttl {
            json.name(TTL).str(ttl);
        }
    }))
}

/// What [`set_auto_purge`] does.
pub(crate) const SET_AUTO_PURGE: Operation = Operation::new("Sets how long tombstones are kept.", &[Reply::done(201)])
    .bodies(&[Content::members(&[Param::text(TTL, "A time such as `3_mon`.")])]);

/// `PUT /{db}/_auto_purge`. An empty object removes the setting.
pub(crate) async fn set_auto_purge(request: &mut Request, db: &str) -> Result<Response> {
    let asked = request.json().await?;
    if !asked.root().is_object() {
        return Err(ApiError::bad_request("Request body must be a JSON object"));
    }
    if asked.root().members().any(|(name, _)| name != TTL) {
        return Err(ApiError::bad_request("invalid auto purge property"));
    }
    let ttl = asked.get(TTL).map(|ttl| ttl.as_str().filter(|ttl| Ttl::parse(ttl).is_some()));
    if ttl == Some(None) {
        return Err(ApiError::bad_request("deleted_document_ttl must be a valid string"));
    }
    let ttl = ttl.flatten();
    let set = |database: Documents| {
        let ttl = ttl.as_deref();
        async move { Ok(database.set_deleted_document_ttl(ttl).await?) }
    };
    request.with_database(db, set).await?;
    request.audit("auto_purge_changed", &[("db", db)]);
    Ok(response::ok(StatusCode::CREATED))
}
