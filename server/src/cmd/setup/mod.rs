//! `couch-layer setup`: prepares a server, or a store that no server has open, for a client.
//!
//! ```text
//!   account ── a user, a database that only this user and administrators read, settings
//!     ├─ livesync ── what the plugin's check looks for, and the plugin's setup link
//!     └─ pouchdb ─── the origins of web pages, and the lines of JavaScript that connect
//! ```
//!
//! Each step looks first, and leaves what is right as it is. So the command may be run again, also after a failure
//! half-way. Nothing is taken away: not a right, not an origin, and no password unless that is asked for.

mod account;
mod livesync;
mod pouchdb;
mod qr;
mod secret;
mod wanted;

use clap::{Args, Subcommand};

use self::livesync::Livesync;
use self::pouchdb::Pouchdb;
use crate::cmd::Failure;

/// Prepare a server for a client: a user, a database of this user, and the settings that the client needs
#[derive(Debug, Args)]
pub(crate) struct Setup {
    #[command(subcommand)]
    client: Client,
}

#[derive(Debug, Subcommand)]
enum Client {
    Livesync(Livesync),
    Pouchdb(Pouchdb),
}

impl Setup {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self.client {
            Client::Livesync(livesync) => livesync.run().await,
            Client::Pouchdb(pouchdb) => pouchdb.run().await,
        }
    }
}
