//! A simulated disk: its state after a trace, and after a loss of power.
//!
//! ```text
//!   trace       write A   sync   write B   write C   │ power is lost
//!   durable     ├── A ───────┤
//!   the rest                     B: kept    C: torn    …or dropped, each by itself: in any order
//! ```
//!
//! Only what POSIX promises is durable: a file's bytes and length after a sync of the file, a name after a sync of its
//! folder. Everything else may survive or not, in any order. A rename is one step.
//!
//! Sources: Pillai et al., "All File Systems Are Not Created Equal" (ALICE, OSDI 2014); FoundationDB's
//! `fdbrpc/AsyncFileNonDurable`; LazyFS; Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::dice::Dice;
use crate::trace::{Event, Ino, ROOT, Trace};

/// Bytes that a disk writes at once.
const SECTOR: usize = 512;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Disk {
    files: Vec<File>,
    /// Durable names of files and folders.
    names: BTreeMap<(Ino, String), Ino>,
    /// Changes of names that are not durable yet.
    changes: Vec<Change>,
    /// All names, as the page cache shows them.
    cached: BTreeMap<(Ino, String), Ino>,
}

#[derive(Clone, Debug, Default)]
struct File {
    is_folder: bool,
    durable: Vec<u8>,
    /// Writes since the last sync.
    writes: Vec<(Data, Fate)>,
    length: u64,
}

#[derive(Clone, Debug)]
enum Data {
    Bytes(u64, Arc<[u8]>),
    Length(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not synced.
    Open,
    /// In a sync that failed: no later sync makes it durable.
    Forlorn,
    Durable,
}

#[derive(Clone, Debug)]
struct Change {
    /// Folders that must be synced to make it durable.
    folders: Vec<Ino>,
    names: Vec<((Ino, String), Option<Ino>)>,
    forlorn: bool,
}

/// Which changes survive among those that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None.
    Nothing,
    /// All, as after the kill of a process.
    Everything,
    /// Each with this probability in tenths. Changes of names survive in order only.
    Some(u64),
    /// Each with this probability in tenths, changes of names too.
    Any(u64),
}

impl Default for Disk {
    fn default() -> Self {
        let root = File { is_folder: true, ..File::default() };
        Disk { files: vec![root], names: BTreeMap::new(), changes: Vec::new(), cached: BTreeMap::new() }
    }
}

impl Disk {
    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { folder, name, ino, is_folder } => {
                self.file(*ino).is_folder = *is_folder;
                self.change(vec![*folder], vec![((*folder, name.clone()), Some(*ino))]);
            }
            Event::Link { folder, name, ino } => {
                self.change(vec![*folder], vec![((*folder, name.clone()), Some(*ino))]);
            }
            Event::Unlink { folder, name } => self.change(vec![*folder], vec![((*folder, name.clone()), None)]),
            Event::Rename { from, to } => {
                let ino = self.cached.get(from).copied();
                let folders = if from.0 == to.0 { vec![to.0] } else { vec![from.0, to.0] };
                self.change(folders, vec![(from.clone(), None), (to.clone(), ino)]);
            }
            Event::Write { ino, at, bytes } => {
                let file = self.file(*ino);
                file.length = file.length.max(at + bytes.len() as u64);
                file.writes.push((Data::Bytes(*at, bytes.clone()), Fate::Open));
            }
            Event::Length { ino, length } => {
                let file = self.file(*ino);
                file.length = *length;
                file.writes.push((Data::Length(*length), Fate::Open));
            }
            Event::Sync { ino } => self.sync(*ino),
            Event::SyncFailed { ino } => {
                for (_, fate) in self.file(*ino).writes.iter_mut().filter(|(_, fate)| *fate == Fate::Open) {
                    *fate = Fate::Forlorn;
                }
                for change in self.changes.iter_mut().filter(|change| change.folders.contains(ino)) {
                    change.forlorn = true;
                }
            }
            Event::Begun(_) | Event::Known(_) => {}
        }
    }

    fn file(&mut self, ino: Ino) -> &mut File {
        if self.files.len() <= ino {
            self.files.resize_with(ino + 1, File::default);
        }
        &mut self.files[ino]
    }

    fn change(&mut self, folders: Vec<Ino>, names: Vec<((Ino, String), Option<Ino>)>) {
        set(&mut self.cached, &names);
        self.changes.push(Change { folders, names, forlorn: false });
    }

    fn sync(&mut self, ino: Ino) {
        let file = self.file(ino);
        file.writes.iter_mut().filter(|(_, fate)| *fate == Fate::Open).for_each(|(_, fate)| *fate = Fate::Durable);
        let settled = file.writes.iter().take_while(|(_, fate)| *fate == Fate::Durable).count();
        for (data, _) in file.writes.drain(..settled) {
            write(&mut file.durable, &data);
        }
        for change in self.changes.iter_mut().filter(|change| !change.forlorn) {
            change.folders.retain(|folder| *folder != ino);
        }
        let mut rest: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            if !change.folders.is_empty() {
                rest.push(change);
                continue;
            }
            set(&mut self.names, &change.names);
            // Earlier changes of the same names no longer count.
            let set_again = |name: &(Ino, String)| change.names.iter().any(|(again, _)| again == name);
            rest.iter_mut().for_each(|older| older.names.retain(|(name, _)| !set_again(name)));
        }
        self.changes = rest;
    }

    /// The file or folder with a name, as the page cache shows it.
    pub(crate) fn look_up(&self, folder: Ino, name: &str) -> Option<Ino> {
        self.cached.get(&(folder, name.to_owned())).copied()
    }

    /// Length of a file, as the page cache shows it.
    pub(crate) fn length(&self, ino: Ino) -> u64 {
        self.files[ino].length
    }

    /// All files and folders with their paths, as the page cache shows them.
    pub(crate) fn paths(&self) -> Vec<(String, Ino)> {
        let mut paths = vec![(String::new(), ROOT)];
        walk(&self.cached, ROOT, "", &mut |path, ino| paths.push((path.to_owned(), ino)));
        paths
    }

    /// The files as the page cache shows them, which survive the kill of a process.
    pub fn cache(&self) -> Image {
        self.cut(&mut Dice::new(0), Keep::Everything)
    }

    /// A random outcome of a loss of power.
    pub fn cut(&self, dice: &mut Dice, keep: Keep) -> Image {
        let mut names = self.names.clone();
        match keep {
            Keep::Nothing => {}
            Keep::Everything => names.clone_from(&self.cached),
            Keep::Some(tenths) => {
                let kept = self.changes.iter().take_while(|_| dice.below(10) < tenths.max(7));
                kept.for_each(|change| set(&mut names, &change.names));
            }
            Keep::Any(tenths) => {
                let kept = self.changes.iter().filter(|_| dice.below(10) < tenths);
                kept.for_each(|change| set(&mut names, &change.names));
            }
        }
        let mut image = BTreeMap::new();
        walk(&names, ROOT, "", &mut |path, ino| {
            let file = &self.files[ino];
            let bytes = (!file.is_folder).then(|| file.cut(dice, keep));
            image.insert(path.to_owned(), bytes);
        });
        Image(image)
    }
}

fn set(names: &mut BTreeMap<(Ino, String), Ino>, changes: &[((Ino, String), Option<Ino>)]) {
    for (name, ino) in changes {
        match ino {
            Some(ino) => drop(names.insert(name.clone(), *ino)),
            None => drop(names.remove(name)),
        }
    }
}

fn walk(names: &BTreeMap<(Ino, String), Ino>, folder: Ino, path: &str, visit: &mut impl FnMut(&str, Ino)) {
    for ((_, name), ino) in names.range((folder, String::new())..(folder + 1, String::new())) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        visit(&path, *ino);
        walk(names, *ino, &path, visit);
    }
}

fn write(file: &mut Vec<u8>, data: &Data) {
    match data {
        Data::Bytes(at, bytes) => put(file, *at as usize, bytes),
        Data::Length(length) => file.resize(*length as usize, 0),
    }
}

/// Writes bytes. A gap behind the file's end is filled with zeros.
fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}

impl File {
    fn cut(&self, dice: &mut Dice, keep: Keep) -> Vec<u8> {
        let mut file = self.durable.clone();
        let tenths = match keep {
            Keep::Nothing => 0,
            Keep::Everything => 10,
            Keep::Some(tenths) | Keep::Any(tenths) => tenths,
        };
        for (data, fate) in &self.writes {
            let whole = *fate == Fate::Durable || keep == Keep::Everything;
            match data {
                data if whole => write(&mut file, data),
                _ if keep == Keep::Nothing => {}
                Data::Length(_) => {
                    if dice.below(10) < tenths {
                        write(&mut file, data);
                    }
                }
                Data::Bytes(at, bytes) => torn(&mut file, *at as usize, bytes, tenths, dice),
            }
        }
        file
    }
}

/// A write in progress at the loss of power: kept, dropped, cut off at a byte, or kept in some sectors.
fn torn(file: &mut Vec<u8>, at: usize, bytes: &[u8], tenths: u64, dice: &mut Dice) {
    let end = at + bytes.len();
    match dice.below(10) {
        0 => put(file, at, &bytes[..dice.below(bytes.len() as u64 + 1) as usize]),
        1 => {
            let mut from = at;
            while from < end {
                let to = ((from / SECTOR + 1) * SECTOR).min(end);
                if dice.below(2) == 0 {
                    put(file, from, &bytes[from - at..to - at]);
                }
                from = to;
            }
        }
        _ if dice.below(10) < tenths => put(file, at, bytes),
        // The length reached the disk, but the bytes did not.
        2..6 if file.len() < end => file.resize(end, 0),
        _ => {}
    }
}

/// The files and folders below a folder, by path. `None` for folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image(BTreeMap<String, Option<Vec<u8>>>);

impl Image {
    /// The contents of a folder.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn read(root: &Path) -> Image {
        let mut image = BTreeMap::new();
        let mut folders = vec![(root.to_owned(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder of ours") {
                let entry = entry.expect("a folder of ours");
                let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
                let is_folder = entry.file_type().expect("a file of ours").is_dir();
                let bytes = (!is_folder).then(|| std::fs::read(entry.path()).expect("a file of ours"));
                if is_folder {
                    folders.push((entry.path(), format!("{path}/")));
                }
                image.insert(path, bytes);
            }
        }
        Image(image)
    }

    /// Writes the files into an empty folder.
    ///
    /// # Panics
    ///
    /// When they cannot be written.
    pub fn write_to(&self, root: &Path) {
        for (path, bytes) in &self.0 {
            let path = root.join(path);
            match bytes {
                None => std::fs::create_dir(path).expect("a folder of ours"),
                Some(bytes) => {
                    // Logs end in many zeros. They are written as a length without bytes.
                    let filled = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                    std::fs::write(&path, &bytes[..filled]).expect("a folder of ours");
                    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file of ours");
                    file.set_len(bytes.len() as u64).expect("a file of ours");
                }
            }
        }
    }

    /// A trace that creates these files and syncs them.
    pub fn history(&self) -> Trace {
        let mut trace = Trace::default();
        let mut inodes = BTreeMap::from([(String::new(), ROOT)]);
        for (path, bytes) in &self.0 {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = inodes[folder];
            let ino = trace.next(folder, name);
            inodes.insert(path.clone(), ino);
            trace.push(Event::Create { folder, name: name.to_owned(), ino, is_folder: bytes.is_none() });
            if let Some(bytes) = bytes {
                trace.push(Event::Write { ino, at: 0, bytes: Arc::from(bytes.as_slice()) });
            }
        }
        inodes.values().for_each(|ino| trace.push(Event::Sync { ino: *ino }));
        trace
    }

    /// The first difference from another image, if there is one.
    pub fn difference(&self, other: &Image) -> Option<String> {
        for path in self.0.keys().chain(other.0.keys()) {
            let differ = match (self.0.get(path), other.0.get(path)) {
                (None, _) => "only on the disk".to_owned(),
                (_, None) => "not on the disk".to_owned(),
                (one, other) if one == other => continue,
                (Some(Some(one)), Some(Some(other))) => {
                    let at = one.iter().zip(other).position(|(one, other)| one != other);
                    format!("{} bytes, on the disk {}; first difference at {at:?}", one.len(), other.len())
                }
                _ => "a file and a folder".to_owned(),
            };
            return Some(format!("{path}: {differ}"));
        }
        None
    }
}
