//! Devices of a vault. Each is a database of its own, as PouchDB is: it replicates in both directions, pulls
//! tombstones, and sends only what the server does not know. A device that goes back to an old version writes the file
//! alone if the chunks are live in its own database; otherwise it writes them again, as LiveSync does from the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, Leaf};
use kv_api::AnyDatabase;
use model::{Documents, RevId};
use serde_json::json;

use crate::support::World;

pub(crate) const MILESTONE: &str = "_local/obsydian_livesync_milestone";

/// A database that replicates.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) store: Arc<dyn DocumentStore>,
    documents: Documents<AnyDatabase>,
}

/// A device: its database, and how far it has replicated.
pub(crate) struct Device {
    pub(crate) store: Replica,
    /// Whether it pulls no documents of chunks, and so no tombstones of them either.
    pub(crate) on_demand: bool,
    pushed: Option<String>,
    pulled: Option<String>,
}

/// The document of a file.
pub(crate) fn file(path: &str, chunks: &[String], deleted: bool) -> Body {
    let mut body = json!({"path": path, "children": chunks, "type": "plain", "size": 1, "ctime": 1, "mtime": 1,
        "eden": {}});
    if deleted {
        body["deleted"] = json!(true);
    }
    body.as_object().unwrap().clone()
}

/// The chunks that a leaf of a file names.
pub(crate) fn named(leaf: &Leaf) -> Vec<String> {
    let children = leaf.body.get("children").and_then(|list| list.as_array());
    children.into_iter().flatten().map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// The live leaves of documents.
pub(crate) async fn all_live_leaves(store: &dyn DocumentStore, ids: &[String]) -> Vec<Vec<Leaf>> {
    let mut all = store.leaves(ids, false).await.unwrap();
    all.iter_mut().for_each(|leaves| leaves.retain(|leaf| !leaf.deleted));
    all
}

pub(crate) async fn live_leaves(store: &dyn DocumentStore, id: &str) -> Vec<Leaf> {
    all_live_leaves(store, &[id.to_owned()]).await.remove(0)
}

/// The id of a file.
pub(crate) fn id_of(file: usize) -> String {
    format!("f{file}.md")
}

/// The chunks that a live leaf of one of the first files names and that the database has not.
pub(crate) async fn lost(store: &dyn DocumentStore, files: usize) -> Vec<String> {
    let ids: Vec<String> = (0..files).map(id_of).collect();
    let (mut chunks, mut places) = (Vec::new(), Vec::new());
    for (id, leaves) in ids.iter().zip(all_live_leaves(store, &ids).await) {
        for leaf in leaves {
            for chunk in named(&leaf) {
                places.push(format!("{chunk} of {id} at {}", leaf.rev));
                chunks.push(chunk);
            }
        }
    }
    let found = all_live_leaves(store, &chunks).await;
    places.into_iter().zip(found).filter(|(_, leaves)| leaves.is_empty()).map(|(place, _)| place).collect()
}

/// Replicates what changed since a sequence, or only files: what the target asks for by `_revs_diff`.
async fn replicate(from: &Replica, to: &Replica, since: &mut Option<String>, without_chunks: bool) {
    let rev = |leaf: &Leaf| leaf.rev.parse::<RevId>().unwrap();
    loop {
        let changes = from.changes(since.as_deref(), 50).await.unwrap();
        let mut ids: Vec<String> = changes.rows.into_iter().map(|row| row.id).collect();
        ids.retain(|id| !without_chunks || !id.starts_with("h:"));
        let all = from.leaves(&ids, true).await.unwrap();
        let asked = ids.iter().cloned().zip(all.iter().map(|leaves| leaves.iter().map(rev).collect()));
        let missing = to.documents.revs_diff(asked.collect()).await.unwrap();
        let missing: BTreeMap<String, Vec<RevId>> = missing.into_iter().map(|diff| (diff.id, diff.missing)).collect();
        let leaves =
            ids.into_iter().zip(all).flat_map(|(id, leaves)| leaves.into_iter().map(move |one| (id.clone(), one)));
        let wanted = |(id, leaf): &(String, Leaf)| missing.get(id).is_some_and(|revs| revs.contains(&rev(leaf)));
        to.graft(leaves.filter(wanted).collect()).await.unwrap();
        *since = Some(changes.last_seq);
        if !changes.more {
            return;
        }
    }
}

impl Replica {
    /// A new database.
    pub(crate) async fn new(world: &World, name: &str) -> Replica {
        Replica { store: world.database(name).await, documents: world.documents(name).await }
    }
}

impl Deref for Replica {
    type Target = dyn DocumentStore;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl Device {
    pub(crate) async fn new(world: &World, name: &str) -> Device {
        Device { store: Replica::new(world, name).await, on_demand: false, pushed: None, pulled: None }
    }

    pub(crate) async fn pull(&mut self, server: &Replica) {
        replicate(server, &self.store, &mut self.pulled, self.on_demand).await;
    }

    pub(crate) async fn sync(&mut self, server: &Replica, pull_first: bool) {
        if pull_first {
            self.pull(server).await;
        }
        replicate(&self.store, server, &mut self.pushed, false).await;
        self.pull(server).await;
    }

    pub(crate) async fn has(&self, chunk: &str) -> bool {
        !live_leaves(&*self.store, chunk).await.is_empty()
    }

    /// Keeps the winner of each of the first files. Returns whether any had several leaves.
    pub(crate) async fn resolve(&self, files: usize) -> bool {
        let ids: Vec<String> = (0..files).map(id_of).collect();
        let mut edits = Vec::new();
        for (id, leaves) in ids.iter().zip(all_live_leaves(&*self.store, &ids).await) {
            edits.extend(leaves.into_iter().skip(1).map(|loser| Edit::delete(id, loser.rev)));
        }
        let is_any = !edits.is_empty();
        self.store.write(edits).await.unwrap().into_iter().for_each(|written| drop(written.unwrap()));
        is_any
    }

    /// Writes a file's document, and those of its chunks that are not live here, as LiveSync does. Each chunk is text of
    /// some length. Returns the chunks that it wrote.
    pub(crate) async fn write(&self, id: &str, chunks: &[String], deleted: bool, text: fn(&str) -> String) -> usize {
        let all: BTreeSet<&String> = chunks.iter().collect();
        let all: Vec<String> = all.into_iter().cloned().collect();
        let mut edits = Vec::new();
        for (chunk, leaves) in all.iter().zip(all_live_leaves(&*self.store, &all).await) {
            if leaves.is_empty() {
                let body = json!({"type": "leaf", "data": text(chunk)}).as_object().unwrap().clone();
                edits.push(Edit { id: chunk.clone(), rev: None, deleted: false, body });
            }
        }
        let written = edits.len();
        let rev = live_leaves(&*self.store, id).await.into_iter().next().map(|leaf| leaf.rev);
        edits.push(Edit { id: id.into(), rev, deleted: false, body: file(id, chunks, deleted) });
        for edit in edits {
            self.store.write(vec![edit]).await.unwrap().remove(0).unwrap();
        }
        written
    }
}

/// Purges what is in the trash, tombstones and all, as only an owner does. Returns how many documents went.
pub(crate) async fn empty_trash(world: &World, name: &str) -> u64 {
    let (documents, store) = (world.documents(name).await, world.opened(name).await);
    let (mut ids, mut next) = (Vec::new(), Some(None));
    while let Some(from) = next {
        let page = documents.trash(from, 1_000).await.unwrap();
        ids.extend(page.documents.into_iter().filter(|one| one.trashed.is_some()).map(|one| one.id));
        next = page.next.map(Some);
    }
    let leaves = store.leaves(&ids, true).await.unwrap();
    let revs = |leaves: Vec<Leaf>| leaves.into_iter().map(|leaf| leaf.rev.parse().unwrap()).collect();
    let purges: Vec<model::Purge> =
        ids.into_iter().zip(leaves).map(|(id, all)| model::Purge::new(id, revs(all))).collect();
    documents.purge(&purges).await.unwrap().into_iter().for_each(|purged| drop(purged.unwrap()));
    purges.len() as u64
}
