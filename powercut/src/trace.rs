//! A trace: the events on a disk, in order.

use std::sync::Arc;

/// Number of a file or folder in a trace.
pub type Ino = usize;

/// The recorded folder itself.
pub const ROOT: Ino = 0;

/// See the [module](self).
#[derive(Clone, Debug)]
pub enum Event {
    /// A file or folder is created.
    Create {
        /// Its folder.
        folder: Ino,
        /// Its name.
        name: String,
        /// Its number in the trace.
        ino: Ino,
        /// Whether it is a folder.
        is_folder: bool,
    },
    /// A file gets another name.
    Link {
        /// The folder of the name.
        folder: Ino,
        /// The new name.
        name: String,
        /// The file.
        ino: Ino,
    },
    /// A name is removed.
    Unlink {
        /// The folder of the name.
        folder: Ino,
        /// The removed name.
        name: String,
    },
    /// A file is renamed, in one step.
    Rename {
        /// Folder and name before.
        from: (Ino, String),
        /// Folder and name after.
        to: (Ino, String),
    },
    /// Bytes are written.
    Write {
        /// The file.
        ino: Ino,
        /// Offset of the first byte.
        at: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// A file's length is set.
    Length {
        /// The file.
        ino: Ino,
        /// The new length.
        length: u64,
    },
    /// A file's bytes and length, or a folder's names, become durable.
    Sync {
        /// The file or folder.
        ino: Ino,
    },
    /// A sync failed. Linux marks the unwritten data as clean: a later sync reports nothing about it.
    SyncFailed {
        /// The file or folder.
        ino: Ino,
    },
    /// A commit that leads to this state begins.
    Begun(usize),
    /// A client was shown this state, so it must not be lost. No later commit has begun.
    Known(usize),
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Writes bytes.
    Write,
    /// Sets a file's length.
    Length,
    /// Syncs a file or folder.
    Sync,
    /// Creates a file or folder.
    Create,
    /// Renames.
    Rename,
    /// Removes a name.
    Unlink,
    /// Opens an existing file. Changes nothing, so no trace contains it.
    Open,
    /// Reads bytes. No trace contains it.
    Read,
}

impl Event {
    /// Kind of the call; `None` for a note.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Event::Create { .. } | Event::Link { .. } => Some(Kind::Create),
            Event::Unlink { .. } => Some(Kind::Unlink),
            Event::Rename { .. } => Some(Kind::Rename),
            Event::Write { .. } => Some(Kind::Write),
            Event::Length { .. } => Some(Kind::Length),
            Event::Sync { .. } | Event::SyncFailed { .. } => Some(Kind::Sync),
            Event::Begun(_) | Event::Known(_) => None,
        }
    }
}

/// Events, with the path of each file at its creation.
#[derive(Clone, Debug)]
pub struct Trace {
    events: Vec<Event>,
    paths: Vec<String>,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { events: Vec::new(), paths: vec![String::new()] }
    }
}

impl Trace {
    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Path of a file at its creation, below the recorded folder.
    pub fn path(&self, ino: Ino) -> &str {
        self.paths.get(ino).map_or("", String::as_str)
    }

    /// Path of the file or folder of an event; empty for the recorded folder.
    pub fn path_of(&self, event: &Event) -> String {
        match event {
            Event::Create { folder, name, .. } | Event::Link { folder, name, .. } | Event::Unlink { folder, name } => {
                self.join(*folder, name)
            }
            Event::Rename { to: (folder, name), .. } => self.join(*folder, name),
            Event::Write { ino, .. } | Event::Length { ino, .. } | Event::Sync { ino } | Event::SyncFailed { ino } => {
                self.path(*ino).to_owned()
            }
            Event::Begun(_) | Event::Known(_) => String::new(),
        }
    }

    pub(crate) fn join(&self, folder: Ino, name: &str) -> String {
        match self.path(folder) {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        }
    }

    /// A number for a new file.
    pub(crate) fn next(&mut self, folder: Ino, name: &str) -> Ino {
        self.paths.push(self.join(folder, name));
        self.paths.len() - 1
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The first `length` events.
    #[must_use]
    pub fn prefix(&self, length: usize) -> Trace {
        Trace { events: self.events[..length].to_vec(), paths: self.paths.clone() }
    }

    /// This trace without the chosen events, as if they had not happened.
    #[must_use]
    pub fn without(&self, chosen: impl Fn(&Trace, usize) -> bool) -> Trace {
        let kept = (0..self.events.len()).filter(|at| !chosen(self, *at)).map(|at| self.events[at].clone());
        Trace { events: kept.collect(), paths: self.paths.clone() }
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call is made.
    Go,
    /// Only half of its bytes are written.
    Short,
    /// It fails with this error.
    Fail(i32),
}

/// Chooses calls by their kind and path.
pub type Chosen = dyn FnMut(Kind, &str) -> bool + Send;

/// Calls that must fail.
pub struct Failure {
    /// Which calls.
    pub of: Box<Chosen>,
    /// Number of such calls that pass first.
    pub after: usize,
    /// Number of calls that fail then.
    pub times: usize,
    /// How they fail.
    pub how: Verdict,
    /// Number of such calls so far.
    pub count: usize,
}

impl Failure {
    /// One call, after `after` others.
    pub fn once(after: usize, how: Verdict, of: impl FnMut(Kind, &str) -> bool + Send + 'static) -> Self {
        Failure { of: Box::new(of), after, times: 1, how, count: 0 }
    }

    pub(crate) fn verdict(&mut self, kind: Kind, path: &str) -> Verdict {
        if self.count == self.times || !(self.of)(kind, path) {
            return Verdict::Go;
        }
        if self.after > 0 {
            self.after -= 1;
            return Verdict::Go;
        }
        self.count += 1;
        self.how
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }
}
