//! `couch-layer adopt`: takes a store into use whose versions went back, as after a restore into another FoundationDB
//! cluster, or a snapshot. [`Layer::adopt`] has the rule.

use clap::Args;
use jobs::JobState;
use kv_api::AnyDatabase;
use model::{Adopted, ErrorKind, Layer, LayerOptions, NameRange};

use super::progress;
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::http::RELOCATIONS;

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
/// incarnation, and no sequence has two meanings. `None` if the store is none. If this is interrupted, the next call
/// does it all again.
pub(crate) async fn adopt_snapshot(url: &EngineUrl) -> Result<Option<Adopted>, Failure> {
    let Some(engine) = engine::open_copy(url)? else { return Ok(None) };
    examine(&Layer::open(engine.clone(), LayerOptions::default()).await?).await?;
    let adopted = Layer::adopt(engine.clone(), LayerOptions::default()).await?;
    if !adopted.unreadable.is_empty() {
        return Err(refused("these databases cannot be read", &adopted.unreadable));
    }
    // The engine is open until then, so nobody else takes it into use.
    engine::take_into_use(url)?;
    Ok(Some(adopted))
}

/// Fails if a snapshot cannot be taken into use: a database without a new incarnation would give out sequences of the
/// original, and one that is in another store, or moves there, would write to the store of the original.
pub(super) async fn examine(layer: &Layer<AnyDatabase>) -> Result<(), Failure> {
    let (mut unreadable, mut elsewhere) = (Vec::new(), Vec::new());
    for name in layer.database_names(&NameRange::default()).await? {
        // A database in the last step of a move refuses this write.
        let tried = async {
            let documents = layer.database(&name).await?;
            documents.set_revs_limit(documents.revs_limit().await?).await
        };
        match tried.await {
            Err(error) if error.is_damage() => unreadable.push(name),
            // A standby refuses it last.
            Err(error) if error.is_read_only() => {}
            Err(error) => match error.kind() {
                ErrorKind::Moved(to) => elsewhere.push(format!("{name} (in {to})")),
                ErrorKind::Moving => elsewhere.push(format!("{name} (being relocated)")),
                _ if error.status() == NOT_FOUND => {}
                _ => return Err(error.into()),
            },
            Ok(_) => {}
        }
    }
    let jobs = layer.jobs().list(RELOCATIONS).await?.into_iter().filter(|job| job.state != JobState::Finished);
    elsewhere.extend(jobs.map(|job| format!("{} (being relocated)", job.id.id)));
    if !unreadable.is_empty() {
        return Err(refused("these databases cannot be read", &unreadable));
    }
    if !elsewhere.is_empty() {
        return Err(refused("these databases are in another store, which the original uses", &elsewhere));
    }
    Ok(())
}

/// The status of a database that a restore has not completed.
const NOT_FOUND: u16 = 404;

fn refused(why: &str, names: &[String]) -> Failure {
    failure(format!("the snapshot cannot be taken into use: {why}: {}", names.join(", ")))
}
