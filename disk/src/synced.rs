//! The side file that records the last synced version.
//!
//! Some stores recover from damage by silently going back to an older state. This file is written after each sync, and
//! not synced itself, so that a commit does not pay twice. So its version is never above the last synced one, and after
//! a crash at most a little behind. A store whose newest version is below it has lost acknowledged commits, and is
//! refused.
//!
//! ```text
//!   0          8          16
//!   ├──────────┼──────────┤
//!   │ version  │ !version │     big-endian; ignored unless one is the complement of the other
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// See the [module](self).
#[derive(Debug)]
pub struct Synced(File);

impl Synced {
    /// Opens the file. Creates it if it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Synced(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?))
    }

    /// The version; 0 if none was written completely.
    pub fn read(&mut self) -> io::Result<i64> {
        self.0.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        (&self.0).take(16).read_to_end(&mut text)?;
        let Some((version, check)) = text.split_first_chunk::<8>() else { return Ok(0) };
        let version = i64::from_be_bytes(*version);
        let agrees = check == (!version).to_be_bytes();
        Ok(if agrees { version.max(0) } else { 0 })
    }

    /// Writes a version, without a sync.
    pub fn write(&mut self, version: i64) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(0))?;
        self.0.write_all(&[version.to_be_bytes(), (!version).to_be_bytes()].concat())
    }

    /// Makes the version durable, when a store closes.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_last_version_and_distrusts_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("synced");
        let mut file = Synced::open(&path).unwrap();
        assert_eq!(file.read().unwrap(), 0);
        file.write(7).unwrap();
        file.write(1 << 40).unwrap();
        assert_eq!(Synced::open(&path).unwrap().read().unwrap(), 1 << 40);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[3] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Synced::open(&path).unwrap().read().unwrap(), 0);
    }
}
