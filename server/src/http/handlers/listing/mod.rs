//! `_all_docs`, `_design_docs` and `_local_docs`: documents by id.
//!
//! An answer is read in bounded pages, and sent while it is read. An answer of one page has a length; longer ones are
//! chunked.

mod query;

use std::ops::Range;
use std::sync::Arc;
use std::vec;

use mango::Projection;
use model::limits::LOCAL_PREFIX;
use model::{AllDocsEntry, AllDocsRequest, AllDocsRow, JsonText, JsonWriter, LocalRow, Seq};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::database::partition;
use crate::http::handlers::document::contents;
pub(crate) use crate::http::handlers::listing::query::Namespace;
use crate::http::handlers::listing::query::{FIELDS, Query, before, fetch, range, whole};
use crate::http::operation::{Content, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::paging::{Asked, PAGES, PAGES_REFUSED, Paging};
use crate::http::wire::params;
use crate::http::wire::response::{BodyWriter, Gone, MOST_PAGE, PageRows, Response};
use crate::http::wire::row_query;
use crate::http::wire::rows::{self, PagedRows, RowList};

/// Number of keys in a page of a listing without documents.
const PAGE_KEYS: usize = 500;

/// Maximum number of rows in a page that a client asks for, as in RFC 014.
const MOST_ROWS: usize = 5_000;

/// The part of a listing that is left.
enum Rest {
    Range(Option<AllDocsRequest>),
    /// The remaining requested keys, in the order of the answer. They may be any JSON.
    Keys(Range<usize>),
}

/// Writes a listing page by page.
struct Lister {
    app: Arc<App>,
    database: Documents,
    namespace: Namespace,
    query: Query,
    list: RowList,
    rest: Rest,
    /// Rows that were read but not written yet.
    read: vec::IntoIter<AllDocsRow>,
    pace: PageRows,
}

/// The members before the rows.
#[derive(Default)]
struct BeforeRows {
    total_rows: Option<u64>,
    offset: Option<u64>,
    update_seq: Option<Seq>,
    /// Number of rows in the first page.
    rows: usize,
}

impl Lister {
    fn new(app: &Arc<App>, database: &Documents, namespace: Namespace, query: Query, paging: Option<Paging>) -> Self {
        let rest = match &query.rows.keys {
            None => Rest::Range(range(&query, namespace)),
            Some(keys) => {
                let skip = usize::try_from(query.rows.skip).unwrap_or(usize::MAX).min(keys.len());
                let limit = query.rows.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                Rest::Keys(skip..skip.saturating_add(limit).min(keys.len()))
            }
        };
        let mut lister = Lister {
            app: app.clone(),
            database: database.clone(),
            namespace,
            pace: PageRows::new(query.rows.include_docs),
            query,
            list: RowList::new(paging),
            rest,
            read: Vec::new().into_iter(),
        };
        // If no key is left, the first page is the whole answer.
        lister.pass_others();
        lister
    }

    /// The next of the remaining keys.
    fn next_key(&self) -> Option<JsonText> {
        let (Rest::Keys(left), Some(keys)) = (&self.rest, &self.query.rows.keys) else { return None };
        let number = left.clone().next()?;
        keys.get_text(if self.query.rows.descending { keys.len().checked_sub(number + 1)? } else { number })
    }

    /// Skips keys that are not ids of this namespace. They have no row, but are counted.
    fn pass_others(&mut self) {
        let prefix = self.namespace.prefix().unwrap_or_default();
        let is_other = |key: JsonText| match key.root().as_str() {
            Some(id) => !id.starts_with(prefix),
            None => !prefix.is_empty(),
        };
        while self.next_key().is_some_and(is_other) {
            self.pass();
        }
    }

    fn pass(&mut self) {
        if let Rest::Keys(left) = &mut self.rest {
            left.next();
        }
    }

    /// Adds the number of documents in the namespace, and the number of rows before the first one.
    async fn count(&self, head: &mut BeforeRows) -> Result<()> {
        let Some(mut total) = head.total_rows else { return Ok(()) };
        // Design documents are few, so they are counted exactly.
        let exact = if self.namespace == Namespace::Design { usize::MAX } else { head.rows };
        if (self.namespace == Namespace::Design || self.query.rows.partition.is_some())
            && let Some(all) = whole(&self.query, self.namespace)
        {
            total = self.count_docs(all, exact).await?;
        }
        head.total_rows = Some(total);
        if self.query.rows.keys.is_none() {
            let before = match before(&self.query, self.namespace) {
                Some(before) => self.count_docs(before, head.rows).await?,
                None => 0,
            };
            head.offset = Some(before.saturating_add(self.query.rows.skip).min(total));
        }
        Ok(())
    }

    async fn count_docs(&self, range: AllDocsRequest, exact: usize) -> Result<u64> {
        let database = self.database.clone();
        self.app.scan(async move { database.count_docs(&range, exact).await }).await
    }

    /// Writes the rows of the next page.
    async fn page(&mut self, out: &mut Vec<u8>) -> Result<BeforeRows> {
        if self.read.len() > 0 {
            self.write_read(out, MOST_PAGE).await?;
            return Ok(BeforeRows::default());
        }
        match &mut self.rest {
            Rest::Range(next) => {
                // An impossible range has no rows, but the answer has a total.
                let mut request =
                    next.take().unwrap_or_else(|| AllDocsRequest { limit: Some(0), ..fetch(&self.query) });
                request.at_once = Some(self.list.left().unwrap_or(usize::MAX).min(self.pace.rows));
                let (head, next) = self.fetch_and_write(request, out, MOST_PAGE).await?;
                self.rest = Rest::Range(next);
                Ok(head)
            }
            Rest::Keys(_) => {
                // Documents are large, and attachments may make a single row as large as a page.
                let most = match &self.query {
                    query if query.rows.attachments => 1,
                    query if query.rows.include_docs => PAGE_KEYS / 8,
                    _ => PAGE_KEYS,
                };
                let most = most.min(self.pace.rows);
                let mut some = Vec::new();
                while some.len() < most
                    && let Some(key) = self.next_key()
                {
                    some.push(key);
                    self.pass();
                    self.pass_others();
                }
                self.keyed_page(&some, out).await
            }
        }
    }

    /// Reads rows, and writes them until `out` has more than `most` bytes. The others are written with the next page.
    async fn fetch_and_write(
        &mut self,
        request: AllDocsRequest,
        out: &mut Vec<u8>,
        most: usize,
    ) -> Result<(BeforeRows, Option<AllDocsRequest>)> {
        let database = self.database.clone();
        // Keys may be ids of local documents everywhere.
        let first = request.keys.as_ref().and_then(|keys| keys.first());
        if self.namespace == Namespace::Local || first.is_some_and(|id| id.starts_with(LOCAL_PREFIX)) {
            let found = self.app.scan(async move { database.local_docs(&request).await }).await?;
            for row in &found.rows {
                self.next_row(out);
                write_local(out, row, self.query.rows.include_docs);
            }
            return Ok((BeforeRows::default(), found.next));
        }
        let found = self.app.scan(async move { database.all_docs(&request).await }).await?;
        let (total_rows, rows) = (Some(found.total_rows), found.rows.len());
        self.read = found.rows.into_iter();
        self.write_read(out, most).await?;
        let head = BeforeRows { total_rows, offset: None, update_seq: found.update_seq, rows };
        Ok((head, found.next))
    }

    /// Writes rows that were read already, until `out` has more than `most` bytes.
    async fn write_read(&mut self, out: &mut Vec<u8>, most: usize) -> Result<()> {
        while out.len() <= most
            && let Some(mut row) = self.read.next()
        {
            let mut _held = None;
            if let AllDocsEntry::Live { rev, doc: Some(document) } = &mut row.entry {
                document.att_encoding_info = self.query.rows.att_encoding_info;
                if self.query.rows.attachments {
                    _held = Some(contents::load_all(&self.app, &self.database, document).await?);
                    rev.clone_from(&document.rev);
                }
            }
            self.next_row(out);
            write_row(out, &row, self.query.rows.include_docs, self.query.fields.as_ref());
        }
        Ok(())
    }

    /// Writes the rows of keys, in their order. A key that is not a string is reported as not found.
    async fn keyed_page(&mut self, keys: &[JsonText], out: &mut Vec<u8>) -> Result<BeforeRows> {
        let mut head = None;
        let mut run: Vec<String> = Vec::new();
        let is_local = |id: &str| id.starts_with(LOCAL_PREFIX);
        for key in keys {
            let id = key.root().as_str();
            if run.last().is_some_and(|last| id.as_ref().is_none_or(|id| is_local(id) != is_local(last))) {
                let found = self.run(std::mem::take(&mut run), out).await?;
                head = head.or(found);
            }
            match id {
                Some(id) => run.push(id.into_owned()),
                None => {
                    self.next_row(out);
                    write_not_found(out, key);
                }
            }
        }
        let found = self.run(run, out).await?;
        match head.or(found) {
            Some(head) => Ok(head),
            None => {
                let request = AllDocsRequest { limit: Some(0), ..fetch(&self.query) };
                Ok(self.fetch_and_write(request, out, usize::MAX).await?.0)
            }
        }
    }

    /// Writes the rows of ids, in as many batches as needed. Local documents have no head.
    async fn run(&mut self, ids: Vec<String>, out: &mut Vec<u8>) -> Result<Option<BeforeRows>> {
        if ids.is_empty() {
            return Ok(None);
        }
        let request =
            AllDocsRequest { descending: false, limit: None, skip: 0, keys: Some(ids.into()), ..fetch(&self.query) };
        let mut head = None;
        let mut next = Some(request);
        while let Some(request) = next.take() {
            let (found, rest) = self.fetch_and_write(request, out, usize::MAX).await?;
            head = head.or(Some(found).filter(|found| found.total_rows.is_some()));
            next = rest;
        }
        Ok(head)
    }

    fn next_row(&mut self, out: &mut Vec<u8>) {
        self.list.next_row(out);
        self.pace.written += 1;
    }
}

impl PagedRows for Lister {
    async fn begin(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let mut rows = Vec::new();
        let mut head = self.page(&mut rows).await?;
        self.count(&mut head).await?;
        let mut json = JsonWriter::new(out);
        json.begin_object();
        for (name, value) in [("total_rows", head.total_rows), ("offset", head.offset)] {
            match value {
                Some(value) => json.name(name).u64(value),
                None => json.name(name).null(),
            };
        }
        if self.query.rows.update_seq {
            match head.update_seq {
                Some(seq) => json.name("update_seq").display(self.database.numbered(seq).await?),
                None => json.name("update_seq").null(),
            };
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
        let has_rest = match &self.rest {
            Rest::Range(next) => next.is_some(),
            Rest::Keys(left) => !left.is_empty(),
        };
        self.read.len() == 0 && self.list.is_done(has_rest)
    }

    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n]");
        self.list.write_end(out, || match &self.rest {
            Rest::Range(Some(next)) => query::place(next),
            _ => None,
        });
    }

    async fn send(&mut self, writer: &BodyWriter, page: Vec<u8>) -> Result<(), Gone> {
        self.pace.send(writer, page).await
    }
}

fn write_row(out: &mut Vec<u8>, row: &AllDocsRow, include_docs: bool, fields: Option<&Projection>) {
    let (rev, doc) = match &row.entry {
        AllDocsEntry::Live { rev, doc } => (rev, doc.as_deref()),
        AllDocsEntry::Deleted { rev } => (rev, None),
        AllDocsEntry::Missing => {
            let mut json = JsonWriter::new(out);
            json.begin_object().name("key").str(&row.id).name("error").str("not_found").end_object();
            return;
        }
        AllDocsEntry::Damaged { error } => {
            let mut json = JsonWriter::new(out);
            json.begin_object().name("key").str(&row.id).name("error").str(error.error());
            json.name("reason").str(&error.reason()).end_object();
            return;
        }
    };
    let mut json = JsonWriter::new(out);
    json.begin_object().name("id").str(&row.id).name("key").str(&row.id);
    rev.write_json(json.name("value").begin_object().name("rev"));
    if matches!(row.entry, AllDocsEntry::Deleted { .. }) {
        json.name("deleted").bool(true);
    }
    json.end_object();
    if include_docs {
        json.name("doc");
        match (doc, fields) {
            (Some(document), Some(fields)) => fields.write(document.to_text().root(), out),
            (Some(document), None) => document.write_json(out),
            (None, _) => out.extend_from_slice(b"null"),
        }
    }
    out.push(b'}');
}

fn write_local(out: &mut Vec<u8>, row: &LocalRow, include_docs: bool) {
    let mut json = JsonWriter::new(out);
    let Some(rev) = row.rev else {
        json.begin_object().name("key").str(&row.id).name("error").str("not_found").end_object();
        return;
    };
    let rev = format!("0-{rev}");
    json.begin_object().name("id").str(&row.id).name("key").str(&row.id);
    json.name("value").begin_object().name("rev").str(&rev).end_object();
    if include_docs {
        json.name("doc");
        match &row.body {
            Some(body) => {
                json.begin_object().name("_id").str(&row.id).name("_rev").str(&rev);
                json.members_of(body).end_object();
            }
            None => {
                json.null();
            }
        }
    }
    json.end_object();
}

fn write_not_found(out: &mut Vec<u8>, key: &JsonText) {
    let mut json = JsonWriter::new(out);
    json.begin_object().name("key").text(key).name("error").str("not_found").end_object();
}

/// The query of a listing, read from parameters.
fn query_of(asked: &Asked) -> Result<Query> {
    let mut query = Query::default();
    for (name, value) in &asked.params {
        query.set_text(name, value)?;
    }
    query.check()?;
    if let Some(place) = asked.paging.as_ref().and_then(Paging::at) {
        query.go_on_at(place)?;
    }
    Ok(query)
}

/// The name of the listing in bookmarks; `None` if it has no bookmarks.
fn pages_of(request: &Request, db: &str, namespace: Namespace) -> Option<String> {
    match namespace {
        Namespace::All => Some(format!("{}/_all_docs", partition::place(request, db))),
        Namespace::Design => Some(format!("{db}/_design_docs")),
        Namespace::Local => None,
    }
}

/// What [`list`] does.
pub(crate) const LIST: Operation =
    Operation::new("Lists documents by their ids.", &[Reply::object(200)]).query(&[row_query::PARAMS, FIELDS, PAGES]);

/// `GET` of a listing.
pub(crate) async fn list(request: &Request, db: &str, namespace: Namespace) -> Result<Response> {
    let asked = Asked::read(pages_of(request, db, namespace).as_deref(), request.params.iter(), MOST_ROWS)?;
    if let Some(keys) = request.params.get("keys")
        && !params::parse_json(keys)?.root().is_array()
    {
        return Err(ApiError::bad_request("`keys` parameter must be an array."));
    }
    respond(request, db, namespace, query_of(&asked)?, asked.paging).await
}

/// What [`list_posted`] does.
pub(crate) const LIST_POSTED: Operation =
    Operation::new("Lists documents by their ids. The parameters may be in the body.", &[Reply::object(200)])
        .query(&[row_query::PARAMS, FIELDS, PAGES_REFUSED])
        .bodies(&[Content::members(row_query::PARAMS)]);

/// `POST` of a listing: the query may also be in the body.
pub(crate) async fn list_posted(request: &mut Request, db: &str, namespace: Namespace) -> Result<Response> {
    let mut query = Query::default();
    let body = request.json_object().await?;
    if body.get("keys").is_some_and(|keys| !keys.is_array()) {
        return Err(ApiError::bad_request("`keys` body member must be an array."));
    }
    for (name, value) in body.root().members() {
        query.set(&name, &body.slice_ref(value))?;
    }
    for (name, value) in request.params.iter() {
        query.set_text(name, value)?;
    }
    query.check()?;
    respond(request, db, namespace, query, None).await
}

async fn respond(
    request: &Request,
    db: &str,
    namespace: Namespace,
    query: Query,
    paging: Option<Paging>,
) -> Result<Response> {
    let (query, paging) = (&query, &paging);
    let begin = |database: Documents| async move {
        // If a stale handle gives a wrong answer, the first read fails, and this runs again.
        let is_partitioned =
            query.rows.partition.is_none() || database.is_partitioned() || database.is_partitioned_now().await?;
        query.check_partition(is_partitioned)?;
        rows::begin(Lister::new(&request.app, &database, namespace, query.clone(), paging.clone())).await
    };
    Ok(rows::respond(request.with_database(db, begin).await?))
}

/// What [`queries`] does.
pub(crate) const QUERIES: Operation = Operation::new("Several listings in one answer.", &[Reply::object(200)])
    .query(&[row_query::PARAMS, FIELDS, PAGES])
    .bodies(&[rows::QUERIES]);

/// Several listings in one answer. As in CouchDB, the body needs no `Content-Type` here.
pub(crate) async fn queries(request: &mut Request, db: &str, namespace: Namespace) -> Result<Response> {
    let body = request.body.object(&request.headers).await?;
    let queries = rows::queries(&body)?;
    let (database, of) = (request.fresh_database(db).await?, pages_of(request, db, namespace));
    let mut listers = Vec::new();
    for one in queries {
        let asked = Asked::read_query(of.as_deref(), request, &body, one, MOST_ROWS)?;
        let mut query = query_of(&asked)?;
        query.unwrap_key();
        query.check_partition(database.is_partitioned())?;
        listers.push(Lister::new(&request.app, &database, namespace, query, asked.paging));
    }
    Ok(rows::respond_all(listers))
}
