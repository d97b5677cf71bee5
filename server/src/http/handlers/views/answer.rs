//! The answer to a query of a view, page by page.

use std::sync::Arc;

use hyper::StatusCode;
use model::{Grouping, JsonWriter, LeftOut, ReducedRow, ViewGroup, ViewRequest, ViewRow};

use super::query;
use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::functions::view_group::ViewDesign;
use crate::http::handlers::document::contents;
use crate::http::jobs::view_update;
use crate::http::wire::paging::Paging;
use crate::http::wire::response::MOST_PAGE;
use crate::http::wire::row_query::{RowQuery, Update};
use crate::http::wire::rows::{PagedRows, RowList};

/// Writes the rows of a view.
pub(super) struct Answer {
    app: Arc<App>,
    database: Documents,
    group: ViewGroup,
    view: String,
    query: RowQuery,
    /// How rows are reduced, if they are.
    reduces: Option<Grouping>,
    next: Option<ViewRequest>,
    list: RowList,
    /// Rows that were read but not written yet.
    read: std::vec::IntoIter<ViewRow>,
    /// The documents that are left out of the view.
    left_out: LeftOut,
}

impl Answer {
    pub(super) fn new(
        app: &Arc<App>,
        database: &Documents,
        design: &ViewDesign,
        view: &str,
        query: RowQuery,
        paging: Option<Paging>,
    ) -> Result<Self> {
        let (group, known) = design.view(view)?;
        if query.reduce != Some(false) {
            design.refuse_unknown(view)?;
        }
        let reduces = known.reduce.is_some() && query.reduce != Some(false);
        let mut rows = query::request(&query, reduces, known.is_raw, group.is_partitioned())?;
        if let Some(place) = paging.as_ref().and_then(Paging::at) {
            query::go_on_at(&mut rows, place)?;
        }
        Ok(Answer {
            app: app.clone(),
            database: database.clone(),
            group: group.clone(),
            view: view.to_owned(),
            reduces: reduces.then(|| query::grouping(&query)),
            next: Some(rows),
            query,
            list: RowList::new(paging),
            read: Vec::new().into_iter(),
            left_out: LeftOut::default(),
        })
    }

    /// Writes the rows of the next page.
    async fn page(&mut self, out: &mut Vec<u8>) -> Result<BeforeRows> {
        if self.read.len() > 0 {
            self.write_read(out).await?;
            return Ok(BeforeRows::default());
        }
        let Some(mut request) = self.next.take() else { return Ok(BeforeRows::default()) };
        request.at_once = self.list.left();
        let (database, group, view) = (self.database.clone(), self.group.clone(), self.view.clone());
        if let Some(grouping) = self.reduces {
            let read = async move { database.view_reductions(&group, &view, &request, grouping).await };
            let page = self.app.scan(read).await?;
            self.next = page.next;
            self.note(page.left_out);
            for row in &page.rows {
                self.list.next_row(out);
                write_reduced(out, row)?;
            }
            return Ok(BeforeRows { seq: page.seq, ..BeforeRows::default() });
        }
        let read = async move {
            let mut page = database.view_rows(&group, &view, &request).await?;
            // A page may have a thousand keys without rows. `offset` is written before the rows, and needs the first
            // row.
            while request.keys.is_some() && request.skip == 0 && page.rows.is_empty() {
                let Some(next) = page.next.take() else { break };
                page = database.view_rows(&group, &view, &next).await?;
            }
            Ok(page)
        };
        let page = self.app.scan(read).await?;
        (self.next, self.read) = (page.next, page.rows.into_iter());
        self.note(page.left_out);
        self.write_read(out).await?;
        Ok(BeforeRows { total_rows: page.total_rows, offset: page.offset, seq: page.seq })
    }

    /// Writes rows that were read, until `out` is a page.
    async fn write_read(&mut self, out: &mut Vec<u8>) -> Result<()> {
        while out.len() <= MOST_PAGE
            && let Some(mut row) = self.read.next()
        {
            let mut _held = None;
            if let Some(Some(document)) = &mut row.doc {
                document.att_encoding_info = self.query.att_encoding_info;
                if self.query.attachments {
                    _held = Some(contents::load_all(&self.app, &self.database, document).await?);
                }
            }
            self.list.next_row(out);
            write_row(out, &row);
        }
        Ok(())
    }

    /// Rows may be missing on any page, so the last page with a report counts.
    fn note(&mut self, left_out: LeftOut) {
        if !left_out.documents.is_empty() {
            self.left_out = left_out;
        }
    }

    /// Reports which documents are left out, in the form of `errors` in earlier versions of CouchDB.
    fn write_errors(&self, out: &mut Vec<u8>) {
        let LeftOut { documents, more } = &self.left_out;
        if documents.is_empty() {
            return;
        }
        out.extend_from_slice(b",\"errors\":");
        let mut json = JsonWriter::new(out);
        json.begin_array();
        for one in documents {
            json.begin_object().name("from").str(&one.id).name("reason").str(&one.error.reason).end_object();
        }
        if *more {
            let view = format!("{}/_view/{}", self.group.name(), self.view);
            let reason = "More documents are left out of the view.";
            json.begin_object().name("from").str(&view).name("reason").str(reason).end_object();
        }
        json.end_array();
    }
}

impl PagedRows for Answer {
    /// Brings the view up to date first.
    async fn begin(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.query.update == Update::Before {
            view_update::update(&self.app, &self.database, &self.group).await?;
        }
        let mut rows = Vec::new();
        let head = match self.page(&mut rows).await {
            // It was never built and the client does not want to wait, or it was removed just now.
            Err(error) if error.status() == StatusCode::NOT_FOUND && !error.is_no_database() => {
                self.next = None;
                BeforeRows::default()
            }
            head => head?,
        };
        if self.query.update == Update::After {
            view_update::update_later(&self.app, &self.database, &self.group);
        }
        let mut json = JsonWriter::new(out);
        json.begin_object();
        if self.reduces.is_none() {
            json.name("total_rows").u64(head.total_rows).name("offset").u64(head.offset);
        }
        if self.query.update_seq {
            json.name("update_seq").display(self.database.numbered(head.seq).await?);
        }
        json.name("rows");
        out.extend_from_slice(b"[\r\n");
        out.extend_from_slice(&rows);
        Ok(())
    }

    async fn next_page(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.page(out).await.map(drop)
    }

    fn is_done(&self) -> bool {
        self.read.len() == 0 && self.list.is_done(self.next.is_some())
    }

    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n]");
        self.write_errors(out);
        // After the last requested row, there is no next page.
        self.list.write_end(out, || self.next.as_ref().filter(|next| next.limit != Some(0)).and_then(query::place));
    }
}

/// The members before the rows.
#[derive(Default)]
struct BeforeRows {
    total_rows: u64,
    offset: u64,
    seq: model::Seq,
}

fn write_row(out: &mut Vec<u8>, row: &ViewRow) {
    let mut json = JsonWriter::new(out);
    json.begin_object().name("id").str(&row.id).name("key").text(&row.key).name("value").text(&row.value);
    if let Some(error) = &row.error {
        json.name("error").str(error.error()).name("reason").str(&error.reason());
    }
    if let Some(doc) = &row.doc {
        json.name("doc");
        match doc {
            Some(document) => document.write_json(out),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
}

/// Writes a group. A value that `_stats` cannot take fails the whole request.
fn write_reduced(out: &mut Vec<u8>, row: &ReducedRow) -> Result<()> {
    let mut json = JsonWriter::new(out);
    json.begin_object().name("key").text(&row.key);
    match &row.value {
        Ok(value) => json.name("value").text(value),
        Err(error) if error.error == "invalid_value" => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return Err(ApiError::new(status, "invalid_value", error.reason.clone()));
        }
        Err(error) => json.name("error").str(&error.error).name("reason").str(&error.reason),
    };
    json.end_object();
    Ok(())
}
