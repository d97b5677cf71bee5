//! CouchDB's HTTP API.
//!
//! ```text
//!   listen ──── one task for each connection (hyper); beside it work, the jobs that this server runs
//!      │
//!   serve ───── one request: who asks, may they, what answers
//!      │
//!   routes ──── the table: path and method to a handler
//!      │
//!   root  database  document  listing  find  feed      handlers, a folder for each subject
//!      │
//!   request ─── a request, as handlers see it
//!      │
//!   app ─────── what all requests share: handles of databases, stores, threads for scans, runs of jobs
//!      │
//!   access ──── who asks: sessions, passwords, origins
//!      │
//!   wire ────── bytes: bodies, parameters, responses, raw quotes in queries
//!      │
//!   error, ids  what a refused request is answered with; fresh ids
//! ```
//!
//! A module uses those below it and none above.
//!
//! Paths are matched here rather than by a library's router, since CouchDB's grammar is its own:
//! `%2F` belongs to a name, `_design/x` and `_design%2Fx` are one document, a trailing slash does not
//! count, and `COPY` is a method.

mod access;
mod app;
mod database;
mod document;
mod error;
mod feed;
mod find;
mod ids;
mod listen;
mod listing;
mod request;
mod root;
mod routes;
mod serve;
mod wire;
mod work;

pub use access::auth::Administrator;
pub use access::cors::CorsOptions;
pub(crate) use app::Identity;
pub use app::Options;
pub use listen::{Server, StartError};
