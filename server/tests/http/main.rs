//! The server over real connections: statuses, bodies and headers as CouchDB 3 has them.
//!
//! Each test starts a server of its own in memory, on a free port of loopback. The expected answers are taken from
//! CouchDB's `chttpd*.erl` and its tests (`test/elixir/test/*.exs`).

#![cfg(feature = "mem")]

mod attachments;
mod auth;
mod background;
mod bad_input;
mod cold;
mod compacting;
mod configuration;
mod confined;
mod conflicts;
mod connections;
mod console;
mod damage;
mod databases;
mod documents;
mod expected;
mod feeds;
mod fields;
mod figures;
mod find;
mod formats;
#[cfg(feature = "javascript")]
mod functions;
mod heads;
mod hostile;
mod hostile_peers;
mod http2;
mod index_jobs;
mod indexes;
mod listings;
mod lists;
#[cfg(feature = "javascript")]
mod manual;
mod outages;
mod owners;
mod partition_queries;
mod partitions;
mod patches;
mod peruser;
mod purges;
mod relocating;
mod replaced;
mod replicate;
mod replication;
mod replicator;
mod restarts;
mod rights;
mod setup;
mod sides;
mod support;
mod takeover;
mod tls;
mod transactions;
#[cfg(feature = "javascript")]
mod trials;
mod updates;
mod users;
#[cfg(feature = "javascript")]
mod validation;
mod vaults;
#[cfg(feature = "javascript")]
mod view_options;
#[cfg(feature = "javascript")]
mod views;
mod waiting;
