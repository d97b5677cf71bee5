//! Content-addressed chunks of files, aggregated by prefix into few documents of a CouchDB database.
//!
//! Self-hosted LiveSync cuts files into chunks and stores each in its own document: a hundred thousand in a large
//! vault. This crate aggregates them. Index documents (`idx:{prefix}`) map each chunk to a data document
//! (`dat:{prefix}-{sequence}`), which holds it. Files, and the ids of chunks, do not change.
//!
//! ```text
//!  Vault ─────── push, pull, verify     a folder of files
//!      │
//!  ChunkStore ── write, read, files     storing, reading, referring
//!      │         collect                removing unreferenced chunks
//!      │         migrate, reindex       from LiveSync's form and back; indexes from data alone
//!      │         offload                moving sealed data documents to objects and back
//!      │         own                    a vault in LiveSync's form: what is in it, and what is wrong
//!      │   lookup: leaves of an index, united
//!      │   index, data: contents of documents    placement: ids of documents
//!      │   stub, contents, load: data documents whose chunks are in objects
//!  DocumentStore ─── PeerStore    a database of this process, or behind any server that speaks CouchDB's protocol
//!  Objects ───────── Bucket       S3's protocol, a directory, memory (feature `objects`)
//! ```
//!
//! Any number of clients may work at the same time, on one server or on replicas that meet later. Data is always
//! written before its index, and chunks before a file that names them. An interrupted operation does not mislead
//! others, and is completed by repeating it.
//!
//! ```
//! # use std::sync::Arc;
//! # use chunks::{Chunk, ChunkStore, chunk_id, store::DocumentStore};
//! # async fn example(store: Arc<dyn DocumentStore>) -> chunks::Result<()> {
//! let chunks = ChunkStore::new(store);
//! let id = chunk_id("from-a\n");
//! let receipt = chunks.put([(id.clone(), Chunk::plain("from-a\n"))]).await?;
//! assert_eq!(receipt.new, 1);
//! assert_eq!(chunks.get(&[id.clone()]).await?[&id], Some(Chunk::plain("from-a\n")));
//! # Ok(())
//! # }
//! ```

mod chunk;
mod collect;
mod contents;
mod data;
mod database;
mod environment;
mod error;
mod files;
mod id;
mod index;
mod livesync;
mod load;
mod lookup;
mod migrate;
pub mod objects;
mod offload;
mod own;
pub mod placement;
mod put;
mod read;
mod reindex;
mod seen;
mod settings;
pub mod store;
mod stub;
pub mod vault;
mod write;

pub use chunk::Chunk;
pub use collect::{CollectOptions, CollectStep, Collected};
pub use database::ChunkStore;
pub use environment::TimedEnvironment;
pub use error::{Error, Result, StoreError, StoreErrorKind};
pub use files::Verified;
pub use id::{CHUNK_PREFIX, chunk_id};
pub use livesync::{Device, Difference, Milestone, seal_settings};
pub use migrate::Migrated;
pub use offload::Offloaded;
pub use own::{
    Amount, Behind, BrokenFile, Census, CensusOptions, Diagnosis, Files, Named, TRASH_ADVICE, Trash,
    VaultCollectOptions, VaultCollected, WouldCollect, collect_vault, would_collect_vault,
};
pub use reindex::Reindexed;
pub use settings::{DEFAULT_DATA_LIMIT, DEFAULT_GRACE_MS, FORMAT, LEAST_DATA_LIMIT, LEAST_GRACE_MS, Settings};
pub use write::Receipt;
