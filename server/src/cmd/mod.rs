//! The commands. Each file has the options of a command (clap) and a `run` that does the work.

pub(crate) mod adopt;
pub(crate) mod backup;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod chunks;
pub(crate) mod config_file;
pub(crate) mod conflicts;
mod descriptors;
pub(crate) mod export;
pub(crate) mod format;
pub(crate) mod import;
pub(crate) mod migrate;
pub(crate) mod pages;
mod progress;
pub(crate) mod promote;
pub(crate) mod purge;
mod records;
mod reload;
pub(crate) mod relocate;
pub(crate) mod replicate;
pub mod serve;
pub(crate) mod setup;
mod ship;
pub(crate) mod snapshot;
mod source;
mod standby;
mod systemd;
mod target;
mod tls_args;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod vault;
mod vault_args;
mod vault_collect;
mod vault_doctor;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;

/// The failure of a command: a message for a person.
pub type Failure = Box<dyn Error + Send + Sync + 'static>;

/// A message without a cause.
#[derive(Debug)]
struct Sentence(String);

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Sentence {}

/// A failure with this message.
pub(crate) fn failure(sentence: impl Into<String>) -> Failure {
    Box::new(Sentence(sentence.into()))
}

/// Runs a command on a runtime with a thread for each processor.
pub(crate) fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command)
}

/// Ends at the next SIGTERM or Ctrl-C. Its handlers are there when this returns.
pub(crate) fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    {
        let mut interrupt = tokio::signal::windows::ctrl_c()?;
        Ok(async move { drop(interrupt.recv().await) })
    }
}
