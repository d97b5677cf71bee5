//! `_purge`, `_purged_infos`, `_purged_infos_limit`: removes leaves without a trace.
//!
//! As in CouchDB 3.5, only leaves are removed, other revisions are ignored, and the purge sequence rises with each
//! document named.

use std::collections::HashSet;

use hyper::StatusCode;
use model::{JsonText, JsonWriter, Purge, RevId};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::replicator;
use crate::http::request::Request;
use crate::http::wire::params::parse_rev;
use crate::http::wire::response::{self, Response};

/// `POST /{db}/_purge`
pub(crate) async fn purge(request: &mut Request, db: &str) -> Result<Response> {
    let purges = asked(&request.json_object().await?)?;
    if purges.is_empty() {
        request.fresh_database(db).await?;
    }
    let named = &purges;
    let purge = |database: Documents| async move { Ok(database.purge(named).await?) };
    let results = request.with_database(db, purge).await?;
    if replicator::has_jobs(db) {
        for purge in &purges {
            replicator::documents::purged(&request.app, db, &purge.id).await?;
        }
    }
    let mut status = StatusCode::CREATED;
    let mut body = Vec::new();
    let mut json = JsonWriter::new(&mut body);
    json.begin_object();
    json.name("purge_seq").null();
    json.name("purged").begin_object();
    for (purge, result) in purges.iter().zip(results) {
        json.name(&purge.id);
        match result {
            Ok(revs) => write_revs(&mut json, &revs),
            Err(error) => {
                let error = ApiError::from(error);
                status = status.max(error.status());
                json.begin_object();
                error.write_members(&mut json);
                json.end_object();
            }
        }
    }
    json.end_object().end_object();
    Ok(response::json(status, body))
}

/// Parses `{"id": ["1-a", …], …}`.
fn asked(object: &JsonText) -> Result<Vec<Purge>> {
    let documents = object.root().members().map(|(id, revs)| {
        if !revs.is_array() {
            return Err(ApiError::bad_request("Invalid list of revisions"));
        }
        let revs = revs.elements().map(|rev| match rev.as_str() {
            Some(rev) => parse_rev(&rev),
            None => Err(ApiError::bad_request("Invalid rev format")),
        });
        Ok(Purge::new(id, revs.collect::<Result<Vec<_>>>()?))
    });
    documents.collect()
}

fn write_revs(json: &mut JsonWriter<'_>, revs: &[RevId]) {
    json.begin_array();
    for rev in revs {
        json.display(rev);
    }
    json.end_array();
}

/// `GET /{db}/_purged_infos`: a purge that was requested twice is listed once.
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

/// `GET /{db}/_purged_infos_limit`
pub(crate) async fn limit(request: &Request, db: &str) -> Result<Response> {
    let limit = request.with_database(db, |database| async move { Ok(database.purged_infos_limit().await?) }).await?;
    Ok(response::json(StatusCode::OK, limit.to_string().into_bytes()))
}

/// `PUT /{db}/_purged_infos_limit`
pub(crate) async fn set_limit(request: &mut Request, db: &str) -> Result<Response> {
    let limit = request.json().await?.root().as_u64();
    let limit = limit.ok_or_else(|| ApiError::bad_request("`purged_infos_limit` must be positive integer"))?;
    request.with_database(db, |database| async move { Ok(database.set_purged_infos_limit(limit).await?) }).await?;
    Ok(response::ok(StatusCode::OK))
}
