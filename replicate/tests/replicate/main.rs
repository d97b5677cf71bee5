//! Replications between databases of this process and behind a server.

mod faults;
mod names;
mod proxy;
mod runs;
mod support;
