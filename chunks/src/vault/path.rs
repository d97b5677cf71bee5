//! Paths of files, and the ids of their documents.
//!
//! A path is relative to the vault's folder, in UTF-8, with `/` between its components. Both directions refuse the same
//! paths: every pushed file can be pulled again, and no document leads out of the folder of a pull.

/// Prefixes of the ids of documents that are not files, or that are files of LiveSync itself: chunks, this crate's
/// documents, obfuscated paths, hidden files, customizations.
const RESERVED: [&str; 8] = ["h:", "idx:", "dat:", "chunks:", "f:", "i:", "ix:", "ps:"];

/// Suffix of the names of files that a pull is still writing.
pub(crate) const DRAFT_SUFFIX: &str = ".couch-layer-part";

/// Checks that a file can have this path.
///
/// # Errors
/// The reason, as a predicate of the path.
pub(crate) fn check(path: &str) -> Result<(), String> {
    let is_drive =
        path.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && path.as_bytes().get(1) == Some(&b':');
    let reason = if path.is_empty() {
        "it is empty"
    } else if path.starts_with('/') {
        "it is absolute"
    } else if path.contains('\0') {
        "there is a NUL in it"
    } else if path.contains('\\') {
        "there is a backslash in it, which separates folders elsewhere"
    } else if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        "a component of it is empty, \".\" or \"..\""
    } else if path.ends_with(DRAFT_SUFFIX) {
        "it is the name of a file that a pull has not finished"
    } else if reserved(&id_of(path)).is_some() {
        "ids with this prefix are not for files"
    } else if is_drive {
        "it begins with a drive"
    } else {
        return Ok(());
    };
    Err(format!("its path cannot be a file's: {reason}"))
}

/// The id of a file's document, with LiveSync's default rule: the path in lower case. A leading `_`, which no id
/// may have, becomes `/_`.
pub(crate) fn id_of(path: &str) -> String {
    let id = path.to_lowercase();
    if id.starts_with('_') { format!("/{id}") } else { id }
}

/// The path of a file, from what its document says or from its id. As in LiveSync, a `/` before a path stands for
/// nothing.
pub(crate) fn of<'p>(id: &'p str, path: Option<&'p str>) -> &'p str {
    path.map_or_else(|| path_of(id), |path| path.strip_prefix('/').unwrap_or(path))
}

/// The path of a file whose document has none.
fn path_of(id: &str) -> &str {
    id.strip_prefix('/').filter(|rest| rest.starts_with('_')).unwrap_or(id)
}

/// The reserved prefix of an id.
pub(crate) fn reserved(id: &str) -> Option<&'static str> {
    RESERVED.into_iter().find(|prefix| id.starts_with(prefix))
}

/// A path for display: control characters do not reach the terminal.
pub fn shown(path: &str) -> String {
    if !path.chars().any(char::is_control) {
        return path.to_owned();
    }
    path.chars().flat_map(|char| if char.is_control() { char.escape_default().collect() } else { vec![char] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_livesyncs() {
        for (path, id) in [
            ("Notes/Über.md", "notes/über.md"),
            ("_private/A.md", "/_private/a.md"),
            ("a/_b", "a/_b"),
            ("ΟΔΟΣ.md", "οδοσ.md"),
            ("ΟΔΟΣ", "οδος"),
            ("İ", "i\u{307}"),
        ] {
            assert_eq!(id_of(path), id);
        }
        assert_eq!((path_of("/_private/a.md"), path_of("a/_b"), path_of("/x")), ("_private/a.md", "a/_b", "/x"));
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            "a/..",
            ".",
            "./a",
            "a//b",
            "a/",
            "a\0b",
            "a\\b",
            "..\\x",
            "C:/x",
            "c:x",
            "h:1ecijke328qp3",
            "H:x",
            "idx:3f",
            "dat:3f-001",
            "chunks:settings",
            "f:abc",
            "i:.obsidian/x",
            "x/.a.couch-layer-part",
        ] {
            assert!(check(path).is_err(), "{path:?}");
        }
        for path in
            ["a", "a/b.md", "...", "a..b", ".hidden/x", "_x", "12:30.md", "ü/\u{1f600}.md", "a b", "h", "note: x"]
        {
            assert_eq!(check(path), Ok(()), "{path:?}");
        }
    }

    #[test]
    fn nothing_reaches_a_terminal_but_text() {
        assert_eq!(shown("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown("ü \u{1f600}"), "ü \u{1f600}");
    }
}
