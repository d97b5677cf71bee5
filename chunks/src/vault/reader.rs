//! Reads and cuts local files on a separate thread, while the pieces are stored.

use std::fs::{File, Metadata};
use std::io::{self, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::cutting::{Kind, Pieces, kind_of};
use super::local::{LocalFile, ctime_of, mtime_of, place};
use crate::chunk::Chunk;
use crate::livesync::Form;

/// Maximum number of pieces in one message, and of their bytes. A single piece may be larger.
const PIECES: usize = 1_024;
const BYTES: usize = 1 << 20;
/// Maximum number of waiting messages. Together with [`BYTES`] it limits how far the thread gets ahead.
const MESSAGES: usize = 8;
/// Files up to this size are read at once, as a whole.
const WHOLE: u64 = 1 << 20;

/// A chunk with its id.
pub(crate) type Piece = (String, Chunk);

/// Output of the reader. Files come in the requested order, pieces before the end of their file.
#[derive(Debug)]
pub(crate) enum Event {
    /// Pieces of the current file, with their number of bytes in the file.
    Pieces(Vec<Piece>, u64),
    /// The file has been read.
    Done(usize, CutFile),
    /// The file could not be read, or changed meanwhile. Its pieces are useless.
    Failed(usize, String),
}

/// A file that has been cut.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CutFile {
    pub(crate) children: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: Option<u64>,
}

/// Reads these files; each `usize` is the caller's number of a file. Ends early when the receiver is dropped.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn read_files(folder: PathBuf, files: Vec<(usize, LocalFile)>, form: Form) -> io::Result<Receiver<Event>> {
    let (sender, receiver) = channel(MESSAGES);
    let work = move || {
        for (number, file) in files {
            let event = match read_file(&folder, &file, &form, &sender) {
                Ok(cut) => Event::Done(number, cut),
                Err(Failed::Io(error)) => Event::Failed(number, format!("it cannot be read: {error}")),
                Err(Failed::Changed) => Event::Failed(number, "it changed while it was read; push again".into()),
                Err(Failed::NobodyListens) => return,
            };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("vault-reader".into()).spawn(work)?;
    Ok(receiver)
}

enum Failed {
    Io(io::Error),
    Changed,
    NobodyListens,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Io(error)
    }
}

fn read_file(folder: &Path, file: &LocalFile, form: &Form, sender: &Sender<Event>) -> Result<CutFile, Failed> {
    let mut open = File::open(place(folder, &file.path))?;
    let before = open.metadata()?;
    if !before.is_file() {
        return Err(Failed::Changed);
    }
    let (kind, children, bytes) = if before.len() <= WHOLE {
        let mut content = Vec::with_capacity(usize::try_from(before.len()).unwrap_or(0) + 1);
        // Limited: the file may be growing.
        (&mut open).take(WHOLE + 1).read_to_end(&mut content)?;
        let kind = if std::str::from_utf8(&content).is_ok() { Kind::Text } else { Kind::Binary };
        cut(Cursor::new(content), kind, before.len(), form, sender)?
    } else {
        let kind = kind_of(&mut open)?;
        open.rewind()?;
        cut((&mut open).take(before.len() + 1), kind, before.len(), form, sender)?
    };
    if bytes != before.len() || !is_same(&before, &open.metadata()?) {
        return Err(Failed::Changed);
    }
    Ok(CutFile { children, kind, bytes, mtime: mtime_of(&before), ctime: ctime_of(&before) })
}

fn is_same(before: &Metadata, after: &Metadata) -> bool {
    before.len() == after.len() && before.modified().ok() == after.modified().ok()
}

fn cut(
    source: impl Read,
    kind: Kind,
    bytes: u64,
    form: &Form,
    sender: &Sender<Event>,
) -> Result<(Kind, Vec<String>, u64), Failed> {
    let mut pieces = Pieces::new(source, kind, bytes);
    let (mut children, mut total) = (Vec::new(), 0);
    let (mut some, mut some_bytes) = (Vec::new(), 0);
    while let Some(piece) = pieces.next()? {
        let data = match kind {
            // The file was text a moment ago.
            Kind::Text => std::str::from_utf8(piece).map_err(|_| Failed::Changed)?.to_owned(),
            Kind::Binary => STANDARD.encode(piece),
        };
        let (id, chunk) = form.chunk(data).map_err(io::Error::other)?;
        children.push(id.clone());
        total += piece.len() as u64;
        some_bytes += piece.len();
        some.push((id, chunk));
        if some.len() == PIECES || some_bytes >= BYTES {
            let full = Event::Pieces(std::mem::take(&mut some), std::mem::take(&mut some_bytes) as u64);
            sender.blocking_send(full).map_err(|_| Failed::NobodyListens)?;
        }
    }
    if !some.is_empty() {
        sender.blocking_send(Event::Pieces(some, some_bytes as u64)).map_err(|_| Failed::NobodyListens)?;
    }
    Ok((kind, children, total))
}
