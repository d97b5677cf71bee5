//! Chunks over documents, in process and over HTTP.

mod interruption;
mod simulation;
mod store;
mod support;
mod writing;
