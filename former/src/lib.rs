//! Folders that earlier versions of this program wrote with redb or with fjall: reads them, and moves them to
//! `engine-lsm`.
//!
//! ```text
//!   redb:   data.redb ┐                    fjall:  tables   ┐
//!           log.0     ├─► rows in order            journals ├─► rows in order ─► a new store of engine-lsm
//!           log.1     ┘                                     ┘
//! ```
//!
//! A folder is read as its last process left it, closed or killed. Reading changes nothing in it. If a part cannot be
//! read, that is an error, and nothing is moved. [`move_folder`] describes the order of the steps.
//!
//! All rows are moved, the system's too. One of them is the last commit version, so versions and versionstamps
//! continue.

mod error;
mod fjall;
mod mover;
mod redb;

use std::path::Path;

use bytes::Bytes;
use disk::folder::{Mark, io_error};
use disk::synced;
use disk::wal::WalView;
use kv_api::{Direction, Error, Result};
use occ::RangeSet;
use occ::store::View;

use crate::fjall::FjallView;
use crate::redb::RedbView;

pub use mover::{Moved, Step, is_former, move_folder};

/// The end of the key space.
const END: &[u8] = b"\xff\xff";

/// The rows of a folder.
pub struct Rows {
    view: Source,
    /// Ranges that were cleared, whose rows are still in the tables.
    cleared: RangeSet,
    /// The last commit version.
    version: i64,
}

enum Source {
    Redb(WalView<RedbView>),
    Fjall(WalView<FjallView>),
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Reads a folder with this mark. `scratch` is a new folder in the same file system, for links to the folder's files.
///
/// # Errors
///
/// 2108 for another engine or format; 1522 if the folder is damaged, or has less than was acknowledged; 1510 if the
/// disk fails.
pub fn read(folder: &Path, mark: &Mark, scratch: &Path) -> Result<Rows> {
    let (view, cleared, version) = match (mark.engine.as_str(), mark.format) {
        // Format 2 had no log. Format 3 had one whose files had no head.
        ("redb", 2..=4) => {
            let view = disk::wal::with_log(folder, RedbView::open(folder)?)?;
            let version = occ::last_version(&view)?;
            (Source::Redb(view), RangeSet::default(), version)
        }
        ("fjall", 1) => {
            let (view, cleared) = fjall::open(folder, scratch)?;
            let version = occ::last_version(&view)?;
            (Source::Fjall(view), cleared, version)
        }
        (engine, format) => {
            return Err(Error::new(kv_api::error::UNSUPPORTED_OPERATION).with_context(format!(
                "the folder {} is of {engine}, format {format}, which this program cannot read: open it with the version \
                 that wrote it",
                folder.display()
            )));
        }
    };
    let once = synced::read(&folder.join("synced"))
        .map_err(|cause| io_error(format!("cannot read the side file `synced` in {}", folder.display()), &cause))?;
    if version < once {
        return Err(disk::older(folder, version, once));
    }
    Ok(Rows { view, cleared, version })
}

impl Rows {
    /// The last commit version.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// All rows in key order. An error is the last item.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + '_ {
        let rows: Box<dyn Iterator<Item = Result<(Bytes, Bytes)>>> = match &self.view {
            Source::Redb(view) => Box::new(view.range(b"", END, Direction::Forward)),
            Source::Fjall(view) => Box::new(view.range(b"", END, Direction::Forward)),
        };
        let is_kept = |key: &[u8]| !key.starts_with(fjall::SYSTEM) && !self.cleared.contains(key);
        let mut has_failed = false;
        rows.filter(move |row| row.as_ref().map_or(true, |(key, _)| is_kept(key)))
            .take_while(move |row| !std::mem::replace(&mut has_failed, row.is_err()))
    }
}
