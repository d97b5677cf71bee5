//! Storing and restoring folders of files.

mod alien;
mod changes;
mod folders;
mod interrupted;
mod sealed;
mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chunks::ChunkStore;
use chunks::store::{DocumentStore, Edit};
use chunks::vault::{PullOptions, Pulled, PushOptions, Pushed, Vault};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::World;

/// A database, and a folder to push from.
struct Bench {
    store: Arc<dyn DocumentStore>,
    vault: Vault,
    folder: TempDir,
}

impl Bench {
    async fn new(world: &World, name: &str) -> Bench {
        Bench::over(world.database(name).await)
    }

    fn over(store: Arc<dyn DocumentStore>) -> Bench {
        let vault = Vault::new(ChunkStore::new(store.clone()));
        Bench { store, vault, folder: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        write(self.root(), path, content.as_ref());
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.root().join(path)).unwrap();
    }

    async fn push(&self) -> Pushed {
        self.push_with(PushOptions::default()).await
    }

    async fn push_with(&self, options: PushOptions) -> Pushed {
        self.vault.push(self.root(), options, |_| ()).await.unwrap()
    }

    async fn pull(&self, into: &Path) -> Pulled {
        self.pull_with(into, PullOptions::default()).await
    }

    async fn pull_with(&self, into: &Path, options: PullOptions) -> Pulled {
        self.vault.pull(into, options, |_| ()).await.unwrap()
    }

    /// The winner of a document.
    async fn document(&self, id: &str) -> Value {
        let leaves = self.store.leaves(&[id.to_owned()], false).await.unwrap().pop().unwrap();
        Value::Object(leaves.into_iter().next().unwrap_or_else(|| panic!("no {id}")).body)
    }

    async fn rev(&self, id: &str) -> String {
        self.store.leaves(&[id.to_owned()], false).await.unwrap()[0][0].rev.clone()
    }

    /// Writes documents over their winners.
    async fn put(&self, documents: Vec<(&str, Value)>) {
        let mut edits = Vec::new();
        for (id, body) in documents {
            let leaves = self.store.leaves(&[id.to_owned()], false).await.unwrap().pop().unwrap();
            let rev = leaves.first().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev.clone());
            edits.push(Edit { id: id.into(), rev, deleted: false, body: body.as_object().unwrap().clone() });
        }
        assert!(self.store.write(edits).await.unwrap().iter().all(Result::is_ok));
    }
}

fn write(root: &Path, path: &str, content: &[u8]) {
    let place = root.join(path);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(place, content).unwrap();
}

/// All files below a folder with their contents. The content of a link is its target.
pub(crate) fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut content, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if std::fs::symlink_metadata(&path).unwrap().is_dir() {
                folders.push(path);
            } else {
                let found = match std::fs::read_link(&path) {
                    Ok(link) => link.display().to_string().into_bytes(),
                    Err(_) => std::fs::read(&path).unwrap(),
                };
                content.insert(path.strip_prefix(root).unwrap().to_owned(), found);
            }
        }
    }
    content
}

/// The problems as a person reads them.
fn messages(problems: &[chunks::vault::Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// Random text of some thousand words, with characters of one to four bytes.
fn text(dice: &mut StdRng, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        for _ in 0..dice.random_range(2..10) {
            text.push(match dice.random_range(0..50) {
                0 => '\u{e4}',
                1 => '\u{20ac}',
                2 => '\u{1f600}',
                _ => char::from(dice.random_range(b'a'..=b'z')),
            });
        }
        text.push_str(if dice.random_ratio(1, 10) { ".\n" } else { " " });
    }
    text
}

fn noise(dice: &mut StdRng, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    dice.fill_bytes(&mut noise);
    noise
}

fn dice(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
