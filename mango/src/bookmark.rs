//! Where an answer ended, as a word that its client sends back with the next request.
//!
//! It is JSON in URL-safe base64 and says by itself where to go on, so that it holds after a restart and at any server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use json::{JsonText, JsonWriter};

use crate::error::Error;

/// The last document that was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Its id.
    pub id: String,
}

impl Bookmark {
    /// What CouchDB sends where nothing was found from the beginning. It cannot be sent back.
    pub const NIL: &'static str = "nil";

    /// The bookmark as a word.
    pub fn encode(&self) -> String {
        let mut json = Vec::new();
        JsonWriter::new(&mut json).begin_object().name("startkey_docid").str(&self.id).end_object();
        URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads a word that a client sent.
    ///
    /// # Errors
    /// `invalid_bookmark` where [`encode`](Self::encode) has not written it.
    pub fn decode(word: &str) -> Result<Self, Error> {
        let json = URL_SAFE_NO_PAD.decode(word.trim_end_matches('=')).ok();
        let json = json.and_then(|json| JsonText::parse(&json).ok());
        let id = json.as_ref().and_then(|json| json.get("startkey_docid")?.as_str());
        id.map(|id| Bookmark { id: id.into_owned() }).ok_or_else(|| Error::invalid_bookmark(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_are_read_back_and_others_are_refused() {
        for id in ["a", "", "ä/\"\\\0", &"x".repeat(2_048)] {
            let bookmark = Bookmark { id: id.to_owned() };
            assert_eq!(Bookmark::decode(&bookmark.encode()), Ok(bookmark));
        }
        // CouchDB's own are Erlang's terms.
        for word in ["nil", "x", "ä", "g1AAAAA", &URL_SAFE_NO_PAD.encode("{}"), &URL_SAFE_NO_PAD.encode("[1]")] {
            let error = Bookmark::decode(word).unwrap_err();
            assert_eq!((error.status(), error.error()), (400, "invalid_bookmark"), "{word}");
        }
        assert_eq!(Bookmark::decode("nil").unwrap_err().reason(), "Invalid bookmark value: \"nil\"");
    }
}
