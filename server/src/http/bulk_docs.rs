//! `_bulk_docs`: many documents written in one request.
//!
//! A request that is wrong in itself is refused whole, before anything is written; what is wrong with
//! an edit in its place (a conflict, a document too large) is said in that place.

use hyper::StatusCode;
use model::{Edit, JsonText, JsonWriter, WriteMode};

use super::document::require_design_admin;
use super::error::{ApiError, Result};
use super::json_body::array_member;
use super::local::{self, LocalEdit};
use super::request::Request;
use super::response::{self, Response};
use super::root::fresh_ids;

/// Up to this many edits are written where the request is served.
const FEW_EDITS: usize = 16;

/// A place in the answer.
struct Place {
    id: String,
    /// The revision that a replicated edit brought.
    brought: Option<String>,
    /// What became of the edit; `None` where the database says so, in order.
    outcome: Option<Result<String>>,
}

pub(crate) async fn bulk_docs(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.database(db).await?;
    request.allow("POST")?;
    let json = request.json_object().await?;
    let docs = array_member(&json, "docs")?;
    let docs = docs.ok_or_else(|| ApiError::bad_request("POST body must include `docs` parameter."))?;
    let mode = match json.get("new_edits").map(|value| value.as_bool()) {
        None | Some(Some(true)) => WriteMode::Interactive,
        Some(Some(false)) => WriteMode::Replicated,
        Some(None) => return Err(ApiError::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let (mut places, mut edits, mut locals) = (Vec::new(), Vec::new(), Vec::new());
    for doc in docs.elements() {
        let doc = json.slice_ref(doc);
        if let Some(id) = local::local_id(&doc) {
            locals.push((places.len(), LocalEdit::from_json(&doc)?));
            places.push(Place { id, brought: None, outcome: None });
            continue;
        }
        let (edit, outcome) = edit(request, &doc, mode)?;
        let brought = edit.rev.as_ref().filter(|_| mode == WriteMode::Replicated).map(ToString::to_string);
        places.push(Place { id: edit.id.clone(), brought, outcome: outcome.err().map(Err) });
        if places.last().is_some_and(|place| place.outcome.is_none()) {
            edits.push(edit);
        }
    }
    if json.get("all_or_nothing").and_then(|value| value.as_bool()) == Some(true) {
        let refusal = || {
            let reason = "all_or_nothing is not supported";
            ApiError::new(StatusCode::EXPECTATION_FAILED, "not_implemented", reason)
        };
        places.iter_mut().for_each(|place| place.outcome = Some(Err(refusal())));
        return Ok(response::json(StatusCode::EXPECTATION_FAILED, answer(&places, mode)));
    }
    for (place, edit) in locals {
        let Some(place) = places.get_mut(place) else { continue };
        let written = edit.write(&database, &place.id).await;
        place.outcome = Some(written.map(|rev| format!("0-{rev}")));
    }
    // Many edits read much, a few do not.
    let results = if edits.len() > FEW_EDITS {
        request.app.scan(async move { database.write(edits, mode).await }).await?
    } else {
        database.write(edits, mode).await?
    };
    let open = places.iter_mut().filter(|place| place.outcome.is_none());
    for (place, result) in open.zip(results) {
        place.outcome = Some(result.map(|rev| rev.to_string()).map_err(ApiError::from));
    }
    Ok(response::json(StatusCode::CREATED, answer(&places, mode)))
}

/// The edit that a document is, and whether the user may make it.
fn edit(request: &Request, doc: &JsonText, mode: WriteMode) -> Result<(Edit, Result<()>)> {
    let mut edit = Edit::from_json(None, doc, mode)?;
    if edit.id.is_empty() {
        edit.id = fresh_ids(request, 1)?.pop().unwrap_or_default();
    }
    let allowed = require_design_admin(request, &edit.id);
    Ok((edit, allowed))
}

fn answer(places: &[Place], mode: WriteMode) -> Vec<u8> {
    let mut body = Vec::with_capacity(places.len() * 96);
    let mut json = JsonWriter::new(&mut body);
    json.begin_array();
    for place in places {
        match &place.outcome {
            // Replicators read errors only.
            Some(Ok(_)) if mode == WriteMode::Replicated => continue,
            Some(Ok(rev)) => {
                json.begin_object().name("ok").bool(true);
                json.name("id").str(&place.id).name("rev").str(rev);
            }
            refused => {
                json.begin_object().name("id").str(&place.id);
                if let Some(rev) = &place.brought {
                    json.name("rev").str(rev);
                }
                match refused {
                    Some(Err(error)) => error.write_members(&mut json),
                    // The database answers for every edit; if it did not, silence would be a lie.
                    _ => ApiError::internal().write_members(&mut json),
                }
            }
        }
        json.end_object();
    }
    json.end_array();
    body
}
