//! Vaults written by Self-hosted LiveSync: `tests/fixtures/livesync`, with a README.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chunks::store::{DocumentStore, Leaf};
use serde_json::Value;

use crate::support::World;

/// Passphrase of the encrypted vaults.
pub(crate) const PASSPHRASE: &str = "correct horse";

/// One of the three vaults. They have the same files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fixture {
    Plain,
    Encrypted,
    Obfuscated,
}

pub(crate) const ALL: [Fixture; 3] = [Fixture::Plain, Fixture::Encrypted, Fixture::Obfuscated];

impl Fixture {
    fn name(self) -> &'static str {
        match self {
            Fixture::Plain => "livesync-plain",
            Fixture::Encrypted => "livesync-e2ee",
            Fixture::Obfuscated => "livesync-e2ee-obfuscated",
        }
    }

    /// A new database with the vault's documents, under their revisions, and its local documents.
    pub(crate) async fn load(self, world: &World, name: &str) -> Arc<dyn DocumentStore> {
        let store = self.load_without_local(world, name).await;
        let listing: Value = serde_json::from_str(&read(&format!("{}.local.json", self.name()))).unwrap();
        for row in listing["rows"].as_array().unwrap() {
            world.put_local(name, row["id"].as_str().unwrap(), members(&row["doc"])).await;
        }
        store
    }

    /// The same without the local documents, as an export has it.
    pub(crate) async fn load_without_local(self, world: &World, name: &str) -> Arc<dyn DocumentStore> {
        let store = world.database(name).await;
        let documents = read(&format!("{}.jsonl", self.name()));
        let leaves = documents.lines().map(|line| {
            let document: Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| document[name].as_str().unwrap().to_owned();
            let leaf = Leaf { rev: text("_rev"), deleted: false, body: members(&document), ancestors: Vec::new() };
            (text("_id"), leaf)
        });
        store.graft(leaves.collect()).await.unwrap();
        store
    }
}

fn members(document: &Value) -> chunks::store::Body {
    let mut body = document.as_object().unwrap().clone();
    body.retain(|name, _| !name.starts_with('_'));
    body
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/livesync")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// The files of every vault.
pub(crate) fn files() -> BTreeMap<PathBuf, Vec<u8>> {
    crate::vault::content(&folder().join("vault"))
}
