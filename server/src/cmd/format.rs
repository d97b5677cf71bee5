//! `couch-layer format`: shows the layout of a database's bodies, or changes it.
//!
//! With `--engine` the command rewrites the bodies itself. With `--url` the server does, and the command waits. If the
//! command is interrupted, a job is left in the store. A server continues it, or the same command, run again.

use std::time::Duration;

use clap::Args;
use model::BodyFormat;

use super::progress::{self, Unit};
use super::source::{IfNoDatabase, SourceArgs};
use crate::cmd::Failure;

/// Pause between two requests that ask whether bodies are still being rewritten.
const POLL: Duration = Duration::from_millis(200);

/// Show the layout of a database's bodies, or change it: new bodies have the new layout at once, and existing ones are
/// rewritten while the database is in use
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The new layout: exploded, a row for each value, or packed, whole documents in few rows
    #[arg(value_name = "LAYOUT", value_parser = parse)]
    layout: Option<BodyFormat>,
    #[command(flatten)]
    source: SourceArgs,
}

fn parse(name: &str) -> Result<BodyFormat, String> {
    name.parse().map_err(|()| "write exploded or packed".to_owned())
}

impl Format {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        if let Some(layout) = self.layout {
            let bar = progress::counter(Unit::Documents);
            bar.set_message(format!("rewriting {}, bodies:", self.database));
            let set = source.set_format(layout, POLL, |bodies| bar.set_position(bodies)).await;
            bar.finish_and_clear();
            set?;
        }
        let (layout, is_rewriting) = source.format().await?;
        let rest = if is_rewriting { ", and bodies in the other layout are being rewritten" } else { "" };
        Ok(progress::print(&format!("{}: {layout}{rest}", self.database))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_names() {
        assert_eq!((parse("exploded"), parse("packed")), (Ok(BodyFormat::Exploded), Ok(BodyFormat::Packed)));
        for wrong in ["", "Packed", "packed "] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
