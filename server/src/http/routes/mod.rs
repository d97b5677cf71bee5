//! Every endpoint in one table: its path, its methods, who may use it, and what answers.
//!
//! A path is split at its slashes and then decoded, since `%2F` belongs to a name. In a pattern, `{db}` and its
//! like stand for one name each, and `*` stands for the rest, which may be empty. The first row that fits answers.
//! `_design%2Fx` and `_design/x` are the same document: the former is split before the table is searched.
//!
//! Authorisation is checked first, then the method, then the handler runs: it never sees a method that its row
//! does not list.

use std::future::Future;
use std::pin::Pin;

use hyper::Method;

use crate::http::database::{self, relocate, settings, upkeep};
use crate::http::document::{self, bulk_docs, bulk_get, local, revs_diff, write};
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::root::{self, databases, session};
use crate::http::wire::response::Response;
use crate::http::{feed, listing};

/// Who may send a request. Each may what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// Everyone.
    Public,
    /// A member of the database, as its `_security` has it. The request changes nothing.
    Reader,
    /// A member of the database.
    Writer,
    /// An administrator of the database.
    DatabaseAdmin,
    /// The server's administrator.
    ServerAdmin,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

/// Who may use which methods: the first pair that names the method counts, and `*` names all of them.
type May = &'static [(&'static str, Who)];

/// An endpoint.
pub(crate) struct Route {
    /// The path: names, `{placeholders}` and, at the end, `*`.
    pub(crate) path: &'static str,
    /// The methods, as the `Allow` of CouchDB's 405 lists them. Empty: every method has the same answer.
    methods: &'static str,
    may: May,
    /// What answers. It is given what the placeholders stand for.
    handler: for<'a> fn(&'a mut Request, &'a [&'a str]) -> Answer<'a>,
}

use Who::{DatabaseAdmin, Public, Reader, ServerAdmin, Writer};

const EVERYONE: May = &[("*", Public)];
const READERS: May = &[("*", Reader)];
const WRITERS: May = &[("*", Writer)];
const MEMBERS: May = &[("GET", Reader), ("*", Writer)];
const OWNERS: May = &[("*", DatabaseAdmin)];
const SETTINGS: May = &[("GET", Reader), ("*", DatabaseAdmin)];
const SERVER: May = &[("*", ServerAdmin)];
const DATABASE: May = &[("GET", Reader), ("PUT", ServerAdmin), ("DELETE", ServerAdmin), ("*", Writer)];

const REPLICATIONS: &str = "replications that the server runs itself";
const NODES: &str = "nodes and clusters";
const VIEWS: &str = "views";
const MANGO: &str = "Mango queries and indexes";
const PURGES: &str = "purges";
const SHARDS: &str = "shards and their settings";
const FUNCTIONS: &str = "functions of design documents (views, shows, lists, updates, rewrites)";

#[rustfmt::skip]
static ROUTES: &[Route] = &[
    row("/", "GET,HEAD", EVERYONE, |r, _| now(root::welcome(r))),
    row("/_up", "GET,HEAD", EVERYONE, |_, _| now(root::up())),
    row("/_uuids", "GET,HEAD", EVERYONE, |r, _| now(root::uuids(r))),
    row("/_session", "GET,HEAD,POST,DELETE", EVERYONE, |r, _| Box::pin(session::session(r))),
    row("/_utils/*", "", EVERYONE, |_, _| now(Err(ApiError::not_found("missing")))),
    row("/favicon.ico", "", EVERYONE, |_, _| now(Err(ApiError::not_found("missing")))),
    row("/_all_dbs", "GET,HEAD", SERVER, |r, _| Box::pin(databases::all_dbs(r))),
    row("/_dbs_info", "GET,HEAD,POST", SERVER, |r, _| Box::pin(databases::dbs_info(r))),
    row("/_active_tasks", "GET,HEAD", SERVER, |r, _| now(root::active_tasks(r))),
    row("/_replicate", "", SERVER, |_, _| now(Err(ApiError::not_implemented(REPLICATIONS)))),
    row("/_scheduler/*", "", SERVER, |_, _| now(Err(ApiError::not_implemented(REPLICATIONS)))),
    row("/_node/*", "", SERVER, |_, _| now(Err(ApiError::not_implemented(NODES)))),
    row("/_reshard/*", "", SERVER, |_, _| now(Err(ApiError::not_implemented(NODES)))),
    row("/_membership", "", SERVER, |_, _| now(Err(ApiError::not_implemented(NODES)))),
    row("/_cluster_setup", "", SERVER, |_, _| now(Err(ApiError::not_implemented(NODES)))),
    row("/_db_updates", "", SERVER, |_, _| now(Err(ApiError::not_implemented("feeds of all databases (_db_updates)")))),
    row("/{db}", "DELETE,GET,HEAD,POST,PUT", DATABASE, |r, n| Box::pin(one_database(r, n[0]))),
    row("/{db}/_bulk_docs", "POST", WRITERS, |r, n| Box::pin(bulk_docs::bulk_docs(r, n[0]))),
    row("/{db}/_bulk_get", "POST", READERS, |r, n| Box::pin(bulk_get::bulk_get(r, n[0]))),
    row("/{db}/_all_docs", "GET,HEAD,POST", READERS, |r, n| Box::pin(listing::all_docs(r, n[0], "_all_docs"))),
    row("/{db}/_all_docs/queries", "POST", READERS, |r, n| Box::pin(listing::queries(r, n[0], "_all_docs"))),
    row("/{db}/_design_docs", "GET,HEAD,POST", READERS, |r, n| Box::pin(listing::all_docs(r, n[0], "_design_docs"))),
    row("/{db}/_design_docs/queries", "POST", READERS, |r, n| Box::pin(listing::queries(r, n[0], "_design_docs"))),
    row("/{db}/_local_docs", "GET,HEAD,POST", READERS, |r, n| Box::pin(listing::all_docs(r, n[0], "_local_docs"))),
    row("/{db}/_local_docs/queries", "POST", READERS, |r, n| Box::pin(listing::queries(r, n[0], "_local_docs"))),
    row("/{db}/_changes", "GET,POST,HEAD", READERS, |r, n| Box::pin(feed::changes(r, n[0]))),
    row("/{db}/_couch_layer/check", "GET,HEAD", READERS, |r, n| Box::pin(upkeep::check(r, n[0]))),
    row("/{db}/_couch_layer/relocate", "DELETE,GET,HEAD,POST", SERVER, |r, n| Box::pin(relocate::relocate(r, n[0]))),
    row("/{db}/_revs_diff", "POST", READERS, |r, n| Box::pin(revs_diff::revs_diff(r, n[0]))),
    row("/{db}/_missing_revs", "POST", READERS, |r, n| Box::pin(revs_diff::missing_revs(r, n[0]))),
    row("/{db}/_revs_limit", "PUT,GET", SETTINGS, |r, n| Box::pin(settings::revs_limit(r, n[0]))),
    row("/{db}/_security", "PUT,GET", SETTINGS, |r, n| Box::pin(settings::security(r, n[0]))),
    row("/{db}/_compact", "POST", OWNERS, |r, n| Box::pin(upkeep::compact(r, n[0]))),
    row("/{db}/_view_cleanup", "POST", OWNERS, |r, n| Box::pin(upkeep::view_cleanup(r, n[0]))),
    row("/{db}/_ensure_full_commit", "POST", WRITERS, |r, n| Box::pin(upkeep::ensure_full_commit(r, n[0]))),
    row("/{db}/_compact/{ddoc}", "", OWNERS, |r, n| Box::pin(missing(r, n[0], VIEWS))),
    row("/{db}/_temp_view", "", READERS, |r, n| Box::pin(missing(r, n[0], VIEWS))),
    row("/{db}/_find/*", "", READERS, |r, n| Box::pin(missing(r, n[0], MANGO))),
    row("/{db}/_explain/*", "", READERS, |r, n| Box::pin(missing(r, n[0], MANGO))),
    row("/{db}/_index/*", "", MEMBERS, |r, n| Box::pin(missing(r, n[0], MANGO))),
    row("/{db}/_purge/*", "", SERVER, |r, n| Box::pin(missing(r, n[0], PURGES))),
    row("/{db}/_purged_infos_limit/*", "", SERVER, |r, n| Box::pin(missing(r, n[0], PURGES))),
    row("/{db}/_purged_infos/*", "", READERS, |r, n| Box::pin(missing(r, n[0], PURGES))),
    row("/{db}/_partition/*", "", READERS, |r, n| Box::pin(missing(r, n[0], "partitions"))),
    row("/{db}/_sync_shards/*", "", SERVER, |r, n| Box::pin(missing(r, n[0], SHARDS))),
    row("/{db}/_shards/*", "", READERS, |r, n| Box::pin(missing(r, n[0], SHARDS))),
    row("/{db}/_auto_purge/*", "", MEMBERS, |r, n| Box::pin(missing(r, n[0], SHARDS))),
    row("/{db}/_time_seq/*", "", MEMBERS, |r, n| Box::pin(missing(r, n[0], SHARDS))),
    row("/{db}/_local", "", MEMBERS, |_, _| now(Err(ApiError::bad_request("Invalid _local document id.")))),
    row("/{db}/_local/{name}", "DELETE,GET,HEAD,PUT", MEMBERS, |r, n| Box::pin(local_document(r, n[0], n[1]))),
    row("/{db}/_local/{name}/*", "", MEMBERS, |_, _| now(Err(ApiError::bad_request("_local documents do not accept attachments.")))),
    row("/{db}/_design/{name}", "DELETE,GET,HEAD,POST,PUT,COPY", MEMBERS, |r, n| Box::pin(design_document(r, n[0], n[1]))),
    row("/{db}/_design/{name}/{part}/*", "", MEMBERS, |r, n| Box::pin(part_of_design(r, n[0], n[1], n[2]))),
    row("/{db}/{docid}", "DELETE,GET,HEAD,POST,PUT,COPY", MEMBERS, |r, n| Box::pin(document::document(r, n[0], n[1]))),
    row("/{db}/{docid}/*", "", MEMBERS, |r, n| Box::pin(missing_of(r, n[0], n[1], ""))),
];

const fn row(
    path: &'static str,
    methods: &'static str,
    may: May,
    handler: for<'a> fn(&'a mut Request, &'a [&'a str]) -> Answer<'a>,
) -> Route {
    Route { path, methods, may, handler }
}

/// An answer that needs no waiting.
fn now<'a>(answer: Result<Response>) -> Answer<'a> {
    Box::pin(std::future::ready(answer))
}

/// The endpoint of a path, and what its placeholders stand for.
pub(crate) fn find(segments: &[String]) -> Result<(&'static Route, Vec<&str>)> {
    let mut path: Vec<&str> = segments.iter().map(String::as_str).collect();
    match path.get(1).and_then(|id| id.split_once('/')) {
        // As in CouchDB, `_local%2Fx/y` is an attachment of a document, and `_local/x/y` is refused.
        Some(("_local", _)) if path.len() > 2 => {}
        Some((prefix @ ("_design" | "_local"), name)) => {
            path.splice(1..2, [prefix, name].into_iter().filter(|part| !part.is_empty()));
        }
        _ => {}
    }
    let mut names = Vec::new();
    let found = ROUTES.iter().find(|route| fits(route.path, &path, &mut names));
    // The last rows fit every path.
    found.map(|route| (route, names)).ok_or_else(|| ApiError::not_found("missing"))
}

/// Whether a pattern fits a path; `names` is what its placeholders stand for.
fn fits<'a>(pattern: &str, path: &[&'a str], names: &mut Vec<&'a str>) -> bool {
    names.clear();
    let mut path = path.iter();
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        match path.next() {
            _ if part == "*" => return true,
            Some(name) if part.starts_with('{') => names.push(name),
            Some(name) if *name == part => {}
            _ => return false,
        }
    }
    path.next().is_none()
}

impl Route {
    /// The database that is meant.
    pub(crate) fn database<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        names.first().copied().filter(|_| self.path.starts_with("/{db}"))
    }

    /// Who may send this. Databases of the system are the server administrator's.
    pub(crate) fn who(&self, method: &Method, names: &[&str]) -> Who {
        let named = self.may.iter().find(|(name, _)| *name == "*" || *name == method.as_str());
        match self.database(names) {
            Some(db) if db.starts_with('_') => ServerAdmin,
            _ => named.map_or(ServerAdmin, |(_, who)| *who),
        }
    }

    /// Whether a request waits while its database moves: it can neither be served again nor goes on by itself
    /// once that is elsewhere. All but `GET`, feeds, and what this server is asked about itself.
    pub(crate) fn waits_for_moves(&self, method: &Method) -> bool {
        let goes_on = self.path == "/{db}/_changes" || self.path.starts_with("/{db}/_couch_layer/");
        *method != Method::GET && !goes_on
    }

    /// Answers. 405 where the endpoint has no such method, but 404 first where its database is missing.
    pub(crate) async fn answer(&self, request: &mut Request, names: &[&str]) -> Result<Response> {
        if !self.methods.is_empty() && !self.methods.split(',').any(|method| method == request.method.as_str()) {
            if let Some(db) = self.database(names) {
                request.database(db).await?;
            }
            return Err(ApiError::method_not_allowed(self.methods));
        }
        (self.handler)(request, names).await
    }
}

async fn one_database(request: &mut Request, name: &str) -> Result<Response> {
    match request.method {
        Method::POST => write::post(request, name).await,
        _ => database::database(request, name).await,
    }
}

async fn local_document(request: &mut Request, db: &str, name: &str) -> Result<Response> {
    local::document(request, db, &format!("_local/{name}")).await
}

async fn design_document(request: &mut Request, db: &str, name: &str) -> Result<Response> {
    document::document(request, db, &format!("_design/{name}")).await
}

async fn part_of_design(request: &Request, db: &str, name: &str, part: &str) -> Result<Response> {
    missing_of(request, db, &format!("_design/{name}"), part).await
}

/// 501 for what belongs to a document, a function or an attachment; 404 first where that document is missing.
async fn missing_of(request: &Request, db: &str, id: &str, part: &str) -> Result<Response> {
    let is_function = part.starts_with('_');
    // Writing an attachment may make its document.
    if is_function || request.method == Method::GET {
        document::require(request, db, id).await?;
    }
    missing(request, db, if is_function { FUNCTIONS } else { "attachments" }).await
}

/// 501 naming what there is in CouchDB and not here; 404 first where the database is missing too.
async fn missing(request: &Request, db: &str, what: &str) -> Result<Response> {
    request.database(db).await?;
    Err(ApiError::not_implemented(what))
}

#[cfg(test)]
mod tests;
