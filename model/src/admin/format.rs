//! Whether the store still has the format of this build.
//!
//! Any number of servers share a cluster, and a newer build may change the store's format while older ones have it open.
//! The format's number is in the first row. A process reads it when it opens the store, and then:
//!
//! ```text
//!   a write    reads it in its own transaction, with a conflict range, if the transaction reads more than
//!              RELIED_ON_FOR versions after the last time that this process read the number
//!   a server   reads it every few seconds: Layer::check_format
//! ```
//!
//! Versions are the clock that all processes share ([`txids`](crate::write::txids)). So the first rule holds whatever
//! the clocks of machines show, and for a process that was paused, at the cost of one read a minute. After another
//! number was committed, no edit, purge or change of the catalog or of a setting is committed by this build from
//! [`RELIED_ON_FOR`] and the engine's window for reads (five seconds) on:
//!
//! ```text
//!   number read ──── another number committed ──── last read version that relies on it ──── its commit
//!        └───────────── 60 s at most ──────────────────┘            └── 5 s at most ──────────┘
//! ```
//!
//! Therefore a build that changes rows while older builds may run writes its number first, and waits until the engine's
//! version has grown by 65 million. Rows that are written outside of these transactions (views, builds of indexes, jobs,
//! parts of uploads) have a format of their own, which every writer reads before.
//!
//! Once a process has seen another number, it does not read either: every transaction of a database is refused.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use kv_api::{Read, STORED_FORMAT, Transaction};

use crate::error::{Error, ErrorKind, Result};
use crate::keys::Key;
use crate::rows::row::Reader;

/// Number of versions for which writes rely on the number as last read: a minute.
const RELIED_ON_FOR: u64 = 60_000_000;

/// What this process knows of the store's format.
#[derive(Debug, Default)]
pub(crate) struct StoreFormat {
    /// The version at which the number was last read, and was this build's.
    seen: AtomicI64,
    /// Another number that was read; 0 for none.
    other: AtomicU64,
}

impl StoreFormat {
    /// Notes a number that was read at a version.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if it is not this build's.
    pub(crate) fn note(&self, found: u64, version: i64) -> Result<()> {
        if found != u64::from(STORED_FORMAT) {
            self.other.store(found, Ordering::Relaxed);
            return Err(ErrorKind::Format { found }.into());
        }
        self.seen.store(version, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if another number was read before. Costs no read.
    ///
    /// # Errors
    /// [`ErrorKind::Format`].
    pub(crate) fn check_known(&self) -> Result<()> {
        match self.other.load(Ordering::Relaxed) {
            0 => Ok(()),
            found => Err(ErrorKind::Format { found }.into()),
        }
    }

    /// Ensures that a transaction which reads at `version` and writes has the right to.
    ///
    /// # Errors
    /// [`ErrorKind::Format`]; the store's errors.
    pub(crate) async fn check<T: Transaction>(&self, transaction: &T, root: &Bytes, version: i64) -> Result<()> {
        self.check_known()?;
        // A store that was restored may have gone back.
        if self.seen.load(Ordering::Relaxed).abs_diff(version) <= RELIED_ON_FOR {
            return Ok(());
        }
        self.read(transaction, root, version, Read::Serializable).await
    }

    /// Reads the number.
    ///
    /// # Errors
    /// [`ErrorKind::Format`]; the store's errors.
    pub(crate) async fn read<T: Transaction>(
        &self,
        transaction: &T,
        root: &Bytes,
        version: i64,
        read: Read,
    ) -> Result<()> {
        let row = transaction.get(&Key::Format.under(root), read).await?;
        // Whoever removed the number removed the rest too, or is about to.
        let row = row.ok_or_else(|| Error::corrupt("a store without the number of its format"))?;
        self.note(Reader::new(&row).int()?, version)
    }
}
