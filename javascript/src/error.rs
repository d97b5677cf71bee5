//! Errors of functions.

use std::fmt;

/// Maximum length of the reason that is kept of a thrown value.
pub(crate) const MAX_REASON: usize = 1_000;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The design document has no such function.
    Missing,
    /// The source is not JavaScript, or not a function.
    Compilation,
    /// The function threw, or returned a value without JSON.
    Thrown,
    /// The call took too long.
    Time,
    /// An argument does not fit: its nesting is too deep, or the heap is too small. The function was not called.
    Input,
    /// The heap is full.
    Memory,
    /// The calls were nested too deeply.
    Stack,
    /// The call emitted or returned too much.
    Output,
    /// A reduce function returned nearly as much as it got (CouchDB's `reduce_overflow_error`).
    Overflow,
    /// QuickJS could not be started.
    Engine,
}

impl ErrorKind {
    /// Whether the call exceeded a limit. Without the limit, the function might have had a result.
    pub fn is_limit(self) -> bool {
        match self {
            ErrorKind::Time | ErrorKind::Input | ErrorKind::Memory | ErrorKind::Stack | ErrorKind::Output => true,
            ErrorKind::Missing
            | ErrorKind::Compilation
            | ErrorKind::Thrown
            | ErrorKind::Overflow
            | ErrorKind::Engine => false,
        }
    }
}

/// The reason why a function has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    function: String,
    document: Option<String>,
    name: Option<String>,
    thrown: Option<String>,
    reason: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, function: &str, reason: impl Into<String>) -> Error {
        let reason = shortened(reason.into());
        let function = function.to_owned();
        Error(Box::new(Inner { kind, function, document: None, name: None, thrown: None, reason }))
    }

    /// The error of a thrown value: an error with a name, or another value with its JSON text.
    pub(crate) fn thrown_by(function: &str, name: Option<String>, message: String, is_object: bool) -> Error {
        let reason = match &name {
            Some(name) => format!("{name}: {message}"),
            None => message.clone(),
        };
        let mut error = Error::new(ErrorKind::Thrown, function, reason);
        error.0.thrown = (is_object && name.is_none()).then_some(message);
        error.0.name = name.map(shortened);
        error
    }

    pub(crate) fn at(mut self, document: Option<String>) -> Error {
        self.0.document = document.map(shortened);
        self
    }

    pub(crate) fn of(mut self, function: String) -> Error {
        self.0.function = function;
        self
    }

    /// If memory or stack ran out: says that the function did not get its arguments, since they did not fit.
    pub(crate) fn of_input(mut self) -> Error {
        if matches!(self.0.kind, ErrorKind::Memory | ErrorKind::Stack) {
            self.0.kind = ErrorKind::Input;
        }
        self
    }

    /// If a source threw while it was compiled: says that the function could not be compiled.
    pub(crate) fn while_compiling(mut self) -> Error {
        if self.0.kind == ErrorKind::Thrown {
            self.0.kind = ErrorKind::Compilation;
        }
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The path of the function in its design document, such as `views/by_name/map`.
    pub fn function(&self) -> &str {
        &self.0.function
    }

    /// The id of the document that it ran on, if it was one.
    pub fn document(&self) -> Option<&str> {
        self.0.document.as_deref()
    }

    /// The `name` of the error that the function threw, such as `TypeError`.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The thrown value as JSON text, if it was an object and not an error.
    pub fn thrown(&self) -> Option<&str> {
        self.0.thrown.as_deref()
    }

    /// The reason, without the names of function and document.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.function, self.0.reason)?;
        if let Some(document) = &self.0.document {
            write!(f, " (document {document:?})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Cuts a text to `MAX_REASON` bytes, between two characters.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_REASON {
        text.truncate(text.floor_char_boundary(MAX_REASON));
        text.push('…');
    }
    text
}
