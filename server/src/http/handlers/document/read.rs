//! `GET /{db}/{docid}`: reads one document, or several of its revisions.

use hyper::StatusCode;
use hyper::header::CONTENT_LENGTH;
use mango::Projection;
use model::{Document, GetOptions, JsonText, OpenRevs, RevId};

use crate::http::app::stores::Documents;
use crate::http::authz::client::{Client, Means};
use crate::http::authz::rules::Rules;
use crate::http::authz::rules_of;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::document::open_revs::open_revs;
use crate::http::handlers::document::related::{Related, all_stubs};
use crate::http::handlers::document::{contents, require_possible};
use crate::http::operation::{Content, IF_NONE_MATCH, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::accept::takes;
use crate::http::wire::fields;
use crate::http::wire::params::{self, Params};
use crate::http::wire::response::{self, Response, Tag};

/// The answer to a client that may not read all of a document of a database with rules.
async fn hidden(request: &Request, rules: &dyn Rules, db: &str, id: &str) -> Result<Option<Response>> {
    let means = &Means::Server(request.app.clone(), Some(request.address));
    let (principal, is_admin) = (&*request.principal, request.is_database_admin);
    let hidden = |database: Documents| async move {
        rules.hidden(&Client { principal, is_admin, database: &database, means }, &request.params, id).await
    };
    request.with_database(db, hidden).await
}

/// The parameters that [`get_options`] reads.
pub(crate) const OPTIONS: &[Param] = &[
    Param::flag("latest", "The newest leaves after the named revisions."),
    Param::flag("revs", "With the ancestors of the revision."),
    Param::flag("revs_info", "With the ancestors of the revision, and whether they have bodies."),
    Param::flag("conflicts", "With the conflicts."),
    Param::flag("deleted_conflicts", "With the leaves that are deleted."),
    Param::flag("local_seq", "With the sequence of the last change."),
    Param::flag("meta", "`revs_info`, `conflicts` and `deleted_conflicts`."),
    Param::flag("attachments", "With the contents of attachments."),
    Param::flag("att_encoding_info", "With the encodings of attachments."),
];

/// Those that name revisions of one document.
const REVISIONS: &[Param] = &[
    Param::text("rev", "This revision; the winner by default."),
    Param::json("open_revs", "Several revisions: an array, or `all` for the leaves."),
    Param::texts("atts_since", "Only attachments that are newer than these revisions."),
    Param::text("fields", "Only these members: their paths, with commas, or a JSON array."),
];

/// What [`read`] does.
pub(crate) const READ: Operation = Operation::new(
    "Reads a document.",
    &[
        Reply::new(200, &[Content::json(Kind::Json), Content::of("multipart/related"), Content::of("multipart/mixed")]),
        Reply::NOT_MODIFIED,
    ],
)
.query(&[OPTIONS, REVISIONS])
.headers(&[IF_NONE_MATCH])
.refusals(&[406]);

pub(crate) async fn read(request: &Request, db: &str, id: &str) -> Result<Response> {
    require_possible(id)?;
    if let Some(rules) = rules_of(db)
        && let Some(answer) = Box::pin(hidden(request, rules, db, id)).await?
    {
        return Ok(answer);
    }
    let options = &get_options(&request.params)?;
    let revs = match request.params.get("open_revs") {
        None => None,
        Some("all") => Some(OpenRevs::All),
        // As in CouchDB, an empty list requests the document itself.
        Some(list) => Some(parse_revs(list)?).filter(|revs| !revs.is_empty()).map(OpenRevs::These),
    };
    let fields = request.params.get("fields").map(fields::parse).transpose()?;
    let fields = fields.filter(|fields| !fields.is_everything());
    // Rare cases are boxed: otherwise their large futures would slow down every other read.
    if let (None, Some(fields)) = (&revs, &fields)
        && *options == GetOptions::default()
        && fields.paths().all(is_part)
    {
        return Box::pin(request.with_database(db, |database| read_parts(request, database, id, fields))).await;
    }
    match &revs {
        Some(revs) => {
            Box::pin(request.with_database(db, |database| open_revs(request, database, id, revs, options))).await
        }
        None => request.with_database(db, |database| read_one(request, database, id, options, fields.as_ref())).await,
    }
}

/// Whether the value at a path can be read alone. Special members other than `_id` and `_rev` are not in the body.
fn is_part(path: &[String]) -> bool {
    matches!(path, [name] if name == "_id" || name == "_rev") || path.first().is_some_and(|name| !name.starts_with('_'))
}

/// Answers with some members of a document. Only their rows are read, if they have rows of their own.
async fn read_parts(request: &Request, database: Documents, id: &str, fields: &Projection) -> Result<Response> {
    let paths: Vec<Vec<String>> = fields.paths().map(<[String]>::to_vec).collect();
    let parts = database.get_parts(id, &paths).await?;
    let tag = Tag::of_rev(&parts.rev);
    if tag.is_known(&request.headers) {
        return Ok(response::not_modified(tag));
    }
    let mut body = Vec::new();
    fields.write_found(parts.values.iter().map(|value| value.as_ref().map(JsonText::root)), &mut body);
    let mut response = response::json(StatusCode::OK, body);
    response::set_etag(&mut response, tag);
    Ok(response)
}

async fn read_one(
    request: &Request,
    database: Documents,
    id: &str,
    options: &GetOptions,
    fields: Option<&Projection>,
) -> Result<Response> {
    loop {
        let document = database.get(id, options).await?;
        let tag = (!has_meta(&document)).then(|| Tag::of_rev(&document.rev));
        let tag = match tag {
            Some(tag) if tag.is_known(&request.headers) => return Ok(response::not_modified(tag)),
            tag => tag,
        };
        let response = match contents::are_wanted(&document) {
            true => Box::pin(with_contents(request, &database, document, fields)).await?,
            false if fields.is_none() && asks_for_attachments(request, options) => {
                Some(response::json(StatusCode::OK, all_stubs(&document)))
            }
            false => Some(as_json(&document, fields)),
        };
        let Some(mut response) = response else { continue };
        if let Some(tag) = tag {
            response::set_etag(&mut response, tag);
        }
        return Ok(response);
    }
}

/// Whether the client asks for attachments in parts, even if it has all of them.
fn asks_for_attachments(request: &Request, options: &GetOptions) -> bool {
    (options.attachments || options.atts_since.is_some()) && takes(&request.headers, "multipart/related")
}

/// Answers with a document and the contents of its attachments; `None` if the leaf was replaced while they were read.
async fn with_contents(
    request: &Request,
    database: &Documents,
    document: Document,
    fields: Option<&Projection>,
) -> Result<Option<Response>> {
    if fields.is_none()
        && takes(&request.headers, "multipart/related")
        && let Some(related) = Related::new(&document)?
    {
        let (content_type, length) = (related.content_type(), related.length());
        let (app, database) = (request.app.clone(), database.clone());
        let body = response::stream_bytes(|writer| async move { related.send(&app, &database, &writer).await });
        let mut response = response::in_parts(&content_type, body);
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
        return Ok(Some(response));
    }
    let document = contents::load(&request.app, database, document).await?;
    Ok(document.map(|(document, _held)| as_json(&document, fields)))
}

fn as_json(document: &Document, fields: Option<&Projection>) -> Response {
    let body = match fields {
        Some(fields) => {
            let mut body = Vec::new();
            fields.write(document.to_text().root(), &mut body);
            body
        }
        None => document.to_json(),
    };
    response::json(StatusCode::OK, body)
}

/// Whether the answer has members that can change while the revision stays. Such an answer has no `ETag`.
fn has_meta(document: &Document) -> bool {
    document.revs_info.is_some()
        || document.conflicts.is_some()
        || document.deleted_conflicts.is_some()
        || document.local_seq.is_some()
}

/// The options of a read, from its query. As in CouchDB, values other than `true` are ignored.
pub(crate) fn get_options(params: &Params) -> Result<GetOptions> {
    let meta = params.is_true("meta");
    Ok(GetOptions {
        rev: params.rev("rev")?,
        latest: params.is_true("latest"),
        revs: params.is_true("revs"),
        revs_info: meta || params.is_true("revs_info"),
        conflicts: meta || params.is_true("conflicts"),
        deleted_conflicts: meta || params.is_true("deleted_conflicts"),
        local_seq: params.is_true("local_seq"),
        attachments: params.is_true("attachments"),
        atts_since: params.get("atts_since").map(parse_revs).transpose()?,
        att_encoding_info: params.is_true("att_encoding_info"),
    })
}

fn parse_revs(value: &str) -> Result<Vec<RevId>> {
    let json = params::parse_json(value)?;
    if !json.root().is_array() {
        return Err(ApiError::bad_request("Invalid list of revisions"));
    }
    let text = |element: model::JsonRef<'_>| element.as_str().map(|text| text.into_owned());
    let revs = json
        .root()
        .elements()
        .map(|element| params::parse_rev(&text(element).ok_or_else(|| ApiError::bad_request("Invalid rev format"))?));
    revs.collect()
}

#[cfg(test)]
#[test]
fn each_option_that_is_described_is_read() {
    let options_of = |query: &str| format!("{:?}", get_options(&Params::parse(query).unwrap()).unwrap());
    for param in OPTIONS {
        assert_ne!(options_of(&format!("{}=true", param.name)), options_of(""), "{}", param.name);
    }
}
