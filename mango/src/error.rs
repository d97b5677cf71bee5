//! Errors of queries and index definitions, in CouchDB's words.

use std::fmt;

use crate::regex::TooManySteps;

/// Maximum length of a quotation from a request in a reason, in bytes.
const MAX_ECHO: usize = 200;

/// CouchDB's name of the error if an index needs a missing service.
const NO_SERVICE: &str = "required index service unavailable";

/// The reason why a query or an index definition is refused.
///
/// `_find` responds with [`error`](Error::error) and [`reason`](Error::reason); `_changes` responds with `bad_request`
/// and the reason (CouchDB's `couch_changes:check_selector/1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    error: &'static str,
    reason: String,
}

impl Error {
    /// The HTTP status: 400, or 503 if a service is missing.
    pub fn status(&self) -> u16 {
        if self.error == NO_SERVICE { 503 } else { 400 }
    }

    /// CouchDB's name of the error, such as `bad_arg` (`mango_error:info/2`).
    pub const fn error(&self) -> &'static str {
        self.error
    }

    /// A sentence that names the wrong operator or field.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn not_an_object() -> Self {
        Self { error: "bad_request", reason: "Selector error: expected a JSON object".into() }
    }

    pub(crate) fn missing_field_name() -> Self {
        Self { error: "invalid_selector", reason: "One or more conditions is missing a field name.".into() }
    }

    pub(crate) fn bad_argument(operator: &str, argument: &str) -> Self {
        Self { error: "bad_arg", reason: format!("Bad argument for operator {operator}: {}", echo(argument)) }
    }

    pub(crate) fn not_supported(operator: &str) -> Self {
        Self { error: "not_supported", reason: format!("Unsupported operator: {operator}") }
    }

    pub(crate) fn invalid_operator(operator: &str) -> Self {
        Self { error: "invalid_operator", reason: format!("Invalid operator: {}", echo(operator)) }
    }

    pub(crate) fn invalid_field_name(field: &str) -> Self {
        Self { error: "invalid_field_name", reason: format!("Invalid field name: {}", echo(field)) }
    }

    pub(crate) fn too_many(limit: usize, what: &str) -> Self {
        Self { error: "invalid_selector", reason: format!("The selector has more than {limit} {what}.") }
    }

    pub(crate) fn too_deep(limit: usize) -> Self {
        Self { error: "invalid_selector", reason: format!("The selector is nested deeper than {limit} levels.") }
    }

    /// A parameter with a wrong value: CouchDB's name of the error, and the text before the value.
    pub(crate) fn bad_value(error: &'static str, says: &str, value: &str) -> Self {
        Self { error, reason: format!("{says}{}", echo(value)) }
    }

    /// `invalid_bookmark`: it is impossible to continue from this text.
    pub fn invalid_bookmark(word: &str) -> Self {
        Self { error: "invalid_bookmark", reason: format!("Invalid bookmark value: {}", echo(&quoted(word))) }
    }

    /// A fixed sentence of CouchDB's.
    pub(crate) fn plain(error: &'static str, reason: &str) -> Self {
        Self { error, reason: reason.into() }
    }

    pub(crate) fn no_service(kind: &str) -> Self {
        Self { error: NO_SERVICE, reason: kind.into() }
    }

    pub(crate) fn invalid_index(reason: impl Into<String>) -> Self {
        Self { error: "invalid_index", reason: reason.into() }
    }

    pub(crate) fn too_many_steps(error: TooManySteps) -> Self {
        Self { error: "bad_arg", reason: format!("Bad argument for operator $regex: {error}") }
    }

    pub(crate) fn bad_regex(pattern: &str, problem: &str) -> Self {
        Self {
            error: "bad_arg",
            reason: format!("Bad argument for operator $regex: {}: {}", echo(pattern), echo(problem)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Error {}

/// `text` as JSON.
fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    json::JsonWriter::new(&mut out).str(text);
    String::from_utf8_lossy(&out).into_owned()
}

/// `text`, or only its beginning if it is long: a response must not repeat a megabyte of selector.
pub(crate) fn echo(text: &str) -> String {
    if text.len() <= MAX_ECHO {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(MAX_ECHO)])
}
