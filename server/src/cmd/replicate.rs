//! `couch-layer replicate`: replicates one database to another.
//!
//! Each side is behind a server, or in a store that no server has open; the two stores may differ. A signal ends the
//! command with a checkpoint. The command may be ended at any moment and run again: it continues from its last
//! checkpoint, which both databases store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::FutureExt;
use indicatif::ProgressBar;
use model::{JsonText, JsonWriter};
use peer::{Address, Filter, Peer};
use replicate::{Endpoint, Figures, Identity, Options, Replication};
use tokio::sync::oneshot;

use super::progress;
use super::source::{IfNoDatabase, Remote, Source, SourceArgs, with_own_user};
use super::tls_args::TrustArgs;
use crate::cmd::{Failure, failure, stop_signal};
use crate::engine::EngineUrl;

/// Number of failures shown one by one. All are counted.
const SHOWN_FAILURES: u64 = 100;

/// Time for the last checkpoint after a signal.
const GRACE: Duration = Duration::from_secs(10);

/// Replicate a database to another, as CouchDB does
#[derive(Debug, Args)]
pub(crate) struct Replicate {
    /// The source: `http://HOST:PORT/DB` or `https://HOST/DB`, with `USER:PASSWORD@` before HOST if it needs one, or
    /// the name of a database in a store
    source: String,
    /// The target, in the same form
    target: String,
    /// The store of databases given by name: a folder, lsm:FOLDER, sled:FOLDER, or fdb:CLUSTER_FILE
    /// [default: COUCH_LAYER_ENGINE if it is set, ./couch-data otherwise]
    #[arg(long, value_name = "URL")]
    engine: Option<EngineUrl>,
    /// The store of the source, if it is not that of --engine
    #[arg(long, value_name = "URL")]
    source_engine: Option<EngineUrl>,
    /// The store of the target, if it is not that of --engine
    #[arg(long, value_name = "URL")]
    target_engine: Option<EngineUrl>,
    /// Create the target if it does not exist
    #[arg(long)]
    create_target: bool,
    /// Continue with later changes until the command is stopped
    #[arg(long)]
    continuous: bool,
    /// Only these documents
    #[arg(long, value_name = "ID", value_delimiter = ',', num_args = 1.., conflicts_with_all = ["selector", "filter"])]
    doc_ids: Option<Vec<String>>,
    /// Only documents that match this Mango selector
    #[arg(long, value_name = "JSON", conflicts_with = "filter")]
    selector: Option<String>,
    /// Only documents that this filter function of the source accepts: DESIGN/FUNCTION
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Start after this sequence of the source if there is no checkpoint
    #[arg(long, value_name = "SEQ")]
    since_seq: Option<String>,
    /// Only winning revisions, without conflicts
    #[arg(long)]
    winning_revs_only: bool,
    /// Start from the beginning, and store no checkpoints
    #[arg(long)]
    no_checkpoints: bool,
    /// Number of changes in a batch
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    batch_size: usize,
    /// Print the record of the replication as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustArgs,
}

impl Replicate {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let filter = self.filter()?;
        let if_none =
            if self.create_target { IfNoDatabase::Create } else { IfNoDatabase::FailNaming("--create-target") };
        let mut source = self.side(&self.source, self.source_engine.as_ref(), IfNoDatabase::Fail, None).await?;
        let mut target = self.side(&self.target, self.target_engine.as_ref(), if_none, source.store.as_ref()).await?;
        let uuid = match (&source.store, &target.store) {
            (Some(from), Some(to)) if !from.is(&to.engine)? => {
                // The databases may have the same names, and a copied folder has the same uuid as the original.
                (source.end, target.end) = (from.end(&self.source)?, to.end(&self.target)?);
                "couch-layer".to_owned()
            }
            (Some(store), _) | (None, Some(store)) => store.database.uuid().await?,
            (None, None) => "couch-layer".to_owned(),
        };
        let identity = Identity { uuid, source: source.end, target: target.end };
        let (bar, began) = (progress::transfer_bar(), Instant::now());
        bar.set_message(format!("{} to {}", shown(&identity.source), shown(&identity.target)));
        let replication = replicate::replicate(source.peer, target.peer, identity).with_options(Options {
            continuous: self.continuous,
            filter,
            since_seq: self.since_seq.as_deref().map(string),
            winning_revs_only: self.winning_revs_only,
            use_checkpoints: !self.no_checkpoints,
            checkpoint_interval: Duration::from_secs(5),
            batch_size: self.batch_size,
            ..Options::default()
        });
        let replication = shown_by(&bar, replication, began);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut running = replication.run_until(stopped.map(drop));
        let interrupted = stop_signal()?;
        let (ended, is_interrupted) = tokio::select! {
            ended = &mut running => (ended.map_err(Failure::from), false),
            () = interrupted => {
                let _ = stop.send(());
                let late = |_| Err(failure("interrupted before the last checkpoint was stored"));
                let ended = tokio::time::timeout(GRACE, running).await;
                (ended.map_or_else(late, |ended| ended.map_err(Failure::from)), true)
            }
        };
        bar.finish_and_clear();
        let report = ended?;
        let Figures { docs_read, docs_written, doc_write_failures, .. } = report.figures;
        if self.json {
            progress::print(report.record.as_str())?;
        } else {
            progress::print(&format!("{docs_read} read, {docs_written} written, {doc_write_failures} failed"))?;
        }
        match doc_write_failures {
            0 if is_interrupted && !self.continuous => {
                Err(failure("interrupted; run again, it continues from its last checkpoint"))
            }
            0 => Ok(()),
            failed => Err(failure(format!("{failed} revisions did not arrive"))),
        }
    }

    fn filter(&self) -> Result<Filter, Failure> {
        if let Some(ids) = &self.doc_ids {
            return Ok(Filter::DocIds(ids.clone()));
        }
        if let Some(selector) = &self.selector {
            let parsed = JsonText::parse(selector.as_bytes());
            return Ok(Filter::Selector(
                parsed.map_err(|error| failure(format!("the selector is not JSON: {error}")))?,
            ));
        }
        Ok(match &self.filter {
            Some(name) => Filter::Function { name: name.clone(), params: Vec::new() },
            None => Filter::None,
        })
    }

    /// Opens one side. `engine` is this side's own option. `other` is the store that the other side has open, if any: a
    /// folder is opened only once.
    async fn side(
        &self,
        place: &str,
        engine: Option<&EngineUrl>,
        if_none: IfNoDatabase,
        other: Option<&Store>,
    ) -> Result<Side, Failure> {
        if place.contains("://") {
            if let Some(engine) = engine {
                return Err(failure(format!(
                    "{engine} is named as the store of a database behind a URL; give the database's name instead of the URL"
                )));
            }
            let address: Address =
                place.parse().map_err(|error| failure(format!("the address cannot be used: {error}")))?;
            let address = with_own_user(address);
            let remote = Remote::at(address.clone(), if_none, &self.trust.read()?).await?;
            return Ok(Side { peer: remote.peer(), end: Endpoint::Remote(address), store: None });
        }
        if place.contains(':') || place.starts_with(['.', '/']) {
            return Err(failure(format!(
                "{place} is neither a URL nor the name of a database; its store is named by --engine, --source-engine or --target-engine"
            )));
        }
        let stores = SourceArgs::in_store_or_default(engine.or(self.engine.as_ref()));
        let engine = stores.engine()?;
        let database = match other {
            Some(other) if other.is(&engine)? => other.database.sibling_or_new(place, if_none).await?,
            _ => stores.open(place, if_none).await?,
        };
        let store = Store { engine, database: database.clone() };
        Ok(Side { peer: Arc::new(database.peer()), end: Endpoint::Local(place.to_owned()), store: Some(store) })
    }
}

/// One side of the replication, opened.
struct Side {
    peer: Arc<dyn Peer>,
    end: Endpoint,
    /// `None` behind a server.
    store: Option<Store>,
}

/// A store that this process has open, with a database of it.
struct Store {
    engine: EngineUrl,
    database: Source,
}

impl Store {
    /// Whether the URL names this store.
    fn is(&self, engine: &EngineUrl) -> Result<bool, Failure> {
        Ok(self.engine == *engine || self.engine.absolute()? == engine.absolute()?)
    }

    /// Names a database so that the name is unique across stores.
    fn end(&self, name: &str) -> Result<Endpoint, Failure> {
        Ok(Endpoint::Local(format!("{}/{name}", self.engine.absolute()?)))
    }
}

/// Shows the progress of a replication that began now, and names the revisions that did not arrive.
pub(super) fn shown_by(bar: &ProgressBar, replication: Replication, began: Instant) -> Replication {
    let shown = bar.clone();
    replication.on_progress(move |done| {
        let Figures { docs_written, doc_write_failures, .. } = done.figures;
        shown.set_length(docs_written + done.pending.unwrap_or(0));
        shown.set_position(docs_written);
        shown.set_prefix(progress::transferred(done.bytes, began.elapsed()));
        if doc_write_failures - (done.failed.len() as u64) < SHOWN_FAILURES {
            for failed in &done.failed {
                shown.suspend(|| progress::remark(&format!("{} {}: {}", failed.id, failed.rev, failed.reason)));
            }
        }
    })
}

fn shown(end: &Endpoint) -> String {
    match end {
        Endpoint::Local(name) => name.clone(),
        Endpoint::Remote(address) => address.to_string(),
    }
}

fn string(text: &str) -> JsonText {
    let mut out = Vec::new();
    JsonWriter::new(&mut out).str(text);
    JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
}
