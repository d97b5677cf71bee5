//! The documents other than chunks that Self-hosted LiveSync's clients write and check.

mod compressed;
mod entry;
mod form;
mod key;
mod milestone;
mod stop;
mod unlock;

pub(crate) use compressed::inflated;
pub(crate) use entry::{Entry, OF_LIVESYNC, in_clear, is_first_form, sealed, sealed_path};
pub(crate) use form::Form;
pub use key::seal_settings;
pub(crate) use key::{ENCRYPTED_CHUNK, Key};
pub(crate) use milestone::MILESTONE;
pub use milestone::{Device, Difference, Milestone};
