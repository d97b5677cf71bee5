//! Folders that earlier versions wrote, of every engine and format, open with this version, or are moved, and have all
//! their documents.
//!
//! ```text
//!   former/ENGINE-FORMAT-closed.gz   closed properly
//!   former/ENGINE-FORMAT-killed.gz   the process was killed while it wrote
//! ```
//!
//! A folder is one file here, compressed: path, length and bytes of each file in it. They are never made again. For a new
//! format they are made, with the program that has that format, by
//! `MAKE_FORMER=ENGINE-FORMAT cargo test -p server --test former`.

#![cfg(all(feature = "lsm", feature = "sled", feature = "former"))]

#[path = "../../former/tests/support/packed.rs"]
mod packed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kv_api::AnyDatabase;
use model::{BodyFormat, CreateOptions, Edit, GetOptions, JsonText, Layer, LayerOptions};
use packed::{pack, unpack};
use server::engine::{IfMissing, open};

const DOCUMENTS: usize = 40;

const FORMATS: [(&str, BodyFormat); 2] = [("packed", BodyFormat::Packed), ("exploded", BodyFormat::Exploded)];

fn former() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/former")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn opened(folder: &Path) -> AnyDatabase {
    open(&folder.display().to_string().parse().unwrap(), IfMissing::Fail).unwrap()
}

fn id(n: usize) -> String {
    format!("document {n:02}")
}

/// Every third document was edited once, every tenth deleted.
fn body(n: usize, edited: bool) -> JsonText {
    let text = if edited { "edited" } else { "first" };
    JsonText::parse(format!(r#"{{"n":{n},"text":"{text}","list":[1,2,{{"deep":"{n}"}}]}}"#).as_bytes()).unwrap()
}

async fn write(store: AnyDatabase) {
    let layer = Layer::open(store, LayerOptions::default()).await.unwrap();
    for (name, format) in FORMATS {
        let documents = layer
            .create_database(name, CreateOptions { format: Some(format), ..CreateOptions::default() })
            .await
            .unwrap();
        for n in 0..DOCUMENTS {
            let first = documents.put(Edit::new(id(n), body(n, false))).await.unwrap();
            if n % 10 == 9 {
                documents.put(Edit::new(id(n), JsonText::parse(b"{}").unwrap()).over(first).deleting()).await.unwrap();
            } else if n % 3 == 0 {
                documents.put(Edit::new(id(n), body(n, true)).over(first)).await.unwrap();
            }
        }
    }
}

async fn check(store: AnyDatabase, name: &str) {
    let layer = Layer::open(store, LayerOptions::default()).await.unwrap();
    for (database, _) in FORMATS {
        let documents = layer.database(database).await.unwrap();
        for n in 0..DOCUMENTS {
            let found = documents.get(&id(n), &GetOptions::default()).await;
            let context = format!("{name}, {database}, {}", id(n));
            if n % 10 == 9 {
                assert_eq!(found.unwrap_err().status(), 404, "{context}");
                continue;
            }
            let edited = n % 3 == 0;
            assert_eq!(found.unwrap().body.as_str(), body(n, edited).as_str(), "{context}");
        }
        // And it can be written to.
        documents.put(Edit::new("new", body(0, false))).await.unwrap();
    }
}

fn couch_layer(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    let output = command.env_clear().args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Checks that a folder of a former engine is refused, and moves it.
fn moved(folder: &Path) {
    let name = folder.to_str().unwrap();
    for arguments in [["serve", "--engine", name].as_slice(), &["export", "packed", "--engine", name]] {
        let (code, said) = couch_layer(arguments);
        assert!(code == Some(1) && said.contains(&format!("`couch-layer move {name}`")), "{said}");
    }
    let (code, said) = couch_layer(&["move", name]);
    assert!(code == Some(0) && said.contains("former"), "{said}");
    let (code, said) = couch_layer(&["move", name]);
    assert!(code == Some(1) && said.contains("nothing to move"), "{said}");
}

#[test]
fn every_folder_that_was_left_opens_and_has_all_its_documents() {
    let mut names: Vec<PathBuf> = fs::read_dir(former()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for engine in ["fjall-1", "lsm-1", "redb-3", "redb-4", "sled-1"] {
        for state in ["closed", "killed"] {
            let path = former().join(format!("{engine}-{state}.gz"));
            assert!(names.contains(&path), "{} is missing", path.display());
        }
    }
    for path in names {
        let folder = tempfile::tempdir().unwrap();
        unpack(&path, folder.path());
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("redb") || name.starts_with("fjall") {
            moved(folder.path());
        }
        // The second time the folder is as this program left it.
        block_on(check(opened(folder.path()), &path.display().to_string()));
        block_on(async {
            let layer = Layer::open(opened(folder.path()), LayerOptions::default()).await.unwrap();
            let found = layer.database("packed").await.unwrap().get("new", &GetOptions::default()).await.unwrap();
            assert_eq!(found.body.as_str(), body(0, false).as_str());
        });
    }
}

/// Makes the folders of one engine, if the variable is set.
#[test]
fn make() {
    if let Ok(url) = std::env::var("FORMER_CHILD") {
        block_on(async {
            let store = open(&url.parse().unwrap(), IfMissing::Create).unwrap();
            write(store).await;
            // As a kill: nothing is closed.
            std::process::abort();
        });
    }
    let Ok(name) = std::env::var("MAKE_FORMER") else { return };
    let engine = name.split('-').next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (closed, killed) = (folder.path().join("closed"), folder.path().join("killed"));
    block_on(write(open(&format!("{engine}:{}", closed.display()).parse().unwrap(), IfMissing::Create).unwrap()));
    let url = format!("{engine}:{}", killed.display());
    let child =
        Command::new(std::env::current_exe().unwrap()).args(["make", "--exact"]).env("FORMER_CHILD", url).output();
    assert!(!child.unwrap().status.success(), "the child is to be killed");
    for state in ["closed", "killed"] {
        pack(&folder.path().join(state), &former().join(format!("{name}-{state}.gz")));
    }
}
