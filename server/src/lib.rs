//! A CouchDB-compatible server and command line over any engine of couch-layer.
//!
//! This crate is the one place where features pick engines. It is a library so that tests can start
//! a server inside their own process; the binary `couch-layer` is [`cli::Cli`] and little else.
//!
//! ```text
//!   main ── cli ── cmd/{serve, ...}        one file for each command
//!                    │
//!                 engine                   an engine from a URL; a folder names the engine that it holds
//! ```

#[cfg(not(any(feature = "mem", feature = "sled", feature = "lsm", feature = "fdb")))]
compile_error!(
    "couch-layer needs at least one engine: build with the default features, or with one of `--features lsm`, `sled` or `mem`"
);

use model::{BodyFormat, LayerOptions};

mod backup_state;
pub mod causes;
pub mod cli;
pub mod cmd;
pub mod engine;
pub mod http;
pub mod memory;
mod passphrase;
mod relocation;
mod report;
mod ship_state;
mod standby_state;
#[cfg(feature = "otlp")]
mod traces;
mod units;

/// Options of the layers in which a server or a command creates databases. Bodies are packed: over HTTP, documents are
/// read and written as a whole, and that costs about half as much.
#[must_use]
pub fn layer_options() -> LayerOptions {
    LayerOptions { default_format: BodyFormat::Packed, ..LayerOptions::default() }
}
