//! `couch-layer adopt`: takes a store into use whose versions went back, as after a restore into another FoundationDB
//! cluster, or a snapshot. [`Layer::adopt`] has the rule.

use clap::Args;
use model::{Adopted, Layer, LayerOptions};

use super::progress;
use super::source::failure;
use crate::cmd::Failure;
use crate::engine::{self, EngineUrl, IfMissing};

/// Prepare a store that was restored into another cluster, or a snapshot: in the feeds, new changes come after all
/// earlier ones
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// The store, as `serve --engine` names it. No server may have it open
    #[arg(value_name = "URL")]
    engine: EngineUrl,
}

impl Adopt {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let adopted = match adopt_snapshot(&self.engine).await? {
            Some(adopted) => adopted,
            None => Layer::adopt(engine::open(&self.engine, IfMissing::Fail)?, LayerOptions::default()).await?,
        };
        let count = match adopted.databases {
            1 => "1 database has".to_owned(),
            several => format!("{several} databases have"),
        };
        progress::print(&format!("{}: {count} a new incarnation", self.engine))?;
        match adopted.unreadable.as_slice() {
            [] => Ok(()),
            names => Err(failure(format!("these cannot be read and were left as they are: {}", names.join(", ")))),
        }
    }
}

/// Takes a snapshot into use that nobody has: the store that it was copied from may go on, so each database gets a new
/// incarnation, and no sequence has two meanings. `None` if the store is none. If this is interrupted, the next call does it all
/// again.
pub(crate) async fn adopt_snapshot(url: &EngineUrl) -> Result<Option<Adopted>, Failure> {
    let Some(engine) = engine::open_copy(url)? else { return Ok(None) };
    let adopted = Layer::adopt(engine.clone(), LayerOptions::default()).await?;
    // The engine is open until then, so nobody else takes it into use.
    engine::take_into_use(url)?;
    Ok(Some(adopted))
}
