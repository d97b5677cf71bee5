//! A store in a folder, and the checks that every engine on disk makes when it opens one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use kv_api::{Durability, Error, Result, error};

use occ::store::{ApplyError, Batch, Store};
use occ::{OccDatabase, OpenAt, last_version};

use crate::DiskOptions;
use crate::folder::{Folder, Mark, io_error, sync_folder};
use crate::synced::Synced;

/// A store whose rows are in a folder.
///
/// A sync that failed must not be taken back by one that goes well later: Linux takes what the first should have
/// written for clean, and writes it never. So a store writes that again, into new files, or fails from then on.
pub trait DiskStore: Store + Sized {
    /// The engine's name, as in its URL; the folder's mark bears it.
    const ENGINE: &'static str;

    /// The version of the store's format. A folder of another one is refused.
    const FORMAT: u32;

    /// Older formats that this one can read. A folder of one of them is marked as of [`FORMAT`](Self::FORMAT)
    /// when it is opened, and older programs refuse it from then on.
    const FORMER: &'static [u32] = &[];

    /// What commits can be made to survive. [`Durability::Disk`] is the default of [`DiskOptions`].
    const DURABILITIES: &'static [Durability];

    /// Opens the store in `folder`, which is there and ours, and holds nothing of the store's when it
    /// is opened for the first time. `cache_bytes` is what its cache may take; `durability` is one of
    /// [`DURABILITIES`](Self::DURABILITIES).
    ///
    /// # Errors
    ///
    /// 1522 when its files are damaged (never a panic); 1510 when the disk fails; 1514 when it cannot be
    /// written. Each with a sentence that says what to do.
    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self>;
}

/// A [`DiskStore`] that owns its folder and remembers what was synced.
#[derive(Debug)]
pub struct OnDisk<S> {
    store: S,
    /// The version of the newest batch.
    applied: AtomicI64,
    /// Of a store that promises to reach the disk.
    synced: Option<Mutex<Synced>>,
    path: PathBuf,
    /// Last, so that the folder is released when the store's files are closed.
    _folder: Folder,
}

impl<S: DiskStore> OnDisk<S> {
    pub(crate) fn open(path: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        if !S::DURABILITIES.contains(&durability) {
            return Err(Error::new(error::INVALID_OPTION_VALUE).with_context(format!(
                "{} can be durable as {:?}, not {durability:?}",
                S::ENGINE,
                S::DURABILITIES
            )));
        }
        let folder = Folder::open(path, &Mark { engine: S::ENGINE.into(), format: S::FORMAT }, S::FORMER)?;
        let cannot = |doing: &str, cause| io_error(format!("cannot {doing} {}", path.display()), &cause);
        let mut synced =
            Synced::open(&path.join("synced")).map_err(|cause| cannot("open the side file `synced` in", cause))?;
        let store = S::open(path, cache_bytes, durability)?;
        let last = last_version(&store.view()?)?;
        let once = synced.read().map_err(|cause| cannot("read the side file `synced` in", cause))?;
        if last < once {
            return Err(older(path, last, once));
        }
        let reaches_disk = durability == Durability::Disk;
        if reaches_disk {
            // What the opening created is to keep its names.
            sync_folder(path).map_err(|cause| cannot("sync the folder", cause))?;
        }
        Ok(OnDisk {
            store,
            applied: AtomicI64::new(last),
            synced: reaches_disk.then_some(Mutex::new(synced)),
            path: path.to_owned(),
            _folder: folder,
        })
    }

    /// The store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn synced(&self, act: impl FnOnce(&mut Synced) -> std::io::Result<()>) -> Result<()> {
        let Some(synced) = &self.synced else { return Ok(()) };
        act(&mut synced.lock().unwrap_or_else(PoisonError::into_inner)).map_err(|cause| {
            io_error(format!("cannot write the side file `synced` in {}", self.path.display()), &cause)
        })
    }
}

impl<S: DiskStore> Store for OnDisk<S> {
    type View = S::View;

    fn view(&self) -> Result<S::View> {
        self.store.view()
    }

    fn renewed(&self, view: &S::View) -> Option<S::View> {
        self.store.renewed(view)
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let version = batch.version;
        self.store.apply(batch)?;
        self.applied.store(version, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()?;
        // The batch is durable. A side file that could not be written is behind, as it may be after a crash.
        let _ = self.synced(|synced| synced.write(self.applied.load(Ordering::Relaxed)));
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.store.durability()
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn close(&self) -> Result<()> {
        self.store.close()?;
        self.synced(|synced| synced.sync())
    }
}

impl<S: DiskStore> OpenAt for OnDisk<S> {
    type Options = DiskOptions;

    /// Opens the database in the folder at `path`, which is created if it does not exist. The folder is
    /// released when the last handle and the last transaction are dropped.
    ///
    /// # Errors
    ///
    /// 1529 when another process has it open; 2108 when it is of another engine or format; 2000 when it
    /// is not ours; 2006 for a durability that the engine does not have; 1514 when it cannot be written;
    /// 1522 when its files are damaged, or hold less than was acknowledged; 1510 when the disk fails.
    /// Each says what to do. A refused folder is left as it is: it can be opened once the cause is gone.
    fn open_at(path: &Path, options: DiskOptions) -> Result<OccDatabase<Self>> {
        options.occ.open(OnDisk::open(path, options.cache_bytes, options.durability)?)
    }
}

/// The error of a store in `folder` that has come back at version `last`, when `once` was synced: 1522. For
/// stores that find it out before they are open.
pub fn older(folder: &Path, last: i64, once: i64) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!(
        "the data in {} came back older than what was acknowledged (version {last}, once {once}): \
         restore it from a backup, or remove the file `synced` there to go on with what is left",
        folder.display()
    ))
}
