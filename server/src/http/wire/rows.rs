//! Objects with many rows, sent while their rows are read.

use std::future::Future;

use hyper::StatusCode;
use model::{Elements, JsonText};

use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, Param};
use crate::http::wire::body::{array_member, at_most};
use crate::http::wire::paging::Paging;
use crate::http::wire::response::{self, BodyWriter, Gone, Response, Stop};

/// Maximum number of queries in a request, each of which takes memory until it is answered.
const MOST_QUERIES: usize = 5_000;

/// An object with rows, which are read page by page.
pub(crate) trait PagedRows: Send + 'static {
    /// Writes the members before the rows, and the first page of rows.
    fn begin(&mut self, out: &mut Vec<u8>) -> impl Future<Output = Result<()>> + Send;

    /// Writes the next page of rows.
    fn next_page(&mut self, out: &mut Vec<u8>) -> impl Future<Output = Result<()>> + Send;

    /// Whether all rows are written.
    fn is_done(&self) -> bool;

    /// Writes the end of the object.
    fn end(&self, out: &mut Vec<u8>);

    /// Sends a page.
    fn send(&mut self, writer: &BodyWriter, page: Vec<u8>) -> impl Future<Output = Result<(), Gone>> + Send {
        writer.send(page)
    }
}

/// The list of rows of such an object: the commas between them, and the client's page, if it asks for one.
pub(crate) struct RowList {
    paging: Option<Paging>,
    /// Whether the next row is not the first.
    has_rows: bool,
}

impl RowList {
    pub(crate) fn new(paging: Option<Paging>) -> Self {
        RowList { paging, has_rows: false }
    }

    /// Number of rows that the client's page still needs; `None` without one.
    pub(crate) fn left(&self) -> Option<usize> {
        self.paging.as_ref().map(Paging::left)
    }

    /// Begins another row.
    pub(crate) fn next_row(&mut self, out: &mut Vec<u8>) {
        if self.has_rows {
            out.extend_from_slice(b",\r\n");
        }
        self.has_rows = true;
        if let Some(paging) = &mut self.paging {
            paging.take();
        }
    }

    /// Whether no row follows.
    pub(crate) fn is_done(&self, has_more: bool) -> bool {
        self.left() == Some(0) || !has_more
    }

    /// Ends the object, with the bookmarks of the client's page. `next` is the place of the next one.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>, next: impl FnOnce() -> Option<JsonText>) {
        if let Some(paging) = &self.paging {
            paging.write_members(out, next());
        }
        out.push(b'}');
    }
}

/// The rows, and the text of the object with its first page.
pub(crate) async fn begin<R: PagedRows>(mut rows: R) -> Result<(R, Vec<u8>)> {
    let mut text = Vec::new();
    rows.begin(&mut text).await?;
    Ok((rows, text))
}

/// The response to a request for such an object. The first page is read before, so that an error has its own status. An
/// object of one page has a length.
pub(crate) fn respond<R: PagedRows>((mut rows, mut text): (R, Vec<u8>)) -> Response {
    if rows.is_done() {
        rows.end(&mut text);
        return response::json(StatusCode::OK, text);
    }
    let body = response::stream(|writer| async move {
        rows.send(&writer, text).await?;
        write_rest(rows, &writer).await?;
        Ok(writer.send("\n").await?)
    });
    response::with_json(StatusCode::OK, body)
}

/// Refuses `queries` that are not an array, as `get_view_queries` of CouchDB's `couch_mrview_util.erl` does.
pub(crate) fn check_queries(body: &JsonText) -> Result<()> {
    match body.get("queries") {
        Some(queries) if !queries.is_array() => Err(ApiError::bad_request("`queries` member must be an array.")),
        _ => Ok(()),
    }
}

/// The body that [`queries`] reads.
pub(crate) const QUERIES: Content =
    Content::members(&[Param::objects("queries", "Queries; the members of each are its parameters.").required()]);

/// The queries in a body that has several.
pub(crate) fn queries(body: &JsonText) -> Result<Elements<'_>> {
    check_queries(body)?;
    let queries = array_member(body, "queries")?;
    let queries = queries.ok_or_else(|| ApiError::bad_request("POST body must include `queries` parameter."))?;
    at_most(queries, MOST_QUERIES, || ApiError::too_many("a request has", MOST_QUERIES, "queries"))
}

/// The response to a request with several queries.
pub(crate) fn respond_all<R: PagedRows>(all: Vec<R>) -> Response {
    let body = response::stream(|writer| async move {
        let mut before: &[u8] = b"{\"results\":[\r\n";
        if all.is_empty() {
            writer.send(before.to_vec()).await?;
        }
        for mut rows in all {
            let mut text = before.to_vec();
            rows.begin(&mut text).await?;
            rows.send(&writer, text).await?;
            write_rest(rows, &writer).await?;
            before = b",\r\n";
        }
        Ok(writer.send("\r\n]}\n").await?)
    });
    response::with_json(StatusCode::OK, body)
}

/// Writes everything after the first page.
async fn write_rest<R: PagedRows>(mut rows: R, writer: &BodyWriter) -> Result<(), Stop> {
    while !rows.is_done() {
        let mut page = Vec::new();
        rows.next_page(&mut page).await?;
        rows.send(writer, page).await?;
    }
    let mut end = Vec::new();
    rows.end(&mut end);
    Ok(writer.send(end).await?)
}
