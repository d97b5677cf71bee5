//! sled puts large pages into files of their own and never syncs them: this does.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use disk::folder::sync_folder;

/// Folder times are as fine as the kernel's clock tick: a change this near to a look at the folder may
/// bear the same time as that look.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Blobs {
    folder: PathBuf,
    synced: HashSet<OsString>,
    /// The folder's time when it was last looked at, unless that was too near to the look.
    seen: Option<SystemTime>,
}

impl Blobs {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Blobs { folder, synced: HashSet::new(), seen: None }
    }

    /// Syncs the files that came since the last call. Costs one look at the folder's time when none
    /// did.
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
                    // sled removed it meanwhile: nothing refers to it.
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
