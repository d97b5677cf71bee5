//! Reads documents and lists of them.

pub(crate) mod all_docs;
pub(crate) mod batch;
pub(crate) mod conflicts;
pub(crate) mod count;
pub(crate) mod document;
pub(crate) mod find;
pub(crate) mod local;
pub(crate) mod open_revs;
pub(crate) mod parts;
pub(crate) mod reading;
pub(crate) mod revs_diff;
pub(crate) mod stream;
pub(crate) mod typed;
pub(crate) mod winner;
