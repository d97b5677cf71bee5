//! The command line: the list of commands. Each has its options and its work in a file of its own under [`crate::cmd`].

use clap::{Parser, Subcommand};

use crate::cmd::{self, Failure};

/// CouchDB's document model over an embedded key-value engine, with a server that CouchDB's clients
/// replicate with.
#[derive(Debug, Parser)]
#[command(name = "couch-layer", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(cmd::serve::Serve),
    Import(cmd::import::Import),
    Export(cmd::export::Export),
    Changes(cmd::changes::Changes),
    Check(cmd::check::Check),
    Chunks(cmd::chunks::Chunks),
    Conflicts(cmd::conflicts::Conflicts),
    Format(cmd::format::Format),
    Move(cmd::move_folder::MoveFolder),
    Purge(cmd::purge::Purge),
    Relocate(cmd::relocate::Relocate),
    Replicate(cmd::replicate::Replicate),
    Tree(cmd::tree::Tree),
    Vault(cmd::vault::VaultCommand),
}

impl Cli {
    /// Runs the named command.
    ///
    /// # Errors
    /// The message that the program prints before it exits with code 1.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Import(import) => cmd::block_on(import.run()),
            Command::Export(export) => cmd::block_on(export.run()),
            Command::Changes(changes) => cmd::block_on(changes.run()),
            Command::Check(check) => cmd::block_on(check.run()),
            Command::Chunks(chunks) => cmd::block_on(chunks.run()),
            Command::Conflicts(conflicts) => cmd::block_on(conflicts.run()),
            Command::Format(format) => cmd::block_on(format.run()),
            Command::Move(moving) => moving.run(),
            Command::Purge(purge) => cmd::block_on(purge.run()),
            Command::Relocate(relocate) => cmd::block_on(relocate.run()),
            Command::Replicate(replicate) => cmd::block_on(replicate.run()),
            Command::Tree(tree) => cmd::block_on(tree.run()),
            Command::Vault(vault) => cmd::block_on(vault.run()),
        }
    }
}
