//! `couch-layer chunks offload`: moves full data documents to an object store.

use chunks::objects::{Location, ObjectFigures};
use chunks::{ChunkStore, Offloaded};
use clap::Args;

use super::report::{bytes, left_alone, sizes};
use crate::cmd::progress::{self, Unit};
use crate::cmd::source::{IfNoDatabase, SourceArgs};
use crate::cmd::{Failure, failure};

/// Move full data documents to an object store, or back; clients may write meanwhile.
///
/// The vault's settings record the place for all clients. Each client takes its credentials from its environment:
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT for a store that is not Amazon's. After an
/// interruption, run the command again. `chunks gc` removes objects that are no longer needed, after the grace
/// period.
#[derive(Debug, Args)]
pub(super) struct Offload {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The object store: s3://BUCKET/PREFIX, or file:PATH, a directory that all clients see under that path. With
    /// --back, the store to bring documents back from; without it, all stores
    #[arg(long, value_name = "PLACE", required_unless_present = "back")]
    to: Option<Location>,
    /// Bring the contents back into documents
    #[arg(long)]
    back: bool,
    /// With --back, remove stores from the settings that have no objects left after `chunks gc`. Nobody may offload
    /// meanwhile, on any replica
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
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let chunks = ChunkStore::new(source.document_store());
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
