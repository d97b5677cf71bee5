//! Records the file calls below one folder in order, and makes chosen calls fail.
//!
//! Files are identified by the real inode, so duplicated file descriptors and files without a name need no
//! bookkeeping. Each recorded call is made under one lock, so the trace has the order of the calls.
#![expect(unsafe_code, reason = "asks the C library about file descriptors")]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::disk::{Disk, Image};
use crate::trace::{Event, Failure, Ino, Kind, ROOT, Trace, Verdict};

/// Whether a recording exists. Read before the lock is taken.
static ACTIVE: AtomicBool = AtomicBool::new(false);

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Held by the one recording at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A path, and the open folder that a relative path starts from.
pub(crate) struct PathFrom {
    pub(crate) folder: c_int,
    pub(crate) path: String,
}

pub(crate) struct Recorder {
    root: PathBuf,
    trace: Trace,
    /// The disk as the page cache shows it.
    now: Disk,
    /// Trace numbers of real files, by device and inode.
    inodes: HashMap<(u64, u64), Ino>,
    failure: Option<Failure>,
}

thread_local! {
    /// Whether this thread has the lock: then its calls are the recorder's own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct Inside;

impl Inside {
    fn enter() -> Option<Self> {
        (!INSIDE.replace(true)).then(|| Inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Passes a call to the recorder, if there is a recording. `None`: the call is not recorded.
pub(crate) fn recorded<T>(call: impl FnOnce(&mut Recorder) -> Option<T>) -> Option<T> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    let _inside = Inside::enter()?;
    call(locked().as_mut()?)
}

fn locked() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock()
}

/// Sets `errno`. Returns the value by which a C function reports an error.
pub(crate) fn fail(error: i32) -> c_int {
    // SAFETY: the location belongs to this thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

fn stat(fd: c_int) -> Option<libc::stat64> {
    // SAFETY: zeros are valid in this struct, which the call fills in.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call.
    (unsafe { libc::fstat64(fd, &raw mut stat) } == 0).then_some(stat)
}

impl Recorder {
    fn inode(&self, fd: c_int) -> Option<Ino> {
        let stat = stat(fd)?;
        self.inodes.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    /// The folder and the name of a path below the root, whether the file exists or not.
    fn resolve(&self, place: &PathFrom) -> Option<(Ino, String)> {
        let path = Path::new(&place.path);
        let (mut at, below) = if path.is_absolute() {
            (ROOT, path.strip_prefix(&self.root).ok()?.to_owned())
        } else if place.folder == libc::AT_FDCWD {
            (ROOT, std::env::current_dir().ok()?.join(path).strip_prefix(&self.root).ok()?.to_owned())
        } else {
            (self.inode(place.folder)?, path.to_owned())
        };
        let mut names = Vec::new();
        for part in below.components() {
            match part {
                Component::Normal(name) => names.push(name.to_str()?.to_owned()),
                Component::CurDir => {}
                _ => return None,
            }
        }
        let last = names.pop()?;
        for name in names {
            at = self.now.look_up(at, &name)?;
        }
        Some((at, last))
    }

    fn add(&mut self, event: Event) {
        self.now.apply(&event);
        self.trace.push(event);
    }

    /// Whether a call must fail, and how.
    fn verdict(&mut self, kind: Kind, of: &str) -> Verdict {
        self.failure.as_mut().map_or(Verdict::Go, |failure| failure.verdict(kind, of))
    }

    fn verdict_of(&mut self, kind: Kind, ino: Ino) -> Verdict {
        let path = self.trace.path(ino).to_owned();
        self.verdict(kind, &path)
    }

    pub(crate) fn knows(&mut self, fd: c_int) -> Option<()> {
        self.inode(fd).map(drop)
    }

    pub(crate) fn open(&mut self, place: &PathFrom, flags: c_int, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let (folder, name) = self.resolve(place)?;
        let known = self.now.look_up(folder, &name);
        let creates = known.is_none() && flags & libc::O_CREAT != 0;
        let kind = if creates { Kind::Create } else { Kind::Open };
        if let Verdict::Fail(error) = self.verdict(kind, &self.trace.join(folder, &name)) {
            return Some(fail(error));
        }
        let fd = real();
        if fd < 0 {
            return Some(fd);
        }
        match known {
            None => {
                let stat = stat(fd)?;
                let ino = self.trace.next(folder, &name);
                self.inodes.insert((stat.st_dev, stat.st_ino), ino);
                self.add(Event::Create { folder, name, ino, is_folder: false });
            }
            Some(ino) if flags & libc::O_TRUNC != 0 && self.now.length(ino) > 0 => {
                self.add(Event::Length { ino, length: 0 });
            }
            Some(_) => {}
        }
        Some(fd)
    }

    pub(crate) fn read(&mut self, fd: c_int, real: impl FnOnce() -> isize) -> Option<isize> {
        let ino = self.inode(fd)?;
        Some(match self.verdict_of(Kind::Read, ino) {
            Verdict::Fail(error) => fail(error) as isize,
            _ => real(),
        })
    }

    pub(crate) fn write(
        &mut self,
        fd: c_int,
        bytes: &[u8],
        at: Option<i64>,
        real: impl FnOnce(usize) -> isize,
    ) -> Option<isize> {
        let ino = self.inode(fd)?;
        let wanted = match self.verdict_of(Kind::Write, ino) {
            Verdict::Go => bytes.len(),
            Verdict::Short => bytes.len().div_ceil(2),
            Verdict::Fail(error) => return Some(fail(error) as isize),
        };
        // SAFETY: both calls only query the file descriptor.
        let appends = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_APPEND != 0;
        let at = match at {
            Some(at) => at as u64,
            None if appends => self.now.length(ino),
            // SAFETY: as above.
            None => (unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) }) as u64,
        };
        let written = real(wanted);
        if let Some(bytes) = usize::try_from(written).ok().filter(|written| *written > 0).map(|n| &bytes[..n]) {
            self.add(Event::Write { ino, at, bytes: Arc::from(bytes) });
        }
        Some(written)
    }

    pub(crate) fn length(
        &mut self,
        fd: c_int,
        length: i64,
        grows: bool,
        real: impl FnOnce() -> c_int,
    ) -> Option<c_int> {
        let ino = self.inode(fd)?;
        if let Verdict::Fail(error) = self.verdict_of(Kind::Length, ino) {
            return Some(fail(error));
        }
        let outcome = real();
        if outcome == 0 && !(grows && self.now.length(ino) >= length as u64) {
            self.add(Event::Length { ino, length: length as u64 });
        }
        Some(outcome)
    }

    pub(crate) fn sync(&mut self, fd: c_int, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let ino = self.inode(fd)?;
        if let Verdict::Fail(error) = self.verdict_of(Kind::Sync, ino) {
            self.add(Event::SyncFailed { ino });
            return Some(fail(error));
        }
        let outcome = real();
        self.add(if outcome == 0 { Event::Sync { ino } } else { Event::SyncFailed { ino } });
        Some(outcome)
    }

    pub(crate) fn make_folder(&mut self, place: &PathFrom, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let (folder, name) = self.resolve(place)?;
        if let Verdict::Fail(error) = self.verdict(Kind::Create, &self.trace.join(folder, &name)) {
            return Some(fail(error));
        }
        let outcome = real();
        if outcome == 0 {
            let ino = self.trace.next(folder, &name);
            if let Ok(made) = std::fs::metadata(self.root.join(self.trace.path(ino))) {
                self.inodes.insert((made.dev(), made.ino()), ino);
            }
            self.add(Event::Create { folder, name, ino, is_folder: true });
        }
        Some(outcome)
    }

    pub(crate) fn unlink(&mut self, place: &PathFrom, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let (folder, name) = self.resolve(place)?;
        if let Verdict::Fail(error) = self.verdict(Kind::Unlink, &self.trace.join(folder, &name)) {
            return Some(fail(error));
        }
        let outcome = real();
        if outcome == 0 {
            self.add(Event::Unlink { folder, name });
        }
        Some(outcome)
    }

    pub(crate) fn rename(
        &mut self,
        from: &PathFrom,
        to: &PathFrom,
        flags: u32,
        real: impl FnOnce() -> c_int,
    ) -> Option<c_int> {
        let (from, to) = match (self.resolve(from), self.resolve(to)) {
            (Some(from), Some(to)) => (from, to),
            (None, None) => return None,
            // A rename across the root: no engine does that.
            _ => return Some(fail(libc::EXDEV)),
        };
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Some(fail(libc::EINVAL));
        }
        if let Verdict::Fail(error) = self.verdict(Kind::Rename, &self.trace.join(to.0, &to.1)) {
            return Some(fail(error));
        }
        let outcome = real();
        if outcome == 0 {
            self.add(Event::Rename { from, to });
        }
        Some(outcome)
    }

    pub(crate) fn link(&mut self, from: &PathFrom, to: &PathFrom, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let (folder, name) = self.resolve(to)?;
        let (at, known) = self.resolve(from)?;
        let ino = self.now.look_up(at, &known)?;
        let outcome = real();
        if outcome == 0 {
            self.add(Event::Link { folder, name, ino });
        }
        Some(outcome)
    }
}

/// A recording of everything that happens below a folder, until [`finish`](Recording::finish). Only one exists at a
/// time.
pub struct Recording {
    _turn: MutexGuard<'static, ()>,
}

impl Recording {
    /// Records below `root`, whose contents must be those at the end of `history`.
    ///
    /// # Panics
    ///
    /// When the folder cannot be read, or has other contents; when the C library's calls are not intercepted.
    pub fn begin(root: &Path, history: Trace) -> Self {
        let turn = TURN.lock();
        assert!(!crate::interpose::all().is_empty());
        let mut now = Disk::default();
        history.events().iter().for_each(|event| now.apply(event));
        let root = root.canonicalize().expect("the recorded folder is there");
        let mut inodes = HashMap::new();
        for (path, ino) in now.paths() {
            let file = std::fs::symlink_metadata(root.join(&path)).expect("the history's files are there");
            inodes.insert((file.dev(), file.ino()), ino);
        }
        *locked() = Some(Recorder { root, trace: history, now, inodes, failure: None });
        ACTIVE.store(true, Ordering::Release);
        let recording = Recording { _turn: turn };
        recording.check();
        recording
    }

    /// Adds a note to the trace.
    pub fn note(&self, event: Event) {
        if let Some(recorder) = locked().as_mut() {
            recorder.trace.push(event);
        }
    }

    /// Makes calls fail from now on; with `None`, no longer.
    pub fn fail(&self, failure: Option<Failure>) {
        if let Some(recorder) = locked().as_mut() {
            recorder.failure = failure;
        }
    }

    /// Number of calls that were made to fail.
    pub fn failed(&self) -> usize {
        locked().as_ref().and_then(|recorder| recorder.failure.as_ref()).map_or(0, Failure::count)
    }

    /// Compares the recording with the files on the disk.
    ///
    /// # Panics
    ///
    /// When they differ: a write was made by a call that is not intercepted.
    pub fn check(&self) {
        let _inside = Inside::enter();
        let recorder = locked();
        let Some(recorder) = recorder.as_ref() else { return };
        let (expected, found) = (recorder.now.cache(), Image::read(&recorder.root));
        let difference = expected.difference(&found);
        assert!(difference.is_none(), "a call was not recorded: {}", difference.unwrap_or_default());
    }

    /// Ends the recording and returns its trace.
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check) does.
    pub fn finish(self) -> Trace {
        self.check();
        locked().take().map(|recorder| recorder.trace).unwrap_or_default()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        ACTIVE.store(false, Ordering::Release);
        *locked() = None;
    }
}
