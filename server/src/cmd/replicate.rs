//! `couch-layer replicate`: replicates one database to another.
//!
//! Each side is behind a server, or in a data folder that no server has open. The command may be ended at any moment and
//! run again: it continues from its last checkpoint, which is stored in both databases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use model::{JsonText, JsonWriter};
use peer::{Address, Filter, Peer};
use replicate::{Endpoint, Figures, Identity, Options};

use super::progress;
use super::source::{IfNoDatabase, Remote, Source, SourceArgs, failure, with_own_user};
use super::tls_args::TrustArgs;
use crate::cmd::Failure;
use crate::engine::EngineUrl;

/// Number of failures that are shown one by one. All are counted.
const SHOWN_FAILURES: u64 = 100;

/// Replicate a database to another, as CouchDB does
#[derive(Debug, Args)]
pub(crate) struct Replicate {
    /// The source: `http://HOST:PORT/DB` or `https://HOST/DB`, with `USER:PASSWORD@` before HOST if it needs one, or the name of a database in
    /// the store
    source: String,
    /// The target, in the same form
    target: String,
    /// The store of databases given by name
    /// [default: COUCH_LAYER_ENGINE if it is set, ./couch-data otherwise]
    #[arg(long, value_name = "URL")]
    engine: Option<EngineUrl>,
    /// Create the target if there is none
    #[arg(long)]
    create_target: bool,
    /// Continue with later changes, until the command is ended
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
    /// Only the winners, without conflicting revisions
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
        let if_none = if self.create_target { IfNoDatabase::Create } else { IfNoDatabase::Fail };
        let mut store = None;
        let (source, source_end) = self.side(&self.source, IfNoDatabase::Fail, &mut store).await?;
        let (target, target_end) = self.side(&self.target, if_none, &mut store).await?;
        let uuid = match &store {
            Some(local) => local.uuid().await?,
            None => "couch-layer".to_owned(),
        };
        let identity = Identity { uuid, source: source_end, target: target_end };
        let (bar, began) = (progress::transfer_bar(), Instant::now());
        bar.set_message(format!("{} to {}", shown(&identity.source), shown(&identity.target)));
        let shown = bar.clone();
        let replication = replicate::replicate(source, target, identity).with_options(Options {
            continuous: self.continuous,
            filter,
            since_seq: self.since_seq.as_deref().map(string),
            winning_revs_only: self.winning_revs_only,
            use_checkpoints: !self.no_checkpoints,
            checkpoint_interval: Duration::from_secs(5),
            batch_size: self.batch_size,
            ..Options::default()
        });
        let replication = replication.on_progress(move |done| {
            let Figures { docs_written, doc_write_failures, .. } = done.figures;
            shown.set_length(docs_written + done.pending.unwrap_or(0));
            shown.set_position(docs_written);
            shown.set_prefix(progress::transferred(done.bytes, began.elapsed()));
            if doc_write_failures - (done.failed.len() as u64) < SHOWN_FAILURES {
                for failed in &done.failed {
                    shown.suspend(|| progress::remark(&format!("{} {}: {}", failed.id, failed.rev, failed.reason)));
                }
            }
        });
        let report = replication.run().await;
        bar.finish_and_clear();
        let report = report?;
        let Figures { docs_read, docs_written, doc_write_failures, .. } = report.figures;
        if self.json {
            progress::print(report.record.as_str())?;
        } else {
            progress::print(&format!("{docs_read} read, {docs_written} written, {doc_write_failures} failed"))?;
        }
        match doc_write_failures {
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
            return Ok(Filter::Selector(parsed.map_err(|error| failure(format!("the selector is no JSON: {error}")))?));
        }
        Ok(match &self.filter {
            Some(name) => Filter::Function { name: name.clone(), params: Vec::new() },
            None => Filter::None,
        })
    }

    /// Opens one side. `store` is the store that the other side opened, if any: a folder is opened only once.
    async fn side(
        &self,
        place: &str,
        if_none: IfNoDatabase,
        store: &mut Option<Source>,
    ) -> Result<(Arc<dyn Peer>, Endpoint), Failure> {
        if place.contains("://") {
            let address: Address =
                place.parse().map_err(|error| failure(format!("the address cannot be used: {error}")))?;
            let address = with_own_user(address);
            let remote = Remote::at(address.clone(), if_none, &self.trust.read()?).await?;
            return Ok((remote.peer(), Endpoint::Remote(address)));
        }
        let source = match store {
            Some(store) => store.beside_or_new(place, if_none).await?,
            None => SourceArgs::in_store_or_default(self.engine.as_ref()).open(place, if_none).await?,
        };
        *store = Some(source.clone());
        Ok((Arc::new(source.peer()), Endpoint::Local(place.to_owned())))
    }
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
