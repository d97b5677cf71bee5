//! The scenarios: one file for each clause of `docs/fdb-semantics.md`.

pub(crate) mod atomics;
pub(crate) mod conflict_ranges;
pub(crate) mod errors;
pub(crate) mod isolation;
pub(crate) mod lifecycle;
pub(crate) mod limits;
pub(crate) mod on_error;
pub(crate) mod pipelining;
pub(crate) mod placement;
pub(crate) mod prefix;
pub(crate) mod ranges;
pub(crate) mod read_version;
pub(crate) mod read_your_writes;
pub(crate) mod recorded;
pub(crate) mod selectors;
pub(crate) mod snapshot;
pub(crate) mod unknown_result;
pub(crate) mod versionstamps;
pub(crate) mod watches;
