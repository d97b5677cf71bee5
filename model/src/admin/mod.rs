//! Databases as a whole: creating, configuring, counting, checking, moving and purging them.

pub(crate) mod adoption;
pub(crate) mod catalog;
pub(crate) mod check;
pub(crate) mod configuration;
pub(crate) mod edit_counts;
pub(crate) mod environment;
pub(crate) mod format;
pub(crate) mod identity;
pub(crate) mod info;
pub(crate) mod partition_info;
pub(crate) mod purge;
pub(crate) mod relocate;
pub(crate) mod restoring;
pub(crate) mod versions;
