//! Chunks over documents, in process and over HTTP.

mod failures;
mod flaky;
mod interruption;
mod livesync;
mod settings;
mod simulation;
mod store;
mod support;
mod vault;
mod writing;
