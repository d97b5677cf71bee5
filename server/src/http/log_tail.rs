//! The last lines of the log, for `GET /_couch_layer/log`.
//!
//! The lines are those that standard error gets, in this process, since its start. At most [`MOST_LINES`] of about
//! [`MOST_BYTES`] each are kept, which is less than a megabyte, outside of the budget.
//!
//! No line of this program has a secret. Lines of its dependencies are not kept. As a second guard, a user and a
//! password in an address are left out here, and an address in which a text was cut as a whole: it may end with the
//! beginning of a password.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::LazyLock;
use std::time::SystemTime;

use model::JsonWriter;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::http::journal::count_line;

/// Number of lines that are kept.
const MOST_LINES: usize = 512;

/// The targets of this program's crates, and that of audits.
const OWN: [&str; 21] = [
    "audit",
    "backup",
    "budget",
    "chunks",
    "couch_layer",
    "disk",
    "engine_fdb",
    "engine_lsm",
    "engine_mem",
    "engine_sled",
    "javascript",
    "jobs",
    "json",
    "kdf",
    "kv_api",
    "mango",
    "model",
    "occ",
    "peer",
    "replicate",
    "server",
];

/// Whether a line with this target is one of this program.
fn is_own(target: &str) -> bool {
    target.split("::").next().is_some_and(|name| OWN.contains(&name))
}

/// Maximum size of a line's text. A longer one is cut.
const MOST_BYTES: usize = 1_000;

static TAIL: LazyLock<Mutex<Tail>> = LazyLock::new(Mutex::default);

struct Line {
    time: SystemTime,
    level: &'static str,
    target: String,
    text: String,
}

/// The last lines.
#[derive(Default)]
struct Tail {
    lines: VecDeque<Line>,
    /// Number of lines that were ever added. The last one has this number.
    added: u64,
}

impl Tail {
    fn add(&mut self, line: Line) {
        if self.lines.len() == MOST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
        self.added += 1;
    }

    /// The lines after that with this number, with their numbers.
    fn after(&self, number: u64) -> impl Iterator<Item = (u64, &Line)> {
        let first = self.added - self.lines.len() as u64 + 1;
        (first..).zip(&self.lines).filter(move |(one, _)| *one > number)
    }
}

/// Keeps the last lines of the log, and counts all of them by their levels.
pub(crate) struct KeepLines;

impl<S: Subscriber> Layer<S> for KeepLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        count_line(metadata.level());
        if !is_own(metadata.target()) {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        // A line stays one line, whatever names are in it.
        let text = [message, fields].map(|part| without_logins(&part.text.replace(char::is_control, " "), part.is_cut));
        let text = text.concat();
        TAIL.lock().add(Line {
            time: SystemTime::now(),
            level: metadata.level().as_str(),
            target: metadata.target().chars().take(100).collect(),
            text,
        });
    }
}

/// The text of a line: its message, then its fields. Each stops growing at half of [`MOST_BYTES`].
#[derive(Default)]
struct Text {
    message: Bounded,
    fields: Bounded,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A text that has no more room refuses the rest, which is what is wanted.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[derive(Default)]
struct Bounded {
    text: String,
    is_cut: bool,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MOST_BYTES / 2 - self.text.len();
        if text.len() <= room && !self.is_cut {
            self.text.push_str(text);
            return Ok(());
        }
        if !self.is_cut {
            self.text.push_str(&text[..text.floor_char_boundary(room)]);
            self.is_cut = true;
        }
        Err(fmt::Error)
    }
}

/// A text without the users and passwords in its addresses: `https://me:secret@host` becomes `https://…@host`. If the
/// text was cut, an address that does not end in it is left out.
fn without_logins(text: &str, is_cut: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|letter: char| letter.is_whitespace() || "/\"'?#<>".contains(letter));
        if is_cut && end.is_none() {
            out.push('…');
            return out;
        }
        let authority = &after[..end.unwrap_or(after.len())];
        match authority.rfind('@') {
            Some(at) => {
                out.push('…');
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    out
}

/// Writes the lines after that with this number into an open object.
pub(crate) fn write(json: &mut JsonWriter<'_>, after: u64) {
    let tail = TAIL.lock();
    // A number from before a restart: everything is new.
    let after = if after > tail.added { 0 } else { after };
    json.name("last").u64(tail.added).name("lines").begin_array();
    for (number, line) in tail.after(after) {
        json.begin_object().name("number").u64(number);
        json.name("time").display(humantime::format_rfc3339_millis(line.time));
        json.name("level").str(line.level).name("target").str(&line.target).name("text").str(&line.text);
        json.end_object();
    }
    json.end_array();
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn line(text: &str) -> Line {
        Line { time: SystemTime::UNIX_EPOCH, level: "INFO", target: "server".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_last_lines_are_kept_with_their_numbers() {
        let mut tail = Tail::default();
        assert_eq!(tail.after(0).count(), 0);
        for number in 1..=MOST_LINES + 3 {
            tail.add(line(&number.to_string()));
        }
        let numbers: Vec<(u64, &str)> = tail.after(0).map(|(number, line)| (number, line.text.as_str())).collect();
        assert_eq!(numbers.len(), MOST_LINES);
        assert_eq!((numbers[0], numbers.last().unwrap().0), ((4, "4"), MOST_LINES as u64 + 3));
        assert_eq!(tail.after(MOST_LINES as u64 + 2).count(), 1);
        assert_eq!(tail.after(MOST_LINES as u64 + 3).count(), 0);
    }

    #[test]
    fn a_line_is_bounded_and_has_no_login() {
        let subscriber = tracing_subscriber::registry().with(KeepLines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("forged\n{} a line\u{1b}[31m", "ERROR");
            tracing::warn!(from = format!("{}https://me:geheim@x", "a".repeat(478)), "a cut one");
            tracing::warn!(target: "h2::client", "of another crate");
            tracing::warn!(from = "https://me:geheim@old.example/db", many = "é".repeat(10_000), "a long one");
        });
        let tail = TAIL.lock();
        let line = tail.lines.iter().find(|line| line.text.starts_with("a long one")).unwrap();
        assert!(line.text.contains("from=\"https://…@old.example/db\" many=\"éé"), "{}", line.text);
        assert!(line.text.len() <= MOST_BYTES && line.level == "WARN", "{}", line.text.len());
        let cut = tail.lines.iter().find(|line| line.text.starts_with("a cut one")).unwrap();
        assert!(cut.text.ends_with("aahttps://…"), "{}", cut.text);
        assert!(!tail.lines.iter().any(|line| line.text == "of another crate"));
        assert!(tail.lines.iter().any(|line| line.text == "forged ERROR a line [31m"));
    }

    #[test]
    fn logins_are_left_out_of_addresses_wherever_they_end() {
        for (text, shown) in [
            ("http://a:b@c/d and https://e@f", "http://…@c/d and https://…@f"),
            ("http://a:p@ss@c", "http://…@c"),
            ("http://c/d?mail=a@b", "http://c/d?mail=a@b"),
            ("http://c and a@b", "http://c and a@b"),
            ("://@", "://…@"),
            ("a@b://", "a@b://"),
        ] {
            assert_eq!(without_logins(text, false), shown, "{text}");
        }
        for (text, shown) in [
            ("of http://a:b@c/d and https://me:gehe", "of http://…@c/d and https://…"),
            ("of https://me", "of https://…"),
            ("of https://", "of https://…"),
            ("of https://c/d and much mo", "of https://c/d and much mo"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_logins(text, true), shown, "{text}");
        }
    }
}
