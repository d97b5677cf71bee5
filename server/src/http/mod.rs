//! CouchDB's HTTP API.
//!
//! ```text
//!   listen ──── one task for each connection (hyper); beside it `work`, which runs jobs, and `figures`, which tells what was done
//!      │
//!   serve ───── one request: authentication, authorisation, answer
//!      │
//!   routes ──── the table: path and method to a handler
//!      │
//!   root  database  document  listing  views  find  feed   handlers, a folder for each subject
//!      │
//!   authz ───── what a client may
//!      │
//!   request ─── what a handler gets
//!      │
//!   app ─────── state that all requests share: handles of databases, stores, threads for scans, runs of jobs
//!      │
//!   authn ───── who a client is: sessions, tokens, passwords
//!      │
//!   config ──── the settings, parsed, and those of single subjects
//!      │
//!   wire, tls ─ bytes: bodies, parameters, responses, raw quotes in queries; certificates and handshakes
//!      │
//!   error, ids  answers to refused requests; new ids
//!   journal     the audit log and the access log
//! ```
//!
//! A module uses those below it and none above.
//!
//! Paths are matched here rather than by a library's router, since CouchDB's paths have their own grammar: `%2F` is
//! part of a name, `_design/x` and `_design%2Fx` are one document, a trailing slash does not count, and `COPY` is a
//! method.

mod app;
mod authn;
mod authz;
mod auto_purge;
mod config;
mod database;
mod document;
mod error;
mod feed;
mod figures;
mod find;
mod functions;
mod ids;
mod journal;
mod listen;
mod listing;
mod metrics;
mod peruser;
mod replicator;
mod request;
mod root;
mod routes;
mod serve;
mod tls;
mod views;
mod wire;
mod work;

pub(crate) use app::Identity;
pub use app::Options;
pub use authn::auth::Administrator;
pub(crate) use authn::passwords::is_password_hash;
pub(crate) use authn::users::DATABASE as USERS;
pub(crate) use authz::writer::by_command;
pub use config::cors::CorsOptions;
pub use config::known::KNOWN_SETTINGS;
pub(crate) use config::settings::{ADMINS, check as check_settings};
pub(crate) use functions::Functions;
pub(crate) use functions::validate::THREADS;
pub use journal::LogFile;
pub(crate) use journal::count_line;
pub use listen::{Server, StartError};
pub(crate) use replicator::has_jobs as is_of_replications;
pub(crate) use root::configuration::checked as checked_setting;
pub use routes::endpoints;
pub use tls::{Tls, TlsError};
pub(crate) use views::check::{check as check_views, repair as repair_views};
pub(crate) use wire::body::{CONNECTION_BYTES, largest as largest_body};
