//! The content of a chunk, and its form in a data document.
//!
//! LiveSync's own document of a chunk is `{"type":"leaf","data":"…"}`, with `"e_":true` if it is encrypted. `data`
//! is a piece of text, a piece of a binary file in base64, or ciphertext. In a data document it is one string,
//! whose first character tells the form:
//!
//! | value | `data` |
//! |---|---|
//! | `ZnJvbS1hCg==` | text, in base64 |
//! | `=iVBORw0K…` | the rest, which has base64 characters only |
//! | `*%=Lx6Xqs…` | the rest, which is encrypted and opaque |
//!
//! Each form gives back the same string, byte for byte. Nothing depends on the choice.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::store::Body;

/// Content of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// The piece: text, base64 of bytes, or ciphertext.
    pub data: String,
    /// Whether it is ciphertext. Each writer makes another ciphertext of a piece, and all are valid. Ciphertexts are
    /// never compared or replaced.
    pub encrypted: bool,
}

impl Chunk {
    /// A piece in clear.
    pub fn plain(data: impl Into<String>) -> Self {
        Chunk { data: data.into(), encrypted: false }
    }

    /// An encrypted piece.
    pub fn encrypted(data: impl Into<String>) -> Self {
        Chunk { data: data.into(), encrypted: true }
    }

    /// The string in a data document.
    pub(crate) fn encode(&self) -> String {
        if self.encrypted {
            format!("*{}", self.data)
        } else if !self.data.is_empty() && all_bytes(&self.data, is_base64) {
            format!("={}", self.data)
        } else {
            STANDARD.encode(&self.data)
        }
    }

    /// Parses a string of a data document; `None` for a malformed one.
    pub(crate) fn decode(value: &str) -> Option<Chunk> {
        if let Some(data) = value.strip_prefix('*') {
            return Some(Chunk::encrypted(data));
        }
        if let Some(data) = value.strip_prefix('=') {
            return Some(Chunk::plain(data));
        }
        String::from_utf8(STANDARD.decode(value).ok()?).ok().map(Chunk::plain)
    }

    /// The chunk in its own document; `None` if the document has more or less than this module can restore.
    pub(crate) fn from_document(body: &Body) -> Option<Chunk> {
        let data = body.get("data")?.as_str()?;
        let encrypted = match body.get("e_") {
            None => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return None,
        };
        let members = if encrypted { 3 } else { 2 };
        let is_leaf = body.get("type")?.as_str()? == "leaf";
        (is_leaf && body.len() == members).then(|| Chunk { data: data.to_owned(), encrypted })
    }

    /// LiveSync's document of this chunk.
    pub(crate) fn to_document(&self) -> Body {
        let mut body = Body::new();
        body.insert("type".into(), "leaf".into());
        if self.encrypted {
            body.insert("e_".into(), true.into());
        }
        body.insert("data".into(), self.data.clone().into());
        body
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() | matches!(byte, b'+' | b'/' | b'=')
}

/// Whether all bytes of a text satisfy a predicate. Works in blocks, without a branch for each byte: a quarter of
/// the time of a push went into this check for base64.
pub(crate) fn all_bytes(text: &str, is_such: impl Fn(u8) -> bool) -> bool {
    text.as_bytes().chunks(64).all(|block| block.iter().fold(true, |all, &byte| all & is_such(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_the_string_back() {
        for chunk in [
            Chunk::plain(""),
            Chunk::plain("from-a\n"),
            Chunk::plain("from"),
            Chunk::plain("=iVBORw0KGgo="),
            Chunk::plain("*star"),
            Chunk::plain("\u{1f600} \u{0}"),
            Chunk::plain("iVBORw0KGgo="),
            Chunk::encrypted("%=Lx6Xqs/Zqx"),
            Chunk::encrypted(""),
        ] {
            assert_eq!(Chunk::decode(&chunk.encode()), Some(chunk.clone()), "{chunk:?}");
            assert_eq!(Chunk::from_document(&chunk.to_document()), Some(chunk));
        }
        assert_eq!(Chunk::plain("from-a\n").encode(), "ZnJvbS1hCg==");
        assert_eq!(Chunk::plain("iVBORw==").encode(), "=iVBORw==");
        assert_eq!(Chunk::encrypted("%=x").encode(), "*%=x");
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for bad in ["a", "from-a", "/w==", "ZnJvbS1hCg"] {
            assert_eq!(Chunk::decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn documents_with_more_to_them_are_left_alone() {
        let body = |text: &str| serde_json::from_str::<Body>(text).unwrap();
        assert_eq!(Chunk::from_document(&body(r#"{"type":"leaf","data":"x"}"#)), Some(Chunk::plain("x")));
        for text in [
            r#"{"type":"leaf"}"#,
            r#"{"type":"leaf","data":7}"#,
            r#"{"type":"plain","data":"x"}"#,
            r#"{"type":"leaf","data":"x","more":1}"#,
            r#"{"type":"leaf","data":"x","e_":false}"#,
        ] {
            assert_eq!(Chunk::from_document(&body(text)), None, "{text}");
        }
    }
}
