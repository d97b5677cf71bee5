//! `_find`, `_explain` and `_index`: documents by selector, and the indexes that make it fast.
//!
//! ```text
//!   body ── Query ── Plan ─┬─ _explain: shows the plan
//!                          └─ Search: pages of rows or documents, each a transaction ── rows as they are found
//!
//!   body ── NewIndex ── a design document ── an ordinary edit, which starts the index
//! ```
//!
//! A search reads a range of an index, or the documents by id within the range of ids that the selector allows, with
//! CouchDB's warning. Pages are read and matched on the threads for scans, so a search takes bounded memory and no
//! transaction becomes too old.
//!
//! Source: `mango_httpd.erl`, `mango_cursor.erl`, `mango_cursor_view.erl`.

pub(crate) mod build;
mod explain;
pub(crate) mod indexes;
mod names;
mod plan;
mod search;

use hyper::StatusCode;
use mango::{Purpose, Query};
use model::JsonWriter;

use crate::http::error::{ApiError, Result};
use crate::http::find::plan::Plan;
use crate::http::find::search::Search;
use crate::http::request::Request;
use crate::http::wire::body::beside;
use crate::http::wire::response::{self, Response, Stop};

/// `POST /{db}/_find`
pub(crate) async fn find(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let query = query(request).await?;
    let plan = Plan::of(query, Purpose::Find, &request.app, &database).await?;
    let mut body = b"{\"docs\":[".to_vec();
    if plan.finds_nothing() {
        body.extend_from_slice(b"\r\n]}\r");
        return Ok(response::json(StatusCode::OK, body));
    }
    let mut search = Search::new(&request.app, database, plan);
    search.page(&mut body).await?;
    if search.is_done() {
        search.write_end(&mut body);
        return Ok(response::json(StatusCode::OK, body));
    }
    let body = response::stream(|writer| async move {
        let mut piece = body;
        loop {
            writer.send(std::mem::take(&mut piece)).await?;
            if search.is_done() {
                break;
            }
            // A search without matches sends nothing, and would not notice that its client is gone.
            tokio::select! {
                page = search.page(&mut piece) => page?,
                () = writer.gone() => return Err(Stop::Gone),
            }
        }
        search.write_end(&mut piece);
        piece.push(b'\n');
        Ok(writer.send(piece).await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

/// `POST /{db}/_explain`
pub(crate) async fn explain(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let query = query(request).await?;
    let plan = Plan::of(query, Purpose::Explain, &request.app, &database).await?;
    Ok(response::object(|json| explain::write(json, db, &plan)))
}

/// The client's query. A partition may be in the URL too.
async fn query(request: &mut Request) -> Result<Query> {
    let body = request.json_object().await?;
    let partition_in_body = body.get("partition").is_some();
    // Parsing sorts long lists of values and compiles regular expressions.
    let query = beside(move || Query::parse(&body)).await??;
    let in_url = request.params.get("partition");
    if partition_in_body && in_url.is_some_and(|partition| partition != query.partition) {
        let reason = "`partition` in the URL and in the body have different values";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "bad_partition", reason));
    }
    if !query.partition.is_empty() || in_url.is_some_and(|partition| !partition.is_empty()) {
        return Err(ApiError::query_parse("`partition` parameter is not supported on this database."));
    }
    Ok(query)
}

/// Writes a list of texts.
fn write_names<'n>(json: &mut JsonWriter<'_>, names: impl IntoIterator<Item = &'n str>) {
    json.begin_array();
    names.into_iter().for_each(|name| {
        json.str(name);
    });
    json.end_array();
}

impl From<mango::Error> for ApiError {
    fn from(error: mango::Error) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
        ApiError::new(status, error.error(), error.reason().to_owned())
    }
}
