//! A file's document, as LiveSync has it.
//!
//! ```json
//! {"_id":"notes/a.md","path":"Notes/A.md","children":["h:1ecijke328qp3"],
//!  "ctime":1795221368666,"mtime":1795221368666,"size":7,"type":"plain","eden":{}}
//! ```
//!
//! Times are in milliseconds since 1970, the size in bytes. A deleted file may stay as a document with
//! `"deleted":true`. `eden` may have chunks of the file: `{"h:…":{"data":"…","epoch":1}}`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cutting::Kind;
use super::path;
use crate::livesync::{ENCRYPTED_CHUNK, Key, in_clear, is_first_form};
use crate::store::{Body, Leaf};

/// Ends of the names of files that LiveSync takes for text.
const NAMES_OF_TEXT: [&str; 9] = [".md", ".txt", ".svg", ".html", ".csv", ".css", ".js", ".xml", ".canvas"];

/// A file, as a leaf of its document describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileDocument {
    /// Its path.
    pub(crate) path: String,
    /// Ids of its chunks, in order.
    pub(crate) children: Vec<String>,
    /// Time of its creation.
    pub(crate) ctime: u64,
    /// Time of its last change.
    pub(crate) mtime: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Kind of its content, which decides how chunks are decoded.
    pub(crate) kind: Kind,
    /// Whether it is marked as deleted.
    pub(crate) deleted: bool,
    /// Chunks inside the document.
    pub(crate) inline: BTreeMap<String, String>,
}

/// Meaning of a live leaf.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// A readable file.
    File(FileDocument),
    /// An unreadable file, with the reason.
    Closed(String),
    /// Not a file, or a document of LiveSync itself.
    Other,
}

impl Meaning {
    /// Interprets a leaf of the document `id`, with the key if there is one.
    pub(crate) fn of(id: &str, leaf: &Leaf, key: Option<&Key>) -> Meaning {
        let body = match in_clear(&leaf.body, key) {
            Ok(body) => body,
            Err(reason) => return Meaning::Closed(reason),
        };
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let Some(children) = body.get("children") else {
            return match text("type") {
                Some("notes") if path::reserved(id).is_none() => oldest(id, &body),
                _ => Meaning::Other,
            };
        };
        match path::reserved(id) {
            Some("f:") if is_first_form(&body) => {
                return Meaning::Closed(
                    "has a path obfuscated by LiveSync's first encryption, which this program cannot read".into(),
                );
            }
            Some("f:") => {}
            Some(_) => return Meaning::Other,
            None => {}
        }
        let children = children.as_array().map(|all| all.iter().map(|one| one.as_str().map(str::to_owned)));
        let Some(children) = children.and_then(|all| all.collect::<Option<Vec<String>>>()) else {
            return Meaning::Closed("is damaged: \"children\" is not a list of ids".into());
        };
        let eden = body.get("eden").and_then(Value::as_object);
        let is_encrypted = |id: &String| id.starts_with(ENCRYPTED_CHUNK);
        let has_encrypted = children.iter().any(is_encrypted) || eden.is_some_and(|eden| eden.keys().any(is_encrypted));
        if key.is_none() && has_encrypted {
            return Meaning::Closed("is encrypted, and only its passphrase opens it".into());
        }
        let kind = match text("type") {
            Some("plain") => Kind::Text,
            Some("newnote") => Kind::Binary,
            other => return Meaning::Closed(format!("is damaged: its type is {}", other.unwrap_or("missing"))),
        };
        let Some(size) = body.get("size").and_then(number) else {
            return Meaning::Closed("is damaged: its size is not a number".into());
        };
        let inline = eden.into_iter().flatten();
        let inline = inline.filter_map(|(id, chunk)| Some((id.clone(), chunk.get("data")?.as_str()?.to_owned())));
        let mtime = body.get("mtime").and_then(number).unwrap_or(0);
        Meaning::File(FileDocument {
            path: path::of(id, text("path")).to_owned(),
            children,
            ctime: body.get("ctime").and_then(number).unwrap_or(mtime),
            mtime,
            size,
            kind,
            deleted: body.get("deleted") == Some(&Value::Bool(true)),
            inline: inline.collect(),
        })
    }
}

/// A file in LiveSync's oldest form, `"type":"notes"`, which has no chunks: `data` is its content, in one piece or
/// several. It is text if its name says so, and base64 otherwise.
fn oldest(id: &str, body: &Body) -> Meaning {
    let pieces = match body.get("data") {
        Some(Value::String(piece)) => Some(vec![piece.clone()]),
        Some(Value::Array(pieces)) => pieces.iter().map(|piece| piece.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let Some(pieces) = pieces else { return Meaning::Closed("is damaged: \"data\" is not text".into()) };
    let Some(size) = body.get("size").and_then(number) else {
        return Meaning::Closed("is damaged: its size is not a number".into());
    };
    let path = path::of(id, body.get("path").and_then(Value::as_str)).to_owned();
    let kind = if NAMES_OF_TEXT.iter().any(|end| path.ends_with(end)) { Kind::Text } else { Kind::Binary };
    let mtime = body.get("mtime").and_then(number).unwrap_or(0);
    let inline: BTreeMap<String, String> =
        pieces.into_iter().enumerate().map(|(number, piece)| (format!("{number:06}"), piece)).collect();
    Meaning::File(FileDocument {
        path,
        children: inline.keys().cloned().collect(),
        ctime: body.get("ctime").and_then(number).unwrap_or(mtime),
        mtime,
        size,
        kind,
        deleted: body.get("deleted") == Some(&Value::Bool(true)),
        inline,
    })
}

impl FileDocument {
    /// The document.
    pub(crate) fn to_body(&self) -> Body {
        let kind = match self.kind {
            Kind::Text => "plain",
            Kind::Binary => "newnote",
        };
        let mut body = Body::new();
        body.insert("path".into(), self.path.as_str().into());
        body.insert("children".into(), json!(self.children));
        body.insert("ctime".into(), self.ctime.into());
        body.insert("mtime".into(), self.mtime.into());
        body.insert("size".into(), self.size.into());
        body.insert("type".into(), kind.into());
        body.insert("eden".into(), json!({}));
        body
    }
}

/// Numbers from JavaScript may have a fraction, which is dropped.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|number| (0.0..9e15).contains(number)).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(id: &str, body: Value) -> Meaning {
        let body = body.as_object().unwrap().clone();
        Meaning::of(id, &Leaf { rev: "1-a".into(), deleted: false, body, ancestors: Vec::new() }, None)
    }

    #[test]
    fn a_file_is_written_as_livesync_writes_it() {
        let text = r#"{"path":"Notes/A.md","children":["h:1ecijke328qp3"],"ctime":1795221368666,"mtime":1795221368667,"size":7,"type":"plain","eden":{}}"#;
        let Meaning::File(file) = meaning("notes/a.md", serde_json::from_str(text).unwrap()) else { panic!("no file") };
        assert_eq!((file.size, file.kind, file.mtime), (7, Kind::Text, 1_795_221_368_667));
        assert_eq!(Value::Object(file.to_body()).to_string(), text);
    }

    #[test]
    fn a_file_in_the_oldest_form_has_its_content_in_its_document() {
        let oldest = |path: &str, data: Value| match meaning(
            "x",
            json!({"type": "notes", "path": path, "data": data, "size": 6}),
        ) {
            Meaning::File(file) => {
                (file.kind, file.children.iter().map(|id| file.inline[id].clone()).collect::<String>())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(oldest("/X.md", json!("from-a")), (Kind::Text, "from-a".to_owned()));
        assert_eq!(oldest("x.png", json!(["YWJj", "YWJj"])), (Kind::Binary, "YWJjYWJj".to_owned()));
        let many: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(oldest("x.md", json!(many)), (Kind::Text, "01234567891011".to_owned()));
    }

    #[test]
    fn what_stands_in_a_document_may_be_anything() {
        let closed = |id: &str, body: Value| match meaning(id, body) {
            Meaning::Closed(reason) => reason,
            other => panic!("{other:?}"),
        };
        let file = |children: Value| json!({"children": children, "type": "plain", "size": 1});
        let sealed = json!({"path": "/\\:%=x", "children": [], "type": "plain", "size": 0});
        assert!(closed("f:ab", sealed).contains("passphrase"));
        let first_form = json!({"path": format!("%{}", "0a".repeat(41)), "children": [], "type": "plain", "size": 0});
        assert!(closed("f:ab", first_form).contains("first encryption"));
        assert!(closed("a", file(json!(["h:1", "h:+2"]))).contains("encrypted"));
        assert!(closed("a", file(json!([1]))).contains("not a list of ids"));
        assert!(closed("a", json!({"children": [], "type": "leaf", "size": 1})).contains("type is leaf"));
        assert!(closed("a", json!({"children": [], "type": "plain", "size": -1})).contains("size"));
        assert!(closed("a", json!({"type": "notes", "data": "x"})).contains("size"));
        assert!(closed("a", json!({"type": "notes", "data": ["x", 7], "size": 1})).contains("not text"));
        assert_eq!(meaning("i:a", json!({"type": "notes", "data": "x", "size": 1})), Meaning::Other);
        assert_eq!(meaning("a", json!({"n": 1})), Meaning::Other);
        assert_eq!(meaning("i:.obsidian/x", file(json!([]))), Meaning::Other);
        let Meaning::File(file) = meaning(
            "/_a",
            json!({"children": ["h:1"], "type": "newnote", "size": 2.0,
            "mtime": 5.5, "deleted": true, "eden": {"h:1": {"data": "YQ==", "epoch": 1}, "h:2": 3}}),
        ) else {
            panic!("no file")
        };
        assert_eq!((file.path.as_str(), file.mtime, file.ctime, file.deleted), ("_a", 5, 5, true));
        assert_eq!(file.inline, BTreeMap::from([("h:1".to_owned(), "YQ==".to_owned())]));
    }
}
