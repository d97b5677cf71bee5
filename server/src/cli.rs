//! The command line: the list of commands. Each command has a file under [`crate::cmd`] with its options and its work.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd::config_file::ConfigFile;
use crate::cmd::{self, Failure};

/// A small CouchDB in one binary: CouchDB's document model over an ordered key-value store, and a server for CouchDB's
/// clients
#[derive(Debug, Parser)]
#[command(name = "couch-layer", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<cmd::serve::Serve>),
    Adopt(cmd::adopt::Adopt),
    Backup(cmd::backup::Backup),
    Restore(cmd::backup::Restore),
    Import(cmd::import::Import),
    Export(cmd::export::Export),
    Changes(cmd::changes::Changes),
    Check(cmd::check::Check),
    Chunks(cmd::chunks::Chunks),
    Conflicts(cmd::conflicts::Conflicts),
    Format(cmd::format::Format),
    Migrate(cmd::migrate::Migrate),
    Promote(cmd::promote::Promote),
    Purge(cmd::purge::Purge),
    Relocate(cmd::relocate::Relocate),
    Replicate(cmd::replicate::Replicate),
    Setup(cmd::setup::Setup),
    Snapshot(cmd::snapshot::Snapshot),
    Top(cmd::top::Top),
    Tree(cmd::tree::Tree),
    Vault(cmd::vault::VaultCommand),
    Completions(cmd::pages::Completions),
    Man(cmd::pages::Man),
}

impl Cli {
    /// The command named by the program's arguments, the environment and a file of options. Ends the program with a
    /// message if its arguments are wrong.
    ///
    /// # Errors
    /// A file of options cannot be read, or has invalid options.
    pub fn from_program() -> Result<Cli, Failure> {
        let mut command = Cli::command();
        let mut matches = command.clone().get_matches();
        let path = matches.subcommand_matches("serve").and_then(|serve| serve.get_one::<PathBuf>("config"));
        let file = match (path, command.find_subcommand("serve")) {
            (Some(path), Some(serve)) => Some(ConfigFile::read(path, serve)?),
            _ => None,
        };
        if let Some(file) = &file {
            command = command.mut_subcommand("serve", |serve| file.set_defaults(serve));
            matches = command.get_matches();
        }
        let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let (Command::Serve(serve), Some(file)) = (&mut cli.command, file) {
            serve.settings = file.settings;
        }
        Ok(cli)
    }

    /// Runs the named command.
    ///
    /// # Errors
    /// The message that the program prints before it exits with code 1.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Adopt(adopt) => cmd::block_on(adopt.run()),
            Command::Backup(backup) => cmd::block_on(backup.run()),
            Command::Restore(restore) => cmd::block_on(restore.run()),
            Command::Import(import) => cmd::block_on(import.run()),
            Command::Export(export) => cmd::block_on(export.run()),
            Command::Changes(changes) => cmd::block_on(changes.run()),
            Command::Check(check) => cmd::block_on(check.run()),
            Command::Chunks(chunks) => cmd::block_on(chunks.run()),
            Command::Conflicts(conflicts) => cmd::block_on(conflicts.run()),
            Command::Format(format) => cmd::block_on(format.run()),
            Command::Migrate(migrate) => cmd::block_on(migrate.run()),
            Command::Promote(promote) => cmd::block_on(promote.run()),
            Command::Purge(purge) => cmd::block_on(purge.run()),
            Command::Relocate(relocate) => cmd::block_on(relocate.run()),
            Command::Replicate(replicate) => cmd::block_on(replicate.run()),
            Command::Setup(setup) => cmd::block_on(setup.run()),
            Command::Snapshot(snapshot) => cmd::block_on(snapshot.run()),
            Command::Top(top) => cmd::block_on(top.run()),
            Command::Tree(tree) => cmd::block_on(tree.run()),
            Command::Vault(vault) => cmd::block_on(vault.run()),
            Command::Completions(completions) => completions.run(&mut Cli::command()),
            Command::Man(man) => man.run(Cli::command()),
        }
    }
}
