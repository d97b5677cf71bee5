//! What an engine may differ in, and must say.

use std::time::Duration;

/// The sizes and times an engine holds a transaction to.
///
/// The default is FoundationDB's own (`known-limitations.rst`), which every engine here keeps, so
/// that a layer's transactions fit everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest key, in bytes: 2102 over it.
    pub key_bytes: usize,
    /// The longest value, in bytes: 2103 over it.
    pub value_bytes: usize,
    /// The most bytes a transaction may affect: keys, values and conflict ranges with their overhead.
    /// 2101 over it.
    pub transaction_bytes: usize,
    /// How long a read version can be read at: 1007 afterwards.
    pub read_window: Duration,
    /// The most watches a database keeps at a time: 1032 over it.
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

/// What an acknowledged commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing: the data lives as long as the process.
    Process,
    /// The end of the process, but not of the machine: written, not synced.
    OperatingSystem,
    /// The loss of power: synced to the disk before the commit is acknowledged.
    Disk,
    /// What the cluster's redundancy mode survives.
    Cluster,
}
