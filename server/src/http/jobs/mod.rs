//! Jobs that the server runs in the background, and the requests that wait for them.
//!
//! | file | |
//! |---|---|
//! | [`run`] | one run of a job, and how it may end |
//! | [`following`] | jobs that follow the feed of a database |
//! | [`optional`] | jobs that run while an option of the configuration is set |
//! | [`replicator`] | replications |
//! | [`index_build`], [`view_update`] | indexes and views are built |
//! | [`peruser`] | users get databases of their own |
//! | [`auto_purge`] | old tombstones are purged |
//! | [`collect_vaults`] | chunks of vaults that no file needs are removed |
//!
//! A job that only one endpoint starts is run by code beside its handler: relocation, a new layout of bodies,
//! forgetting. [`work`](crate::http::work) has the table of all kinds, and runs them.

pub(crate) mod auto_purge;
pub(crate) mod collect_vaults;
pub(crate) mod following;
pub(crate) mod index_build;
pub(crate) mod optional;
pub(crate) mod peruser;
pub(crate) mod replicator;
pub(crate) mod run;
pub(crate) mod view_update;
