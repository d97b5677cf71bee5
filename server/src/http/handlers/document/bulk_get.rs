//! `_bulk_get`: reads many documents in one request.

use std::borrow::Cow;
use std::sync::Arc;

use budget::Held;
use hyper::StatusCode;
use model::limits::{check_document_id, require_partition};
use model::{BulkGet, Document, GetOptions, JsonRef, JsonText, JsonWriter, OpenRev, RevId};

use crate::http::app::App;
use crate::http::app::statistics::Count;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::contents;
use crate::http::handlers::document::read::{OPTIONS, get_options};
use crate::http::handlers::document::related::{Related, all_stubs};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::accept::takes;
use crate::http::wire::body::at_most;
use crate::http::wire::multipart::writer::{Multipart, document_head, head};
use crate::http::wire::params::parse_rev;
use crate::http::wire::response::{self, BodyWriter, MOST_PAGE, Response, Stop};

/// Maximum number of documents in a page. A page is read as a whole before it is sent.
const PAGE: usize = 200;

/// One entry of a bulk get: a request, or why it is invalid.
#[derive(Clone)]
enum Wanted {
    /// A request, and its `atts_since`: revisions whose attachments the client has, as they were sent.
    Request(BulkGet, Option<JsonText>),
    Refused {
        id: Option<String>,
        rev: Option<String>,
        error: String,
        reason: String,
    },
}

/// Parameters of other endpoints.
const UNFIT: &[Param] = &[
    Param::refused("open_revs"),
    Param::refused("new_edits"),
    Param::refused("w"),
    Param::refused("rev"),
    Param::refused("atts_since"),
];

/// What [`bulk_get`] does.
pub(crate) const BULK_GET: Operation = Operation::new(
    "Reads several documents.",
    &[Reply::new(
        200,
        &[Content::json(Kind::Object), Content::of("multipart/mixed"), Content::of("multipart/related")],
    )],
)
.query(&[OPTIONS, UNFIT])
.bodies(&[Content::members(
    &[Param::objects("docs", "Each with `id`, and perhaps `rev` and `atts_since`.").required()],
)])
.refusals(&[406]);

pub(crate) async fn bulk_get(request: &mut Request, db: &str) -> Result<Response> {
    for unfit in ["open_revs", "new_edits", "w", "rev", "atts_since"] {
        if request.params.get(unfit).is_some() {
            return Err(ApiError::bad_request(format!("\"{unfit}\" query parameter is not acceptable")));
        }
    }
    let options = get_options(&request.params)?;
    let json = request.json_object().await?;
    let docs = json.get("docs").filter(|docs| docs.is_array());
    let docs = docs.ok_or_else(|| ApiError::bad_request("Missing JSON list of 'docs'."))?;
    let most = request.app.auth.settings().max_bulk_get;
    let docs = at_most(docs, most, || ApiError::bulk_count("max_bulk_get_count_exceeded", most))?;
    let is_partitioned =
        |database: Documents| async move { Ok(database.is_partitioned() && database.is_partitioned_now().await?) };
    let partitioned = request.with_database(db, is_partitioned).await?;
    let all: Vec<Wanted> = docs.map(|doc| wanted(&json, doc, partitioned)).collect();
    let in_parts = !takes(&request.headers, "application/json")
        && (takes(&request.headers, "multipart/mixed") || takes(&request.headers, "multipart/related"));
    let mut options = options;
    // An answer in parts includes attachments, requested or not.
    options.attachments |= in_parts;
    let (app, options, entries) = (&request.app, &options, &all);
    // The first page is read before the status is sent, so that an error has its own status.
    let begin = |database: Documents| async move {
        let reader = Reader { app: app.clone(), database, options: options.clone() };
        let found = reader.find(entries).await?;
        Ok((reader, found))
    };
    let (reader, first) = request.with_database(db, begin).await?;
    request.app.statistics.add(Count::DatabaseReads, all.len() as u64);
    if in_parts {
        let kind = if takes(&request.headers, "multipart/mixed") { "mixed" } else { "related" };
        return in_multipart(kind, reader, first, all);
    }
    let mut body = b"{\"results\":[".to_vec();
    if first.len() == all.len() && !first.iter().any(EntryLeaves::has_contents) {
        for (place, found) in first.into_iter().enumerate() {
            reader.write(place, found, &mut body).await?;
        }
        body.extend_from_slice(b"]}");
        return Ok(response::json(StatusCode::OK, body));
    }
    let body = response::stream(|writer| async move {
        let (mut page, mut place) = (first, 0);
        loop {
            for found in page {
                reader.write(place, found, &mut body).await?;
                place += 1;
                if body.len() > MOST_PAGE {
                    writer.send(std::mem::take(&mut body)).await?;
                }
            }
            writer.send(std::mem::take(&mut body)).await?;
            if place == all.len() {
                break;
            }
            page = reader.find(&all[place..]).await?;
        }
        Ok(writer.send("]}\n").await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

/// The answer in parts, one for each revision, with attachments in their stored form.
///
/// Source: `bulk_get_ret_multipart` of CouchDB's `chttpd_db.erl`.
fn in_multipart(kind: &str, reader: Reader, first: Vec<EntryLeaves>, all: Vec<Wanted>) -> Result<Response> {
    let multipart = Multipart::new()?;
    let content_type = multipart.content_type(kind);
    let body = response::stream_bytes(|writer| async move {
        let (mut found, mut place) = (first, 0);
        let mut is_empty = true;
        loop {
            place += found.len();
            for one in found {
                for part in one.parts() {
                    is_empty = false;
                    writer.send(multipart.next()).await?;
                    reader.send(part, &writer).await?;
                }
            }
            if place == all.len() {
                break;
            }
            found = reader.find(&all[place..]).await?;
        }
        if !is_empty {
            writer.send([&*multipart.next(), Multipart::END, "\r\n"].concat()).await?;
        }
        Ok(())
    });
    Ok(response::in_parts(&content_type, body))
}

/// The result of one entry.
struct EntryLeaves {
    id: Option<String>,
    leaves: Vec<Leaf>,
}

/// One leaf of an entry, or why there is none.
enum Leaf {
    Document(Box<Document>),
    Refused { rev: Option<String>, error: Cow<'static, str>, reason: String },
}

/// One part of an answer in parts.
struct Part {
    id: Option<String>,
    leaf: Leaf,
}

impl EntryLeaves {
    /// Whether the answer needs contents of attachments.
    fn has_contents(&self) -> bool {
        let is_wanted = |leaf: &Leaf| matches!(leaf, Leaf::Document(document) if contents::are_wanted(document));
        self.leaves.iter().any(is_wanted)
    }

    fn parts(self) -> impl Iterator<Item = Part> {
        self.leaves.into_iter().map(move |leaf| Part { id: self.id.clone(), leaf })
    }
}

/// Checks the id of a document to read, which names a partition in a partitioned database.
fn check_id_to_read(id: &str, partitioned: bool) -> model::Result<()> {
    check_document_id(id)?;
    if partitioned { require_partition(id) } else { Ok(()) }
}

/// Parses an entry of a bulk get, whose body is `whole`.
fn wanted(whole: &JsonText, doc: JsonRef<'_>, partitioned: bool) -> Wanted {
    let text = |name: &str| doc.get(name).and_then(|value| value.as_str()).map(|value| value.into_owned());
    let refuse = |id, rev, error, reason: &str| Wanted::Refused {
        id,
        rev,
        error: str::to_owned(error),
        reason: reason.to_owned(),
    };
    if !doc.is_object() || doc.members().next().is_none() {
        return refuse(None, None, "bad_request", "document must be a JSON object");
    }
    let Some(id) = text("id") else {
        return refuse(None, None, "bad_request", "document id missed");
    };
    if let Err(error) = check_id_to_read(&id, partitioned) {
        return refuse(Some(id), None, error.error(), &error.reason());
    }
    let rev = match doc.get("rev").map(parse) {
        Some(None) => return refuse(Some(id), text("rev"), "bad_request", "Invalid rev format"),
        rev => rev.flatten(),
    };
    let Some(since) = doc.get("atts_since") else {
        return Wanted::Request(BulkGet { id, rev }, None);
    };
    if !since.is_array() {
        return refuse(Some(id), text("atts_since"), "bad_request", "att_since value must be array of revs.");
    }
    // As in CouchDB, the answer names this revision, and not the requested one.
    if let Some(wrong) = since.elements().find(|value| parse(*value).is_none()) {
        let wrong = wrong.as_str().map(|rev| rev.into_owned());
        return refuse(Some(id), wrong, "bad_request", "Invalid rev format");
    }
    // As in CouchDB, an empty list requests no attachments.
    let known = since.elements().next().map(|_| whole.slice_ref(since));
    Wanted::Request(BulkGet { id, rev }, known)
}

fn parse(value: JsonRef<'_>) -> Option<RevId> {
    parse_rev(&value.as_str()?).ok()
}

/// Reads and writes the pages of a bulk get.
struct Reader {
    app: Arc<App>,
    database: Documents,
    options: GetOptions,
}

impl Reader {
    /// Reads the first of these entries, at least one. An entry with `atts_since` is read alone.
    async fn find(&self, entries: &[Wanted]) -> Result<Vec<EntryLeaves>> {
        let is_plain = |wanted: &&Wanted| !matches!(wanted, Wanted::Request(_, Some(_)));
        let count = entries.iter().take(PAGE).take_while(is_plain).count().max(1).min(entries.len());
        let page = &entries[..count];
        let known = page.iter().find_map(|wanted| match wanted {
            Wanted::Request(_, known) => known.as_ref(),
            Wanted::Refused { .. } => None,
        });
        let known = known.map(|known| known.root().elements().filter_map(parse).collect());
        let options = GetOptions { atts_since: known, ..self.options.clone() };
        let requests = page.iter().filter_map(|wanted| match wanted {
            Wanted::Request(request, _) => Some(request.clone()),
            Wanted::Refused { .. } => None,
        });
        let (database, requests) = (self.database.clone(), requests.collect::<Vec<_>>());
        let read = self.app.scan(async move { database.get_some(&requests, &options).await }).await?;
        let mut read = read.into_iter();
        let mut found = Vec::with_capacity(page.len());
        for wanted in page {
            found.push(match wanted {
                Wanted::Request(request, _) => {
                    // The others did not fit in memory.
                    let Some((id, leaves)) = read.next() else { break };
                    EntryLeaves { id: Some(id), leaves: leaves_of(request.rev.as_ref(), leaves) }
                }
                Wanted::Refused { id, rev, error, reason } => {
                    let leaf = Leaf::Refused { rev: rev.clone(), error: error.clone().into(), reason: reason.clone() };
                    EntryLeaves { id: id.clone(), leaves: vec![leaf] }
                }
            });
        }
        Ok(found)
    }

    /// The document with the contents of its attachments, and their reservation; an error if its leaf was replaced
    /// meanwhile.
    async fn load(&self, document: Document) -> Result<(Leaf, Option<Held>)> {
        let rev = document.rev.to_string();
        Ok(match contents::load(&self.app, &self.database, document).await? {
            Some((document, held)) => (Leaf::Document(Box::new(document)), Some(held)),
            None => (Leaf::Refused { rev: Some(rev), error: "not_found".into(), reason: "missing".to_owned() }, None),
        })
    }

    /// Appends the result of the entry at this place, after a comma unless it is the first.
    async fn write(&self, place: usize, EntryLeaves { id, leaves }: EntryLeaves, body: &mut Vec<u8>) -> Result<()> {
        if place > 0 {
            body.push(b',');
        }
        let mut json = JsonWriter::new(body);
        json.begin_object().name("id");
        match &id {
            Some(id) => json.str(id),
            None => json.null(),
        };
        json.name("docs").begin_array();
        for (place, leaf) in leaves.into_iter().enumerate() {
            if place > 0 {
                body.push(b',');
            }
            let (leaf, _held) = match leaf {
                Leaf::Document(document) => self.load(*document).await?,
                refused => (refused, None),
            };
            match leaf {
                Leaf::Document(document) => {
                    body.extend_from_slice(b"{\"ok\":");
                    document.write_json(body);
                }
                refused => {
                    body.extend_from_slice(b"{\"error\":");
                    write_error(body, id.as_deref(), &refused);
                }
            }
            body.push(b'}');
        }
        body.extend_from_slice(b"]}");
        Ok(())
    }

    /// Sends a part, whose delimiter has been sent.
    async fn send(&self, Part { id, leaf }: Part, writer: &BodyWriter) -> Result<(), Stop> {
        let Leaf::Document(document) = leaf else {
            let mut error = head("application/json; error=\"true\"").into_bytes();
            write_error(&mut error, id.as_deref(), &leaf);
            return Ok(writer.send(error).await?);
        };
        match Related::new(&document)? {
            Some(related) => {
                let (id, rev) = (&document.id, document.rev.to_string());
                writer.send(document_head(id, &rev, &related.content_type())).await?;
                related.send(&self.app, &self.database, writer).await
            }
            None => {
                writer.send(head("application/json")).await?;
                Ok(writer.send(all_stubs(&document)).await?)
            }
        }
    }
}

/// The leaves of an entry, from the model's result.
fn leaves_of(asked: Option<&RevId>, leaves: model::Result<Vec<OpenRev>>) -> Vec<Leaf> {
    let refused = |rev: String, error: &str, reason: String| Leaf::Refused {
        rev: Some(rev),
        error: error.to_owned().into(),
        reason,
    };
    let asked = || asked.map_or_else(|| "undefined".to_owned(), ToString::to_string);
    match leaves {
        Ok(leaves) if leaves.is_empty() => vec![refused(asked(), "not_found", "missing".into())],
        Ok(leaves) => {
            let leaf = |leaf| match leaf {
                OpenRev::Found(document) => Leaf::Document(Box::new(document)),
                OpenRev::Missing(rev) => refused(rev.to_string(), "not_found", "missing".into()),
            };
            leaves.into_iter().map(leaf).collect()
        }
        Err(error) => vec![refused(asked(), error.error(), error.reason().into_owned())],
    }
}

/// Writes `{"id":…,"rev":…,"error":…,"reason":…}`.
fn write_error(body: &mut Vec<u8>, id: Option<&str>, leaf: &Leaf) {
    let Leaf::Refused { rev, error, reason } = leaf else { return };
    let mut json = JsonWriter::new(body);
    json.begin_object();
    for (name, value) in [("id", id), ("rev", rev.as_deref())] {
        match value {
            Some(value) => json.name(name).str(value),
            None => json.name(name).null(),
        };
    }
    json.name("error").str(error);
    json.name("reason").str(reason);
    json.end_object();
}
