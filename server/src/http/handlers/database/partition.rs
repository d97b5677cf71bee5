//! `/{db}/_partition/{partition}`: information about a partition, and requests limited to it.
//!
//! A request for `/{db}/_partition/p/_find`, for example, becomes one for `/{db}/_find` with the parameter
//! `partition=p`, which its handler reads.
//!
//! Source: `handle_partition_req` of CouchDB's `chttpd_db.erl`.

use hyper::Method;

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::params::check_partition;
use crate::http::wire::response::{self, Response};

/// What [`info`] does.
pub(crate) const INFO: Operation =
    Operation::new("Counts and sizes of a partition.", &[Reply::object(200)]).refusals(&[405]);

/// `GET /{db}/_partition/{partition}`
pub(crate) async fn info(request: &Request, db: &str, partition: &str) -> Result<Response> {
    // If the name is missing, the next part is taken as the name: `_partition/_find`.
    if matches!(request.method, Method::GET | Method::POST) {
        check_partition(partition)?;
    }
    if request.method != Method::GET {
        return Err(ApiError::method_not_allowed("GET,HEAD"));
    }
    let count = |database: Documents| {
        let (app, partition) = (&request.app, partition.to_owned());
        async move { app.scan(async move { database.partition_info(&partition).await }).await }
    };
    let info = request.with_database(db, count).await?;
    Ok(response::object(|json| {
        json.name("db_name").str(db);
        json.name("sizes").begin_object().name("active").u64(info.active).name("external").u64(info.external);
        json.end_object().name("partition").str(partition);
        json.name("doc_count").u64(info.doc_count).name("doc_del_count").u64(info.doc_del_count);
    }))
}

/// Turns a request into one for a partition: sets its parameter.
pub(crate) async fn enter(request: &mut Request, db: &str, partition: &str) -> Result<()> {
    let check = |database: Documents| async move { Ok(database.require_partitioned().await?) };
    request.with_database(db, check).await?;
    check_partition(partition)?;
    if request.params.get("partition").is_some_and(|other| other != partition) {
        return Err(ApiError::bad_request("Conflicting value for `partition` in query string"));
    }
    request.params.set("partition", partition);
    Ok(())
}

/// The database, and the partition if the request is for one, as bookmarks name them.
pub(crate) fn place(request: &Request, db: &str) -> String {
    match request.params.get("partition") {
        Some(partition) => format!("{db}/_partition/{partition}"),
        None => db.to_owned(),
    }
}

/// The answer for unknown paths below a partition.
pub(crate) async fn missing(request: &mut Request, db: &str, partition: &str) -> Result<Response> {
    enter(request, db, partition).await?;
    Err(ApiError::not_found("missing"))
}
