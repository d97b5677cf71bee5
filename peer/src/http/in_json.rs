//! Reads the bytes of one attachment from the JSON of `_bulk_get`, for ids and names that a URL cannot have. The answer
//! is searched while it is received, so no document is kept in memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use model::limits::MAX_ATTACHMENT_NAME_BYTES;
use model::{JsonText, JsonWriter, RevId};
use reqwest::header::{ACCEPT, HeaderValue};

use super::answer::is_success;
use super::ceilings::{SMALL, WITH_ATTACHMENTS};
use super::exchange::Incoming;
use super::{Http, Method};
use crate::ByteStream;
use crate::error::{Error, ErrorKind, Result};
use crate::types::Attachment;

/// Length of a group of letters in base64.
const GROUP: usize = 4;
/// Maximum length of a member's name in JSON, where each character is escaped.
const MOST_NAME: usize = 6 * MAX_ATTACHMENT_NAME_BYTES;

impl Http {
    /// Requests an attachment whose id or name a URL cannot have. It is received uncompressed.
    pub(super) async fn open_in_json(&self, id: &str, rev: &RevId, attachment: &Attachment) -> Result<ByteStream> {
        let mut body = Vec::new();
        let mut json = JsonWriter::new(&mut body);
        json.begin_object().name("docs").begin_array().begin_object();
        json.name("id").str(id).name("rev").display(rev).end_object().end_array().end_object();
        let query = [("attachments", "true".to_owned())];
        let mut request = self.request(Method::POST, &["_bulk_get"], &query, Some(body))?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        let incoming = self.line.send(&self.address, request).await?;
        let name = &attachment.name;
        let missing = Error::refused(format!("the server did not send the attachment {name:?} of \"{id}\""));
        if !is_success(incoming.status()) {
            return incoming.whole(SMALL).await?.into_json().and(Err(missing));
        }
        let wrong = Error::refused(format!("the attachment {name:?} of \"{id}\" has another length than it says"));
        let search = Search::new(name);
        let reading = Reading { incoming, search, letters: Vec::new(), left: attachment.length, missing, wrong };
        Ok(stream::try_unfold(Some(reading), next).boxed())
    }
}

/// An answer whose attachment is read.
struct Reading {
    incoming: Incoming,
    search: Search,
    /// Characters of an incomplete group.
    letters: Vec<u8>,
    /// Number of bytes of the attachment that were not received yet.
    left: u64,
    missing: Error,
    wrong: Error,
}

/// The next bytes of the attachment.
async fn next(reading: Option<Reading>) -> Result<Option<(Bytes, Option<Reading>)>> {
    let Some(mut reading) = reading else { return Ok(None) };
    loop {
        let Some(piece) = reading.incoming.piece_up_to(WITH_ATTACHMENTS).await? else {
            return Err(match reading.search.state {
                State::Wanted => Error::new(ErrorKind::Unavailable, "an attachment came only in part"),
                _ => reading.missing,
            });
        };
        reading.search.read(&piece, &mut reading.letters)?;
        let is_last = reading.search.state == State::Found;
        let fits = if is_last { reading.letters.len() } else { reading.letters.len() / GROUP * GROUP };
        let letters: Vec<u8> = reading.letters.drain(..fits).collect();
        let bytes = STANDARD.decode(letters).map_err(|_| Error::nonsense("an attachment is not base64"))?;
        let left = reading.left.checked_sub(bytes.len() as u64).filter(|left| !is_last || *left == 0);
        let Some(left) = left else { return Err(reading.wrong) };
        reading.left = left;
        if is_last || !bytes.is_empty() {
            return Ok(Some((bytes.into(), (!is_last).then_some(reading))));
        }
    }
}

/// A step into JSON.
enum Step {
    Member(String),
    AnyElement,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Between,
    /// In the name of a member, which is kept with its quotes.
    Name(Vec<u8>),
    /// In another string.
    Text,
    /// In the wanted string.
    Wanted,
    /// After the wanted string.
    Found,
}

/// Finds a string in JSON that comes in pieces.
///
/// `on_path` counts the open objects and arrays on the path, from the outermost one. In the last of them, `is_here`
/// tells whether the current member or element is the next step of the path.
struct Search {
    path: Vec<Step>,
    state: State,
    is_escaped: bool,
    /// Number of objects and arrays that are open.
    depth: usize,
    on_path: usize,
    is_here: bool,
    /// Whether the next string in the last object on the path is a name.
    is_name_next: bool,
}

impl Search {
    /// The content of the attachment with this name, in an answer of `_bulk_get`.
    fn new(name: &str) -> Self {
        let member = |name: &str| Step::Member(name.to_owned());
        let path = vec![
            member("results"),
            Step::AnyElement,
            member("docs"),
            Step::AnyElement,
            member("ok"),
            member("_attachments"),
            member(name),
            member("data"),
        ];
        let (state, is_here) = (State::Between, true);
        Search { path, state, is_escaped: false, depth: 0, on_path: 0, is_here, is_name_next: false }
    }

    /// Appends the part of the string that is in this piece.
    fn read(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for &byte in piece {
            match &mut self.state {
                State::Between => self.between(byte),
                State::Found => {}
                State::Wanted if self.is_escaped && byte != b'/' => {
                    return Err(Error::nonsense("an attachment is not base64"));
                }
                _ if self.is_escaped => {
                    self.is_escaped = false;
                    self.text(byte, out);
                }
                State::Wanted | State::Name(_) | State::Text if byte == b'\\' => {
                    self.is_escaped = true;
                    if let State::Name(name) = &mut self.state {
                        name.push(byte);
                    }
                }
                State::Wanted if byte == b'"' => self.state = State::Found,
                State::Text if byte == b'"' => self.state = State::Between,
                State::Name(name) if byte == b'"' => {
                    name.push(byte);
                    let found = JsonText::parse(name).ok();
                    let found = found.as_ref().and_then(|name| name.root().as_str());
                    self.is_here = matches!(
                        (self.path.get(self.depth.wrapping_sub(1)), found),
                        (Some(Step::Member(member)), Some(found)) if found == *member
                    );
                    self.state = State::Between;
                }
                _ => self.text(byte, out),
            }
        }
        Ok(())
    }

    /// A byte of a string.
    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        match &mut self.state {
            State::Wanted => out.push(byte),
            State::Name(name) if name.len() < MOST_NAME => name.push(byte),
            // No wanted member has such a long name.
            State::Name(_) => self.state = State::Text,
            _ => {}
        }
    }

    /// A byte outside of strings.
    fn between(&mut self, byte: u8) {
        let is_on_path = self.on_path == self.depth;
        match byte {
            b'{' | b'[' => {
                let is_step = match self.path.get(self.depth) {
                    Some(Step::Member(_)) => byte == b'{',
                    Some(Step::AnyElement) => byte == b'[',
                    None => false,
                };
                self.depth += 1;
                if is_on_path && self.is_here && is_step {
                    self.on_path = self.depth;
                    (self.is_here, self.is_name_next) = (byte == b'[', byte == b'{');
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.on_path > self.depth {
                    (self.on_path, self.is_here) = (self.depth, true);
                }
            }
            b',' if is_on_path && matches!(self.path.get(self.depth.wrapping_sub(1)), Some(Step::Member(_))) => {
                (self.is_here, self.is_name_next) = (false, true);
            }
            b'"' if is_on_path && self.is_name_next => {
                (self.is_name_next, self.state) = (false, State::Name(vec![byte]));
            }
            b'"' if is_on_path && self.is_here && self.depth == self.path.len() => self.state = State::Wanted,
            b'"' => self.state = State::Text,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a search in JSON that is received in pieces of this size.
    fn found(name: &str, json: &str, size: usize) -> Option<String> {
        let (mut search, mut out) = (Search::new(name), Vec::new());
        for piece in json.as_bytes().chunks(size) {
            search.read(piece, &mut out).ok()?;
        }
        (search.state == State::Found).then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_content_of_one_attachment_is_found_whatever_surrounds_it() {
        let decoys = r#""a":{"data":"no"},"data":"no","x":[{"..":{"data":"no"}},"..",{"_attachments":{}}]"#;
        let doc = |attachments: &str| {
            let ok =
                format!(r#""ok":{{"_id":"..","n":[1,"_attachments"],"_attachments": {{{attachments}}}, "data":"no"}}"#);
            let results = format!(r#""results":[{{"id":"..",{decoys},"docs":[{{{decoys},{ok}}}]}}]"#);
            format!(r#"{{{decoys},"ok":{{"_attachments":{{"..":{{"data":"no"}}}}}},{results},{decoys}}}"#)
        };
        let before = r#""a\"":{"data":"bm8="},".":{"content_type":"\\","data":"bm8="},"#;
        for size in [1, 2, 7, 10_000] {
            let find = |name: &str, attachments: &str| found(name, &doc(attachments), size);
            let plain = format!(r#"{before}"..":{{"x":{{"data":"no"}},"digest":"..","data":"eWVz","stub":false}}"#);
            assert_eq!(find("..", &plain).as_deref(), Some("eWVz"));
            assert_eq!(find(".", &plain).as_deref(), Some("bm8="));
            assert_eq!(find("a\"", &plain).as_deref(), Some("bm8="));
            assert_eq!(find("", r#""":{"data":""}"#).as_deref(), Some(""));
            assert_eq!(find("é\t", r#""\u00e9\t":{"data":"a\/b+"}"#).as_deref(), Some("a/b+"));
            assert_eq!(find("..", r#""..":{"stub":true}"#), None);
            assert_eq!(find("..", r#""..":{"data":["eWVz"]},"b":{"data":"no"}"#), None);
            assert_eq!(find("..", r#""..":{"data":"eW\n"}"#), None);
            let long = format!(r#""{}":{{"data":"no"}},"..":{{"data":"eWVz"}}"#, "n".repeat(MOST_NAME));
            assert_eq!(find("..", &long).as_deref(), Some("eWVz"));
        }
        let cut = r#"{"results":[{"docs":[{"ok":{"_attachments":{"..":{"data":"eW"#;
        for nothing in ["", "]]}}", cut, r#"{"results":[{"id":"..","docs":[{"error":{"error":"not_found"}}]}]}"#] {
            assert_eq!(found("..", nothing, 3), None);
        }
    }
}
