//! Chunks over documents, in process and over HTTP.

mod clients;
mod collecting;
mod collectors;
mod damage;
mod devices;
mod doctor;
mod encrypted;
mod failures;
mod fixtures;
mod flaky;
mod hybrid;
mod hybrid_interruption;
mod interruption;
mod livesync;
mod objects;
mod reachable;
mod settings;
mod simulation;
mod store;
mod support;
mod vault;
mod watched;
mod writing;
mod year;
