//! Backups of databases: incremental, encrypted, verified, and restored onto any engine.
//!
//! ```text
//!  a store, on any engine ── back_up ──► Repository ── restore ──► a store, on any engine
//!                                        verify, prune
//!                                            │
//!                                          Place      a folder
//! ```
//!
//! A [run](Repository::back_up) has each database as it was at a sequence, with all leaves, their ancestors,
//! tombstones, attachments, local documents, the security object, settings and purges, and the servers' configuration.
//! A run continues the newest earlier one: it copies only later changes of the feed. It becomes visible when its last
//! file is written, so a failed run does not affect earlier ones.
//!
//! A store in a folder can also be shipped while it is in use ([`Shipper`]): its tables, and its log as it becomes durable.
//! It is restored as it was at any second.
//!
//! [`docs/adr/0089`](https://github.com/couch-layer/couch-layer/blob/main/docs/adr/0089-backups-are-runs-of-records.md)
//! has the reasons.

#[cfg(feature = "objects")]
mod bucket;
mod copy;
mod error;
mod key;
mod live;
mod manifest;
mod named;
mod pack;
mod place;
mod prune;
mod record;
mod repository;
mod restore;
mod run;
mod ship;
mod trust;
mod verify;
mod writer;

pub use error::{Error, Result};
pub use named::{place, place_is_folder, place_with};
pub use place::{Folder, Place, Stored};
pub use prune::Pruned;
pub use repository::{Protection, Repository};
pub use restore::{RestoreOptions, Restored};
pub use run::{Report, RunDatabase, RunInfo, store_name};
pub use ship::{
    Followed, Follower, RestoredShip, ShipOptions, Shipped, ShippedSpan, Shipper, StandbyFolder, promote_standby,
    replace_standby, standby_folder,
};
pub use verify::Verified;
