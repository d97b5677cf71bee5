//! `couch-layer chunks offload`: moves full data documents to an object store.

use chunks::Offloaded;
use chunks::objects::{Location, ObjectFigures};
use clap::Args;

use super::{bytes, left_alone, open, sizes};
use crate::cli::Failure;
use crate::cmd::progress::{self, Unit};
use crate::cmd::source::{SourceArgs, failure};

/// Move data documents that are full to an object store, or back; beside clients that write.
///
/// Where they are is kept in the vault's settings, for all clients. What each needs to get there comes from
/// its environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT for a store that
/// is not Amazon's. Interrupted, it is gone on with by beginning again. Objects that are no longer needed go
/// with `chunks gc`, after the grace.
#[derive(Debug, Args)]
pub(super) struct Offload {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// Where to: s3://BUCKET/PREFIX, or file:PATH, a directory that all clients see under that path; with
    /// --back, where from, everywhere unless it is said
    #[arg(long, value_name = "PLACE", required_unless_present = "back")]
    to: Option<Location>,
    /// Bring them back into documents
    #[arg(long)]
    back: bool,
    /// With --back, forget places in the settings that have no objects any more, once `chunks gc` has removed
    /// them; nobody may offload meanwhile, on any replica
    #[arg(long, requires = "back", conflicts_with = "dry_run")]
    forget: bool,
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Offload {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let chunks = open(&self.source, &self.database).await?;
        let bar = progress::bar(0, Unit::Documents);
        bar.set_message(self.database.clone());
        let tell = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let place = self.to.as_ref().map(Location::to_string);
        let moved = match &place {
            Some(place) if !self.back => chunks.offload(place, self.dry_run, tell).await,
            place => chunks.offload_back(place.as_deref(), self.dry_run, tell).await,
        };
        bar.finish_and_clear();
        let moved = moved?;
        let mut report = self.report(&moved);
        if self.forget {
            report += &format!("\n{} places forgotten", chunks.forget_places().await?);
        }
        progress::print(&report)?;
        match moved.left.len() {
            0 => Ok(()),
            left => Err(failure(format!("{left} data documents were left where they are"))),
        }
    }

    fn report(&self, moved: &Offloaded) -> String {
        let Offloaded { data_documents, bytes: moved_bytes, left, before, after, .. } = moved;
        let done = match (self.dry_run, self.back) {
            (true, false) => "would become objects",
            (true, true) => "would come back",
            (false, false) => "are objects now",
            (false, true) => "came back",
        };
        let mut report = format!("{data_documents} data documents ({}) {done}", bytes(*moved_bytes));
        if !self.dry_run {
            report += &format!("\n{}", sizes(before, after));
            let of = |objects: &ObjectFigures| format!("{} objects, {}", objects.objects, bytes(objects.bytes));
            report += &format!("\nbefore: {}\nafter:  {}", of(&moved.objects_before), of(&moved.objects_after));
        }
        report + &left_alone(left)
    }
}
