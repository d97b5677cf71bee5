//! The manifest: the list of the tables that hold the data. `lsm-tree` writes it. This module checks its checksum
//! before `lsm-tree` opens it.
//!
//! ```text
//!   current   ├─ version, 8 bytes ─┬─ XXH3-128 of the file, 16 ─┬─ 0 ─┤     little-endian
//!   vVERSION  the manifest
//! ```
//!
//! `lsm-tree` 3.1.10 does not check that checksum, deletes tables that the manifest does not list, and creates an
//! empty tree where `current` is missing. So a damaged or missing manifest would lose data.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use disk::folder::{io_error, sync_folder};
use kv_api::Result;

use crate::error::corrupt;

/// Checks the manifest in `data`: 1522 if it is damaged or missing. Returns its version.
pub fn check(data: &Path) -> Result<u64> {
    let (version, checksum) = current(data)?;
    let manifest = data.join(format!("v{version}"));
    if twox_hash::XxHash3_128::oneshot(&read(&manifest)?) != checksum {
        return Err(corrupt(&format!("{} or `current` beside it is damaged", manifest.display())));
    }
    Ok(version)
}

/// The version and checksum of the manifest that the next opening would read.
pub(crate) fn current(data: &Path) -> Result<(u64, u128)> {
    let path = data.join("current");
    let damaged = || corrupt(&format!("{} is damaged", path.display()));
    let text = read(&path)?;
    let (version, rest) = text.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (checksum, rest) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
    if rest != [0] {
        return Err(damaged());
    }
    Ok((u64::from_le_bytes(*version), u128::from_le_bytes(*checksum)))
}

/// Rewrites `current` with the same contents, and syncs it.
///
/// `lsm-tree` deletes unlisted tables when it opens. But after a kill or a failed sync, the renamed `current` may
/// exist in the page cache only: a loss of power would bring back the manifest before it, which needs its tables.
pub(crate) fn make_durable(data: &Path) -> Result<()> {
    write_current(data, &read(&data.join("current"))?)
}

/// Points `current` at the manifest of `version` again, after the next one was written in part. Removes the next
/// one's file.
pub(crate) fn bring_back(data: &Path, version: u64) -> Result<()> {
    let manifest = read(&data.join(format!("v{version}")))?;
    let checksum = twox_hash::XxHash3_128::oneshot(&manifest);
    write_current(data, &[version.to_le_bytes().as_slice(), &checksum.to_le_bytes(), &[0]].concat())?;
    remove(data, version + 1).map_err(|cause| io_error(format!("cannot remove a file in {}", data.display()), &cause))
}

fn write_current(data: &Path, text: &[u8]) -> Result<()> {
    let (current, new) = (data.join("current"), data.join("current.new"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, &current)?;
        sync_folder(data)
    };
    write().map_err(|cause| io_error(format!("cannot write {}", current.display()), &cause))
}

/// Removes temporary files of `lsm-tree`, left by a kill while it wrote `current`.
pub(crate) fn remove_temporary(data: &Path) -> Result<()> {
    let remove = || -> io::Result<()> {
        for entry in fs::read_dir(data)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(".tmp") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    };
    remove().map_err(|cause| io_error(format!("cannot remove temporary files in {}", data.display()), &cause))
}

/// Removes the manifest of a version, if it exists.
pub(crate) fn remove(data: &Path, version: u64) -> io::Result<()> {
    match fs::remove_file(data.join(format!("v{version}"))) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => corrupt(&format!("{} is gone", path.display())),
        _ => io_error(format!("cannot read {}", path.display()), &cause),
    })
}
