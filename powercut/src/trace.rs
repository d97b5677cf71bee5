//! What happened on a disk, event by event.

use std::sync::Arc;

/// A file or folder of a trace.
pub type Ino = usize;

/// The recorded folder itself.
pub const ROOT: Ino = 0;

/// See the [module](self).
#[derive(Clone, Debug)]
pub enum Event {
    /// A file or folder is made.
    Create {
        /// Where.
        folder: Ino,
        /// Its name there.
        name: String,
        /// What it is called in the trace from now on.
        ino: Ino,
        /// No file.
        is_folder: bool,
    },
    /// A file gets another name.
    Link {
        /// Where.
        folder: Ino,
        /// The name.
        name: String,
        /// The file.
        ino: Ino,
    },
    /// A name is taken away.
    Unlink {
        /// Where.
        folder: Ino,
        /// The name.
        name: String,
    },
    /// A name becomes another one, in one step.
    Rename {
        /// Folder and name.
        from: (Ino, String),
        /// Folder and name.
        to: (Ino, String),
    },
    /// Bytes are written.
    Write {
        /// The file.
        ino: Ino,
        /// From where on.
        at: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// A file gets a length.
    Length {
        /// The file.
        ino: Ino,
        /// Its length.
        length: u64,
    },
    /// A file's bytes and length, or a folder's names, are made durable.
    Sync {
        /// The file or folder.
        ino: Ino,
    },
    /// A sync failed. Linux takes what it was to write for clean from then on: a later sync says nothing about it.
    SyncFailed {
        /// The file or folder.
        ino: Ino,
    },
    /// A commit begins that leads to this state.
    Begun(usize),
    /// Somebody was shown this state, so it must not be lost; and no later one has begun.
    Known(usize),
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It writes bytes.
    Write,
    /// It changes a file's length.
    Length,
    /// It syncs.
    Sync,
    /// It makes a file or a folder.
    Create,
    /// It renames.
    Rename,
    /// It removes a name.
    Unlink,
    /// It opens what is there. It changes nothing, so no trace has it.
    Open,
    /// It reads bytes. No trace has it either.
    Read,
}

impl Event {
    /// What the call did; `None` for what is no call.
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

/// Events, and the path that each file had when it was made.
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

    /// The path of a file, below the recorded folder, when it was made.
    pub fn path(&self, ino: Ino) -> &str {
        self.paths.get(ino).map_or("", String::as_str)
    }

    /// The path of the file or folder that an event is about; empty for the recorded folder.
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

    /// The first so many events.
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

/// Whether a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Go,
    /// Only half of what was to be written is.
    Short,
    /// It fails with this error.
    Fail(i32),
}

/// Chooses calls, by what they do and the path.
pub type Chosen = dyn FnMut(Kind, &str) -> bool + Send;

/// Calls that are to fail.
pub struct Failure {
    /// Which.
    pub of: Box<Chosen>,
    /// How many of those are let through first.
    pub after: usize,
    /// How many fail then.
    pub times: usize,
    /// How.
    pub how: Verdict,
    /// How many have.
    pub count: usize,
}

impl Failure {
    /// The one call after so many.
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
