//! `POST /_transact`: edits of documents in several databases, all or nothing.
//!
//! ```text
//!  {"edits": [{"db": "accounts", "doc": {"_id": "anna", "_rev": "3-…", …}}, …]}
//!
//!  201  [{"ok": true, "db": "accounts", "id": "anna", "rev": "4-…"}, …]             in the order of the edits
//!  409  {"error": "conflict", "reason": …, "edits": [{"edit": 0, "db": …, "id": …, "error": …, "reason": …}]}
//! ```
//!
//! CouchDB has no such endpoint. An edit has the form of one in `_bulk_docs`. A refusal has the status of its first
//! edit.

use std::collections::HashMap;

use hyper::StatusCode;
use model::{Edit, Edits, ErrorKind, JsonRef, JsonText, JsonWriter, Layer, Refused, RevId, WriteMode, Writing};

use crate::http::app::stores::Documents;
use crate::http::authz::admission::authorize_writer;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::bulk_docs::{TOO_MANY, count_attachments};
use crate::http::jobs::replicator;
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::at_most;
use crate::http::wire::response::{self, Response};

/// Maximum size of the edits of an anonymous client: they are parsed before their databases are known.
const MOST_ANONYMOUS_BYTES: usize = 1 << 20;

/// An edit of the request.
#[derive(Clone)]
struct RequestedEdit {
    db: String,
    edit: Edit,
}

/// A database and its store.
#[derive(Clone)]
struct Home {
    layer: Layer<kv_api::AnyDatabase>,
    database: Documents,
}

/// What [`transact`] does.
pub(crate) const TRANSACT: Operation = Operation::new(
    "Edits documents of several databases, all or nothing.",
    &[Reply::new(201, &[Content::json(Kind::Objects)])],
)
.bodies(&[Content::members(&[Param::objects("edits", "Each with `db` and `doc`.").required()])])
.refusals(&[404, 409, 412, 417]);

pub(crate) async fn transact(request: &mut Request) -> Result<Response> {
    if request.principal.name.is_none() && !request.principal.is_server_admin() {
        request.body.narrow(MOST_ANONYMOUS_BYTES);
    }
    let most = request.app.auth.settings().max_bulk_docs;
    let mut asked = read(&request.json_object().await?, most)?;
    let mut names: Vec<String> = asked.iter().map(|asked| asked.db.clone()).collect();
    names.sort_unstable();
    names.dedup();
    for db in &names {
        authorize_writer(request, db).await?;
    }
    for RequestedEdit { edit, .. } in &mut asked {
        if edit.id.is_empty() {
            edit.id = request.app.fresh_ids(1)?.pop().unwrap_or_default();
        }
    }
    for db in names.iter().filter(|db| replicator::has_jobs(db)) {
        replicator::documents::ensure(&request.app, db).await?;
    }
    // In the last step of a relocation, writes to the database would fail, so they wait here.
    let mut admitted = Vec::with_capacity(names.len());
    for db in &names {
        admitted.push(request.app.gates.admit(db).await);
    }
    let mut homes = HashMap::with_capacity(names.len());
    let mut refused = Vec::new();
    for db in names {
        match request.app.databases.stores.located(&db).await {
            Ok((store, database)) => {
                homes.insert(db, Home { layer: store.layer, database: request.writable(database) });
            }
            Err(error) if error.is_no_database() => refused.extend(missing(&asked, &db)),
            Err(error) => return Err(error),
        }
    }
    if refused.is_empty() {
        let edits = asked.clone();
        // On the threads for scans, since it may read and write much.
        match request.app.off_thread(async move { run(&homes, edits).await }).await? {
            Ok(revs) => return Ok(response::json(StatusCode::CREATED, answer(&asked, &revs))),
            Err(error) => match error.kind() {
                ErrorKind::Refused(each) => refused = each.clone(),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(refusal(refused))
}

/// Parses the edits; at most as many as in a `_bulk_docs`.
fn read(json: &JsonText, most: usize) -> Result<Vec<RequestedEdit>> {
    let edits = json.root().get("edits").filter(|edits| edits.is_array());
    let edits = edits.ok_or_else(|| ApiError::bad_request("POST body must include an array `edits`."))?;
    let mut attachments = 0;
    let read = |edit: JsonRef<'_>| {
        let db = edit.get("db").and_then(JsonRef::as_str);
        let db = db.ok_or_else(|| ApiError::bad_request("An edit must name its database in `db`."))?.into_owned();
        let doc = edit.get("doc").ok_or_else(|| ApiError::bad_request("An edit must have a document in `doc`."))?;
        let edit = Edit::from_json(None, &json.slice_ref(doc), WriteMode::Interactive)?;
        count_attachments(&mut attachments, &edit)?;
        Ok(RequestedEdit { db, edit })
    };
    at_most(edits, most, || ApiError::bulk_count(TOO_MANY, most))?.map(read).collect()
}

/// The refusals of the edits of a missing database.
fn missing(asked: &[RequestedEdit], db: &str) -> Vec<Refused> {
    let of_it = asked.iter().enumerate().filter(|(_, asked)| asked.db == db);
    let error = model::Error::new(ErrorKind::NotFound(model::NotFound::Database));
    let refused = |(turn, asked): (usize, &RequestedEdit)| {
        let (database, id, error) = (db.to_owned(), asked.edit.id.clone(), error.clone());
        Refused { turn, database, id, error }
    };
    of_it.map(refused).collect()
}

/// Writes the edits. Returns their revisions, in the order of the edits.
async fn run(homes: &HashMap<String, Home>, mut edits: Vec<RequestedEdit>) -> model::Result<Vec<RevId>> {
    // Asked before anything is stored, and before the transaction starts, which has no time to hash a password: when
    // asked again in it, the edit is complete.
    let mut refused = Vec::new();
    for (turn, RequestedEdit { db, edit }) in edits.iter_mut().enumerate() {
        let Some(home) = homes.get(db) else { continue };
        match home.database.authorize(Writing::Edit(edit, WriteMode::Interactive)).await {
            Err(error) if error.status() >= 500 => return Err(error),
            Err(error) => refused.push(Refused { turn, database: db.clone(), id: edit.id.clone(), error }),
            Ok(()) => {}
        }
    }
    if !refused.is_empty() {
        return Err(ErrorKind::Refused(refused).into());
    }
    for RequestedEdit { db, edit } in &mut edits {
        if let Some(home) = homes.get(db) {
            home.database.upload_data(edit).await?;
        }
    }
    let Some(first) = edits.first().and_then(|first| homes.get(&first.db)) else { return Ok(Vec::new()) };
    let put = |edits_of: &Edits<_>, RequestedEdit { db, edit }: &RequestedEdit| match homes.get(db) {
        Some(home) => edits_of.put(&home.database, edit.clone()),
        None => Err(ErrorKind::NotFound(model::NotFound::Database).into()),
    };
    let written = first.layer.transact(|transaction: Edits<_>| {
        let mut refused = Vec::new();
        for (turn, asked) in edits.iter().enumerate() {
            if let Err(error) = put(&transaction, asked) {
                let (database, id) = (asked.db.clone(), asked.edit.id.clone());
                refused.push(Refused { turn, database, id, error });
            }
        }
        let put = if refused.is_empty() { Ok(()) } else { Err(model::Error::from(ErrorKind::Refused(refused))) };
        std::future::ready(put)
    });
    written.await.map(|((), revs)| revs)
}

fn answer(asked: &[RequestedEdit], revs: &[RevId]) -> Vec<u8> {
    let mut body = Vec::with_capacity(asked.len() * 96);
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for (RequestedEdit { db, edit }, rev) in asked.iter().zip(revs) {
        json.begin_object().name("ok").bool(true);
        json.name("db").str(db).name("id").str(&edit.id).name("rev").display(rev);
        json.end_object();
    }
    json.end_array();
    body
}

/// The answer that names the refused edits.
fn refusal(mut refused: Vec<Refused>) -> Response {
    refused.sort_by_key(|one| one.turn);
    let whole = ApiError::from(model::Error::new(ErrorKind::Refused(refused.clone())));
    response::object_with(whole.status(), |json| {
        whole.write_members(json);
        json.name("edits").begin_array();
        for Refused { turn, database, id, error } in refused {
            json.begin_object().name("edit").u64(turn as u64);
            json.name("db").str(&database).name("id").str(&id);
            ApiError::from(error).write_members(json);
            json.end_object();
        }
        json.end_array();
    })
}
