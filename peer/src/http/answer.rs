//! A complete answer of a server, and the meaning of a refusal.

use std::sync::Arc;

use model::{JsonRef, JsonText};

use crate::error::{Error, ErrorKind, Result};

/// An answer's reserved memory, until the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Held(#[expect(dead_code, reason = "it is held")] pub(super) Option<Arc<budget::Held>>);

/// Reserved memory is not part of the comparison.
impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Held {}

/// A complete response.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) path: String,
    /// Empty in a refusal that was too long.
    pub(super) body: Vec<u8>,
    pub(super) held: Held,
}

impl Answer {
    /// The body of a successful response; otherwise the server's error.
    pub(super) fn into_json(self) -> Result<JsonText> {
        self.json()
    }

    /// The body of a successful response as a text; otherwise the server's error.
    pub(super) fn into_text(self) -> Result<String> {
        if !is_success(self.status) {
            self.json()?;
        }
        let (status, path) = (self.status, self.path);
        let nonsense = |_| Error::nonsense(format!("the server's answer ({status}) to {path} is no text"));
        String::from_utf8(self.body).map_err(nonsense)
    }

    /// The same as JSON, with its reserved memory.
    pub(super) fn into_held(self) -> Result<(JsonText, Held)> {
        Ok((self.json()?, self.held))
    }

    pub(super) fn json(&self) -> Result<JsonText> {
        let path = &self.path;
        match JsonText::parse(&self.body) {
            Ok(json) if is_success(self.status) => Ok(json),
            Ok(json) => {
                let problem = problem(json.root()).unwrap_or_default();
                Err(refusal(self.status, format!("the server answered {} to {path}: {problem}", self.status)))
            }
            Err(_) if self.status >= 500 || self.body.is_empty() && !is_success(self.status) => {
                Err(refusal(self.status, format!("the server answered {} to {path}", self.status)))
            }
            Err(error) => Err(Error::nonsense(format!("the server's answer ({}) to {path} is {error}", self.status))
                .with_status(self.status)),
        }
    }
}

pub(super) fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The failure that a status means.
pub(super) fn refusal(status: u16, sentence: String) -> Error {
    let kind = match status {
        404 => ErrorKind::NoDatabase,
        408 | 425 | 429 | 500 | 502..=599 => ErrorKind::Unavailable,
        409 => ErrorKind::Conflict,
        413 => ErrorKind::TooLarge,
        _ => ErrorKind::Refused,
    };
    Error::new(kind, sentence).with_status(status)
}

/// `error: reason` of a response or a row, if it has them.
pub fn problem(row: JsonRef<'_>) -> Option<String> {
    let error = row.get("error")?.as_str()?;
    let reason = row.get("reason").and_then(JsonRef::as_str).unwrap_or_default();
    Some(format!("{error}: {reason}"))
}
