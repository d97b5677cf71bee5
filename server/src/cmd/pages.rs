//! `couch-layer completions` and `couch-layer man`: files that a package installs for shells and for `man`, generated
//! from the options.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cmd::Failure;

/// The name of the program.
const NAME: &str = "couch-layer";

/// Print the completion script of a shell
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, command: &mut Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, NAME, &mut script);
        Ok(io::stdout().write_all(&script)?)
    }
}

/// Write a page for man about each command
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Man {
    /// An existing folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self, command: Command) -> Result<(), Failure> {
        Ok(clap_mangen::generate_to(command, self.folder)?)
    }
}
