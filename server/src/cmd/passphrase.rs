//! Reads the passphrase of an encrypted vault from a file. Others could read a command line.

use std::path::PathBuf;

use chunks::ChunkStore;
use clap::Args;

use super::source::failure;
use crate::cli::Failure;

#[derive(Debug, Args)]
pub(crate) struct PassphraseArgs {
    /// A file with the passphrase of an encrypted vault; a line break at its end is ignored
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl PassphraseArgs {
    /// Unlocks the vault if a passphrase file was given.
    pub(crate) async fn unlock(&self, chunks: ChunkStore) -> Result<ChunkStore, Failure> {
        let Some(file) = &self.passphrase_file else { return Ok(chunks) };
        let content = std::fs::read_to_string(file).map_err(|error| failure(format!("{}: {error}", file.display())))?;
        let line = content.strip_suffix('\n').unwrap_or(&content);
        let passphrase = line.strip_suffix('\r').unwrap_or(line);
        if passphrase.is_empty() {
            return Err(failure(format!("there is no passphrase in {}", file.display())));
        }
        Ok(chunks.unlock(passphrase).await?)
    }
}
