//! What Self-hosted LiveSync's own clients write beside chunks, and look at.

mod entry;
mod form;
mod key;
mod stop;
mod unlock;

pub(crate) use entry::{Entry, in_clear, is_first_form, sealed, sealed_path};
pub(crate) use form::Form;
pub(crate) use key::{ENCRYPTED_CHUNK, Key};
