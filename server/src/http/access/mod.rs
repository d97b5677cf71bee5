//! Access control: passwords, sessions, and requests from web pages.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod principal;
