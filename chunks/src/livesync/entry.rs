//! The document of a file, and the chunks it refers to.
//!
//! ```text
//!  in clear     {"path":"a.md","children":["h:…"],"size":7,…}
//!  obfuscated   {"path":"/\\:%=…","children":[],"size":0,…}      the list is inside the ciphertext
//! ```
//!
//! LiveSync encrypts the members of documents with an id `f:…` only. Those of hidden files and customizations are in
//! clear, also under an obfuscated id such as `i:f:…`. A path in clear therefore means a list in clear.
//!
//! An unreadable list is an error here, never an empty list: a collection would take the file's chunks for garbage.

use std::borrow::Cow;

use serde_json::Value;

use super::Key;
use crate::store::Body;

/// Prefix of a path that stands for a whole encrypted entry.
const SEALED: &str = "/\\:";
/// Prefix of the ids of files with obfuscated paths.
const OBFUSCATED: &str = "f:";
/// Prefixes of the ids of LiveSync's own files: hidden files, customizations of both kinds.
pub(crate) const OF_LIVESYNC: [&str; 3] = ["i:", "ix:", "ps:"];
/// Number of digits after the `%` of a path that LiveSync's first encryption obfuscated. It left the list in clear.
const FIRST_FORM_DIGITS: usize = 64;

/// Members inside the ciphertext.
const HIDDEN: [&str; 5] = ["path", "mtime", "ctime", "size", "children"];
/// The member of `eden` that stands for all of it, encrypted.
const SEALED_EDEN: &str = "h:++encrypted-hkdf";
/// Prefix of that member in every encryption. The first one has nothing after it.
const ANY_SEALED_EDEN: &str = "h:++encrypted";

/// A file's chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Ids of its chunks, in order.
    pub(crate) children: Vec<String>,
    /// Chunks that the document itself contains, with their data.
    pub(crate) inline: Vec<String>,
    /// Whether the document contains chunks that are encrypted and could not be read: any of `children` may be one.
    pub(crate) eden_is_sealed: bool,
}

impl Entry {
    /// Reads a live leaf of a document; `None` if it is not a file.
    ///
    /// # Errors
    /// The reason why its list of chunks cannot be read, as a predicate of the document.
    pub(crate) fn read(id: &str, body: &Body, key: Option<&Key>) -> Result<Option<Entry>, String> {
        let was_sealed = sealed_path(body).is_some();
        let body = in_clear(body, key)?;
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let Some(children) = body.get("children") else {
            return match text("type") {
                Some("plain" | "newnote") => Err("is damaged: it has no list of chunks".into()),
                _ => Ok(None),
            };
        };
        let children = children.as_array().map(|all| all.iter().map(|one| one.as_str().map(str::to_owned)));
        let Some(children) = children.and_then(|all| all.collect::<Option<Vec<String>>>()) else {
            return Err("is damaged: \"children\" is not a list of ids".into());
        };
        let is_read = was_sealed || is_first_form(&body) || text("path").is_some_and(is_in_clear);
        if is_obfuscated(id) && children.is_empty() && !is_read {
            return Err("is encrypted in a way that this program does not know, its list of chunks too".into());
        }
        let eden = || body.get("eden").and_then(Value::as_object).into_iter().flatten();
        let has_data = |chunk: &Value| chunk.get("data").is_some_and(Value::is_string);
        let inline = eden().filter(|(_, chunk)| has_data(chunk)).map(|(id, _)| id.clone()).collect();
        let eden_is_sealed = eden().any(|(id, _)| id.starts_with(ANY_SEALED_EDEN));
        Ok(Some(Entry { children, inline, eden_is_sealed }))
    }
}

/// Whether a path is not encrypted. Every encryption has begun paths with one of these prefixes.
fn is_in_clear(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('%') && !path.starts_with(SEALED)
}

/// Whether a document has an obfuscated path. Hidden files and customizations have their prefix before it.
fn is_obfuscated(id: &str) -> bool {
    OF_LIVESYNC.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(id).starts_with(OBFUSCATED)
}

/// The ciphertext that stands for an entry.
pub(crate) fn sealed_path(body: &Body) -> Option<&str> {
    body.get("path").and_then(Value::as_str)?.strip_prefix(SEALED)
}

/// A document's members, with the encrypted ones decrypted.
///
/// # Errors
/// The reason why they cannot be decrypted, as a predicate of the document.
pub(crate) fn in_clear<'b>(body: &'b Body, key: Option<&Key>) -> Result<Cow<'b, Body>, String> {
    let mut clear = Cow::Borrowed(body);
    if let Some(sealed) = sealed_path(body) {
        let key = key.ok_or("is encrypted with its list of chunks, and only its passphrase opens it")?;
        let Ok(Value::Object(mut hidden)) = serde_json::from_str(&key.open(sealed)?) else {
            return Err("is damaged: what was encrypted is not an object".into());
        };
        for name in HIDDEN {
            clear.to_mut().insert(name.into(), hidden.remove(name).unwrap_or_default());
        }
    }
    let eden = body.get("eden").and_then(|eden| eden.get(SEALED_EDEN)?.get("data")?.as_str());
    if let (Some(sealed), Some(key)) = (eden, key) {
        let Ok(eden @ Value::Object(_)) = serde_json::from_str(&key.open(sealed)?) else {
            return Err("is damaged: what was encrypted is not an object".into());
        };
        clear.to_mut().insert("eden".into(), eden);
    }
    Ok(clear)
}

/// A document's members, encrypted like LiveSync's with obfuscated paths.
///
/// # Errors
/// The errors of `seal`.
pub(crate) fn sealed(mut body: Body, seal: impl FnOnce(&str) -> crate::Result<String>) -> crate::Result<Body> {
    let hidden: Body = HIDDEN.iter().filter_map(|name| Some(((*name).into(), body.get(*name)?.clone()))).collect();
    for name in ["mtime", "ctime", "size"] {
        body.insert(name.into(), 0.into());
    }
    body.insert("children".into(), Value::Array(Vec::new()));
    body.insert("path".into(), format!("{SEALED}{}", seal(&Value::Object(hidden).to_string())?).into());
    Ok(body)
}

/// Whether LiveSync's first encryption obfuscated the path of a document.
pub(crate) fn is_first_form(body: &Body) -> bool {
    let path = body.get("path").and_then(Value::as_str).unwrap_or_default();
    let digits = path.strip_prefix('%').and_then(|rest| rest.get(..FIRST_FORM_DIGITS));
    digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(id: &str, body: Value) -> Result<Option<Entry>, String> {
        Entry::read(id, body.as_object().unwrap(), None)
    }

    #[test]
    fn a_list_that_cannot_be_read_is_no_empty_one() {
        let first_form = format!("%{}abc=", "0a".repeat(32));
        for (id, body, wanted) in [
            ("f:ab", json!({"path": "/\\:%=x", "children": [], "type": "plain"}), "passphrase"),
            ("a.md", json!({"path": "/\\:%=x", "children": ["h:1"], "type": "plain"}), "passphrase"),
            ("f:ab", json!({"path": "%$later", "children": [], "type": "plain"}), "does not know"),
            ("f:ab", json!({"children": [], "type": "plain"}), "does not know"),
            ("i:f:ab", json!({"path": "%$later", "children": [], "type": "newnote"}), "does not know"),
            ("i:f:ab", json!({"path": "", "children": [], "type": "newnote"}), "does not know"),
            ("ix:f:ab", json!({"path": "/\\:%=x", "children": [], "type": "plain"}), "passphrase"),
            ("a.md", json!({"children": "h:1", "type": "plain"}), "not a list of ids"),
            ("a.md", json!({"children": ["h:1", 7], "type": "plain"}), "not a list of ids"),
            ("a.md", json!({"children": null}), "not a list of ids"),
            ("a.md", json!({"type": "newnote", "size": 3}), "no list of chunks"),
        ] {
            let refused = read(id, body.clone()).unwrap_err();
            assert!(refused.contains(wanted), "{body}: {refused}");
        }
        let entry = |children: &[&str]| {
            let children = children.iter().map(ToString::to_string).collect();
            Ok(Some(Entry { children, ..Entry::default() }))
        };
        assert_eq!(read("a.md", json!({"path": "a.md", "children": [], "type": "plain"})), entry(&[]));
        assert_eq!(read("f:ab", json!({"path": first_form, "children": ["h:+1"], "type": "plain"})), entry(&["h:+1"]));
        assert_eq!(read("f:ab", json!({"path": first_form, "children": [], "type": "plain"})), entry(&[]));
        // Deleted and empty hidden files.
        for id in ["i:f:ab", "ix:f:ab", "ps:f:ab", "f:ab"] {
            let body = json!({"path": "i:.obsidian/snippets/x.css", "children": [], "size": 0, "deleted": true,
                "type": "newnote", "eden": {}});
            assert_eq!(read(id, body), entry(&[]), "{id}");
        }
        assert_eq!(read("x", json!({"type": "versioninfo", "version": 12})), Ok(None));
    }

    #[test]
    fn chunks_inside_a_document_have_data_or_are_encrypted() {
        let eden = |eden: Value| read("a.md", json!({"path": "a.md", "children": [], "eden": eden})).unwrap().unwrap();
        let found = eden(json!({"h:1": {"data": "x", "epoch": 1}, "h:2": {"data": 7}, "h:3": {}, "h:4": "x"}));
        assert_eq!((found.inline, found.eden_is_sealed), (vec!["h:1".to_owned()], false));
        for name in ["h:++encrypted-hkdf", "h:++encrypted"] {
            assert!(eden(json!({name: {"data": "%=x", "epoch": 999_999}})).eden_is_sealed, "{name}");
        }
    }
}
