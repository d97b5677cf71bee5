//! A database in a store that this process opens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chunks::{Trash, VaultCollectOptions, VaultCollected, collect_vault};
use kv_api::AnyDatabase;
use model::{BodyFormat, CheckReport, CreateOptions, Documents, ErrorKind, Layer, LayerOptions, Repair};
use peer::Peer;
use serde_json::{Value, json};

use super::if_no_database::IfNoDatabase;
use crate::cmd::progress::remark;
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::http::{Functions, Identity, THREADS, by_command, check_views, repair_views, scheduled_collection};
use crate::report::Checked;

/// A database in a store of this process.
#[derive(Clone)]
pub(crate) struct Local {
    layer: Layer<AnyDatabase>,
    documents: Documents<AnyDatabase>,
    peer: Arc<dyn Peer>,
    folder: Option<PathBuf>,
}

impl Local {
    pub(super) async fn open(
        engine: &EngineUrl,
        if_missing: IfMissing,
        options: LayerOptions,
        name: &str,
        if_none: IfNoDatabase,
    ) -> Result<Self, Failure> {
        let layer = Layer::open(engine::open(engine, if_missing)?, options).await?;
        let documents = match layer.database(name).await {
            Err(error) if error.status() == 404 && if_none == IfNoDatabase::Create => {
                layer.create_database(name, CreateOptions::default()).await?
            }
            Err(error) if error.status() == 404 => {
                return Err(failure(format!("there is no database {name} in {engine}{}", if_none.advice())));
            }
            Err(error) => match error.kind() {
                ErrorKind::Moved(to) => {
                    return Err(failure(format!("{name} has moved from {engine} to {to}; name that store instead")));
                }
                _ => return Err(error.into()),
            },
            Ok(found) => found,
        };
        let peer = peer(&layer, &documents).await?;
        Ok(Local { layer, documents, peer, folder: engine.folder().map(Path::to_owned) })
    }

    /// As [`open`](Self::open), without creating a database. Also opens the rest of one that moved away.
    pub(super) async fn open_or_remains(
        engine: &EngineUrl,
        options: LayerOptions,
        name: &str,
    ) -> Result<Self, Failure> {
        let layer = Layer::open(engine::open(engine, IfMissing::Fail)?, options).await?;
        let documents = match layer.database(name).await {
            Err(error) if error.status() == 404 => {
                return Err(failure(format!("there is no database {name} in {engine}")));
            }
            Err(error) => match (error.kind(), layer.remains(name).await?) {
                (ErrorKind::Moved(to), Some(remains)) => {
                    remark(&format!("{name} has moved to {to}; checking the rows left in {engine}"));
                    remains
                }
                _ => return Err(error.into()),
            },
            Ok(found) => found,
        };
        let peer = peer(&layer, &documents).await?;
        Ok(Local { layer, documents, peer, folder: engine.folder().map(Path::to_owned) })
    }

    /// The store's own uuid.
    pub(super) async fn uuid(&self) -> Result<String, Failure> {
        Ok(Identity::load(&self.layer).await?.uuid)
    }

    /// The database as a peer.
    pub(super) fn peer(&self) -> Arc<dyn Peer> {
        self.peer.clone()
    }

    /// The same database, for work in the background.
    pub(super) async fn in_background(self) -> Result<Self, Failure> {
        let documents = self.documents.clone().in_background();
        let peer = peer(&self.layer, &documents).await?;
        Ok(Local { documents, peer, ..self })
    }

    pub(super) async fn sibling(&self, name: &str, if_none: IfNoDatabase) -> Result<Self, Failure> {
        let documents = match self.layer.database(name).await {
            Err(error) if error.status() == 404 && if_none == IfNoDatabase::Create => {
                self.layer.create_database(name, CreateOptions::default()).await?
            }
            Err(error) if error.status() == 404 => {
                return Err(failure(format!("there is no database {name} beside it{}", if_none.advice())));
            }
            found => found?,
        };
        let peer = peer(&self.layer, &documents).await?;
        Ok(Local { documents, peer, ..self.clone() })
    }

    pub(super) fn disk_bytes(&self) -> io::Result<Option<u64>> {
        self.folder.as_deref().map(folder_bytes).transpose()
    }

    /// Calls `progress` with what is being checked, and the number of documents so far.
    pub(super) async fn check(&self, mut progress: impl FnMut(&str, u64) + Send) -> Result<Checked, Failure> {
        let report = self.documents.check(|at| progress(self.documents.name(), at.documents)).await?;
        self.check_views(report, progress).await
    }

    async fn check_views(
        &self,
        report: CheckReport,
        progress: impl FnMut(&str, u64) + Send,
    ) -> Result<Checked, Failure> {
        Ok(check_views(&Functions::new(THREADS), &self.documents, report, progress).await?)
    }

    pub(super) async fn collect_vault(
        &self,
        options: VaultCollectOptions,
        progress: impl FnMut(u64) + Send,
    ) -> Result<VaultCollected, Failure> {
        Ok(collect_vault(&self.documents, options, progress).await?)
    }

    pub(super) async fn vault_collections(&self) -> Result<Value, Failure> {
        let scheduled = scheduled_collection(&self.layer.jobs(), &self.documents.info().await?).await?;
        Ok(json!({"trash": Trash::read(&self.documents).await?.to_json(), "collect": scheduled}))
    }

    pub(super) async fn format(&self) -> Result<(String, bool), Failure> {
        let info = self.documents.info().await?;
        Ok((info.format.name().to_owned(), info.rewrites))
    }

    pub(super) async fn set_format(
        &self,
        format: BodyFormat,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<(), Failure> {
        self.documents.set_body_format(format).await?;
        Ok(self.documents.rewrite_bodies(|at| progress(at.bodies)).await?)
    }

    /// The range of its keys: the start, and the end, which is excluded.
    pub(super) fn keys(&self) -> (Vec<u8>, Vec<u8>) {
        self.documents.key_range()
    }

    /// `is_after_loss`: the store gave up rows that it could not read.
    pub(super) async fn repair(&self, is_after_loss: bool) -> Result<Checked, Failure> {
        let tell = |repair: &Repair| {
            let what = repair.document.as_ref().map_or("a change".to_owned(), |id| format!("{id:?}"));
            remark(&match &repair.outcome {
                Ok(0) => format!("{what}: rewritten"),
                Ok(1) => format!("{what}: repaired, one row moved out of the way"),
                Ok(moved) => format!("{what}: repaired, {moved} rows moved out of the way"),
                Err(error) => format!("{what}: not repaired: {}", error.reason()),
            });
        };
        let report = match is_after_loss {
            true => self.documents.repair_after_loss(tell).await?,
            false => self.documents.repair(tell).await?,
        };
        remark(&format!("repaired: {}, left: {}, rows moved: {}", report.repaired, report.left, report.moved));
        let removed = |name: &str| remark(&format!("the views of {name:?}: removed, the next query rebuilds them"));
        repair_views(&Functions::new(THREADS), &self.documents, removed).await?;
        self.check_views(report.after, |_, _| ()).await
    }
}

async fn peer(layer: &Layer<AnyDatabase>, documents: &Documents<AnyDatabase>) -> Result<Arc<dyn Peer>, Failure> {
    Ok(Arc::new(peer::Local::new(by_command(layer, documents.clone()).await?)))
}

/// The bytes of the files in a folder. A file that is removed meanwhile counts zero.
fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += folder_bytes(&entry.path())?,
            Ok(found) => bytes += found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
