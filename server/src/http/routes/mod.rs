//! One table of all endpoints: path, methods, who may use them, and handler.
//!
//! A path is split at its slashes and then decoded, since `%2F` is part of a name. The id of a design document or of a
//! local document is one name: `_design/x` and `_design%2Fx` are the same. In a pattern, `{db}` and `{docid}` stand for
//! one name each, `{ddoc}` for the id of a design document, `{local}` for the id of a local document, and `*` for all
//! remaining names, if any. The first pattern that matches a path is used. All rows with the same pattern are
//! adjacent.
//!
//! Authorisation, 405 with its `Allow`, and the tests read the table.
//!
//! Authorisation is checked first, then whether the database exists, then the method. A handler gets only the methods
//! of its row.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;

use hyper::{Method, StatusCode};
use model::GetOptions;
use model::limits::LOCAL_PREFIX;

use crate::http::app::statistics::Count;
use crate::http::app::stores::Documents;
use crate::http::authz;
use crate::http::authz::rights::is_of_the_system;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::database::{self, conflicts, format, partition, purge, relocate, settings, upkeep, vault};
use crate::http::handlers::document::update;
use crate::http::handlers::document::{attachment, bulk_docs, bulk_get, local, patch, read, revs_diff, write};
use crate::http::handlers::listing::Namespace;
use crate::http::handlers::root::scheduler;
use crate::http::handlers::root::{
    self, backup, configuration, databases, figures, log, node, promote, replicate, repository, session, setup, ship,
    snapshot, transact, updates,
};
use crate::http::handlers::{console, feed, find, listing, views};
use crate::http::jobs::replicator;
use crate::http::openapi;
use crate::http::operation::Operation;
use crate::http::request::Request;
use crate::http::wire::response::Response;

/// Who may send a request. Each may also send the requests of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// Everyone.
    Public,
    /// A member of the database, according to its `_security`. The request changes nothing.
    Reader,
    /// A member of the database.
    Writer,
    /// An administrator of the database.
    DatabaseAdmin,
    /// A client with the role `_metrics`.
    Metrics,
    /// The server's administrator.
    ServerAdmin,
}

impl Who {
    fn text(self) -> &'static str {
        match self {
            Who::Public => "everybody",
            Who::Reader => "members of the database",
            Who::Writer => "members of the database, who may write",
            Who::DatabaseAdmin => "administrators of the database",
            Who::Metrics => "clients with the role `_metrics`",
            Who::ServerAdmin => "administrators of the server",
        }
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

/// Answers a request. Its second argument has the values of the placeholders.
type Handler = for<'a> fn(&'a mut Request, &'a [&'a str]) -> Answer<'a>;

/// A row of the table.
pub(crate) struct Route {
    /// The path: names, `{placeholders}` and, at the end, `*`.
    path: &'static str,
    /// The methods, as `Allow` lists them; `*` for all. `GET` includes `HEAD`.
    methods: &'static str,
    who: Who,
    /// What the handler reads and answers.
    operation: Operation,
    handler: Handler,
}

use Who::{DatabaseAdmin, Metrics, Public, Reader, ServerAdmin, Writer};

const NODES: &str = "nodes and clusters";
const SHARDS: &str = "shards and their settings";
/// CouchDB 3 still has them, but calls them deprecated. ADR 0040 says why they are left out.
const DEPRECATED: &str = "shows, lists and rewrites, which CouchDB calls deprecated,";

#[rustfmt::skip]
static ROUTES: &[Route] = &[
    row("/", "GET,HEAD", Public, root::WELCOME, |r, _| now(root::welcome(r))),
    row("/_openapi.json", "GET,HEAD", Public, openapi::READ, |r, _| now(openapi::read(r, &DESCRIPTION))),
    row("/_up", "GET,HEAD", Public, root::UP, |r, _| Box::pin(root::up(r))),
    row("/_uuids", "GET,HEAD", Public, root::UUIDS, |r, _| now(root::uuids(r))),
    row("/_session", "GET,HEAD", Public, session::CURRENT, |r, _| Box::pin(session::current(r))),
    row("/_session", "POST", Public, session::LOGIN, |r, _| Box::pin(session::login(r))),
    row("/_session", "DELETE", Public, session::LOGOUT, |r, _| now(session::logout(r))),
    row("/_utils/*", "GET,HEAD", Public, console::READ, |r, n| Box::pin(console::read(r, n))),
    row("/favicon.ico", "*", Public, Operation::refusing("There is no icon here.", &[404]), |_, _| now(Err(ApiError::not_found("missing")))),
    row("/_all_dbs", "GET,HEAD", ServerAdmin, databases::ALL_DBS, |r, _| Box::pin(databases::all_dbs(r))),
    row("/_dbs_info", "GET,HEAD", ServerAdmin, databases::DBS_INFO, |r, _| Box::pin(databases::dbs_info(r))),
    row("/_dbs_info", "POST", ServerAdmin, databases::NAMED_DBS_INFO, |r, _| Box::pin(databases::named_dbs_info(r))),
    row("/_active_tasks", "GET,HEAD", ServerAdmin, root::ACTIVE_TASKS, |r, _| Box::pin(root::active_tasks(r))),
    row("/_replicate", "POST", ServerAdmin, replicate::REPLICATE, |r, _| Box::pin(replicate::replicate(r))),
    row("/_couch_layer/backup", "GET,HEAD", ServerAdmin, backup::STATUS, |r, _| Box::pin(backup::status(r))),
    row("/_couch_layer/backup", "POST", ServerAdmin, backup::BEGIN, |r, _| Box::pin(backup::begin(r))),
    row("/_couch_layer/backup/runs", "POST", ServerAdmin, repository::RUNS, |r, _| Box::pin(repository::runs(r))),
    row("/_couch_layer/backup/verify", "GET,HEAD", ServerAdmin, repository::VERIFICATION, |r, _| now(repository::verification(r))),
    row("/_couch_layer/backup/verify", "POST", ServerAdmin, repository::VERIFY, |r, _| Box::pin(repository::verify(r))),
    row("/_couch_layer/figures", "GET,HEAD", ServerAdmin, figures::LATELY, |r, _| now(figures::lately(r))),
    row("/_couch_layer/log", "GET,HEAD", ServerAdmin, log::TAIL, |r, _| now(log::tail(r))),
    row("/_couch_layer/promote", "POST", ServerAdmin, promote::PROMOTE, |r, _| Box::pin(promote::promote(r))),
    row("/_couch_layer/ship", "GET,HEAD", ServerAdmin, ship::STATUS, |r, _| now(ship::status(r))),
    row("/_couch_layer/snapshot", "POST", ServerAdmin, snapshot::MAKE, |r, _| Box::pin(snapshot::make(r))),
    row("/_scheduler/jobs", "GET,HEAD", ServerAdmin, scheduler::JOBS, |r, _| Box::pin(scheduler::jobs(r))),
    row("/_scheduler/jobs/{id}", "GET,HEAD", ServerAdmin, scheduler::JOB, |r, n| Box::pin(scheduler::job(r, n[0]))),
    row("/_scheduler/docs/*", "GET,HEAD", ServerAdmin, scheduler::DOCS, |r, n| Box::pin(scheduler::docs(r, n))),
    // Its databases are in its body, and each is authorized.
    row("/_transact", "POST", Public, transact::TRANSACT, |r, _| Box::pin(transact::transact(r))),
    row("/_node/{node}", "GET,HEAD", ServerAdmin, setup::NODE_NAME, |_, n| now(setup::node(n[0]))),
    row("/_node/{node}/_config", "GET,HEAD", ServerAdmin, configuration::ALL, |r, n| Box::pin(configuration::all(r, n[0]))),
    row("/_node/{node}/_config/_reload", "POST", ServerAdmin, configuration::RELOAD, |r, n| Box::pin(configuration::reload(r, n[0]))),
    row("/_node/{node}/_config/{section}", "GET,HEAD", ServerAdmin, configuration::SECTION, |r, n| Box::pin(configuration::section(r, n[0], n[1]))),
    row("/_node/{node}/_config/{section}/{key}", "DELETE", ServerAdmin, configuration::DELETE, |r, n| Box::pin(configuration::delete(r, n))),
    row("/_node/{node}/_config/{section}/{key}", "GET,HEAD", ServerAdmin, configuration::VALUE, |r, n| Box::pin(configuration::value(r, n))),
    row("/_node/{node}/_config/{section}/{key}", "PUT", ServerAdmin, configuration::PUT, |r, n| Box::pin(configuration::put(r, n))),
    row("/_node/{node}/_prometheus", "GET,HEAD", Metrics, node::PROMETHEUS, |r, n| Box::pin(node::prometheus(r, n[0]))),
    row("/_node/{node}/_stats/*", "GET,HEAD", Metrics, node::STATISTICS, |r, n| Box::pin(node::statistics(r, n[0], &n[1..]))),
    row("/_node/{node}/_system", "GET,HEAD", Metrics, node::SYSTEM, |r, n| now(node::system(r, n[0]))),
    row("/_node/{node}/_versions", "GET,HEAD", ServerAdmin, node::VERSIONS, |_, n| now(node::versions(n[0]))),
    row("/_node/*", "*", ServerAdmin, Operation::refusing("Unknown paths of a node.", &[404, 501]), |_, n| now(node::unknown(n, NODES))),
    row("/_reshard/*", "*", ServerAdmin, Operation::refusing("There are no shards.", &[501]), |_, _| missing(NODES)),
    row("/_search_analyze", "GET,HEAD,POST", ServerAdmin, Operation::refusing("There are no indexes of text.", &[503]), |_, _| now(Err(ApiError::no_search()))),
    row("/_membership", "GET,HEAD", ServerAdmin, setup::MEMBERSHIP, |_, _| now(setup::membership())),
    row("/_cluster_setup", "GET,HEAD", ServerAdmin, setup::STATE, |r, _| Box::pin(setup::state(r))),
    row("/_cluster_setup", "POST", ServerAdmin, setup::SET_UP, |r, _| Box::pin(setup::set_up(r))),
    row("/_db_updates", "GET,HEAD", ServerAdmin, updates::DB_UPDATES, |r, _| Box::pin(updates::db_updates(r))),
    row("/{db}", "DELETE", ServerAdmin, database::DROP, |r, n| Box::pin(database::drop_database(r, n[0]))),
    row("/{db}", "GET,HEAD", Reader, database::INFO, |r, n| Box::pin(database::info(r, n[0]))),
    row("/{db}", "POST", Writer, write::POST, |r, n| Box::pin(write::post(r, n[0]))),
    row("/{db}", "PUT", ServerAdmin, database::CREATE, |r, n| Box::pin(database::create(r, n[0]))),
    row("/{db}/_bulk_docs", "POST", Writer, bulk_docs::BULK_DOCS, |r, n| Box::pin(bulk_docs::bulk_docs(r, n[0]))),
    row("/{db}/_bulk_get", "POST", Reader, bulk_get::BULK_GET, |r, n| Box::pin(bulk_get::bulk_get(r, n[0]))),
    row("/{db}/_all_docs", "GET,HEAD", Reader, listing::LIST, |r, n| Box::pin(listing::list(r, n[0], Namespace::All))),
    row("/{db}/_all_docs", "POST", Reader, listing::LIST_POSTED, |r, n| Box::pin(listing::list_posted(r, n[0], Namespace::All))),
    row("/{db}/_all_docs/queries", "POST", Reader, listing::QUERIES, |r, n| Box::pin(listing::queries(r, n[0], Namespace::All))),
    row("/{db}/_design_docs", "GET,HEAD", Reader, listing::LIST, |r, n| Box::pin(listing::list(r, n[0], Namespace::Design))),
    row("/{db}/_design_docs", "POST", Reader, listing::LIST_POSTED, |r, n| Box::pin(listing::list_posted(r, n[0], Namespace::Design))),
    row("/{db}/_design_docs/queries", "POST", Reader, listing::QUERIES, |r, n| Box::pin(listing::queries(r, n[0], Namespace::Design))),
    row("/{db}/_local_docs", "GET,HEAD", Reader, listing::LIST, |r, n| Box::pin(listing::list(r, n[0], Namespace::Local))),
    row("/{db}/_local_docs", "POST", Reader, listing::LIST_POSTED, |r, n| Box::pin(listing::list_posted(r, n[0], Namespace::Local))),
    row("/{db}/_local_docs/queries", "POST", Reader, listing::QUERIES, |r, n| Box::pin(listing::queries(r, n[0], Namespace::Local))),
    row("/{db}/_changes", "GET", Reader, feed::CHANGES, |r, n| Box::pin(feed::changes(r, n[0]))),
    row("/{db}/_changes", "POST", Reader, feed::CHANGES_POSTED, |r, n| Box::pin(feed::changes_posted(r, n[0]))),
    row("/{db}/_changes", "HEAD", Reader, feed::CHANGES, |r, n| Box::pin(feed::changes(r, n[0]))),
    row("/{db}/_conflicts", "GET,HEAD", Reader, conflicts::LIST, |r, n| Box::pin(conflicts::list(r, n[0]))),
    row("/{db}/_couch_layer/check", "GET,HEAD", DatabaseAdmin, upkeep::CHECK, |r, n| Box::pin(upkeep::check(r, n[0]))),
    row("/{db}/_couch_layer/format", "PUT", DatabaseAdmin, format::SET, |r, n| Box::pin(format::set(r, n[0]))),
    row("/{db}/_couch_layer/format", "GET", Reader, format::GET, |r, n| Box::pin(format::get(r, n[0]))),
    row("/{db}/_couch_layer/purge_tombstones", "POST", ServerAdmin, purge::PURGE_TOMBSTONES, |r, n| Box::pin(purge::purge_tombstones(r, n[0]))),
    row("/{db}/_couch_layer/relocate", "DELETE", ServerAdmin, relocate::ABANDON, |r, n| Box::pin(relocate::abandon(r, n[0]))),
    row("/{db}/_couch_layer/relocate", "GET,HEAD", ServerAdmin, relocate::STATUS, |r, n| Box::pin(relocate::status(r, n[0]))),
    row("/{db}/_couch_layer/relocate", "POST", ServerAdmin, relocate::BEGIN, |r, n| Box::pin(relocate::begin(r, n[0]))),
    row("/{db}/_couch_layer/try_view", "POST", DatabaseAdmin, views::trial::TRY_VIEW, |r, n| Box::pin(views::trial::try_view(r, n[0]))),
    row("/{db}/_couch_layer/vault", "PUT", ServerAdmin, vault::SCHEDULE, |r, n| Box::pin(vault::schedule(r, n[0]))),
    row("/{db}/_couch_layer/vault", "POST", ServerAdmin, vault::COLLECT, |r, n| Box::pin(vault::collect(r, n[0]))),
    row("/{db}/_couch_layer/vault", "GET,HEAD", DatabaseAdmin, vault::DOCTOR, |r, n| Box::pin(vault::doctor(r, n[0]))),
    row("/{db}/_revs_diff", "POST", Reader, revs_diff::REVS_DIFF, |r, n| Box::pin(revs_diff::revs_diff(r, n[0]))),
    row("/{db}/_missing_revs", "POST", Reader, revs_diff::MISSING_REVS, |r, n| Box::pin(revs_diff::missing_revs(r, n[0]))),
    row("/{db}/_keep_replaced", "PUT", DatabaseAdmin, settings::SET_KEEP_REPLACED, |r, n| Box::pin(settings::set_keep_replaced(r, n[0]))),
    row("/{db}/_keep_replaced", "GET", Reader, settings::KEEP_REPLACED, |r, n| Box::pin(settings::keep_replaced(r, n[0]))),
    row("/{db}/_revs_limit", "PUT", DatabaseAdmin, settings::SET_REVS_LIMIT, |r, n| Box::pin(settings::set_revs_limit(r, n[0]))),
    row("/{db}/_revs_limit", "GET", Reader, settings::REVS_LIMIT, |r, n| Box::pin(settings::revs_limit(r, n[0]))),
    row("/{db}/_security", "PUT", DatabaseAdmin, settings::SET_SECURITY, |r, n| Box::pin(settings::set_security(r, n[0]))),
    row("/{db}/_security", "GET", Reader, settings::SECURITY, |r, n| Box::pin(settings::security(r, n[0]))),
    row("/{db}/_compact", "POST", DatabaseAdmin, upkeep::COMPACT, |r, n| Box::pin(upkeep::compact(r, n[0]))),
    row("/{db}/_view_cleanup", "POST", DatabaseAdmin, views::CLEAN_UP, |r, n| Box::pin(views::clean_up(r, n[0]))),
    row("/{db}/_search_cleanup", "POST", Writer, upkeep::CLEAN_UP_SEARCH, |r, n| Box::pin(upkeep::clean_up_search(r, n[0]))),
    row("/{db}/_nouveau_cleanup", "POST", Writer, upkeep::CLEAN_UP_SEARCH, |r, n| Box::pin(upkeep::clean_up_search(r, n[0]))),
    row("/{db}/_ensure_full_commit", "POST", Writer, upkeep::ENSURE_FULL_COMMIT, |r, n| Box::pin(upkeep::ensure_full_commit(r, n[0]))),
    row("/{db}/_compact/{view}", "POST", DatabaseAdmin, views::COMPACT, |r, n| Box::pin(views::compact(r, n[0], n[1]))),
    row("/{db}/_temp_view", "*", Reader, Operation::refusing("CouchDB has no temporary views any more.", &[410]), |_, _| now(Err(ApiError::no_temporary_views()))),
    row("/{db}/_find", "POST", Reader, find::FIND, |r, n| Box::pin(find::find(r, n[0]))),
    row("/{db}/_explain", "POST", Reader, find::EXPLAIN, |r, n| Box::pin(find::explain(r, n[0]))),
    row("/{db}/_index", "GET,HEAD", Reader, find::indexes::LIST, |r, n| Box::pin(find::indexes::list(r, n[0]))),
    row("/{db}/_index", "POST", Writer, find::indexes::CREATE, |r, n| Box::pin(find::indexes::create(r, n[0]))),
    row("/{db}/_index/_bulk_delete", "POST", Writer, find::indexes::BULK_DELETE, |r, n| Box::pin(find::indexes::bulk_delete(r, n[0]))),
    row("/{db}/_index/{id}/json/{key}", "DELETE", Writer, find::indexes::DELETE, |r, n| Box::pin(find::indexes::delete(r, n[0], n[1], n[2]))),
    row("/{db}/_index/_design/{id}/json/{key}", "DELETE", Writer, find::indexes::DELETE, |r, n| Box::pin(find::indexes::delete(r, n[0], n[1], n[2]))),
    row("/{db}/_index/*", "*", Reader, Operation::refusing("Unknown paths of indexes.", &[404]), |_, _| now(Err(ApiError::not_found("missing")))),
    row("/{db}/_purge", "POST", ServerAdmin, purge::PURGE, |r, n| Box::pin(purge::purge(r, n[0]))),
    row("/{db}/_purged_infos_limit", "PUT", ServerAdmin, purge::SET_LIMIT, |r, n| Box::pin(purge::set_limit(r, n[0]))),
    row("/{db}/_purged_infos_limit", "GET", ServerAdmin, purge::LIMIT, |r, n| Box::pin(purge::limit(r, n[0]))),
    row("/{db}/_purged_infos", "GET", Reader, purge::INFOS, |r, n| Box::pin(purge::infos(r, n[0]))),
    row("/{db}/_partition", "*", Reader, Operation::refusing("The name of a partition is missing.", &[400]), |_, _| now(Err(ApiError::bad_request("invalid_partition_req")))),
    row("/{db}/_partition/{partition}", "*", Reader, partition::INFO, |r, n| Box::pin(partition::info(r, n[0], n[1]))),
    row("/{db}/_partition/{partition}/_all_docs", "GET,HEAD", Reader, listing::LIST, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        listing::list(r, n[0], Namespace::All).await
    })),
    row("/{db}/_partition/{partition}/_all_docs", "POST", Reader, listing::LIST_POSTED, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        listing::list_posted(r, n[0], Namespace::All).await
    })),
    row("/{db}/_partition/{partition}/_all_docs/queries", "POST", Reader, listing::QUERIES, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        listing::queries(r, n[0], Namespace::All).await
    })),
    row("/{db}/_partition/{partition}/_find", "POST", Reader, find::FIND, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        find::find(r, n[0]).await
    })),
    row("/{db}/_partition/{partition}/_explain", "POST", Reader, find::EXPLAIN, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        find::explain(r, n[0]).await
    })),
    row("/{db}/_partition/{partition}/{ddoc}/_view/{view}", "GET,HEAD", Reader, views::READ, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        views::read(r, n[0], n[2], n[3]).await
    })),
    row("/{db}/_partition/{partition}/{ddoc}/_view/{view}", "POST", Reader, views::READ_POSTED, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        views::read_posted(r, n[0], n[2], n[3]).await
    })),
    row("/{db}/_partition/{partition}/{ddoc}/_view/{view}/queries", "POST", Reader, views::QUERIES, |r, n| Box::pin(async move {
        partition::enter(r, n[0], n[1]).await?;
        views::queries(r, n[0], n[2], n[3]).await
    })),
    row("/{db}/_partition/{partition}/*", "*", Reader, Operation::refusing("Unknown paths of a partition.", &[404]), |r, n| Box::pin(partition::missing(r, n[0], n[1]))),
    row("/{db}/_sync_shards/*", "*", ServerAdmin, Operation::refusing("There are no shards.", &[501]), |_, _| missing(SHARDS)),
    row("/{db}/_shards/*", "*", Reader, Operation::refusing("There are no shards.", &[501]), |_, _| missing(SHARDS)),
    row("/{db}/_auto_purge", "PUT", ServerAdmin, purge::SET_AUTO_PURGE, |r, n| Box::pin(purge::set_auto_purge(r, n[0]))),
    row("/{db}/_auto_purge", "GET,HEAD", Reader, purge::AUTO_PURGE, |r, n| Box::pin(purge::auto_purge(r, n[0]))),
    row("/{db}/_time_seq", "DELETE", DatabaseAdmin, feed::times::RESET, |r, n| Box::pin(feed::times::reset(r, n[0]))),
    row("/{db}/_time_seq", "GET,HEAD", Reader, feed::times::LIST, |r, n| Box::pin(feed::times::list(r, n[0]))),
    row("/{db}/_local", "*", Reader, Operation::refusing("The name of a local document is missing.", &[400]), |_, _| now(Err(ApiError::bad_request("Invalid _local document id.")))),
    row("/{db}/{local}", "DELETE", Writer, local::DELETE, |r, n| Box::pin(local::delete(r, n[0], n[1]))),
    row("/{db}/{local}", "GET,HEAD", Reader, local::READ, |r, n| Box::pin(local::read(r, n[0], n[1]))),
    row("/{db}/{local}", "PUT", Writer, local::PUT, |r, n| Box::pin(local::put(r, n[0], n[1]))),
    row("/{db}/_local/*", "*", Writer, Operation::refusing("Local documents have no attachments.", &[400]), |_, _| now(Err(ApiError::bad_request("_local documents do not accept attachments.")))),
    row("/{db}/{ddoc}/_view/{view}", "GET,HEAD", Reader, views::READ, |r, n| Box::pin(views::read(r, n[0], n[1], n[2]))),
    row("/{db}/{ddoc}/_view/{view}", "POST", Reader, views::READ_POSTED, |r, n| Box::pin(views::read_posted(r, n[0], n[1], n[2]))),
    row("/{db}/{ddoc}/_view/{view}/queries", "POST", Reader, views::QUERIES, |r, n| Box::pin(views::queries(r, n[0], n[1], n[2]))),
    row("/{db}/{ddoc}/_view/*", "*", Reader, Operation::refusing("Unknown paths of a view.", &[405]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::method_not_allowed("GET,HEAD,POST")))),
    row("/{db}/{ddoc}/_search/*", "GET,HEAD,POST", Reader, Operation::refusing("There are no indexes of text.", &[503]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::no_search()))),
    row("/{db}/{ddoc}/_search_info/*", "GET,HEAD", Reader, Operation::refusing("There are no indexes of text.", &[503]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::no_search()))),
    row("/{db}/{ddoc}/_search_disk_size/*", "GET,HEAD", Reader, Operation::refusing("There are no indexes of text.", &[503]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::no_search()))),
    row("/{db}/{ddoc}/_nouveau/*", "GET,HEAD,POST", Reader, Operation::refusing("There are no indexes of text.", &[404]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::not_found("missing")))),
    row("/{db}/{ddoc}/_nouveau_info/*", "GET,HEAD", Reader, Operation::refusing("There are no indexes of text.", &[404]), |r, n| Box::pin(of_design(r, n[0], n[1], ApiError::not_found("missing")))),
    row("/{db}/{ddoc}/_info", "GET,HEAD", Reader, views::INFO, |r, n| Box::pin(views::info(r, n[0], n[1]))),
    row("/{db}/{ddoc}/_show/*", "*", Reader, Operation::refusing("CouchDB calls shows deprecated.", &[501]), |r, n| Box::pin(missing_of(r, n[0], n[1], DEPRECATED))),
    row("/{db}/{ddoc}/_list/*", "*", Reader, Operation::refusing("CouchDB calls lists deprecated.", &[501]), |r, n| Box::pin(missing_of(r, n[0], n[1], DEPRECATED))),
    row("/{db}/{ddoc}/_update/*", "*", Writer, update::UPDATE, |r, n| Box::pin(update::update(r, n[0], n[1], &n[2..]))),
    row("/{db}/{ddoc}/_rewrite/*", "*", Writer, Operation::refusing("CouchDB calls rewrites deprecated.", &[501]), |r, n| Box::pin(missing_of(r, n[0], n[1], DEPRECATED))),
    row("/{db}/{docid}", "DELETE", Writer, write::DELETE, |r, n| Box::pin(write::delete(r, n[0], n[1]))),
    row("/{db}/{docid}", "GET,HEAD", Reader, read::READ, |r, n| Box::pin(read::read(r, n[0], n[1]))),
    row("/{db}/{docid}", "POST", Writer, write::POST_FORM, |r, _| now(write::post_form(r))),
    row("/{db}/{docid}", "PUT", Writer, write::PUT, |r, n| Box::pin(write::put(r, n[0], n[1]))),
    row("/{db}/{docid}", "COPY", Writer, write::COPY, |r, n| Box::pin(write::copy(r, n[0], n[1]))),
    row("/{db}/{docid}", "PATCH", Writer, patch::PATCH, |r, n| Box::pin(patch::patch(r, n[0], n[1]))),
    row("/{db}/{docid}/*", "DELETE", Writer, attachment::DELETE, |r, n| Box::pin(attachment::delete(r, n[0], n[1], &n[2..]))),
    row("/{db}/{docid}/*", "GET,HEAD", Reader, attachment::READ, |r, n| Box::pin(attachment::read(r, n[0], n[1], &n[2..]))),
    row("/{db}/{docid}/*", "PUT", Writer, attachment::PUT, |r, n| Box::pin(attachment::put(r, n[0], n[1], &n[2..]))),
];

/// The rows: the path of each, with its placeholders, and its methods, `*` for all. For tests that must cover all of
/// them.
pub fn endpoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROUTES.iter().map(|row| (row.path, row.methods))
}

const fn row(path: &'static str, methods: &'static str, who: Who, operation: Operation, handler: Handler) -> Route {
    Route { path, methods, who, operation, handler }
}

/// The server's description of itself.
static DESCRIPTION: LazyLock<Vec<u8>> = LazyLock::new(|| {
    openapi::describe(ROUTES.iter().map(|row| openapi::Endpoint {
        path: row.path,
        methods: row.methods,
        who: row.who.text(),
        is_public: row.who == Public,
        operation: &row.operation,
    }))
    .to_string()
    .into_bytes()
});

/// An immediate answer.
fn now<'a>(answer: Result<Response>) -> Answer<'a> {
    Box::pin(std::future::ready(answer))
}

/// 501, naming a feature of CouchDB that this server lacks.
fn missing<'a>(what: &str) -> Answer<'a> {
    now(Err(ApiError::not_implemented(what)))
}

/// The same for a path below a document; 404 if the document is missing.
async fn missing_of(request: &Request, db: &str, id: &str, what: &str) -> Result<Response> {
    of_design(request, db, id, ApiError::not_implemented(what)).await
}

/// Refuses a path below a document; 404 if the document is missing.
async fn of_design(request: &Request, db: &str, id: &str, refusal: ApiError) -> Result<Response> {
    let find = |database: Documents| async move {
        match id.starts_with(LOCAL_PREFIX) {
            true => database.get_local(id).await.map(drop)?,
            false => database.get(id, &GetOptions::default()).await.map(drop)?,
        }
        Ok(())
    };
    request.with_database(db, find).await?;
    Err(refusal)
}

/// Joins the two segments of the id of a design document or a local document.
pub(crate) fn join_ids(mut segments: Vec<Cow<'_, str>>) -> Vec<Cow<'_, str>> {
    // As in CouchDB, `_local/x/y` is refused, while `_local%2Fx/y` is an attachment of a local document.
    let is_local_part = segments.len() > 3 && segments[1] == "_local";
    // `_local` is also the name of this node.
    let is_local_part = is_local_part || segments.first().is_some_and(|first| first == "_node");
    // `/{db}/_partition/{partition}/_design/{name}`
    if segments.get(1).is_some_and(|name| name == "_partition")
        && segments.get(3).is_some_and(|prefix| prefix == "_design")
        && let Some(name) = segments.get(4)
    {
        let id = format!("_design/{name}");
        segments.splice(3..5, [Cow::Owned(id)]);
    }
    if let Some(prefix @ ("_design" | "_local")) = segments.get(1).map(|id| id.trim_end_matches('/'))
        && !is_local_part
    {
        let id = match segments.get(2) {
            Some(name) => format!("{prefix}/{name}"),
            None => prefix.to_owned(),
        };
        let end = segments.len().min(3);
        segments.splice(1..end, [Cow::Owned(id)]);
    }
    segments
}

/// A path's meaning: the rows with its pattern, and the values of the placeholders.
pub(crate) struct Resource<'a> {
    rows: &'static [Route],
    /// The row of the request's method.
    row: Option<&'static Route>,
    names: Vec<&'a str>,
}

/// A part of a pattern.
enum Part {
    Name(&'static str),
    /// A placeholder for any name.
    Any,
    DesignId,
    LocalId,
    /// All remaining names.
    Rest,
}

/// A pattern, split at its slashes, and its rows. Splitting the patterns at each request would take a twelfth of the
/// time of a `GET` of a document.
struct Pattern {
    parts: Vec<Part>,
    rows: &'static [Route],
    /// The methods, each with its row.
    methods: Vec<(&'static str, &'static Route)>,
}

/// The table's patterns.
struct Patterns {
    /// Patterns whose first or second part is a name such as `_changes`, or the id of a design document or a local one.
    /// The path of a plain document has no such part, so it is not compared with these.
    underscored: Vec<Pattern>,
    others: Vec<Pattern>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let part = |part| match part {
        "*" => Part::Rest,
        "{ddoc}" => Part::DesignId,
        "{local}" => Part::LocalId,
        "{db}" | "{docid}" | "{view}" | "{partition}" | "{id}" | "{node}" | "{section}" | "{key}" => Part::Any,
        name => Part::Name(name),
    };
    let parts = |path: &'static str| path.split('/').filter(|part| !part.is_empty());
    let methods = |row: &'static Route| row.methods.split(',').map(move |method| (method, row));
    let pattern = |rows: &'static [Route]| Pattern {
        parts: parts(rows[0].path).map(part).collect(),
        rows,
        methods: rows.iter().flat_map(methods).collect(),
    };
    let of_pattern = ROUTES.chunk_by(|one, next| one.path == next.path);
    let is_underscored = |part| has_underscore(part) || matches!(part, "{ddoc}" | "{local}");
    let (underscored, others): (Vec<_>, Vec<_>) =
        of_pattern.partition(|rows| parts(rows[0].path).take(2).any(is_underscored));
    let patterns = |rows: Vec<&'static [Route]>| rows.into_iter().map(pattern).collect();
    Patterns { underscored: patterns(underscored), others: patterns(others) }
});

fn has_underscore(part: &str) -> bool {
    part.starts_with('_')
}

/// The resource of a path, whose ids are joined, for this method.
pub(crate) fn find<'a>(segments: &'a [Cow<'_, str>], method: &Method) -> Result<Resource<'a>> {
    let mut names = Vec::with_capacity(segments.len());
    // The last rows match every path, so the error is never returned.
    let Patterns { underscored, others } = &*PATTERNS;
    let is_plain = !segments.iter().take(2).any(|part| has_underscore(part));
    let underscored = if is_plain { &[] } else { underscored.as_slice() };
    let fitting = underscored.iter().chain(others).find(|pattern| pattern.fits(segments, &mut names));
    let pattern = fitting.ok_or_else(|| ApiError::not_found("missing"))?;
    let row = pattern.methods.iter().find(|(known, _)| *known == "*" || *known == method.as_str());
    Ok(Resource { rows: pattern.rows, row: row.map(|(_, row)| *row), names })
}

impl Route {
    /// The counters of a successful request.
    fn counts(&self) -> &'static [Count] {
        use Count::*;
        match (self.path, self.methods) {
            ("/{db}/{docid}" | "/{db}/{local}" | "/{db}/{docid}/*", "GET,HEAD") => &[DatabaseReads],
            ("/{db}/{local}", _) => &[DatabaseWrites, LocalDocumentWrites],
            ("/{db}/{docid}" | "/{db}/{docid}/*", _) | ("/{db}", "POST") => &[DatabaseWrites, DocumentWrites],
            ("/_transact", "POST") => &[DatabaseWrites],
            ("/{db}/_bulk_docs", _) => &[BulkRequests, DatabaseWrites],
            ("/{db}/_purge" | "/{db}/_couch_layer/purge_tombstones", _) => {
                &[PurgeRequests, DatabasePurges, DatabaseWrites]
            }
            (path, _) if path.contains("/{ddoc}/_view/{view}") => match path.contains("/_partition/") {
                true => &[ViewReads, PartitionView],
                false => &[ViewReads],
            },
            ("/{db}/_partition/{partition}/_find", _) => &[PartitionFind],
            ("/{db}/_partition/{partition}/_explain", _) => &[PartitionExplain],
            (path, _) if path.starts_with("/{db}/_partition/{partition}/_all_docs") => &[PartitionAllDocs],
            _ => &[],
        }
    }
}

impl Pattern {
    /// Whether the pattern matches a path. Fills `names` with the values of the placeholders.
    fn fits<'a>(&self, path: &'a [Cow<'_, str>], names: &mut Vec<&'a str>) -> bool {
        names.clear();
        let mut path = path.iter().map(Cow::as_ref);
        for part in &self.parts {
            match (part, path.next()) {
                (Part::Rest, first) => {
                    names.extend(first.into_iter().chain(path));
                    return true;
                }
                (Part::DesignId, Some(id)) if id.starts_with("_design/") => names.push(id),
                (Part::LocalId, Some(id)) if id.starts_with("_local/") => names.push(id),
                (Part::Any, Some(name)) => names.push(name),
                (Part::Name(part), Some(name)) if name == *part => {}
                _ => return false,
            }
        }
        path.next().is_none()
    }
}

impl Resource<'_> {
    /// The name of the database.
    pub(crate) fn database(&self) -> Option<&str> {
        self.names.first().copied().filter(|_| self.path().starts_with("/{db}"))
    }

    fn path(&self) -> &'static str {
        self.rows.first().map_or("", |row| row.path)
    }

    /// What the request's row reads.
    pub(crate) fn operation(&self) -> Option<&'static Operation> {
        self.row.map(|row| &row.operation)
    }

    /// The number of the request's row in the table.
    pub(crate) fn number(&self) -> Option<usize> {
        self.row.and_then(|row| ROUTES.iter().position(|one| std::ptr::eq(one, row)))
    }

    /// The methods, as `Allow` lists them.
    fn allow(&self) -> String {
        self.rows.iter().map(|row| row.methods).collect::<Vec<_>>().join(",")
    }

    /// Who may send the request. System databases are for server administrators only. A wrong method is answered with
    /// 405 to everyone who may use any method of the path.
    pub(crate) fn who(&self) -> Who {
        let least = || self.rows.iter().map(|row| row.who).min().unwrap_or(ServerAdmin);
        match self.database() {
            Some(db)
                if is_of_the_system(db)
                    && !authz::rules_of(db).is_some_and(|rules| rules.is_for_members(self.path())) =>
            {
                ServerAdmin
            }
            _ => self.row.map_or_else(least, |row| row.who),
        }
    }

    /// Whether the request is maintenance, which CouchDB refuses named users with 401.
    pub(crate) fn is_upkeep(&self) -> bool {
        matches!(self.path(), "/{db}/_compact" | "/{db}/_compact/{view}" | "/{db}/_view_cleanup")
    }

    /// Whether the request lists all databases.
    pub(crate) fn lists_databases(&self) -> bool {
        matches!(self.path(), "/_all_dbs" | "/_dbs_info")
    }

    /// Whether the request is closed to members because of its database. CouchDB treats listings of all documents there
    /// as requests for server administrators, and refuses named users with 401 too.
    pub(crate) fn is_closed_to_members(&self) -> bool {
        let has_rules = self.database().is_some_and(|db| authz::rules_of(db).is_some());
        let lists_all = self.path() == "/{db}/_changes" || self.path().starts_with("/{db}/_all_docs");
        has_rules && !lists_all && self.row.is_none_or(|row| row.who < ServerAdmin)
    }

    /// Whether the request waits for the last step of a relocation of its database, since its write could fail.
    pub(crate) fn waits_for_moves(&self) -> bool {
        // Requests about the relocation itself do not wait.
        !self.path().starts_with("/{db}/_couch_layer/") && self.row.is_some_and(|row| row.who >= Writer)
    }

    /// Whether a standby refuses the request, since it would write to the store, or to one to which a database moved.
    pub(crate) fn is_write(&self, method: &Method) -> bool {
        const OTHERS: [&str; 3] = ["/_couch_layer/promote", "/_dbs_info", "/_node/{node}/_config/_reload"];
        // The row of `_transact` is public, since its databases are in its body.
        let may_write = self.path() == "/_transact" || self.row.is_some_and(|row| row.who >= Writer);
        may_write && *method != Method::GET && !OTHERS.contains(&self.path())
    }

    /// Answers the request. `has_no_name`: a name in the path is not UTF-8, so nothing can have it.
    ///
    /// 404 for a missing database takes precedence over all other errors, except for requests of the server
    /// administrator, which create, drop and move databases.
    pub(crate) async fn answer(&self, request: &mut Request, has_no_name: bool) -> Result<Response> {
        let row = self.row;
        let Some(db) = self.database().filter(|_| row.is_none_or(|row| row.who < ServerAdmin)) else {
            return self.handle(row, request).await;
        };
        request.app.databases.require(db).await?;
        if has_no_name {
            request.fresh_database(db).await?;
            return Err(ApiError::not_found("missing"));
        }
        let outcome = self.handle(row, request).await;
        if let Err(wrong) = &outcome
            && !matches!(wrong.status(), StatusCode::NOT_FOUND | StatusCode::CONFLICT)
            && wrong.status().is_client_error()
        {
            // The cached handle may be stale, and the handler may not have used it.
            request.fresh_database(db).await?;
        }
        outcome
    }

    /// The database, if the request may write documents that are replications.
    fn replications(&self, row: &Route) -> Option<&str> {
        self.database().filter(|name| row.who == Writer && replicator::has_jobs(name))
    }

    async fn handle(&self, row: Option<&Route>, request: &mut Request) -> Result<Response> {
        match row {
            Some(row) => {
                if let Some(database) = self.replications(row) {
                    // Such a document, once stored, means that a replication runs.
                    replicator::documents::ensure(&request.app, database).await?;
                }
                let answer = (row.handler)(request, &self.names).await?;
                if answer.status().is_success() {
                    row.counts().iter().for_each(|count| request.app.statistics.add(*count, 1));
                }
                Ok(answer)
            }
            None => Err(ApiError::method_not_allowed(&self.allow())),
        }
    }
}

#[cfg(test)]
mod tests;
