//! `couch-layer adopt`: takes a store into use whose versions went back, as after a restore into another FoundationDB
//! cluster. [`Layer::adopt`] has the rule.

use clap::Args;
use model::{Layer, LayerOptions};

use super::progress;
use super::source::failure;
use crate::cmd::Failure;
use crate::engine::{self, EngineUrl, IfMissing};

/// Prepare a store that was restored into another cluster: in the feeds, new changes come after all earlier ones
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// The store, as `serve --engine` names it. No server may have it open
    #[arg(value_name = "URL")]
    engine: EngineUrl,
}

impl Adopt {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let engine = engine::open(&self.engine, IfMissing::Fail)?;
        let adopted = Layer::adopt(engine, LayerOptions::default()).await?;
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
