//! Handlers: a folder for each subject. The table of routes calls them.

pub(crate) mod console;
pub(crate) mod database;
pub(crate) mod document;
pub(crate) mod feed;
pub(crate) mod find;
pub(crate) mod listing;
pub(crate) mod root;
pub(crate) mod views;
