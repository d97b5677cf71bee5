//! The manifest: the list of the tables that hold the data, in the format of `lsm-tree`.
//!
//! ```text
//!   current   ├─ version, 8 bytes ─┬─ XXH3-128 of the file, 16 ─┬─ 0 ─┤     little-endian
//!   vVERSION  the manifest
//! ```
//!
//! A damaged or missing manifest is refused: an empty one in its place would lose the data. Files that look like ours
//! but are not listed were left by a kill, and are removed when the folder is opened. All other files belong to others,
//! such as file managers and network file systems, and are left alone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Cursor, ErrorKind, Write};
use std::path::{Path, PathBuf};

use disk::folder::{io_error, sync_folder};
use kv_api::{Error, Result};
use lsm_tree::{FormatVersion, TreeType};

use crate::error::{corrupt, kv_error};
use crate::tables::{LEVELS, Tables};

/// The folder of the tables, in that of the manifest. A table's name is its number.
pub(crate) const TABLES: &str = "tables";

/// The number of the checksum XXH3.
const XXH3: u8 = 0;

/// The section of what tables hide: a number of 8 bytes for each, in their order.
const HIDES: &str = "hidden_bytes";

/// A table that a manifest lists.
pub(crate) struct Listed {
    pub(crate) number: u64,
    pub(crate) checksum: u128,
    /// Number of its flush.
    pub(crate) flush: u64,
    /// See [`Member::hides`](crate::tables::Member::hides).
    pub(crate) hides: u64,
}

/// The tables that a manifest lists: the runs of each level.
pub(crate) type List = [Vec<Vec<Listed>>; LEVELS];

/// Reads the manifest in `data`, and its version. 1522 if it is damaged or missing.
pub(crate) fn list(data: &Path) -> Result<(u64, List)> {
    let (version, checksum) = current(data)?;
    let manifest = data.join(format!("v{version}"));
    let text = read(&manifest)?;
    let list = if twox_hash::XxHash3_128::oneshot(&text) == checksum { decode(&text) } else { None };
    let damaged = || corrupt(&format!("{} or `current` beside it is damaged", manifest.display()));
    list.map(|list| (version, list)).ok_or_else(damaged)
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
/// An opening deletes tables that are not listed. But after a kill or a failed sync, the renamed `current` may exist
/// only in the page cache: a loss of power would bring back the previous manifest, which needs its tables.
pub(crate) fn make_durable(data: &Path) -> Result<()> {
    write_new_current(data, &read(&data.join("current"))?)?;
    rename_new(data)?;
    sync_current(data)
}

/// Writes the file that [`rename_new`] makes `current`.
fn write_new_current(data: &Path, text: &[u8]) -> Result<()> {
    let new = data.join("current.new");
    let written = remove_if_there(&new).and_then(|()| write_new(&new, text));
    written.map_err(|cause| io_error(format!("cannot write {}", new.display()), &cause))
}

/// Makes `current.new` the `current` one. It is durable after [`sync_current`].
fn rename_new(data: &Path) -> Result<()> {
    let current = data.join("current");
    let renamed = fs::rename(data.join("current.new"), &current);
    renamed.map_err(|cause| io_error(format!("cannot write {}", current.display()), &cause))
}

fn sync_current(data: &Path) -> Result<()> {
    sync_folder(data).map_err(|cause| io_error(format!("cannot sync {}", data.join("current").display()), &cause))
}

/// Writes a file that does not exist, and syncs it.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes the files in `data` that a kill left: tables that are not listed, older manifests, temporary files.
pub(crate) fn remove_leftovers(data: &Path, version: u64, listed: &HashSet<u64>) {
    let is_temporary = |name: &str| {
        // Temporary files of `lsm-tree`, which wrote the manifests of earlier builds.
        let rest = name.strip_prefix(".tmp").unwrap_or_default();
        name == "current.new" || rest.len() == 6 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    sweep(data, |name| match name.strip_prefix('v').and_then(number) {
        Some(other) => Some(other == version),
        None if is_temporary(name) => Some(false),
        None => ["current", TABLES].contains(&name).then_some(true),
    });
    sweep(&data.join(TABLES), |name| number(name).map(|number| listed.contains(&number)));
}

/// Removes the files of a folder for which `is_kept` is false. Folders and unknown files stay. A file that cannot be
/// removed stays until the next opening.
fn sweep(folder: &Path, is_kept: impl Fn(&str) -> Option<bool>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        match entry.file_name().to_str().and_then(&is_kept) {
            Some(true) => {}
            Some(false) if is_file => drop(fs::remove_file(entry.path())),
            _ => tracing::warn!("{} is not the database's, and is left alone", entry.path().display()),
        }
    }
}

/// The number in a name that this engine gives.
fn number(name: &str) -> Option<u64> {
    name.parse().ok().filter(|number: &u64| *number < u64::MAX / 2 && number.to_string() == name)
}

/// The greatest number of a name in a folder: 0 if there is none.
pub(crate) fn greatest(folder: &Path, prefix: &str) -> u64 {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| number(name.to_str()?.strip_prefix(prefix)?)).max().unwrap_or(0)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
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

/// Writes manifests, one after the other. Each has a number of its own, also after a failure: a file whose sync failed
/// is never overwritten, since a later sync of it would prove nothing.
#[derive(Debug)]
pub(crate) struct Manifest {
    data: PathBuf,
    /// The manifest that `current` certainly names, or named before an unsure one.
    durable: u64,
    next: u64,
    /// Whether the disk may have a newer manifest than the last one written without an error.
    is_unsure: bool,
    #[cfg(test)]
    pub(crate) fails_once: bool,
}

/// Why a manifest was not written.
pub(crate) struct Unwritten {
    pub(crate) cause: Error,
    /// Whether it may still be on the disk and list its tables.
    pub(crate) may_be_there: bool,
}

impl Manifest {
    /// Begins with manifest 0 in an empty folder.
    pub(crate) fn new(data: PathBuf) -> Self {
        Manifest {
            data,
            durable: 0,
            next: 0,
            is_unsure: false,
            #[cfg(test)]
            fails_once: false,
        }
    }

    /// After the manifest of `version`. `is_unsure`: its name may not be durable, and older ones are still there.
    pub(crate) fn after(data: PathBuf, version: u64, is_unsure: bool) -> Self {
        let next = version.max(greatest(&data, "v")) + 1;
        Manifest { durable: version, next, is_unsure, ..Manifest::new(data) }
    }

    /// Whether the disk may have a manifest that was not written without an error.
    pub(crate) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Makes these tables durable as the current ones.
    pub(crate) fn write(&mut self, tables: &Tables) -> Result<(), Unwritten> {
        let number = self.next;
        self.next += 1;
        let path = self.path(number);
        if let Err(cause) = self.prepare(number, &path, tables) {
            let _ = fs::remove_file(path);
            return Err(Unwritten { cause, may_be_there: false });
        }
        // A network file system may rename and still report an error.
        self.is_unsure = true;
        rename_new(&self.data).map_err(|cause| Unwritten { cause, may_be_there: true })?;
        #[cfg(test)]
        if std::mem::take(&mut self.fails_once) {
            return Err(Unwritten { cause: corrupt("a test"), may_be_there: true });
        }
        sync_current(&self.data).map_err(|cause| Unwritten { cause, may_be_there: true })?;
        self.is_unsure = false;
        // The next opening removes files that cannot be removed now.
        (self.durable..number).for_each(|older| drop(fs::remove_file(self.path(older))));
        self.durable = number;
        Ok(())
    }

    /// Writes the manifest of a number, and a new `current` beside the one in use.
    fn prepare(&self, number: u64, path: &Path, tables: &Tables) -> Result<()> {
        let text = encode(tables).map_err(|failure| kv_error(&failure, "cannot write a manifest"))?;
        let written = write_new(path, &text).and_then(|()| sync_folder(&self.data));
        written.map_err(|cause| io_error(format!("cannot write {}", path.display()), &cause))?;
        let checksum = twox_hash::XxHash3_128::oneshot(&text);
        write_new_current(&self.data, &[number.to_le_bytes().as_slice(), &checksum.to_le_bytes(), &[0]].concat())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.data.join(format!("v{number}"))
    }
}

/// The manifest's text, as `lsm-tree` 3.1 reads and writes it.
fn encode(tables: &Tables) -> lsm_tree::Result<Vec<u8>> {
    let mut text = sfa::Writer::from_writer(Cursor::new(Vec::new()));
    text.start("format_version")?;
    text.write_all(&[FormatVersion::V3.into()])?;
    text.start("crate_version")?;
    text.write_all(b"3.1.10")?;
    text.start("tree_type")?;
    text.write_all(&[TreeType::Standard.into()])?;
    text.start("level_count")?;
    text.write_all(&[LEVELS as u8])?;
    text.start("filter_hash_type")?;
    text.write_all(&[XXH3])?;
    text.start("tables")?;
    text.write_all(&[LEVELS as u8])?;
    for runs in tables.levels() {
        text.write_all(&[runs.len() as u8])?;
        for run in runs {
            text.write_all(&(run.len() as u32).to_le_bytes())?;
            for member in run {
                text.write_all(&member.number().to_le_bytes())?;
                text.write_all(&[XXH3])?;
                text.write_all(&member.table.checksum().into_u128().to_le_bytes())?;
                text.write_all(&member.table.global_seqno().to_le_bytes())?;
            }
        }
    }
    // A section that `lsm-tree` passes over.
    text.start(HIDES)?;
    for member in tables.iter() {
        text.write_all(&member.hides.to_le_bytes())?;
    }
    // No values are in files of their own.
    text.start("blob_files")?;
    text.write_all(&0u32.to_le_bytes())?;
    text.start("blob_gc_stats")?;
    text.write_all(&0u32.to_le_bytes())?;
    Ok(text.into_inner().map_err(|failure| io::Error::other(failure.to_string()))?.into_inner())
}

/// The list in a manifest. `None` if it is damaged, or has parts that this engine does not write.
fn decode(text: &[u8]) -> Option<List> {
    let container = sfa::Reader::from_reader(&mut Cursor::new(text)).ok()?;
    let section = |name: &[u8]| {
        let section = container.toc().section(name)?;
        let begin = usize::try_from(section.pos()).ok()?;
        text.get(begin..begin.checked_add(usize::try_from(section.len()).ok()?)?)
    };
    let is_ours = section(b"format_version")? == [u8::from(FormatVersion::V3)]
        && section(b"tree_type")? == [u8::from(TreeType::Standard)]
        && section(b"blob_files")? == [0; 4];
    let tables = &mut section(b"tables").filter(|_| is_ours)?;
    // Missing where `lsm-tree`, or an earlier build, wrote the manifest.
    let hides = &mut section(HIDES.as_bytes()).unwrap_or_default();
    let mut list = List::default();
    let levels = u8::from_le_bytes(take(tables)?);
    for level in list.get_mut(..usize::from(levels))? {
        for _ in 0..u8::from_le_bytes(take(tables)?) {
            let count = u32::from_le_bytes(take(tables)?);
            level.push((0..count).map(|_| listed(tables, hides)).collect::<Option<_>>()?);
        }
    }
    tables.is_empty().then_some(list)
}

fn listed(text: &mut &[u8], hides: &mut &[u8]) -> Option<Listed> {
    let number = u64::from_le_bytes(take(text)?);
    let [kind] = take(text)?;
    let checksum = u128::from_le_bytes(take(text)?);
    let flush = u64::from_le_bytes(take(text)?);
    let hides = if hides.is_empty() { 0 } else { u64::from_le_bytes(take(hides)?) };
    (kind == XXH3).then_some(Listed { number, checksum, flush, hides })
}

/// Takes the next bytes.
fn take<const N: usize>(text: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = text.split_first_chunk()?;
    *text = rest;
    Some(*taken)
}
