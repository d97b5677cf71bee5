//! CouchDB's HTTP API.
//!
//! ```text
//!   listen ──── one task for each connection (hyper); beside it `work`, which runs jobs, and `figures`, which collects
//!      │        figures
//!   serve ───── one request: authentication, authorisation, answer
//!      │
//!   routes ──── the table: path and method to a handler
//!      │
//!   handlers ── a folder for each subject: root, database, document, listing, views, find, feed, console
//!      │
//!   jobs ────── background work: replications, builds of indexes and views, databases of users, purges
//!      │
//!   functions   JavaScript of design documents, for handlers, jobs and validators
//!      │
//!   request ─── what a handler gets
//!      │
//!   authz ───── what a client may do
//!      │
//!   app ─────── state that all requests share: handles of databases, stores, threads for scans
//!      │
//!   authn ───── who a client is: sessions, tokens, passwords
//!      │
//!   config ──── the settings, parsed, and those of single subjects
//!      │
//!   wire, tls ─ bytes: bodies, parameters, responses, raw quotes in queries; certificates and handshakes
//!      │
//!   operation   what an endpoint reads and answers, as data; `openapi` describes the server by it
//!      │
//!   copies      figures of backups, of what is shipped, and of a standby
//!   error, ids  answers to refused requests; new ids
//!   journal     the audit log and the access log
//!   log_tail    the last lines of the log
//! ```
//!
//! A module uses only modules below it. Two also look up: `authz` knows documents of replications, and `root` shows the
//! figures.
//!
//! Paths are matched here rather than by a library's router, since CouchDB's paths have their own grammar: `%2F` is
//! part of a name, `_design/x` and `_design%2Fx` are one document, a trailing slash is ignored, and `COPY` is a method.

mod app;
mod authn;
mod authz;
mod config;
mod copies;
mod error;
mod figures;
mod functions;
mod handlers;
mod http2;
mod ids;
mod jobs;
mod journal;
mod listen;
mod log_tail;
mod metrics;
mod openapi;
mod operation;
mod request;
mod routes;
mod serve;
mod tls;
mod wire;
mod work;

pub(crate) use app::Identity;
pub use app::Options;
pub use authn::auth::Administrator;
pub(crate) use authn::passwords::{Verifier, is_password_hash};
pub use authn::setup::SetupToken;
pub(crate) use authn::users::{DATABASE as USERS, PREFIX as USER_PREFIX};
pub(crate) use authz::security::Security;
pub(crate) use authz::writer::by_command;
pub use config::cors::CorsOptions;
pub use config::known::KNOWN_SETTINGS;
pub(crate) use config::settings::{ADMINS, check as check_settings};
pub(crate) use functions::Functions;
pub(crate) use functions::validate::THREADS;
pub(crate) use handlers::database::relocate::KIND as RELOCATIONS;
pub(crate) use handlers::root::configuration::checked as checked_setting;
pub(crate) use handlers::views::check::{check as check_views, repair as repair_views};
pub(crate) use jobs::collect_vaults::scheduled as scheduled_collection;
pub(crate) use jobs::replicator::has_jobs as is_of_replications;
pub use journal::LogFile;
pub use listen::{Server, StartError};
pub(crate) use log_tail::KeepLines;
pub use routes::endpoints;
#[cfg(feature = "acme")]
pub use tls::AcmeOptions;
pub use tls::{Tls, TlsError};
pub(crate) use wire::body::{CONNECTION_BYTES, largest as largest_body};
