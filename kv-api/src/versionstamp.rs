//! The stamp of a commit.

use std::fmt;

/// The versionstamp of a commit, as FoundationDB writes it: the commit version and the transaction's order in its
/// batch, both big-endian. Unique in a database, and ascending in the order of serialization.
///
/// ```text
///   0                       8       10
///   ├───────────────────────┼───────┤
///   │ commit version (u64)  │ order │
///   └───────────────────────┴───────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp([u8; Versionstamp::LEN]);

impl Versionstamp {
    /// Length in bytes.
    pub const LEN: usize = 10;

    /// Placeholder in a key or value until the commit: ten `\xff` bytes, as in FoundationDB's tuple layer.
    pub const PENDING: Versionstamp = Versionstamp([0xff; Versionstamp::LEN]);

    /// The stamp of transaction number `order` of the batch committed at `version`.
    pub fn new(version: u64, order: u16) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&version.to_be_bytes());
        bytes[8..].copy_from_slice(&order.to_be_bytes());
        Versionstamp(bytes)
    }

    /// The stamp with these bytes.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Versionstamp(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The commit version.
    pub fn version(&self) -> u64 {
        let mut version = [0; 8];
        version.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(version)
    }

    /// The order in the batch.
    pub fn order(&self) -> u16 {
        u16::from_be_bytes([self.0[8], self.0[9]])
    }
}

impl fmt::Debug for Versionstamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Versionstamp({}/{})", self.version(), self.order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_sort_by_version_then_by_order() {
        let stamps = [(1, 65_535), (2, 0), (2, 1), (256, 0), (u64::MAX >> 1, 0)].map(|(v, o)| Versionstamp::new(v, o));
        assert!(stamps.is_sorted());
        assert_eq!((stamps[3].version(), stamps[3].order()), (256, 0));
    }
}
