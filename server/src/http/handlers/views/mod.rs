//! Views of design documents: `_view`, `_info`, `_view_cleanup`, `_compact`.
//!
//! ```text
//!  request ──► query              the parameters
//!          ──► functions          the design document as a view group; its functions run in a pool of sandboxes
//!          ──► jobs::view_update  the group is brought up to date, as far as the request asks
//!          ──► answer             pages of rows, sent while they are read
//! ```
//!
//! Source: `couch_mrview_http.erl`, `chttpd_view.erl`.

mod answer;
pub(crate) mod check;
mod query;
pub(crate) mod trial;

use std::collections::HashSet;

use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{AllDocsEntry, AllDocsRequest, GetOptions};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::functions::view_group::ViewDesign;
use crate::http::handlers::database::partition;
use crate::http::handlers::views::answer::Answer;
use crate::http::jobs::view_update;
use crate::http::operation::{Content, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::paging::{Asked, PAGES, PAGES_REFUSED, Paging};
use crate::http::wire::response::{self, Response};
use crate::http::wire::row_query::{self, RowQuery};
use crate::http::wire::rows;

/// Maximum number of rows in a page that a client asks for, as in RFC 014.
const MOST_ROWS: usize = 2_500;

/// The collation library.
pub(crate) const COLLATION: (&str, &str) = ("icu4x", "2.4.0");

/// The first id after those of design documents.
const DESIGN_END: &str = "_design0";

/// What [`read`] does.
pub(crate) const READ: Operation = Operation::new("The rows of a view.", &[Reply::object(200)])
    .query(&[row_query::PARAMS, PAGES])
    .refusals(&[500, 501]);

/// `GET` of a view.
pub(crate) async fn read(request: &Request, db: &str, ddoc: &str, view: &str) -> Result<Response> {
    let asked = Asked::read(Some(&pages_of(request, db, ddoc, view)), request.params.iter(), MOST_ROWS)?;
    respond(request, db, (ddoc, view), query_of(&asked)?, asked.paging).await
}

/// The name of the view in bookmarks.
fn pages_of(request: &Request, db: &str, ddoc: &str, view: &str) -> String {
    format!("{}/{ddoc}/_view/{view}", partition::place(request, db))
}

fn query_of(asked: &Asked) -> Result<RowQuery> {
    let mut query = RowQuery::of_view();
    for (name, value) in &asked.params {
        query.set_text(name, value)?;
    }
    Ok(query)
}

/// What [`read_posted`] does.
pub(crate) const READ_POSTED: Operation =
    Operation::new("The rows of a view. The parameters may be in the body.", &[Reply::object(200)])
        .query(&[row_query::PARAMS, PAGES_REFUSED])
        .bodies(&[Content::members(row_query::PARAMS)])
        .refusals(&[500, 501]);

/// `POST` of a view: the query may also be in the body.
pub(crate) async fn read_posted(request: &mut Request, db: &str, ddoc: &str, view: &str) -> Result<Response> {
    let mut query = RowQuery::of_view();
    let body = request.json_object().await?;
    rows::check_queries(&body)?;
    if body.get("queries").is_some() {
        let reason = "The `queries` parameter is no longer supported at this endpoint";
        return Err(ApiError::bad_request(reason));
    }
    if body.get("keys").is_some_and(|keys| !keys.is_array()) {
        return Err(ApiError::bad_request("`keys` member must be an array."));
    }
    for (name, value) in body.root().members() {
        query.set(&name, &body.slice_ref(value))?;
    }
    for (name, value) in request.params.iter() {
        query.set_text(name, value)?;
    }
    respond(request, db, (ddoc, view), query, None).await
}

async fn respond(
    request: &Request,
    db: &str,
    view: (&str, &str),
    query: RowQuery,
    paging: Option<Paging>,
) -> Result<Response> {
    let (query, paging) = (&query, &paging);
    let begin = |database: Documents| async move {
        let design = ViewDesign::read(&request.app.functions, &database, view.0).await?;
        rows::begin(Answer::new(&request.app, &database, &design, view.1, query.clone(), paging.clone())?).await
    };
    Ok(rows::respond(request.with_database(db, begin).await?))
}

/// What [`queries`] does.
pub(crate) const QUERIES: Operation = Operation::new("Several queries of a view in one answer.", &[Reply::object(200)])
    .query(&[row_query::PARAMS, PAGES])
    .bodies(&[rows::QUERIES])
    .refusals(&[500, 501]);

/// Several queries of a view in one answer.
pub(crate) async fn queries(request: &mut Request, db: &str, ddoc: &str, view: &str) -> Result<Response> {
    let body = request.json_object().await?;
    let queries = rows::queries(&body)?;
    let (database, of) = (request.fresh_database(db).await?, pages_of(request, db, ddoc, view));
    let design = ViewDesign::read(&request.app.functions, &database, ddoc).await?;
    let mut answers = Vec::new();
    for one in queries {
        let asked = Asked::read_query(Some(&of), request, &body, one, MOST_ROWS)?;
        answers.push(Answer::new(&request.app, &database, &design, view, query_of(&asked)?, asked.paging)?);
    }
    Ok(rows::respond_all(answers))
}

/// What [`info`] does.
pub(crate) const INFO: Operation =
    Operation::new("Information about a design document's views.", &[Reply::object(200)]).refusals(&[500, 501]);

/// Information about a design document's views.
pub(crate) async fn info(request: &Request, db: &str, ddoc: &str) -> Result<Response> {
    let found = |database: Documents| async move {
        let ViewDesign { group, language, .. } = ViewDesign::read(&request.app.functions, &database, ddoc).await?;
        let (stats, seq, errors) = {
            let (group, database) = (group.clone(), database.clone());
            let read = async move {
                let stats = database.view_stats(&group).await?;
                let seq = database.numbered(stats.seq).await?;
                let errors = match database.view_errors(&group, None).await {
                    Err(error) if error.status() == 404 => Vec::new(),
                    errors => errors?,
                };
                Ok((stats, seq, errors))
            };
            request.app.scan(read).await?
        };
        let running = view_update::is_running(&request.app, &database, &group);
        Ok((group, language, stats, seq, errors, running))
    };
    let (group, language, stats, seq, errors, running) = request.with_database(db, found).await?;
    Ok(response::object(|json| {
        json.name("name").str(ddoc.strip_prefix(DESIGN_PREFIX).unwrap_or(ddoc)).name("view_index").begin_object();
        json.name("updates_pending").begin_object();
        json.name("minimum").u64(0).name("preferred").u64(0).name("total").u64(0).end_object();
        json.name("waiting_commit").bool(false).name("waiting_clients").u64(0).name("updater_running").bool(running);
        json.name("update_seq").display(seq).name("sizes").begin_object();
        json.name("file").u64(stats.file_bytes).name("external").u64(stats.bytes).name("active").u64(stats.bytes);
        json.end_object().name("signature").str(&model::hex(group.signature())).name("purge_seq").u64(stats.purge_seq);
        // Rows of another version of the collator are rebuilt, so there is only one.
        json.name("collator_versions").begin_array().str(COLLATION.1);
        json.end_array();
        json.name("language").str(language).name("compact_running").bool(stats.is_compacting);
        // CouchDB only logs them.
        json.name("errors").begin_array();
        for one in &errors {
            json.begin_object().name("id").str(&one.id).name("error").str(&one.error.error);
            json.name("reason").str(&one.error.reason).end_object();
        }
        json.end_array().end_object();
    }))
}

/// What [`compact`] does.
pub(crate) const COMPACT: Operation =
    Operation::new("Frees the space of a design document's views.", &[Reply::done(202)]).refusals(&[501]);

/// Asks the engine to free the space of removed rows of a group of views, as for a database.
pub(crate) async fn compact(request: &Request, db: &str, name: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    require_json(&request.headers)?;
    let document = database.get(&format!("{DESIGN_PREFIX}{name}"), &GetOptions::default()).await?;
    // A design document without views, or with unreadable ones, has nothing to compact.
    if let Ok(design) = ViewDesign::of(&request.app.functions, &database, &document) {
        database.compact_views(&design.group).await?;
    }
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// What [`clean_up`] does.
pub(crate) const CLEAN_UP: Operation =
    Operation::new("Removes the rows of views that no design document has.", &[Reply::done(202)]).refusals(&[501]);

/// Removes the rows of views that no design document has any more. All are kept if one of them cannot be read. As in
/// CouchDB, the request needs no `Content-Type`.
pub(crate) async fn clean_up(request: &Request, db: &str) -> Result<Response> {
    let database = request.fresh_database(db).await?;
    let mut in_use = HashSet::new();
    let (start, end) = (Some(DESIGN_PREFIX.to_owned()), Some(DESIGN_END.to_owned()));
    let mut next = Some(AllDocsRequest { start, end, include_docs: true, ..AllDocsRequest::default() });
    while let Some(listed) = next.take() {
        let listed = {
            let database = database.clone();
            request.app.scan(async move { database.all_docs(&listed).await }).await?
        };
        for row in listed.rows {
            match row.entry {
                AllDocsEntry::Live { doc: Some(doc), .. } => {
                    match ViewDesign::of(&request.app.functions, &database, &doc) {
                        Ok(design) => {
                            in_use.insert(*design.group.signature());
                        }
                        // The views of this document are unknown.
                        Err(error) if error.status() == StatusCode::NOT_IMPLEMENTED => return Err(error),
                        Err(_) => {}
                    }
                }
                AllDocsEntry::Damaged { error } => return Err(error.into()),
                _ => {}
            }
        }
        next = listed.next;
    }
    request.app.scan(async move { database.clean_up_views(&in_use).await }).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}
