//! `_find`, `_explain` and `_index`: documents by selector, and the indexes that make it fast.
//!
//! ```text
//!   body ── Query ── PlannedQuery ─┬─ _explain: shows the plan
//!                                  └─ Search: pages of rows or documents, each a transaction ── rows as found
//!
//!   body ── NewIndex ── a design document ── an ordinary edit, which starts the index
//! ```
//!
//! A search reads a range of an index, or the documents by id within the range of ids that the selector allows, with
//! CouchDB's warning. Pages are read and matched on the threads for scans, so a search takes bounded memory and no
//! transaction becomes too old.
//!
//! Source: `mango_httpd.erl`, `mango_cursor.erl`, `mango_cursor_view.erl`.

mod explain;
pub(crate) mod indexes;
mod names;
mod plan;
mod search;

use std::sync::Arc;

use hyper::StatusCode;
use mango::{Purpose, Query};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::find::plan::PlannedQuery;
use crate::http::handlers::find::search::Search;
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response, Stop};

/// The members that [`Query::parse`] reads.
const MEMBERS: &[Param] = &[
    Param::object("selector", "The condition.").required(),
    Param::count("limit", "How many documents at most; 25 by default."),
    Param::count("skip", "How many documents to leave out at the beginning."),
    Param::array("sort", "The order: names of members, or `{name: \"asc\" | \"desc\"}`."),
    Param::texts("fields", "The members of documents."),
    Param::json("use_index", "A design document, or a list with it and the name of an index."),
    Param::flag("allow_fallback", "Whether another index may answer."),
    Param::flag("conflicts", "With the conflicts of documents."),
    Param::text("bookmark", "Goes on after an earlier answer."),
    Param::flag("execution_stats", "With the number of documents that were read."),
    Param::json("r", "Without effect: there is one copy of the data."),
    Param::flag("update", "Without effect: an index is never stale."),
    Param::flag("stable", "The same."),
    Param::choice("stale", &["ok"], "The same."),
    Param::text("partition", "Only documents of this partition."),
];

const PARTITION: &[Param] = &[Param::text("partition", "Only documents of this partition.")];

/// What [`find`] does.
pub(crate) const FIND: Operation = Operation::new("Finds documents by what they hold.", &[Reply::object(200)])
    .query(&[PARTITION])
    .bodies(&[Content::members(MEMBERS)]);

/// `POST /{db}/_find`
pub(crate) async fn find(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let query = query(request, database.is_partitioned()).await?;
    // Boxed, as pages of scans are. All in one task on those threads: threads that wake each other take longer than a
    // small search.
    let begin = Box::pin(begin(query, request.app.clone(), database));
    let (search, mut piece) = request.app.off_thread(begin).await??;
    let Some(mut search) = search else { return Ok(response::json(StatusCode::OK, piece)) };
    let app = request.app.clone();
    let body = response::stream(|writer| async move {
        loop {
            writer.send(std::mem::take(&mut piece)).await?;
            if search.is_done() {
                break;
            }
            let page = app.off_thread(async move {
                let mut piece = Vec::new();
                let found = search.page(&mut piece).await;
                found.map(|()| (search, piece))
            });
            // A search without matches sends nothing, and would not notice that its client is gone.
            tokio::select! {
                page = page => (search, piece) = page??,
                () = writer.gone() => return Err(Stop::Gone),
            }
        }
        search.write_end(&mut piece);
        piece.push(b'\n');
        Ok(writer.send(piece).await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

/// The start of the answer, and the search, unless the answer is complete.
async fn begin(
    query: impl FnOnce() -> Result<Query>,
    app: Arc<App>,
    database: Documents,
) -> Result<(Option<Search>, Vec<u8>)> {
    let mut body = b"{\"docs\":[".to_vec();
    let plan = PlannedQuery::of(query()?, Purpose::Find, &app, &database).await?;
    if plan.finds_nothing() {
        body.extend_from_slice(b"\r\n]}\r");
        return Ok((None, body));
    }
    let mut search = Search::new(app, database, plan);
    search.page(&mut body).await?;
    if search.is_done() {
        search.write_end(&mut body);
        return Ok((None, body));
    }
    Ok((Some(search), body))
}

/// What [`explain()`] does.
pub(crate) const EXPLAIN: Operation = Operation::new("How a search would be done.", &[Reply::object(200)])
    .query(&[PARTITION])
    .bodies(&[Content::members(MEMBERS)]);

/// `POST /{db}/_explain`
pub(crate) async fn explain(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let query = query(request, database.is_partitioned()).await?;
    let app = request.app.clone();
    let plan = Box::pin(async move { PlannedQuery::of(query()?, Purpose::Explain, &app, &database).await });
    let plan = request.app.off_thread(plan).await??;
    Ok(response::object(|json| explain::write(json, db, &plan)))
}

/// The client's query, to be parsed on the threads for scans: that sorts long lists of values and compiles regular
/// expressions. The URL may name a partition too.
async fn query(request: &mut Request, in_partitioned: bool) -> Result<impl FnOnce() -> Result<Query> + Send + use<>> {
    let body = request.json_object().await?;
    let in_url = request.params.get("partition").map(|partition| partition.to_owned());
    Ok(move || {
        let query = Query::parse(&body)?;
        mango::check_partition(in_url.as_deref().unwrap_or_default())?;
        let is_other = in_url.as_ref().is_some_and(|partition| *partition != query.partition);
        if body.get("partition").is_some() && is_other {
            let reason = "`partition` in the URL and in the body have different values";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "bad_partition", reason));
        }
        let partition = in_url.unwrap_or(query.partition);
        if !partition.is_empty() && !in_partitioned {
            return Err(ApiError::query_parse("`partition` parameter is not supported on this db"));
        }
        Ok(Query { partition, in_partitioned, ..query })
    })
}

impl From<mango::Error> for ApiError {
    fn from(error: mango::Error) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
        ApiError::new(status, error.error(), error.reason().to_owned())
    }
}
