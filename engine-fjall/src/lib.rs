//! The engine on [fjall](https://docs.rs/fjall): a log-structured merge tree, under `occ`.
//!
//! ```text
//!   folder/
//!     …                 what every engine on disk has (disk)
//!     data/             fjall's
//!       N.jnl           journals: every batch is appended here, and synced
//!       keyspaces/0/    names and options of the keyspaces
//!       keyspaces/1/    the rows: `current` names a manifest, which names the tables
//!     data.new/         while the folder is made
//! ```
//!
//! A commit appends to the journal and syncs it: one `fdatasync`. What is in memory becomes a table of its
//! own from time to time, and tables are merged, in threads of fjall's. When one of them fails, on a full disk
//! say, the next commit fails, and the database is closed until it is opened again.
//!
//! Memory: the cache, and on top of it what has not become a table yet, of which there are up to four times
//! an eighth of the cache, and no more than four times 16 MiB. A folder keeps the size it was made with.
//!
//! Limits: keys of up to 65,534 bytes, values of up to 4 GiB; `occ` allows less. The first journal takes 64 MiB
//! by name and what is in it by blocks. Closing waits for a merge of tables that is under way.
//!
//! Damage: every block of a table has a checksum that is compared when it is read. Journals and manifests
//! are looked through before fjall opens them (`journals`, `manifests`), since it cuts a journal off where it
//! cannot read it, and does not compare a manifest's checksum.
//!
//! A clear of very many rows is one record, at once; the rows go in the background (`disk::clears`).

mod batch;
mod error;
mod journals;
mod keys;
mod manifests;
mod store;
mod view;

pub use store::FjallStore;
pub use view::{FjallRange, FjallView};

/// A durable database in a folder: a cheap handle.
pub type FjallDatabase = occ::OccDatabase<disk::OnDisk<FjallStore>>;

/// How a [`FjallDatabase`] is opened.
pub type FjallOptions = disk::DiskOptions;
