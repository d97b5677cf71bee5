//! A FoundationDB cluster as a [`kv_api::Database`]: a thin, complete mapping onto the
//! [`foundationdb`] crate.
//!
//! Nothing is emulated: every call goes to the native client (`libfdb_c`, release 7.3), errors keep the client's
//! codes, and its `on_error` decides on retries.
//!
//! ```no_run
//! use engine_fdb::FdbDatabase;
//! use kv_api::{Database, DatabaseExt, Error, Read, Transaction};
//!
//! # async fn example() -> Result<(), Error> {
//! let database = FdbDatabase::open(None).await?;
//! let value = database.run(async |tx, _| tx.get(b"hello", Read::Serializable).await).await?;
//! drop(database);
//! // Once, before `main` returns.
//! engine_fdb::stop_network();
//! # Ok(())
//! # }
//! ```

mod convert;
mod database;
mod kept;
mod network;
mod slot;
mod transaction;

pub use database::{FdbDatabase, MOST_WATCHES, OpenOptions};
pub use network::stop_network;
pub use transaction::FdbTransaction;

/// The crate below, for operations outside the trait.
pub use foundationdb;
