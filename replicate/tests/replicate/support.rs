//! Databases with all kinds of content, and comparisons of their contents.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::TryStreamExt;
use kv_api::AnyDatabase;
use model::{
    AttachmentEdit, BulkGet, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions, RevHash, RevHistory, RevId,
    WriteMode,
};
use peer::{Address, FeedRequest, Http, Local, Peer, ReadOptions};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use replicate::{Endpoint, Identity};
use server::engine::{self, IfMissing};
use server::http::{Options, Server};

/// Databases in this process, and the same on a server.
pub(crate) struct World {
    pub(crate) layer: Layer<AnyDatabase>,
    server: Server,
}

impl World {
    pub(crate) async fn new() -> World {
        let engine = engine::open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
        let options = LayerOptions { max_document_size: 100_000, ..LayerOptions::default() };
        let layer = Layer::open(engine, options).await.unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(layer.clone(), address, Options::default()).await.unwrap();
        World { layer, server }
    }

    pub(crate) async fn create(&self, name: &str) -> Documents<AnyDatabase> {
        self.layer.create_database(name, CreateOptions::default()).await.unwrap()
    }

    pub(crate) async fn local(&self, name: &str) -> Arc<dyn Peer> {
        Arc::new(Local::new(self.layer.database(name).await.unwrap()))
    }

    pub(crate) fn address(&self, name: &str) -> Address {
        format!("http://{}/{name}", self.server.address()).parse().unwrap()
    }

    pub(crate) fn server_address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) async fn far(&self, name: &str) -> Arc<dyn Peer> {
        Arc::new(Http::new(self.address(name)).unwrap())
    }
}

pub(crate) fn identity() -> Identity {
    Identity { uuid: "test".into(), source: Endpoint::Local("a".into()), target: Endpoint::Local("b".into()) }
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).unwrap()
}

fn hash(dice: &mut StdRng) -> RevHash {
    RevHash::from(std::array::from_fn(|_| dice.random()))
}

/// A document with a history of this length, made elsewhere.
pub(crate) fn leaf(id: &str, length: u64, body: &str, dice: &mut StdRng) -> Edit {
    let ids = (0..length).map(|_| hash(dice)).collect();
    Edit::new(id, json(body)).with_history(RevHistory { position: length, ids })
}

/// Adds documents, edits, deletions, conflicts of live leaves and tombstones, a long history, and documents with two
/// attachments of these sizes.
pub(crate) async fn fill(documents: &Documents<AnyDatabase>, dice: &mut StdRng, count: usize, files: &[usize]) {
    let prefix = dice.random_range(0..1_000_000);
    for number in 0..count {
        let id = match number % 9 {
            0 => format!("_design/{prefix}-{number}"),
            1 => format!("a/b {prefix}?{number}+é"),
            _ => format!("{prefix}-{number}"),
        };
        let mut rev = None;
        for edit in 0..dice.random_range(1..4) {
            let mut next = Edit::new(&id, json(&format!(r#"{{"n":{number},"edit":{edit},"é":[1.5,null]}}"#)));
            next.rev = rev.take();
            rev = Some(documents.put(next).await.unwrap());
        }
        if dice.random_range(0..5) == 0 {
            let rev = rev.clone().unwrap();
            documents.put(Edit::new(&id, json("{}")).over(rev).deleting()).await.unwrap();
        }
        if dice.random_range(0..4) == 0 {
            let mut others = vec![leaf(&id, 2, r#"{"other":1}"#, dice), leaf(&id, 3, r#"{"other":2}"#, dice)];
            if dice.random() {
                others[1].deleted = true;
            }
            let written = documents.write(others, WriteMode::Replicated).await.unwrap();
            assert!(written.iter().all(Result::is_ok));
        }
    }
    let long = leaf(&format!("long-{prefix}"), 1_200, r#"{"long":true}"#, dice);
    documents.write(vec![long], WriteMode::Replicated).await.unwrap();
    for (number, &length) in files.iter().enumerate() {
        let mut bytes = vec![0; length];
        dice.fill_bytes(&mut bytes);
        let mut edit = Edit::new(format!("file-{prefix}-{number}"), json(r#"{"file":true}"#));
        for (name, kind) in [("plain text.txt", "text/plain"), ("x/é.bin", "application/octet-stream")] {
            let content = {
                let mut upload = documents.upload(name, model::UploadAs::Plain { content_type: kind });
                upload.write(&bytes).await.unwrap();
                upload.finish().await.unwrap()
            };
            edit.attachments.push(AttachmentEdit::new(name, kind, content));
        }
        documents.put(edit).await.unwrap();
    }
}

/// A leaf with everything known about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content {
    pub(crate) id: String,
    pub(crate) rev: RevId,
    deleted: bool,
    body: String,
    ancestors: Vec<RevHash>,
    attachments: Vec<(String, String, u64, u64, Vec<u8>)>,
}

/// Every leaf of a database.
pub(crate) async fn contents(peer: &dyn Peer) -> Vec<Content> {
    let mut all = Vec::new();
    let mut request = FeedRequest { limit: 200, all_leaves: true, ..FeedRequest::default() };
    loop {
        let page = peer.changes(&request).await.unwrap();
        for row in &page.rows {
            let wanted = [BulkGet { id: row.id.clone(), rev: None }];
            let options = ReadOptions { ancestors: true, ..ReadOptions::default() };
            let leaves = peer.read(&wanted, options).await.unwrap().pop().unwrap().unwrap();
            assert_eq!(leaves.len(), row.revs.len(), "{}", row.id);
            for leaf in leaves {
                let mut attachments = Vec::new();
                for one in &leaf.attachments {
                    let pieces: Vec<_> = peer.attachment(&leaf.id, &leaf.rev, one).try_collect().await.unwrap();
                    let (name, kind) = (one.name.clone(), one.content_type.clone());
                    attachments.push((name, kind, one.revpos, one.length, pieces.concat()));
                }
                all.push(Content {
                    id: leaf.id,
                    rev: leaf.rev,
                    deleted: leaf.deleted,
                    body: leaf.body.to_string(),
                    ancestors: leaf.history.map(|history| history.ids).unwrap_or_default(),
                    attachments,
                });
            }
        }
        if !page.more {
            all.sort();
            return all;
        }
        request.since = Some(page.last_seq);
    }
}
