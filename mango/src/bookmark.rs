//! A bookmark: the position where an answer ended. Clients send it back to continue.
//!
//! It is JSON in URL-safe Base64 and contains everything needed to continue. So it is valid after a restart and on
//! other servers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use json::{JsonText, JsonWriter};

use crate::error::Error;

/// The position of the last returned document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Its id.
    pub id: String,
    /// The number of the index that was read, and the part of the document's key there, before truncation, that the
    /// order depends on; `None` if documents were read by id.
    pub row: Option<(u64, Vec<u8>)>,
}

impl Bookmark {
    /// CouchDB's bookmark of an answer that found nothing from the beginning. Sending it back is an error.
    pub const NIL: &'static str = "nil";

    /// The bookmark as text.
    pub fn encode(&self) -> String {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("startkey_docid").str(&self.id);
        if let Some((index, key)) = &self.row {
            json.name("index").u64(*index);
            json.name("startkey").str(&URL_SAFE_NO_PAD.encode(key));
        }
        json.end_object();
        URL_SAFE_NO_PAD.encode(out)
    }

    /// Parses a bookmark from a client.
    ///
    /// # Errors
    /// `invalid_bookmark` if [`encode`](Self::encode) did not write it.
    pub fn decode(word: &str) -> Result<Self, Error> {
        let read = || {
            let json = URL_SAFE_NO_PAD.decode(word.trim_end_matches('=')).ok()?;
            let json = JsonText::parse(&json).ok()?;
            let id = json.get("startkey_docid")?.as_str()?.into_owned();
            let row = match json.get("index") {
                None => None,
                Some(index) => {
                    let key = json.get("startkey")?.as_str()?;
                    Some((index.as_u64()?, URL_SAFE_NO_PAD.decode(&*key).ok()?))
                }
            };
            Some(Bookmark { id, row })
        };
        read().ok_or_else(|| Error::invalid_bookmark(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_are_read_back_and_others_are_refused() {
        for id in ["a", "", "ä/\"\\\0", &"x".repeat(2_048)] {
            for row in [None, Some((7, Vec::new())), Some((u64::MAX, vec![0, 0xff, b'"']))] {
                let bookmark = Bookmark { id: id.to_owned(), row };
                assert_eq!(Bookmark::decode(&bookmark.encode()), Ok(bookmark));
            }
        }
        // CouchDB's bookmarks are Erlang terms.
        for word in [
            "nil",
            "x",
            "ä",
            "g1AAAAA",
            &URL_SAFE_NO_PAD.encode("{}"),
            &URL_SAFE_NO_PAD.encode("[1]"),
            &URL_SAFE_NO_PAD.encode(r#"{"startkey_docid":"a","index":1,"startkey":"*"}"#),
        ] {
            let error = Bookmark::decode(word).unwrap_err();
            assert_eq!((error.status(), error.error()), (400, "invalid_bookmark"), "{word}");
        }
        assert_eq!(Bookmark::decode("nil").unwrap_err().reason(), "Invalid bookmark value: \"nil\"");
    }
}
