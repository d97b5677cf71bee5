//! The server's description of itself: OpenAPI 3.1, made from the table of endpoints.
//!
//! ```text
//!   table of endpoints      path, methods, who may ─┐
//!                                                   ├─►  GET /_openapi.json
//!   an Operation beside     parameters, bodies,    ─┘
//!   each handler            answers
//! ```
//!
//! A path of the table becomes one of OpenAPI, or two, since `*` stands for all remaining names or for none. `COPY` is
//! no method of OpenAPI, and stands in the extension `x-copy`. `x-rights` says who may send a request.
//!
//! Everybody may read it, as everybody may read this source: it has nothing that depends on what is stored.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::http::error::Result;
use crate::http::operation::{Content, Form, IF_NONE_MATCH, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};

/// A row of the table of endpoints.
pub(crate) struct Endpoint {
    pub(crate) path: &'static str,
    /// With commas; `*` for all.
    pub(crate) methods: &'static str,
    /// Who may send the request, in words.
    pub(crate) who: &'static str,
    pub(crate) is_public: bool,
    pub(crate) operation: &'static Operation,
}

/// What [`read`] does.
pub(crate) const READ: Operation =
    Operation::new("This description.", &[Reply::object(200), Reply::NOT_MODIFIED]).headers(&[IF_NONE_MATCH]);

/// `GET /_openapi.json`
pub(crate) fn read(request: &Request, description: &[u8]) -> Result<Response> {
    Ok(response::tagged(&request.headers, description.to_vec()))
}

/// The methods that a row for all methods is described with.
const ALL_METHODS: &str = "GET,PUT,POST,DELETE";

/// Statuses that every request may get. 401: wrong credentials, or a right that a user has and nobody else. 500: a
/// fault of the server or of its store. 503: the memory for requests is in use, or the store does not answer.
const COMMON: &[u16] = &[400, 401, 403, 500, 503];

/// Statuses of requests that may have a body, and that the store may have no room for.
const OF_WRITES: &[u16] = &[408, 413, 415, 507];

/// The description of these endpoints.
pub(crate) fn describe(endpoints: impl Iterator<Item = Endpoint> + Clone) -> Value {
    let mut paths = Map::new();
    let mut refusals = Map::new();
    for endpoint in endpoints.clone() {
        for path in paths_of(endpoint.path, endpoints.clone().map(|other| other.path)) {
            let names = names_in(&path);
            let item = paths.entry(path.clone()).or_insert_with(|| json!({ "parameters": names }));
            for method in methods(endpoint.methods) {
                let name = if method == "COPY" { "x-copy".to_owned() } else { method.to_ascii_lowercase() };
                item[name] = operation(&endpoint, method, &path, &mut refusals);
            }
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "couch-layer",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "CouchDB's HTTP API. Refusals are JSON with `error` and `reason`, as in CouchDB. System \
                databases are for administrators of the server, except for what CouchDB gives to members.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "." }],
        "paths": paths,
        "components": {
            "schemas": { "Error": error_schema() },
            "responses": refusals,
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "session": { "type": "apiKey", "in": "cookie", "name": "AuthSession" },
                "token": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT" },
            },
        },
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error", "reason"],
        "properties": {
            "error": { "type": "string", "description": "The kind of refusal, for programs." },
            "reason": { "description": "Text for people; a function of a design document may give any JSON." },
        },
    })
}

/// The methods of a row, one by one.
fn methods(methods: &'static str) -> impl Iterator<Item = &'static str> {
    if methods == "*" { ALL_METHODS } else { methods }.split(',')
}

/// A path of the table in OpenAPI's form, except for `*`.
fn named(path: &str) -> String {
    path.replace("{ddoc}", "_design/{ddoc}").replace("{local}", "_local/{docid}")
}

/// The paths of a row in OpenAPI's form. `all`: the paths of the table.
fn paths_of(path: &str, all: impl Iterator<Item = &'static str> + Clone) -> Vec<String> {
    let Some(short) = path.strip_suffix("/*") else { return vec![named(path)] };
    if short.ends_with("{docid}") {
        return vec![named(short) + "/{attname}"];
    }
    let own = named(short);
    let has_rows = short.ends_with('}') || all.clone().any(|other| other == short);
    // If paths with one more name are another row's, this row has those with two.
    let with_one = all.map(named).find(|other| {
        let name = other.strip_prefix(&own).and_then(|rest| rest.strip_prefix("/{"));
        name.is_some_and(|name| !name.contains('/') && name.ends_with('}'))
    });
    let whole = with_one.unwrap_or_else(|| own.clone()) + "/{names}";
    if has_rows { vec![whole] } else { vec![own, whole] }
}

/// The placeholders of a path, as parameters.
fn names_in(path: &str) -> Vec<Value> {
    let parts = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let (meaning, pattern) = meaning_of(name);
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": meaning,
            "schema": { "type": "string", "pattern": pattern },
        })
    };
    parts.map(parameter).collect()
}

/// What a placeholder stands for, and a pattern of its values.
fn meaning_of(name: &str) -> (&'static str, &'static str) {
    match name {
        "db" => ("The name of a database; its slashes are escaped.", "^(_users|_replicator|[a-z][a-z0-9_$()+/-]*)$"),
        "docid" => {
            ("The id of a document; slashes are escaped, except for that of `_design/`.", "^([^_].*|_design/.+)$")
        }
        "ddoc" => ("The name of a design document.", "^.+$"),
        "attname" => ("The name of an attachment; its slashes need not be escaped.", "^[^_].*$"),
        "view" => ("The name of a view, or of a design document.", "^.+$"),
        "partition" => ("The name of a partition.", "^[^_:][^:]*$"),
        "node" => ("The node; there is one.", "^(_local|nonode@nohost)$"),
        "section" => ("A section of the settings.", "^.+$"),
        "key" => ("A name.", "^.+$"),
        "names" => ("One name or several, with slashes between them, which are not escaped.", "^.+$"),
        _ => ("An id.", "^.+$"),
    }
}

/// The subject of a path, by which descriptions are grouped.
fn tag_of(path: &str) -> &'static str {
    let below = path.strip_prefix("/{db}");
    match below {
        None => "server",
        Some(rest) if rest.starts_with("/_partition") => "partitions",
        Some(rest) if rest.starts_with("/{ddoc}") => "design documents",
        Some(rest) if rest.starts_with("/{local}") || rest.starts_with("/_local/") => "local documents",
        Some(rest) if rest.starts_with("/{docid}") => "documents",
        Some(_) => "databases",
    }
}

/// `refusals`: the answers that operations share, by their names; new ones are added.
fn operation(endpoint: &Endpoint, method: &str, path: &str, refusals: &mut Map<String, Value>) -> Value {
    let described = endpoint.operation;
    let id: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let query = described.query.iter().copied().flatten().filter(|param| !matches!(param.kind, Kind::Refused));
    let parameters: Vec<Value> = query
        .map(|param| parameter(param, "query"))
        .chain(described.headers.iter().map(|param| parameter(param, "header")))
        .collect();
    let secured: &[&str] = &["basic", "session", "token"];
    let unsecured = if endpoint.is_public { vec![json!({})] } else { Vec::new() };
    let security: Vec<Value> = unsecured.into_iter().chain(secured.iter().map(|name| json!({ *name: [] }))).collect();
    let mut operation = json!({
        "operationId": format!("{}{id}", method.to_ascii_lowercase()),
        "summary": described.summary,
        "tags": [tag_of(endpoint.path)],
        "x-rights": endpoint.who,
        "security": security,
        "parameters": parameters,
        "responses": responses(endpoint, method, refusals),
    });
    if !described.bodies.is_empty() && !matches!(method, "GET" | "HEAD" | "DELETE") {
        operation["requestBody"] = json!({ "content": contents(described.bodies), "required": needs_body(described) });
    }
    operation
}

/// Whether a request without a body is refused.
fn needs_body(described: &Operation) -> bool {
    described.bodies.iter().any(|body| match body.form {
        Form::Members(members) => members.iter().any(|member| member.is_required),
        Form::Value(_) => true,
        Form::Bytes => false,
    })
}

fn parameter(param: &Param, place: &str) -> Value {
    let schema = schema(param.kind);
    let mut parameter = json!({
        "name": param.name, "in": place, "required": param.is_required, "description": param.meaning,
    });
    match param.kind {
        // The value is JSON text.
        Kind::Json | Kind::Array | Kind::Texts | Kind::Objects | Kind::Object => {
            parameter["content"] = json!({ "application/json": { "schema": schema } });
        }
        _ => parameter["schema"] = schema,
    }
    parameter
}

fn schema(kind: Kind) -> Value {
    match kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count => json!({ "type": "integer", "minimum": 0 }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Json | Kind::Refused => json!({}),
        Kind::Array => json!({ "type": "array" }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Objects => json!({ "type": "array", "items": { "type": "object" } }),
        Kind::Object => json!({ "type": "object" }),
        Kind::Choice(of) => json!({ "type": "string", "enum": of }),
    }
}

fn contents(contents: &[Content]) -> Value {
    let mut by_media = Map::new();
    for content in contents {
        let described = match content.form {
            Form::Bytes => json!({}),
            Form::Value(kind) => json!({ "schema": schema(kind) }),
            Form::Members(members) => json!({ "schema": object(members) }),
        };
        by_media.insert(content.media.to_owned(), described);
    }
    Value::Object(by_media)
}

fn object(members: &[Param]) -> Value {
    let member = |member: &Param| {
        let mut schema = schema(member.kind);
        schema["description"] = member.meaning.into();
        (member.name.to_owned(), schema)
    };
    let required: Vec<&str> = members.iter().filter(|member| member.is_required).map(|member| member.name).collect();
    let properties: Map<String, Value> = members.iter().map(member).collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

/// The answers by status. Those to `HEAD` have no bodies.
fn responses(endpoint: &Endpoint, method: &str, shared: &mut Map<String, Value>) -> Value {
    let (described, is_read) = (endpoint.operation, matches!(method, "GET" | "HEAD"));
    let mut refusals = [COMMON, described.refusals].concat();
    if endpoint.path.contains(['{', '*']) {
        refusals.push(404);
    }
    if is_read && endpoint.path.starts_with("/{db}/{docid}/") {
        // From `_design%2Fx` to `_design/x`.
        refusals.push(301);
    }
    if !is_read {
        refusals.extend(OF_WRITES);
    }
    let replies = described.replies.iter().map(|reply| {
        let mut response = json!({ "description": reason(reply.status) });
        if method != "HEAD" && !reply.contents.is_empty() {
            response["content"] = contents(reply.contents);
        }
        (reply.status, response)
    });
    let mut by_status: BTreeMap<u16, Value> = refusals
        .into_iter()
        .map(|status| {
            let has_body = method != "HEAD" && status >= 400;
            let name = format!("{status}{}", if has_body { "" } else { "-empty" });
            shared.entry(name.clone()).or_insert_with(|| refusal(status, has_body));
            (status, json!({ "$ref": format!("#/components/responses/{name}") }))
        })
        .collect();
    by_status.extend(replies);
    Value::Object(by_status.into_iter().map(|(status, response)| (status.to_string(), response)).collect())
}

fn refusal(status: u16, has_body: bool) -> Value {
    let mut response = json!({ "description": reason(status) });
    if has_body {
        response["content"] = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    }
    response
}

fn reason(status: u16) -> &'static str {
    StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default()
}
