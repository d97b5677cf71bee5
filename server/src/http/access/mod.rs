//! Who asks: passwords and sessions, and which web pages may.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod principal;
