//! fjall's manifests, compared with their checksums before fjall opens them.
//!
//! A manifest is the list of a keyspace's tables; what it does not list is removed. fjall writes its checksum
//! into `current`, and does not compare it. It also makes anew what it does not find; so what must be there is
//! looked for.
//!
//! ```text
//!   keyspaces/1/current   ├─ version, 8 bytes ─┬─ XXH3-128 of the file, 16 ─┬─ 0 ─┤     little-endian
//!   keyspaces/1/vVERSION  the manifest
//! ```

use std::io::{self, ErrorKind};
use std::path::Path;

use disk::folder::io_error;
use kv_api::{Error, Result};

use crate::error::corrupt;

/// The names and options of keyspaces, and the rows.
const KEYSPACES: [&str; 2] = ["0", "1"];

/// Compares the manifests below `data`: 1522 for one that is damaged or gone.
pub(crate) fn check(data: &Path) -> Result<()> {
    read(&data.join("version"))?;
    for keyspace in KEYSPACES {
        let folder = data.join("keyspaces").join(keyspace);
        let current = folder.join("current");
        let damaged = || corrupt(&format!("{} is damaged", current.display()));
        let text = read(&current)?;
        let (version, rest) = text.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (checksum, rest) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
        if rest != [0] {
            return Err(damaged());
        }
        let manifest = folder.join(format!("v{}", u64::from_le_bytes(*version)));
        if twox_hash::XxHash3_128::oneshot(&read(&manifest)?) != u128::from_le_bytes(*checksum) {
            return Err(corrupt(&format!("{} or {} is damaged", manifest.display(), current.display())));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|cause| unreadable(path, &cause))
}

fn unreadable(path: &Path, cause: &io::Error) -> Error {
    match cause.kind() {
        ErrorKind::NotFound => corrupt(&format!("{} is gone", path.display())),
        _ => io_error(format!("cannot read {}", path.display()), cause),
    }
}
