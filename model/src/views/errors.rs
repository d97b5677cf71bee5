//! The reasons why a function has no result, or a document no rows.

use std::fmt;

use bytes::Bytes;
use json::{JsonText, JsonWriter};

use crate::error::{Error, Result};

/// The reason why a function has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionError {
    /// CouchDB's name of the error.
    pub error: String,
    /// The reason.
    pub reason: String,
}

impl FunctionError {
    /// An error with this name and reason.
    pub fn new(error: impl Into<String>, reason: impl Into<String>) -> Self {
        FunctionError { error: error.into(), reason: reason.into() }
    }

    /// Writes it as JSON. Both texts may be long, and are cut.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        const MAX: usize = 2_000;
        let cut = |text: &str| text[..text.floor_char_boundary(text.len().min(MAX))].to_owned();
        let (error, reason) = (cut(&self.error), cut(&self.reason));
        JsonWriter::new(out).begin_object().name("error").str(&error).name("reason").str(&reason).end_object();
    }

    pub(super) fn read(text: &JsonText) -> FunctionError {
        let member = |name| text.get(name).map(|value| value.str_or_text().into_owned()).unwrap_or_default();
        FunctionError::new(member("error"), member("reason"))
    }

    /// The row of a document's error.
    pub(super) fn row(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    pub(super) fn of_row(row: Bytes) -> Result<FunctionError> {
        let text = JsonText::from_normalised(row).ok_or_else(|| Error::corrupt("an error of a view"))?;
        Ok(FunctionError::read(&text))
    }
}

impl fmt::Display for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error, self.reason)
    }
}

/// A document that lacks rows in a view group because of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewError {
    /// The document.
    pub id: String,
    /// The error.
    pub error: FunctionError,
}
