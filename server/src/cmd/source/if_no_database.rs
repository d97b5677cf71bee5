//! What a command does without its database.

/// Whether a command may create its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfNoDatabase {
    Create,
    Fail,
}
