//! The audit log and the access log: files with one JSON object in each line. `docs/configuration.md` has their
//! members.
//!
//! A line is written by one call, so several processes may append to one file. Long names chosen by clients are cut.
//! Secrets are never written: no value of a setting, no query of a URL, no body.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Method, StatusCode};
use kv_api::figures::Counter;
use model::JsonWriter;
use parking_lot::Mutex;
use tracing::Level;

use crate::http::wire::response::{Body, Broken, object_text};

/// Maximum length of a text in a line, in bytes.
const MOST_TEXT: usize = 1_024;

/// CouchDB's names for the levels of the log, and the number of lines of each in this process.
pub(crate) const LEVELS: [&str; 4] = ["error", "warning", "info", "debug"];
pub(crate) static LINES: [AtomicU64; LEVELS.len()] = [const { AtomicU64::new(0) }; LEVELS.len()];

/// Counts a line of the log.
pub(crate) fn count_line(level: &Level) {
    let place = match *level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        _ => 3,
    };
    LINES[place].fetch_add(1, Ordering::Relaxed);
}

/// A file of lines. Clones write to the same file.
#[derive(Clone)]
pub struct LogFile(Arc<Inner>);

struct Inner {
    path: PathBuf,
    out: Mutex<Out>,
}

struct Out {
    to: Box<dyn Write + Send>,
    /// Whether the last write failed, so that a partial line may be in the file.
    is_torn: bool,
}

impl fmt::Debug for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFile").field(&self.0.path).finish()
    }
}

impl LogFile {
    /// Opens the file again by its name, which may be another file now. If that fails, the old file is kept. Returns
    /// whether it was opened.
    pub(crate) fn reopen(&self) -> bool {
        match Self::writer(&self.0.path) {
            // It may be the same file, so a torn line is still torn.
            Ok(to) => self.0.out.lock().to = to,
            Err(error) => {
                tracing::error!(path = %self.0.path.display(), %error, "cannot reopen a log");
                return false;
            }
        }
        true
    }

    /// Opens a file for appending. A new file is readable by this user only. `-` is the standard output.
    ///
    /// # Errors
    /// That of the system.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        let to = Self::writer(path)?;
        Ok(LogFile(Arc::new(Inner { path: path.to_owned(), out: Mutex::new(Out { to, is_torn: false }) })))
    }

    fn writer(path: &Path) -> io::Result<Box<dyn Write + Send>> {
        Ok(if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let mut options = OpenOptions::new();
            options.append(true).create(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            Box::new(options.open(path)?)
        })
    }

    /// Appends a line. Returns whether it was written. The first failure after a success is logged.
    fn append(&self, line: &[u8]) -> bool {
        let mut out = self.0.out.lock();
        let begin: &[u8] = if out.is_torn { b"\n" } else { b"" };
        let whole = [begin, line, b"\n"].concat();
        let written = out.to.write_all(&whole).and_then(|()| out.to.flush());
        match &written {
            Err(error) if !out.is_torn => {
                tracing::error!(path = %self.0.path.display(), %error, "cannot write to a log")
            }
            _ => {}
        }
        out.is_torn = written.is_err();
        !out.is_torn
    }
}

/// The actor of an event: the client of a request, or the server itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Actor<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    /// The id of the request.
    pub(crate) request: Option<&'a str>,
}

/// Writes the time and the actor into a line.
fn begin(json: &mut JsonWriter<'_>, actor: &Actor<'_>) {
    json.name("time").display(humantime::format_rfc3339_millis(SystemTime::now()));
    let mut text = |name: &str, value: Option<&str>| {
        match value {
            Some(value) => json.name(name).str(cut(value)),
            None => json.name(name).null(),
        };
    };
    text("user", actor.user);
    text("address", actor.address.map(|address| address.to_string()).as_deref());
    text("request", actor.request);
}

pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}

/// Writes an event to the audit log, and to the log's target `audit`.
///
/// The event has already happened, so a failed write undoes nothing. The line is then in the log, as an error. `status`
/// is that of a refusal.
pub(crate) fn audit(
    file: Option<&LogFile>,
    actor: &Actor<'_>,
    event: &str,
    members: &[(&str, &str)],
    status: Option<StatusCode>,
) {
    let is_traced = tracing::enabled!(target: "audit", Level::INFO);
    if file.is_none() && !is_traced {
        return;
    }
    let line = object_text(|json| {
        begin(json, actor);
        json.name("event").str(event);
        for (name, value) in members {
            json.name(name).str(cut(value));
        }
        if let Some(status) = status {
            json.name("status").u64(status.as_u16().into());
        }
    });
    let shown = String::from_utf8_lossy(&line);
    if is_traced {
        tracing::info!(target: "audit", "{shown}");
    }
    if file.is_some_and(|file| !file.append(&line)) {
        tracing::error!(target: "audit", "not in the audit log: {shown}");
    }
}

/// A line of the access log.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) file: LogFile,
    pub(crate) user: Option<String>,
    pub(crate) address: IpAddr,
    pub(crate) id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) started: Instant,
}

/// A body of an answer. Its end writes the line of its request in the access log, whether all of it was sent or not.
#[derive(Debug)]
pub(crate) struct Counted {
    body: Body,
    /// Number of bytes sent to the connection.
    bytes: u64,
    /// The counter of all sent bytes.
    sent: Arc<Counter>,
    access: Option<Box<Access>>,
}

impl Counted {
    pub(crate) fn new(body: Body, sent: Arc<Counter>, access: Option<Box<Access>>) -> Counted {
        Counted { body, bytes: 0, sent, access }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sent.add(self.bytes);
        let Some(access) = self.access.take() else { return };
        let actor =
            Actor { user: access.user.as_deref(), address: Some(access.address), request: Some(access.id.as_str()) };
        access.file.append(&object_text(|json| {
            begin(json, &actor);
            json.name("method").str(access.method.as_str()).name("path").str(cut(&access.path));
            json.name("status").u64(access.status.into()).name("bytes").u64(self.bytes);
            json.name("ms").u64(u64::try_from(access.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        }));
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let counted = self.get_mut();
        let polled = Pin::new(&mut counted.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            counted.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full for a while, and then accepts only a part of a line.
    struct Full {
        file: Arc<Mutex<Vec<u8>>>,
        room: Arc<Mutex<usize>>,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut room = self.room.lock();
            let taken = bytes.len().min(*room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= taken;
            self.file.lock().extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_one_that_failed_begins_anew() {
        let (file, room) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::new(Mutex::new(20)));
        let to = Box::new(Full { file: file.clone(), room: room.clone() });
        let log = LogFile(Arc::new(Inner { path: "x".into(), out: Mutex::new(Out { to, is_torn: false }) }));
        assert!(log.append(b"{\"first\":1}"));
        assert!(!log.append(b"{\"second\":2}"));
        assert!(!log.append(b"{\"third\":3}"));
        *room.lock() = 1_000;
        assert!(log.append(b"{\"fourth\":4}"));
        assert_eq!(String::from_utf8_lossy(&file.lock()), "{\"first\":1}\n{\"second\n{\"fourth\":4}\n");
    }

    #[test]
    fn a_file_that_is_opened_again_keeps_its_torn_line_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        std::fs::write(&path, "{\"torn").unwrap();
        let log = LogFile::open(&path).unwrap();
        log.0.out.lock().is_torn = true;
        assert!(log.reopen());
        assert!(log.append(b"{}"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"torn\n{}\n");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(!log.reopen(), "a folder is not a file");
    }

    #[test]
    fn a_line_has_no_line_break_of_a_client_and_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let log = LogFile::open(&path).unwrap();
        let actor = Actor { user: Some("a\nb\u{1b}[31m"), ..Actor::default() };
        audit(Some(&log), &actor, "refused", &[("path", &"\u{e9}".repeat(10_000))], None);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() < 2 * MOST_TEXT && text.lines().count() == 1 && !text.contains('\u{1b}'), "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["user"], "a\nb\u{1b}[31m");
    }
}
