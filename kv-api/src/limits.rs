//! The properties that may differ between engines. Each engine states its own.

use std::time::Duration;

/// Limits on the sizes and times of a transaction.
///
/// The defaults are FoundationDB's (`known-limitations.rst`). Every engine here keeps them, so a layer's
/// transactions fit everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest key, in bytes: 2102 above it.
    pub key_bytes: usize,
    /// Longest value, in bytes: 2103 above it.
    pub value_bytes: usize,
    /// Maximum number of bytes that a transaction may affect: keys, values and conflict ranges with their overhead.
    /// 2101 above it.
    pub transaction_bytes: usize,
    /// Age up to which a version can be read: 1007 above it.
    pub read_window: Duration,
    /// Maximum number of watches of a database at a time: 1032 above it.
    pub watches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_bytes: 10_000,
            value_bytes: 100_000,
            transaction_bytes: 10_000_000,
            read_window: Duration::from_secs(5),
            watches: 10_000,
        }
    }
}

/// The failures that an acknowledged commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: the data lives as long as the process.
    Process,
    /// The end of the process, but not of the machine: the commit is written and not synced.
    OperatingSystem,
    /// The loss of power: the commit is synced to the disk before it is acknowledged.
    Disk,
    /// The failures that the cluster's redundancy mode survives.
    Cluster,
}
