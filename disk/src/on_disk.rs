//! A store in a folder, and the checks that every engine on disk makes when it opens one.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use kv_api::{Durability, Error, Figure, Result, error, no_snapshot};

use occ::store::{ApplyError, Batch, Store};
use occ::{OccDatabase, OpenAt, last_version};
use parking_lot::Mutex;

use crate::DiskOptions;
use crate::folder::{Folder, create_partial, io_error, mark_copy, rename_to_new, sync_folder};
use crate::room;
use crate::synced::Synced;

/// A store with its rows in a folder.
///
/// After a failed sync a later sync proves nothing: Linux marks the unwritten pages as clean and never writes them. So
/// a store writes the data again, into new files, or fails from then on.
pub trait DiskStore: Store + Sized {
    /// The engine's name, as in its URL and in the folder's mark.
    const ENGINE: &'static str;

    /// Durabilities that the engine offers. [`Durability::Disk`] is the default of [`DiskOptions`].
    const DURABILITIES: &'static [Durability];

    /// Opens the store in `folder`, which exists and is ours. At the first opening it holds no file of the
    /// store. `cache_bytes` is the size of the store's cache; `durability` is one of
    /// [`DURABILITIES`](Self::DURABILITIES).
    ///
    /// # Errors
    ///
    /// 1522 when its files are damaged (never a panic); 1510 when the disk fails, 1225 when it is full; 1514 when
    /// it cannot be written. Each says what to do.
    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self>;

    /// Disk bytes of the rows that a batch over `snapshot` removes, roughly. Zero if the store does not know.
    fn hidden_bytes(snapshot: &Self::Snapshot, batch: &Batch) -> u64 {
        let _ = (snapshot, batch);
        0
    }

    /// Copies the rows of `snapshot` into an empty folder, as a store of its own, durably. Files that never change
    /// become hard links, and are returned.
    ///
    /// # Errors
    ///
    /// 2108 for a store whose files change in place; the disk's errors.
    fn copy_snapshot(&self, snapshot: &Self::Snapshot, folder: &Path) -> Result<Vec<CopiedTable>> {
        let _ = snapshot;
        Err(no_snapshot(folder))
    }

    /// Whether these bytes are those of the [copied table](CopiedTable) of this name.
    fn is_table(name: &str, bytes: &[u8]) -> bool {
        let _ = (name, bytes);
        false
    }

    /// Copies everything that is applied and synced, as [`copy_snapshot`](Self::copy_snapshot) does. Returns the
    /// version of its newest batch.
    ///
    /// # Errors
    ///
    /// As [`copy_snapshot`](Self::copy_snapshot).
    fn copy(&self, folder: &Path) -> Result<i64> {
        Err(no_snapshot(folder))
    }
}

/// The folder of links to tables that are being shipped, in that of the store. A kill leaves it. It is removed with all
/// that is in it, so nobody else may use this name.
pub(crate) const LINKS: &str = ".couch-layer-links-of-shipped-tables";

/// A file of a copy that never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedTable {
    /// Its path in the folder, with `/` between its parts.
    pub path: String,
    /// A name that no other content has in the store's life: digits and hyphens.
    pub name: String,
}

/// A [`DiskStore`] that owns its folder and records the last synced version.
#[derive(Debug)]
pub struct OnDisk<S> {
    store: S,
    /// The version of the newest batch.
    applied: AtomicI64,
    /// The side file `synced`, if syncs reach the disk.
    synced: Option<Mutex<Synced>>,
    path: PathBuf,
    /// The last field: the folder is released after the store's files are closed.
    _folder: Folder,
}

impl<S: DiskStore> OnDisk<S> {
    pub(crate) fn open(path: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        Self::open_in(path, cache_bytes, durability, || Folder::open(path, S::ENGINE))
    }

    fn open_in(
        path: &Path,
        cache_bytes: u64,
        durability: Durability,
        folder: impl FnOnce() -> Result<Folder>,
    ) -> Result<Self> {
        if !S::DURABILITIES.contains(&durability) {
            return Err(Error::new(error::INVALID_OPTION_VALUE).with_context(format!(
                "{} can be durable as {:?}, not {durability:?}",
                S::ENGINE,
                S::DURABILITIES
            )));
        }
        let folder = folder()?;
        // The links of an ended process would keep the space of tables.
        let _ = std::fs::remove_dir_all(path.join(LINKS));
        let cannot = |doing: &str, cause| io_error(format!("cannot {doing} {}", path.display()), &cause);
        let mut synced =
            Synced::open(&path.join("synced")).map_err(|cause| cannot("open the side file `synced` in", cause))?;
        let store = S::open(path, cache_bytes, durability)?;
        let last = last_version(&store.snapshot()?)?;
        let once = synced.read().map_err(|cause| cannot("read the side file `synced` in", cause))?;
        if last < once {
            return Err(older(path, last, once));
        }
        let reaches_disk = durability == Durability::Disk;
        if reaches_disk {
            // The opening may have created files: make their names durable.
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

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn synced(&self, act: impl FnOnce(&mut Synced) -> std::io::Result<()>) -> Result<()> {
        let Some(synced) = &self.synced else { return Ok(()) };
        act(&mut synced.lock()).map_err(|cause| {
            io_error(format!("cannot write the side file `synced` in {}", self.path.display()), &cause)
        })
    }
}

/// A store in a new folder that nobody has taken into use, while its files are written. The folder gets its name when it is
/// [finished](NewCopy::finish), and never the name of one that exists. If this is dropped before, nothing is left. What a
/// killed process left is removed by the next copy with this name.
#[derive(Debug)]
pub struct NewCopy {
    folder: PathBuf,
    partial: PathBuf,
    /// That of the folder, so that nobody takes it for one that was left.
    lock: Option<File>,
    engine: &'static str,
    is_finished: bool,
}

impl NewCopy {
    /// Creates an empty folder under another name, outside of the folder `store` that it is a copy of.
    ///
    /// # Errors
    /// 2000 if `folder` exists or is inside of `store`; the disk's errors.
    pub fn create(folder: &Path, engine: &'static str, store: Option<&Path>) -> Result<Self> {
        let cannot = |cause| cannot_create(folder, &cause);
        let absolute = std::path::absolute(folder).map_err(cannot)?;
        let (Some(parent), Some(name), Err(_)) = (absolute.parent(), absolute.file_name(), folder.symlink_metadata())
        else {
            return Err(exists(folder));
        };
        let parent = parent.canonicalize().map_err(cannot)?;
        if let Some(store) = store {
            let own = store.canonicalize().map_err(cannot)?;
            if parent.starts_with(&own) {
                let sentence = format!("{} is inside of the store {}", folder.display(), own.display());
                return Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context(sentence));
            }
        }
        let (partial, lock) = create_partial(&parent, name)?;
        Ok(NewCopy { folder: parent.join(name), partial, lock: Some(lock), engine, is_finished: false })
    }

    /// The folder until then.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the folder its name. Its files are durable; `version` is that of the newest batch.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn finish(mut self, version: i64) -> Result<()> {
        // On Windows a folder with an open file is not renamed.
        if cfg!(windows) {
            self.lock = None;
        }
        let NewCopy { folder, partial, engine, .. } = &self;
        let cannot = |cause| cannot_create(folder, &cause);
        // A copy that comes back older is refused, as its store would be.
        let synced = Synced::open(&partial.join("synced")).and_then(|mut synced| {
            synced.write(version)?;
            synced.sync()
        });
        // The mark is last: without it nobody opens the folder, unless it is empty.
        synced.and_then(|()| mark_copy(partial, engine)).map_err(cannot)?;
        rename_to_new(partial, folder).map_err(|cause| match cause.kind() {
            ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory => exists(folder),
            _ => cannot(cause),
        })?;
        sync_folder(folder.parent().unwrap_or(folder)).map_err(|cause| {
            let _ = std::fs::rename(folder, partial);
            cannot(cause)
        })?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for NewCopy {
    fn drop(&mut self) {
        if !self.is_finished {
            if cfg!(windows) {
                self.lock = None;
            }
            let _ = std::fs::remove_dir_all(&self.partial);
        }
    }
}

fn cannot_create(folder: &Path, cause: &std::io::Error) -> Error {
    io_error(format!("cannot create the snapshot {}", folder.display()), cause)
}

fn exists(folder: &Path) -> Error {
    let sentence = format!("{} exists: a snapshot needs a new folder", folder.display());
    Error::new(error::CLIENT_INVALID_OPERATION).with_context(sentence)
}

impl<S: DiskStore> Store for OnDisk<S> {
    type Snapshot = S::Snapshot;

    fn snapshot(&self) -> Result<S::Snapshot> {
        self.store.snapshot()
    }

    fn refreshed(&self, snapshot: &S::Snapshot) -> Option<S::Snapshot> {
        self.store.refreshed(snapshot)
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let version = batch.version();
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

    fn when_quiet(&self, let_go: Box<dyn Fn() + Send + Sync>) {
        self.store.when_quiet(let_go);
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.store.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.store.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.store.disk_bytes(begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        [room::figures(&self.path), self.store.figures()].concat()
    }

    fn copy_to(&self, folder: &Path) -> Result<()> {
        let copy = NewCopy::create(folder, S::ENGINE, Some(&self.path))?;
        let version = self.store.copy(copy.path())?;
        copy.finish(version)
    }

    fn check_room(&self, bytes: u64) -> Result<()> {
        self.store.check_room(bytes)
    }

    fn close(&self) -> Result<()> {
        self.store.close()?;
        self.synced(|synced| synced.sync())
    }
}

impl<S: DiskStore> OpenAt for OnDisk<S> {
    type Options = DiskOptions;

    /// Opens the database in the folder at `path`. Creates the folder if it does not exist. The folder is released when
    /// the last handle and the last transaction are dropped.
    ///
    /// # Errors
    ///
    /// 1529 when another process has it open; 2108 when it has another engine or format; 2000 when it is not a
    /// database; 2006 for a durability that the engine does not have; 1514 when it cannot be written; 1522 when its
    /// files are damaged, or hold less than was acknowledged; 1510 when the disk fails, 1225 when it is full. Each says
    /// what to do. A refused folder is unchanged: it can be opened once the cause is gone.
    fn open_at(path: &Path, options: DiskOptions) -> Result<OccDatabase<Self>> {
        let (cache_bytes, durability) = (options.cache_bytes, options.durability);
        let store = match options.is_copy {
            false => OnDisk::open(path, cache_bytes, durability)?,
            true => OnDisk::open_in(path, cache_bytes, durability, || Folder::open_copy(path, S::ENGINE))?,
        };
        options.occ.open(store)
    }
}

/// 1522: a store was opened at version `last` although `once` was synced. For stores that notice while they open.
pub fn older(folder: &Path, last: i64, once: i64) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!(
        "the data in {} came back older than what was acknowledged (version {last}, once {once}): \
         restore it from a backup, or remove the file `synced` there to go on with what is left",
        folder.display()
    ))
}
