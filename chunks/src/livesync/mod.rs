//! The documents other than chunks that Self-hosted LiveSync's clients write and check.

mod entry;
mod form;
mod key;
mod stop;
mod unlock;

pub(crate) use entry::{Entry, in_clear, is_first_form, sealed, sealed_path};
pub(crate) use form::Form;
pub(crate) use key::{ENCRYPTED_CHUNK, Key};
