//! The commands, each in a file of its own: its options (clap) and a `run` that does the work.

pub mod serve;
