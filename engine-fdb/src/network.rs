//! The client's network thread: started once for a process, stopped before it ends.
//!
//! `libfdb_c` allows one start for the life of a process (`api-c.rst`, "Network"); a stop is therefore
//! final. It must come before `main` returns: once a process runs its exit handlers, objects of the
//! client that its thread uses are gone, in an order that no handler can be sure to be ahead of.

use std::sync::{Mutex, PoisonError};

use foundationdb::api::{FdbApiBuilder, NetworkAutoStop};
use kv_api::{Error, error};

use crate::convert::kv_error;

enum Network {
    NotStarted,
    Running(#[allow(dead_code, reason = "its drop stops the thread")] NetworkAutoStop),
    /// Stopped, or it never started and cannot be tried again: the client selects its version once.
    Ended(Error),
}

static NETWORK: Mutex<Network> = Mutex::new(Network::NotStarted);

/// Starts the network thread unless it runs.
///
/// # Errors
///
/// 1043 after [`stop_network`]; what the client said when it could not start (2203: the installed
/// `libfdb_c` is older than 7.3).
#[allow(unsafe_code, reason = "the client's network must be stopped before exit; see the use")]
pub(crate) fn start_network() -> Result<(), Error> {
    let mut network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    match &*network {
        Network::Running(_) => return Ok(()),
        Network::Ended(error) => return Err(error.clone()),
        Network::NotStarted => {}
    }
    let booted = FdbApiBuilder::default().build().and_then(|builder| {
        // SAFETY: the handle lives in `NETWORK` until `stop_network` drops it, which whoever opens a
        // database is told to call; a process that is killed or aborts needs no stop.
        unsafe { builder.boot() }
    });
    match booted {
        Ok(handle) => {
            *network = Network::Running(handle);
            Ok(())
        }
        Err(failure) => {
            let error = kv_error(failure).with_context("the FoundationDB client library did not start");
            *network = Network::Ended(error.clone());
            Err(error)
        }
    }
}

/// Stops the client's network thread and waits for its end. What is under way fails; no database can
/// be opened any more by this process.
///
/// To be called before `main` returns, also after an error: a process that exits while the thread runs
/// may crash on its way out. Does nothing where no database was opened.
pub fn stop_network() {
    let mut network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let stopped = Error::new(error::SHUTDOWN_IN_PROGRESS).with_context("the FoundationDB client was stopped");
    if let Network::Running(handle) = std::mem::replace(&mut *network, Network::Ended(stopped)) {
        drop(handle);
    }
}
