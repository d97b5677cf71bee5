//! Restores databases of a run into a store.
//!
//! A database is invisible until it is complete. Its documents are merged like replicated ones, so they keep their
//! revisions, ancestors and attachments. Their sequences are new, under a new incarnation.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, stream};
use kv_api::Database;
use model::limits::REVS_LIMITS;
use model::{Documents, Edit, Layer, LayerOptions, PurgeInfo, RevId, WriteMode};
use peer::{ByteStream, Local, Peer, Revision};
use sha2::{Digest, Sha256};

use crate::copy::Progress;
use crate::error::{Error, Result};
use crate::live::{Live, records};
use crate::manifest::{self, Manifest, PurgeRecord};
use crate::pack::ObjectId;
use crate::place::in_parallel;
use crate::record::{AttachmentHead, Leaf};
use crate::repository::{Objects, PACKS, RUNS, Repository, bytes_of};

/// Maximum number of edits, and of bytes of their bodies (roughly), written together.
const EDITS: usize = 500;
const EDIT_BYTES: usize = 1 << 20;

/// Maximum number of threads that write, beside the one that reads the packs.
const MOST_WRITERS: usize = 2;

/// What to restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The run. `None` for the newest run of this store or, if all runs are of one other store, of that one.
    pub run: Option<String>,
    /// The databases. Empty for all of the run, with the servers' configuration.
    pub databases: Vec<String>,
    /// Another name for the one database.
    pub rename: Option<String>,
}

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The run.
    pub run: String,
    /// The restored databases, with the number of their documents, deleted ones included.
    pub databases: Vec<(String, u64)>,
    /// Databases that could not be restored, each with the reason. They do not exist.
    pub failed: Vec<(String, String)>,
    /// Restored databases whose number of documents is not that of the run, each with a sentence.
    pub different: Vec<(String, String)>,
    /// Documents missing from the run because they could not be read, each with its database.
    pub damaged: Vec<(String, String)>,
    /// Whether the servers' configuration was restored.
    pub configuration: bool,
    /// Whether the store now has the identity of the run's store: its uuid, and the secret that signs sessions.
    pub identity: bool,
}

impl Repository {
    /// Restores databases, which must not exist. `progress` is called with a database and the number of its written
    /// documents.
    ///
    /// # Errors
    /// [`Error::Refused`] before anything is written, if a database exists or the run does not have it, or the caller
    /// must name the run; [`Error::Damaged`]. Later failures of single databases are in the result, and the others are
    /// restored.
    pub async fn restore<D: Database>(
        &self,
        engine: D,
        options: &LayerOptions,
        wanted: &RestoreOptions,
        progress: Progress<'_>,
    ) -> Result<Restored> {
        let layer = Layer::open(engine, options.clone()).await?;
        let run = match &wanted.run {
            Some(run) => run.clone(),
            None => self.newest_of(&layer).await?,
        };
        let manifest = self.manifest(&run).await?;
        let mut chosen = choose(&run, &manifest, wanted)?;
        for (name, _) in &chosen {
            let exists = match layer.database(name).await {
                Ok(_) => !layer.has_unfinished_restore(name).await?,
                Err(error) if matches!(error.kind(), model::ErrorKind::NotFound(_)) => false,
                Err(error) => return Err(error.into()),
            };
            if exists {
                return Err(Error::refused(format!(
                    "the database {name} exists; drop it first, or restore under another name. Nothing was restored"
                )));
            }
        }
        let whole = wanted.databases.is_empty() && wanted.rename.is_none();
        // Last: its documents start replications once a server sees them.
        chosen.sort_by_key(|(name, _)| name.ends_with("_replicator"));
        let identity = whole && self.restore_identity(&layer, &run, &manifest).await?;
        let incarnations = self.next_incarnations(&manifest).await?;
        let mut objects = Objects::load_sound(self, &manifest.packs).await?;
        let writers = options.threads.clamp(1, MOST_WRITERS);
        let mut restored = Restored { run, identity, ..Restored::default() };
        for (name, database) in chosen {
            let incarnation = incarnations.get(&database.name).copied().flatten();
            match restore_one(&mut objects, &layer, &name, database, incarnation, writers, progress).await {
                Ok(found) => {
                    if found != database.documents && database.damaged.is_empty() {
                        let expected = database.documents;
                        let reason =
                            format!("the run says that it has {expected} documents, and {found} were restored");
                        restored.different.push((name.clone(), reason));
                    }
                    restored.damaged.extend(database.damaged.iter().map(|id| (name.clone(), id.clone())));
                    restored.databases.push((name, found));
                }
                Err(error) => restored.failed.push((name, error.to_string())),
            }
        }
        if whole && layer.configuration().await?.0.is_empty() {
            for setting in &manifest.configuration {
                layer.configure(&setting.section, &setting.name, Some(&setting.value)).await?;
            }
            restored.configuration = true;
        }
        Ok(restored)
    }

    async fn restore_identity<D: Database>(&self, layer: &Layer<D>, run: &str, manifest: &Manifest) -> Result<bool> {
        let identity = bytes_of(&manifest.identity).and_then(|identity| identity.try_into().ok());
        let identity = identity.ok_or_else(|| Error::damaged(&format!("{RUNS}/{run}"), "the store's identity"))?;
        Ok(layer.take_identity(identity).await?)
    }

    /// The newest run of this store. If there is none, the newest run, provided that all are of one other store.
    async fn newest_of<D: Database>(&self, layer: &Layer<D>) -> Result<String> {
        let known = layer.known_identity().await?.map(|identity| model::hex(&identity));
        let mut newest: Option<(String, String)> = None;
        let mut is_one = true;
        for run in self.runs().await?.into_iter().rev() {
            let manifest = match self.manifest(&run).await {
                // Otherwise an older run would be restored silently.
                Err(Error::Damaged { .. }) if newest.is_some() => continue,
                manifest => manifest?,
            };
            if known.as_ref() == Some(&manifest.identity) {
                return Ok(run);
            }
            let (_, identity) = newest.get_or_insert_with(|| (run, manifest.identity.clone()));
            is_one &= *identity == manifest.identity;
        }
        match newest {
            None => Err(Error::refused("the backup has no run")),
            Some((run, _)) if is_one => Ok(run),
            Some(_) => Err(Error::refused(
                "the backup has runs of several stores, and none of them is this one: name the run. Nothing was restored",
            )),
        }
    }

    /// For each database, one more than the highest incarnation of its name in any run; `None` if that is too high.
    async fn next_incarnations(&self, manifest: &Manifest) -> Result<HashMap<String, Option<u8>>> {
        let own = manifest.databases.iter().map(|database| (database.name.clone(), database.incarnation));
        let mut highest: HashMap<String, u8> = own.collect();
        let mut unknown = 0_u8;
        for run in self.runs().await? {
            let manifest = match self.manifest(&run).await {
                // The damaged run may have a higher one: each restore in between added one.
                Err(Error::Damaged { .. }) => {
                    unknown = unknown.saturating_add(1);
                    continue;
                }
                manifest => manifest?,
            };
            for database in &manifest.databases {
                if let Some(highest) = highest.get_mut(&database.name) {
                    *highest = database.incarnation.max(*highest);
                }
            }
        }
        let next = |highest: u8| highest.checked_add(unknown)?.checked_add(1);
        Ok(highest.into_iter().map(|(name, highest)| (name, next(highest))).collect())
    }
}

/// Restores a database, and returns the number of its documents. After an error it is dropped.
async fn restore_one<D: Database>(
    objects: &mut Objects,
    layer: &Layer<D>,
    name: &str,
    database: &manifest::Database,
    incarnation: Option<u8>,
    writers: usize,
    progress: Progress<'_>,
) -> Result<u64> {
    let too_many = || Error::refused("it has had 255 incarnations, which is the maximum");
    let options = database.settings.options()?;
    let filling = layer.begin_restore(name, options, incarnation.ok_or_else(too_many)?).await?.unvalidated();
    match fill(objects, &filling, database, writers, progress).await {
        Ok(found) => {
            filling.finish_restore().await?;
            Ok(found)
        }
        Err(error) => {
            // If this fails, the rest is invisible, and the next restore drops it.
            let _ = filling.drop_restore().await;
            Err(error)
        }
    }
}

/// The databases to restore, under their new names.
fn choose<'m>(
    run: &str,
    manifest: &'m Manifest,
    wanted: &RestoreOptions,
) -> Result<Vec<(String, &'m manifest::Database)>> {
    let mut chosen: Vec<(String, &manifest::Database)> = match &wanted.databases[..] {
        [] => manifest.databases.iter().map(|database| (database.name.clone(), database)).collect(),
        names => {
            let find = |name: &String| {
                let found = manifest.databases.iter().find(|database| database.name == *name);
                found.map(|found| (name.clone(), found)).ok_or_else(|| {
                    Error::refused(format!("the run {run} does not have the database {name}. Nothing was restored"))
                })
            };
            names.iter().map(find).collect::<Result<_>>()?
        }
    };
    if let Some(rename) = &wanted.rename {
        match &mut chosen[..] {
            [(name, _)] => rename.clone_into(name),
            several => {
                return Err(Error::refused(format!("only a single database can be renamed, not {}", several.len())));
            }
        }
    }
    Ok(chosen)
}

/// Writes everything of a database. Returns the number of its documents, deleted ones included.
async fn fill<D: Database>(
    objects: &mut Objects,
    documents: &Documents<D>,
    database: &manifest::Database,
    writers: usize,
    progress: Progress<'_>,
) -> Result<u64> {
    // Documents may have more ancestors than the final limit, which was set after them.
    documents.set_revs_limit(*REVS_LIMITS.end()).await?;
    let purges = read_purges(objects, &database.purges).await?;
    documents.set_purged_infos_limit(database.settings.purged_infos_limit).await?;
    documents.set_deleted_document_ttl(database.settings.deleted_document_ttl.as_deref()).await?;
    documents.remember_purges(&purges).await?;
    let security = model::JsonText::parse(database.security.as_bytes());
    documents.set_security(security.map_err(|error| Error::damaged(RUNS, error.to_string()))?).await?;

    let mut writing = Writing { documents, writers, running: FuturesUnordered::new() };
    let outcome = fill_documents(objects, &mut writing, database, progress).await;
    // After an error too: whoever drops the database must not meet a write.
    outcome.and(writing.end().await)?;
    documents.set_revs_limit(database.settings.revs_limit).await?;
    // Last: checkpoints promise the documents.
    for block in &database.locals {
        for record in records(objects, *block).await? {
            for leaf in record.leaves {
                let number = leaf.head.rev.strip_prefix("0-").and_then(|number| number.parse::<u64>().ok());
                let number = number.ok_or_else(|| Error::damaged(PACKS, format!("{}: its revision", record.id)))?;
                documents.put_local(&record.id, number.checked_sub(1), leaf.body).await?;
            }
        }
    }
    let info = documents.info().await?;
    Ok(info.doc_count + info.doc_del_count)
}

/// Batches of edits that are written beside each other.
struct Writing<'a, D> {
    documents: &'a Documents<D>,
    /// Maximum number of batches.
    writers: usize,
    running: FuturesUnordered<BoxFuture<'static, Result<()>>>,
}

impl<D: Database> Writing<'_, D> {
    async fn write(&mut self, edits: Vec<Edit>) -> Result<()> {
        let documents = self.documents.clone();
        let work = async move {
            for result in documents.write(edits, WriteMode::Replicated).await? {
                result?;
            }
            Ok(())
        };
        if self.writers == 1 {
            return work.await;
        }
        while self.running.len() >= self.writers {
            self.running.next().await.transpose()?;
        }
        self.running.push(in_parallel(self.writers, work).boxed());
        Ok(())
    }

    /// Waits for all. Fails with the first error.
    async fn end(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(written) = self.running.next().await {
            outcome = outcome.and(written);
        }
        outcome
    }
}

/// Writes the documents of a database.
async fn fill_documents<D: Database>(
    objects: &mut Objects,
    writing: &mut Writing<'_, D>,
    database: &manifest::Database,
    progress: Progress<'_>,
) -> Result<()> {
    let peer = Local::new(writing.documents.clone());
    let (mut edits, mut bytes, mut written) = (Vec::new(), 0, 0);
    let mut live = Live::new(objects, &database.segments).await?;
    while let Some(records) = live.next(objects).await? {
        for record in records {
            for leaf in &record.leaves {
                let (rev, edit) = edit(&record.id, leaf)?;
                if leaf.head.attachments.is_empty() {
                    bytes += edit.body.len();
                    edits.push(edit);
                } else {
                    put(objects, &peer, rev, edit, &leaf.head.attachments).await?;
                }
            }
            written += 1;
            if edits.len() >= EDITS || bytes >= EDIT_BYTES {
                writing.write(std::mem::take(&mut edits)).await?;
                bytes = 0;
                progress(&database.name, written);
            }
        }
    }
    writing.write(edits).await?;
    progress(&database.name, written);
    Ok(())
}

fn edit(id: &str, leaf: &Leaf) -> Result<(RevId, Edit)> {
    leaf.edit(id).map_err(|reason| Error::damaged(PACKS, format!("{id:?}: {reason}")))
}

/// Writes a leaf with attachments.
async fn put<D: Database>(
    objects: &mut Objects,
    peer: &Local<D>,
    rev: RevId,
    edit: Edit,
    attachments: &[AttachmentHead],
) -> Result<()> {
    let mut contents = Vec::with_capacity(attachments.len());
    for attachment in attachments {
        contents.push(Some(content(objects, attachment.content)?));
    }
    let revision = Revision {
        id: edit.id,
        rev,
        deleted: edit.deleted,
        body: edit.body,
        history: edit.history.map(Arc::unwrap_or_clone),
        attachments: attachments.iter().map(AttachmentHead::as_peer).collect(),
        held: peer::Held::default(),
    };
    Ok(peer.put(&revision, contents).await?)
}

/// The bytes of a content. The stream fails at its end if they do not match its name.
fn content(objects: &Objects, id: ObjectId) -> Result<ByteStream> {
    let parts = objects.parts(id)?;
    let own = objects.of(&parts)?;
    let start = Some((own, parts.into_iter(), Sha256::new()));
    let step = move |state: Option<(Objects, std::vec::IntoIter<ObjectId>, Sha256)>| async move {
        let Some((mut own, mut parts, mut hash)) = state else { return Ok(None) };
        let Some(part) = parts.next() else {
            let is_right = ObjectId(hash.finalize().into()) == id;
            return if is_right { Ok(None) } else { Err(unreadable(format!("the content {id} has other bytes"))) };
        };
        let bytes = own.get(part).await.map_err(|error| unreadable(error.to_string()))?;
        hash.update(&bytes);
        Ok(Some((Bytes::from(bytes), Some((own, parts, hash)))))
    };
    Ok(stream::try_unfold(start, step).boxed())
}

/// An error of the repository as a peer's error.
fn unreadable(reason: String) -> peer::Error {
    peer::Error::from(model::Error::from(model::ErrorKind::Corrupt(reason)))
}

async fn read_purges(objects: &mut Objects, lists: &[ObjectId]) -> Result<Vec<PurgeInfo>> {
    let mut purges = Vec::new();
    for list in lists {
        let bytes = objects.get(*list).await?;
        let damaged = |reason: String| Error::damaged(PACKS, format!("the list of purges {list}: {reason}"));
        let some: Vec<PurgeRecord> = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        for purge in some {
            let revs = |texts: &[String]| texts.iter().map(|text| RevId::parse(text)).collect::<Result<Vec<_>, _>>();
            let uuid = bytes_of(&purge.uuid).and_then(|uuid| uuid.try_into().ok());
            let uuid = uuid.ok_or_else(|| damaged("its UUID".to_owned()))?;
            let asked = revs(&purge.revs).map_err(|error| damaged(error.to_string()))?;
            let purged = revs(&purge.purged).map_err(|error| damaged(error.to_string()))?;
            purges.push(PurgeInfo::new(purge.seq, uuid, purge.id, asked, purged));
        }
    }
    Ok(purges)
}
