//! Chunks over documents, in process and over HTTP.

mod store;
mod support;
mod writing;
