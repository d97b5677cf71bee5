//! `couch-layer move`: moves a folder of redb or fjall, which this program only reads, to lsm.

use std::path::PathBuf;

use clap::Args;

use crate::cmd::Failure;

/// Move a data folder that an earlier version wrote with redb or fjall to lsm
#[derive(Debug, Args)]
pub(crate) struct MoveFolder {
    /// The folder. No server may have it open. It needs its size again on the disk: the old files stay in `former` within it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl MoveFolder {
    #[cfg(feature = "former")]
    pub(crate) fn run(self) -> Result<(), Failure> {
        use super::progress::{self, Unit};
        use crate::engine::EngineError;
        use former::Step;

        let counter = progress::counter(Unit::Documents);
        let moved = former::move_folder(&self.folder, |step| {
            let (message, rows) = match step {
                Step::Writing(rows) => ("writing, rows:", rows),
                Step::Comparing(rows) => ("comparing, rows:", rows),
                Step::Renaming => return,
            };
            counter.set_message(message);
            counter.set_position(rows);
        });
        counter.finish_and_clear();
        let moved = moved.map_err(EngineError::from)?;
        let rows =
            moved.rows.map_or_else(|| "an earlier attempt wrote its rows".to_owned(), |rows| format!("{rows} rows"));
        progress::print(&format!(
            "{} has moved: {rows}\nThe old files are in {}: remove them when you no longer need them.",
            self.folder.display(),
            moved.former.display()
        ))?;
        Ok(())
    }

    #[cfg(not(feature = "former"))]
    pub(crate) fn run(self) -> Result<(), Failure> {
        let folder = self.folder.display();
        Err(format!("this build cannot read {folder}: build couch-layer again with `--features former`").into())
    }
}
