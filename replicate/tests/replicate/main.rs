//! Replications between databases of this process and behind a server.

mod faults;
mod runs;
mod support;
