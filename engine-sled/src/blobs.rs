//! Syncs sled's blob files: sled stores large pages in files of their own, and never syncs them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use disk::folder::sync_folder;

/// The precision of folder times is the kernel's clock tick. A change within this time of a look at the folder may
/// have the same time as the look.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Blobs {
    folder: PathBuf,
    synced: HashSet<OsString>,
    /// The folder's time at the last look, unless the look came within [`TICK`] of it.
    seen: Option<SystemTime>,
}

impl Blobs {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Blobs { folder, synced: HashSet::new(), seen: None }
    }

    /// Syncs the files created since the last call. Without new files it only reads the folder's time.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let looked = SystemTime::now();
        let changed = fs::metadata(&self.folder)?.modified()?;
        if self.seen == Some(changed) {
            return Ok(());
        }
        let mut present = HashSet::new();
        let mut any_new = false;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if !self.synced.contains(&name) {
                match File::open(entry.path()).and_then(|file| file.sync_all()) {
                    Ok(()) => any_new = true,
                    // sled has removed it, so nothing refers to it.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
            }
            present.insert(name);
        }
        if any_new {
            sync_folder(&self.folder)?;
        }
        self.synced = present;
        let settled = looked.duration_since(changed).is_ok_and(|age| age > TICK);
        self.seen = settled.then_some(changed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_are_met_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::new(folder.path().to_owned());
        blobs.sync().unwrap();
        fs::write(folder.path().join("1"), "x").unwrap();
        fs::write(folder.path().join("2"), "x").unwrap();
        blobs.sync().unwrap();
        assert_eq!(blobs.synced.len(), 2);
        fs::remove_file(folder.path().join("1")).unwrap();
        blobs.sync().unwrap();
        assert_eq!(blobs.synced.len(), 1);
        std::thread::sleep(2 * TICK);
        blobs.sync().unwrap();
        assert!(blobs.seen.is_some());
        fs::write(folder.path().join("3"), "x").unwrap();
        blobs.sync().unwrap();
        assert_eq!(blobs.synced.len(), 2);
    }
}
