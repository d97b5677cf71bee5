//! Benchmarks with comparisons: `cargo run -p couch-layer-benches --release -- <command>`.
//!
//! Machines differ and are noisy, so every figure is a ratio of two medians, measured in turns in one run. Nothing
//! here passes or fails: requirements are in the tests.

mod backup;
#[cfg(feature = "lsm")]
mod costs;
mod counts;
#[cfg(feature = "fdb")]
mod fdb;
mod growth;
mod http;
#[cfg(feature = "lsm")]
mod layouts;
#[cfg(feature = "lsm")]
mod limits;
mod report;
mod sizes;
mod space;
mod views;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "benches", about = "Speed, measured beside something")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The server beside another CouchDB-compatible one: writes, reads, bulk, feeds and listings
    Http(http::Options),
    /// Indexes, queries and views beside another CouchDB-compatible server
    Queries(http::queries::Options),
    /// One database over HTTP as it grows large: rates, disk, memory, the opening after a kill
    Large(http::large::Options),
    /// Backups of one large database: the first run, the second one, the restore, beside the feed and the writes
    Backup(backup::Options),
    /// Attachments: the server's memory while a large one passes, and the speed of all sizes
    Attachments(http::attachments::Options),
    /// Replication from another server beside other replicators, and replications at rest
    Replications(http::replications::Options),
    /// Logins by the thousand beside requests with proven passwords
    Logins(http::logins::Options),
    /// Many small databases: creation, start, memory, listing
    Databases(http::databases::Options),
    /// The server's memory while clients read long answers slowly
    SlowClients(http::slow::Options),
    /// Instructions of hot operations, compared with committed figures (needs valgrind)
    Counts(counts::Options),
    /// Figures as documents, branches, bytes or writers grow
    Growth(growth::Options),
    /// All of it on one HTML page, with tables and plots
    Report(report::Options),
    /// Sizes of documents in a store: keys and bytes, in both layouts
    Sizes(sizes::Options),
    /// Where the bytes of a document go: rows, log, flushes, compactions
    #[cfg(feature = "lsm")]
    Costs(costs::Options),
    /// The cost of kinds of documents in both layouts: instructions of each use (needs valgrind), bytes at rest
    #[cfg(feature = "lsm")]
    Layouts(layouts::Options),
    /// The server and the store beside the limits that the machine and the libraries set
    #[cfg(feature = "lsm")]
    Limits(limits::Options),
    /// The disk space left by deleted documents and a dropped database
    Space(space::Options),
    /// Views as they grow: the build, a range, a grouped reduction, an update after one edit
    Views(views::Options),
    /// Documents on a FoundationDB cluster, through the library and over HTTP, beside the same rows raw
    #[cfg(feature = "fdb")]
    Fdb(fdb::Options),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // One thread: the servers need the rest of the machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match cli.command {
        Command::Http(options) => runtime.block_on(http::run(options)),
        Command::Queries(options) => runtime.block_on(http::queries::run(options)),
        Command::Large(options) => runtime.block_on(http::large::run(options)),
        Command::Backup(options) => runtime.block_on(backup::run(options)),
        Command::Attachments(options) => runtime.block_on(http::attachments::run(options)),
        Command::Replications(options) => runtime.block_on(http::replications::run(options)),
        Command::Logins(options) => runtime.block_on(http::logins::run(options)),
        Command::Databases(options) => runtime.block_on(http::databases::run(options)),
        Command::SlowClients(options) => runtime.block_on(http::slow::run(options)),
        Command::Counts(options) => counts::run(options),
        Command::Growth(options) => growth::run(options),
        Command::Report(options) => runtime.block_on(report::run(options)),
        Command::Sizes(options) => runtime.block_on(sizes::run(options)),
        #[cfg(feature = "lsm")]
        Command::Costs(options) => costs::run(options),
        #[cfg(feature = "lsm")]
        Command::Layouts(options) => layouts::run(options),
        #[cfg(feature = "lsm")]
        Command::Limits(options) => runtime.block_on(limits::run(options)),
        Command::Space(options) => space::run(options),
        Command::Views(options) => views::run(options),
        #[cfg(feature = "fdb")]
        Command::Fdb(options) => {
            let measured = runtime.block_on(fdb::run(options));
            engine_fdb::stop_network();
            measured
        }
    }
}
