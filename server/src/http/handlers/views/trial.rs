//! `POST /{db}/_couch_layer/try_view`: tries a view of a design document before it is stored. CouchDB has no such
//! endpoint; its `_temp_view` is gone since version 2.
//!
//! ```text
//!   {"design": {"views": {"by_type": {"map": "function (doc) { … }", "reduce": "_count"}}}, "view": "by_type",
//!    "documents": 50}
//! ```
//!
//! Only an administrator of the database may try functions, since only they may store them. They run in the same
//! sandboxes, within the same limits, and on documents that every member may read. Nothing is stored.

use budget::{Owner, Use};
use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{ErrorKind, FunctionError, JsonRef, JsonText, JsonWriter, ReduceRow, Reduced, ViewTrial};

use crate::http::error::{ApiError, Result};
use crate::http::functions::view_group::ViewDesign;
use crate::http::handlers::root::configuration::member;
use crate::http::operation::{Content, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::{WAIT, require_json};
use crate::http::wire::response::{self, Response};

/// Number of documents unless the request says it, and the most.
const USUAL: u64 = 50;
const MOST: u64 = 500;

/// Maximum size of a request.
const MOST_BYTES: usize = 1 << 20;

/// Memory of a trial: 4 MB of documents, 16 MB that the function emits for one of them, in texts and then in rows, and
/// 4 MB of rows, as they are kept, as they are reduced, and as the texts of that call.
const MEMORY: usize = 48 << 20;

/// Maximum number of rows, and of errors, in an answer.
const MOST_ROWS: usize = 1_000;

/// Maximum size of a key or of a value in an answer. A longer one is cut, and is then a text.
const MOST_VALUE: usize = 2_000;

/// Maximum size of the rows of an answer.
const MOST_ANSWER: usize = 1 << 20;

/// What [`try_view`] does.
pub(crate) const TRY_VIEW: Operation =
    Operation::new("Tries a view on the last documents, and stores nothing.", &[Reply::object(200)])
        .bodies(&[Content::members(&[
            Param::object("design", "A design document.").required(),
            Param::text("view", "The name of the view.").required(),
            Param::count("documents", "How many documents."),
        ])])
        .refusals(&[500, 501]);

pub(crate) async fn try_view(request: &mut Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    request.body.narrow(MOST_BYTES);
    let body = request.json_object().await?;
    let bad = |reason: &str| ApiError::bad_request(reason.to_owned());
    let design =
        body.get("design").filter(|design| design.is_object()).ok_or_else(|| bad("`design` must be an object"))?;
    let view = member(&body, "view").ok_or_else(|| bad("`view` must be the name of a view"))?;
    let documents = match body.get("documents") {
        None => USUAL,
        Some(number) => number
            .as_u64()
            .filter(|number| (1..=MOST).contains(number))
            .ok_or_else(|| bad(&format!("`documents` must be a number from 1 to {MOST}")))?,
    };
    let database = request.fresh_database(db).await?;
    let app = &request.app;
    let design = with_view_alone(design, &view);
    let design = ViewDesign::of_body(&app.functions, &database, DESIGN_PREFIX, &design)?;
    design.refuse_unknown(&view)?;
    let (group, _) = design.view(&view)?;
    let place = group.view(&view).unwrap_or_default();
    let held = app.budget.part(Owner::Work("trials")).take(MEMORY, Use::Quick, WAIT).await?;
    let (group, most) = (group.clone(), usize::try_from(documents).unwrap_or(usize::MAX));
    let work = async move {
        let tried = database.try_view(&group, place, most).await;
        drop(held);
        tried
    };
    let tried = app.off_thread(Box::pin(work)).await?.map_err(refused)?;
    Ok(response::object(|json| write(json, &tried)))
}

/// The answer to functions that cannot be called, as to a design document with them.
fn refused(error: model::Error) -> ApiError {
    match error.kind() {
        ErrorKind::Functions(reason) => match reason.strip_prefix("compilation_error: ") {
            Some(reason) => ApiError::new(StatusCode::BAD_REQUEST, "compilation_error", reason.to_owned()),
            None => error.into(),
        },
        _ => error.into(),
    }
}

/// The design document with this view and the library alone: errors of other views are not those of this one.
fn with_view_alone(design: JsonRef<'_>, view: &str) -> JsonText {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object();
    for (name, value) in design.members() {
        if name != "views" {
            json.name(&name).value(value);
            continue;
        }
        json.name("views").begin_object();
        for (name, value) in value.members().filter(|(name, _)| *name == view || name == "lib") {
            json.name(&name).value(value);
        }
        json.end_object();
    }
    json.end_object();
    JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
}

fn write(json: &mut JsonWriter<'_>, tried: &ViewTrial) {
    json.name("documents").u64(tried.documents as u64).name("more").bool(tried.has_more);
    json.name("total_rows").u64(tried.rows.len() as u64);
    json.name("rows").begin_array();
    let mut bytes = 0;
    let fits = |row: &&ReduceRow| {
        bytes += row.id.len() + row.key.len().min(MOST_VALUE) + row.value.len().min(MOST_VALUE);
        bytes <= MOST_ANSWER
    };
    for row in tried.rows.iter().take(MOST_ROWS).take_while(fits) {
        json.begin_object().name("id").str(&row.id);
        write_value(json.name("key"), &row.key);
        write_value(json.name("value"), &row.value);
        json.end_object();
    }
    json.end_array();
    json.name("errors").begin_array();
    for error in tried.errors.iter().take(MOST_ROWS) {
        json.begin_object().name("id").str(&error.id);
        write_error(json, &error.error);
        json.end_object();
    }
    json.end_array();
    for (name, reduced) in [("reduced", &tried.reduced), ("rereduced", &tried.rereduced)] {
        if let Some(reduced) = reduced {
            write_reduced(json.name(name), reduced);
        }
    }
}

fn write_value(json: &mut JsonWriter<'_>, value: &JsonText) {
    let text = value.as_str();
    match text.len() > MOST_VALUE {
        true => json.str(&format!("{}…", &text[..text.floor_char_boundary(MOST_VALUE)])),
        false => json.text(value),
    };
}

fn write_reduced(json: &mut JsonWriter<'_>, reduced: &Reduced) {
    json.begin_object();
    match reduced {
        Ok(value) => write_value(json.name("value"), value),
        Err(error) => write_error(json, error),
    }
    json.end_object();
}

fn write_error(json: &mut JsonWriter<'_>, error: &FunctionError) {
    let cut = |text: &str| text[..text.floor_char_boundary(MOST_VALUE)].to_owned();
    json.name("error").str(&cut(&error.error)).name("reason").str(&cut(&error.reason));
}
