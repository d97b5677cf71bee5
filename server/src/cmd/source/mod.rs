//! A command's database: in a store that this process opens, or behind a server.
//!
//! A data folder has one owner at a time. So every command on a database takes either `--engine`, and opens the store
//! itself, or `--url`, and works through the server that owns it. Commands use a [`Source`] and do not know which.

mod if_no_database;
mod local;
mod remote;

use std::sync::Arc;
use std::time::Duration;

use chunks::VaultCollectOptions;
use chunks::store::{DocumentStore, PeerStore};
use clap::Args;
use kv_api::AnyDatabase;
use model::{BodyFormat, Edit, JsonRef, JsonText, Layer, LayerOptions, SystemEnvironment, WriteMode};
use peer::{Address, ErrorKind, Peer, Steady, Trust};
use serde_json::{Value, json};

use crate::cmd::tls_args::{RootsError, TrustArgs};
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::report::Checked;
use crate::units;

pub(crate) use if_no_database::IfNoDatabase;
pub(crate) use remote::{Remote, with_own_user};

/// The same variable as for `serve`.
const ENGINE_VARIABLE: &str = "COUCH_LAYER_ENGINE";
const DEFAULT_ENGINE: &str = "./couch-data";

/// Options that name the place of a command's database.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Open this store: a folder, which names its engine itself, lsm:FOLDER, sled:FOLDER, or fdb:CLUSTER_FILE
    /// [default: COUCH_LAYER_ENGINE if it is set, ./couch-data otherwise]
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    engine: Option<EngineUrl>,
    /// Use a running server instead: http://HOST:PORT or https://HOST, with USER:PASSWORD@ before HOST if it needs one.
    /// Without a user in the URL, COUCHDB_USER and COUCHDB_PASSWORD are sent if they are set; a user without a password
    /// gets COUCHDB_PASSWORD
    #[arg(long, value_name = "URL")]
    url: Option<Address>,
    /// With --engine, the largest document in bytes of compact JSON, as for `serve`
    #[arg(long, value_name = "BYTES", env = "COUCH_LAYER_MAX_DOCUMENT_SIZE", default_value_t = 8_000_000,
          value_parser = units::bytes_in(1..=8_000_000))]
    max_document_size: u64,
    #[command(flatten)]
    trust: TrustArgs,
}

impl SourceArgs {
    /// The certificates by which servers behind `https://` are trusted.
    pub(crate) fn trust(&self) -> Result<Trust, RootsError> {
        self.trust.read()
    }

    /// Opens the database `name`.
    pub(crate) async fn open(&self, name: &str, if_none: IfNoDatabase) -> Result<Source, Failure> {
        Ok(match &self.url {
            Some(url) => remote::Remote::open(url, name, if_none, &self.trust()?).await?.into(),
            None => {
                let if_missing = match if_none {
                    IfNoDatabase::Create => IfMissing::Create,
                    IfNoDatabase::Fail | IfNoDatabase::FailNaming(_) => IfMissing::Fail,
                };
                local::Local::open(&self.engine()?, if_missing, self.layer_options()?, name, if_none).await?.into()
            }
        })
    }
}

impl SourceArgs {
    /// A store by name, with a server's default limits.
    pub(crate) fn in_store(engine: &EngineUrl) -> Self {
        Self::in_store_or_default(Some(engine))
    }

    /// The same, or the default store if no name is given.
    pub(crate) fn in_store_or_default(engine: Option<&EngineUrl>) -> Self {
        let (engine, trust) = (engine.cloned(), TrustArgs::default());
        SourceArgs { engine, url: None, max_document_size: 8_000_000, trust }
    }

    /// Opens the database `name` for a check, or for the rest of one that moved away.
    pub(crate) async fn open_or_remains(&self, name: &str) -> Result<Source, Failure> {
        if self.url.is_some() {
            return self.open(name, IfNoDatabase::Fail).await;
        }
        Ok(local::Local::open_or_remains(&self.engine()?, self.layer_options()?, name).await?.into())
    }

    /// The options of a store that this process opens.
    fn layer_options(&self) -> Result<LayerOptions, Failure> {
        let max_document_size = usize::try_from(self.max_document_size)?;
        Ok(LayerOptions { max_document_size, ..crate::layer_options() })
    }

    /// The server of `--url`, as its administrator.
    pub(crate) fn server(&self) -> Option<Address> {
        self.url.clone().map(with_own_user)
    }

    /// Opens the store, which is created if there is none.
    pub(crate) async fn layer(&self) -> Result<Layer<AnyDatabase>, Failure> {
        let engine = engine::open(&self.engine()?, IfMissing::Create)?;
        Ok(Layer::open(engine, self.layer_options()?).await?)
    }

    /// The named store, or the default one. The environment variable is read here and not by clap, because it is set
    /// for `serve` and would conflict with `--url`.
    pub(crate) fn engine(&self) -> Result<EngineUrl, Failure> {
        match (&self.engine, std::env::var(ENGINE_VARIABLE)) {
            (Some(engine), _) => Ok(engine.clone()),
            (None, Ok(engine)) => Ok(engine.parse()?),
            (None, Err(_)) => Ok(DEFAULT_ENGINE.parse()?),
        }
    }
}

/// One database.
#[derive(Clone)]
pub(crate) struct Source {
    peer: Arc<dyn Peer>,
    place: Whereabouts,
}

/// The kind of place, for operations that only one of them supports.
#[derive(Clone)]
enum Whereabouts {
    Local(local::Local),
    Remote(remote::Remote),
}

/// A document to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewDocument {
    /// Its id, which is in `json` too.
    pub(crate) id: String,
    /// The whole document, `_id` included.
    pub(crate) json: JsonText,
    /// Whether it has a revision, which it keeps.
    pub(crate) has_revision: bool,
}

/// Why a document was not written.
#[derive(Clone, Debug)]
pub(crate) enum NotWritten {
    /// It has no revision, and there is a document with its id.
    Exists(String),
    Refused(String),
}

impl From<local::Local> for Source {
    fn from(local: local::Local) -> Self {
        Source { peer: local.peer(), place: Whereabouts::Local(local) }
    }
}

impl From<remote::Remote> for Source {
    fn from(remote: remote::Remote) -> Self {
        Source { peer: remote.peer(), place: Whereabouts::Remote(remote) }
    }
}

impl Source {
    /// The database as a peer, with retries where they are safe.
    pub(crate) fn peer(&self) -> Steady {
        Steady::new(self.peer.clone(), Arc::new(SystemEnvironment))
    }

    /// Writes documents. Returns for each why it could not be written, else `None`.
    pub(crate) async fn write(&self, documents: Vec<NewDocument>) -> Result<Vec<Option<NotWritten>>, Failure> {
        let mut problems = vec![None; documents.len()];
        for (has_revision, mode) in [(false, WriteMode::Interactive), (true, WriteMode::Replicated)] {
            let (mut indexes, mut edits) = (Vec::new(), Vec::new());
            for (index, document) in documents.iter().enumerate() {
                if document.has_revision != has_revision {
                    continue;
                }
                match Edit::from_json(Some(&document.id), &document.json, mode) {
                    Ok(edit) => {
                        indexes.push(index);
                        edits.push(edit);
                    }
                    Err(error) => problems[index] = Some(NotWritten::Refused(error.to_string())),
                }
            }
            if edits.is_empty() {
                continue;
            }
            for (index, result) in indexes.into_iter().zip(self.peer().write(edits, mode).await?) {
                problems[index] = result.err().map(|error| match error.kind() {
                    // Only a document that names no revision: another one of this id exists.
                    ErrorKind::Conflict if !has_revision => NotWritten::Exists(error.to_string()),
                    _ => NotWritten::Refused(error.to_string()),
                });
            }
        }
        Ok(problems)
    }

    /// The same database, for a command that reads all of it and can wait: servers of the same cluster come first. A
    /// server decides for itself.
    pub(crate) async fn in_background(self) -> Result<Source, Failure> {
        Ok(match self.place {
            Whereabouts::Local(local) => local.in_background().await?.into(),
            Whereabouts::Remote(remote) => remote.into(),
        })
    }

    /// The same database as a store for chunks.
    pub(crate) fn document_store(&self) -> Arc<dyn DocumentStore> {
        Arc::new(PeerStore::new(self.peer.clone()))
    }

    /// Another database of the same store or server.
    pub(crate) async fn sibling(&self, name: &str) -> Result<Source, Failure> {
        self.sibling_or_new(name, IfNoDatabase::Fail).await
    }

    /// The same. In a store of this process it may create the database.
    pub(crate) async fn sibling_or_new(&self, name: &str, if_none: IfNoDatabase) -> Result<Source, Failure> {
        Ok(match &self.place {
            Whereabouts::Local(local) => local.sibling(name, if_none).await?.into(),
            Whereabouts::Remote(remote) => remote.sibling(name)?.into(),
        })
    }

    /// The uuid of the store, if this process opened it.
    pub(crate) async fn uuid(&self) -> Result<String, Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.uuid().await,
            Whereabouts::Remote(_) => Err(failure("the store is not open here")),
        }
    }

    /// Bytes on disk: of the database, as its server reports them, or of the whole data folder if this process has it
    /// open. `None` if there is no folder.
    pub(crate) async fn disk_bytes(&self) -> Result<Option<u64>, Failure> {
        match &self.place {
            Whereabouts::Local(local) => Ok(local.disk_bytes()?),
            Whereabouts::Remote(_) => Ok(self.peer.info().await?.file_bytes),
        }
    }

    /// Lets the server compact the database, and waits until it has. Engines of this process compact their files by
    /// themselves.
    pub(crate) async fn compact(&self) -> Result<(), Failure> {
        match &self.place {
            Whereabouts::Local(_) => Ok(()),
            Whereabouts::Remote(remote) => remote.compact().await,
        }
    }

    /// Walks the whole database and reports inconsistencies. Calls `progress` with what is being walked, and the number
    /// of documents so far.
    pub(crate) async fn check(&self, progress: impl FnMut(&str, u64) + Send) -> Result<Checked, Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.check(progress).await,
            Whereabouts::Remote(remote) => remote.check().await,
        }
    }

    /// One run of a collection of a vault's chunks, as JSON. Calls `progress` with the number of documents read, if this
    /// process has the store open.
    pub(crate) async fn collect_vault(
        &self,
        options: VaultCollectOptions,
        progress: impl FnMut(u64) + Send,
    ) -> Result<Value, Failure> {
        match &self.place {
            Whereabouts::Local(local) => {
                let done = local.collect_vault(options, progress).await?;
                let mut told = done.to_json();
                if let Some(error) = &done.failed {
                    told["collected"]["error"] = error.to_string().into();
                }
                Ok(told)
            }
            Whereabouts::Remote(remote) => {
                let trash = options.trash_ms.map(Duration::from_millis);
                let asked =
                    json!({"grace": seconds(Duration::from_millis(options.grace_ms)), "trash": trash.map(seconds)});
                let answer = remote.collect_vault(asked.to_string().into_bytes()).await?;
                Ok(serde_json::from_slice(answer.as_bytes())?)
            }
        }
    }

    /// What the collections of a vault's chunks left, and when a server collects them: `trash` and `collect`.
    pub(crate) async fn vault_collections(&self) -> Result<Value, Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.vault_collections().await,
            Whereabouts::Remote(remote) => Ok(serde_json::from_slice(remote.vault_collections().await?.as_bytes())?),
        }
    }

    /// Lets the server collect the chunks of a vault at this interval; `None` for never. Returns why the runs would
    /// remove nothing at present, and why nothing would leave the trash.
    pub(crate) async fn schedule_vault(
        &self,
        every: Option<Duration>,
        grace: Duration,
        trash: Option<Duration>,
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let Whereabouts::Remote(remote) = &self.place else {
            return Err(failure("a server collects chunks at intervals: name it with --url"));
        };
        let asked = json!({"collect": every.map(seconds), "grace": seconds(grace), "trash": trash.map(seconds)});
        let answer = remote.schedule_vault(asked.to_string().into_bytes()).await?;
        let holds = |name| {
            let holds = answer.get(name).map(JsonRef::elements).into_iter().flatten();
            holds.map(|hold| hold.as_str().unwrap_or_default().into_owned()).collect()
        };
        Ok((holds("holds"), holds("trash_holds")))
    }

    /// The layout of bodies, and whether bodies in the other layout are left to rewrite.
    pub(crate) async fn format(&self) -> Result<(String, bool), Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.format().await,
            Whereabouts::Remote(remote) => remote.format().await,
        }
    }

    /// Changes the layout of bodies, and returns when all are rewritten.
    pub(crate) async fn set_format(
        &self,
        format: BodyFormat,
        poll: Duration,
        progress: impl FnMut(u64) + Send,
    ) -> Result<(), Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.set_format(format, progress).await,
            Whereabouts::Remote(remote) => remote.set_format(format, poll).await,
        }
    }

    /// The keys of its rows, in a store that this process opens.
    pub(crate) fn keys(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        match &self.place {
            Whereabouts::Local(local) => Some(local.keys()),
            Whereabouts::Remote(_) => None,
        }
    }

    /// Repairs what a check reports. Returns the report of another check. `is_after_loss`: the store gave up rows that
    /// it could not read.
    pub(crate) async fn repair(&self, is_after_loss: bool) -> Result<Checked, Failure> {
        match &self.place {
            Whereabouts::Local(local) => local.repair(is_after_loss).await,
            Whereabouts::Remote(_) => {
                Err(failure("a repair works on the store itself: stop the server and use --engine"))
            }
        }
    }
}

/// A time as requests have it, in whole seconds: no shorter than asked.
fn seconds(time: Duration) -> String {
    format!("{}s", time.as_millis().div_ceil(1_000))
}
