//! What a command does without its database.

/// Whether a command may create its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfNoDatabase {
    Create,
    Fail,
    /// Fails, and names the option that creates it.
    FailNaming(&'static str),
}

impl IfNoDatabase {
    /// What the error adds.
    pub(super) fn advice(self) -> String {
        match self {
            IfNoDatabase::FailNaming(option) => format!("; {option} creates it"),
            IfNoDatabase::Create | IfNoDatabase::Fail => String::new(),
        }
    }
}
