//! The place of a repository: files that are created whole, read, listed and deleted, but never changed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use model::Environment;
use tokio::task::JoinError;

/// Incomplete files of an ended process are removed from a folder after this time.
const ABANDONED_AFTER: Duration = Duration::from_secs(86_400);

/// The first file of a repository. A folder without it lacks all others too, for example while it is not mounted.
pub(crate) const REPOSITORY: &str = "repository.json";

/// The files that are not complete yet.
const DRAFTS: &str = "tmp";

/// A file of a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stored {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

/// A place for a repository: a folder, or an object store. Paths have `/` between their parts.
#[async_trait]
pub trait Place: fmt::Debug + Send + Sync + 'static {
    /// Creates a file, which must not exist ([`io::ErrorKind::AlreadyExists`]). When this returns, the file is durable.
    /// After any failure, the file is there as a whole or not at all.
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()>;

    /// A whole file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it does not exist.
    async fn read(&self, path: &str) -> io::Result<Bytes>;

    /// A part of a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends earlier.
    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes>;

    /// The complete files below a path, sorted. Empty if the path does not exist.
    async fn list(&self, path: &str) -> io::Result<Vec<Stored>>;

    /// Deletes a file. A missing file is not an error.
    async fn delete(&self, path: &str) -> io::Result<()>;

    /// Removes incomplete files of ended processes.
    async fn tidy(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A folder of a file system. A file is written under another name, synced, and linked under its own name, so it never
/// replaces another file. On a file system without links it is written under its own name, and a kill may leave a part
/// of it, which reads as damaged.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder. It is created with its first file, a repository's `repository.json`. While that is missing, nothing
    /// else can be created, and a read of a missing file fails with an error that is not [`io::ErrorKind::NotFound`].
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Folder { root: root.into() }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Folder, &str) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (folder, path) = (self.clone(), path.to_owned());
        blocking(move || work(&folder, &path)).await
    }

    /// Creates the folder of a path, and makes its name durable.
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.create_folder(parent)?;
        }
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        match builder.create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        folder.parent().map_or(Ok(()), sync_folder)
    }

    fn list_into(&self, folder: &Path, path: &str, found: &mut Vec<Stored>) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let path = format!("{path}/{name}");
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => self.list_into(&entry.path(), &path, found)?,
                Ok(meta) => found.push(Stored { path, bytes: meta.len() }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The operations, which block.
impl Folder {
    /// Fails if the folder has no repository any more. Then a missing file does not count as removed, and nobody would
    /// look for a new one.
    fn check_mounted(&self, path: &str) -> io::Result<()> {
        match path == REPOSITORY || self.root.join(REPOSITORY).is_file() {
            true => Ok(()),
            false => Err(io::Error::other("the folder has no repository.json any more; is it mounted?")),
        }
    }

    /// An error of a read: a missing file counts as missing only in a repository that is there.
    fn missing(&self, path: &str, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::NotFound => self.check_mounted(path).err().unwrap_or(error),
            _ => error,
        }
    }

    fn create_file(&self, path: &str, content: &Bytes) -> io::Result<()> {
        self.check_mounted(path)?;
        let place = self.root.join(path);
        let folder = place.parent().unwrap_or(&self.root);
        self.create_folder(folder)?;
        let drafts = self.root.join(DRAFTS);
        self.create_folder(&drafts)?;
        let mut random = [0; 16];
        model::SystemEnvironment.random(&mut random);
        let draft = drafts.join(model::hex(&random));
        let write = || {
            write_new(&draft, content)?;
            match fs::hard_link(&draft, &place) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                // The file system has no links.
                Err(_) => write_new(&place, content).inspect_err(|error| {
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        let _ = fs::remove_file(&place);
                    }
                })?,
                Ok(()) => {}
            }
            sync_folder(folder)
        };
        let written = write();
        let _ = fs::remove_file(&draft);
        written
    }

    fn read_file(&self, path: &str) -> io::Result<Bytes> {
        fs::read(self.root.join(path)).map(Bytes::from).map_err(|error| self.missing(path, error))
    }

    fn read_part_of(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        let mut file = File::open(self.root.join(path)).map_err(|error| self.missing(path, error))?;
        let length = file.metadata()?.len();
        if length.checked_sub(at).is_none_or(|rest| rest < bytes as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.seek(SeekFrom::Start(at))?;
        let mut part = vec![0; bytes];
        file.read_exact(&mut part)?;
        Ok(part.into())
    }

    fn list_files(&self, path: &str) -> io::Result<Vec<Stored>> {
        let mut found = Vec::new();
        self.list_into(&self.root.join(path), path, &mut found)?;
        found.sort();
        Ok(found)
    }

    fn delete_file(&self, path: &str) -> io::Result<()> {
        let place = self.root.join(path);
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let Some(folder) = place.parent() else { return Ok(()) };
        match sync_folder(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_drafts(&self) -> io::Result<()> {
        let entries = match fs::read_dir(self.root.join(DRAFTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let age = entry.metadata().and_then(|meta| meta.modified()).map(|modified| modified.elapsed());
            if let Ok(Ok(age)) = age
                && age > ABANDONED_AFTER
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Place for Folder {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        self.blocking(path, move |folder, path| folder.create_file(path, &content)).await
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.blocking(path, Folder::read_file).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.blocking(path, move |folder, path| folder.read_part_of(path, at, bytes)).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.blocking(path, Folder::list_files).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.blocking(path, Folder::delete_file).await
    }

    async fn tidy(&self) -> io::Result<()> {
        self.blocking("", |folder, _| folder.remove_drafts()).await
    }
}

/// Does work that blocks, in a thread of the runtime for such work: the runtime has more to do meanwhile.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return work() };
    // Unconstrained: who waits may be another executor, which never yields to the runtime.
    ended(tokio::task::unconstrained(runtime.spawn_blocking(work)).await).await
}

/// Work of a database: with several `threads` it begins at once in a thread for work that blocks; with one, or without
/// a runtime, it is done when it is awaited.
pub(crate) fn in_parallel<T: Send + 'static>(
    threads: usize,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if threads > 1 => {
            let begun = runtime.clone().spawn_blocking(move || runtime.block_on(work));
            Either::Right(begun.then(ended))
        }
        _ => Either::Left(work),
    }
}

/// The outcome of work in a thread of the runtime.
async fn ended<T>(outcome: Result<T, JoinError>) -> T {
    match outcome.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and nobody waits any more.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Writes and syncs a file that does not exist. Only its owner may read it.
fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    disk::folder::sync_folder(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}
