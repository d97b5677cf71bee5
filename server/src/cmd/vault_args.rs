//! The arguments that name a vault: its database, where that is, and its passphrase.

use std::path::PathBuf;

use chunks::ChunkStore;
use clap::Args;
use peer::Trust;

use super::source::{IfNoDatabase, Source, SourceArgs};
use super::tls_args::RootsError;
use crate::cmd::{Failure, failure};
use crate::passphrase;

#[derive(Debug, Args)]
pub(crate) struct VaultArgs {
    /// The database
    #[arg(value_name = "DB")]
    pub(crate) database: String,
    // From a file, since others could read a command line.
    /// A file with the passphrase of an encrypted vault; a line break at its end is ignored
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

impl VaultArgs {
    /// Whether a passphrase was given.
    pub(super) fn has_passphrase(&self) -> bool {
        self.passphrase_file.is_some()
    }

    /// Which servers behind `https://` are trusted.
    pub(super) fn trust(&self) -> Result<Trust, RootsError> {
        self.source.trust()
    }

    /// Opens the database, and unlocks the vault if a passphrase file was given.
    pub(crate) async fn open(&self, if_none: IfNoDatabase) -> Result<(Source, ChunkStore), Failure> {
        let source = self.source.open(&self.database, if_none).await?;
        let chunks = ChunkStore::new(source.document_store());
        let Some(file) = &self.passphrase_file else { return Ok((source, chunks)) };
        let passphrase = passphrase::read_text(file).map_err(failure)?;
        Ok((source, chunks.unlock(&passphrase).await?))
    }
}
