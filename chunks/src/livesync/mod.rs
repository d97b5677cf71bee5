//! What Self-hosted LiveSync's own clients write beside chunks, and look at.

mod entry;

pub(crate) use entry::Entry;
