//! A vault in LiveSync's form, written by hand: it migrates, every file is restored byte for byte, and migrating
//! back restores each document.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chunks::store::{DocumentStore, IdRange};
use chunks::{Chunk, ChunkStore, CollectOptions, chunk_id};
use serde_json::{Value, json};

use crate::interruption::{content, edit};
use crate::support::{World, set_grace};

crate::on_every_engine!(every_file_comes_back);

/// A piece of a PNG, and one of the bytes after it.
const BINARY: [&[u8]; 2] = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\xff\x00\xfe\x01"];

/// The bytes of files, by their ids.
type Files = BTreeMap<&'static str, Vec<u8>>;

/// The documents, and the contents of the files that can be read without a passphrase.
fn vault() -> (Vec<(String, Value)>, Files) {
    let binary = BINARY.map(|bytes| STANDARD.encode(bytes));
    let path = format!("%{}Y2lwaGVydGV4dA==", "0a".repeat(32));
    let pieces = binary.each_ref().map(|piece| chunk_id(piece));
    let documents = json!({
        "h:1ecijke328qp3": {"type": "leaf", "data": "from-a\n"},
        "h:2mj7d2m7tephp": {"type": "leaf", "data": "base\n"},
        "h:+u3yj679xuo58": {"type": "leaf", "e_": true, "data": "%=Lx6Xqs/Zqx"},
        (pieces[0].as_str()): {"type": "leaf", "data": binary[0]},
        (pieces[1].as_str()): {"type": "leaf", "data": binary[1]},
        "shared/from-a.txt": {"path": "shared/from-a.txt", "children": ["h:1ecijke328qp3"], "ctime": 1795221368666u64,
            "mtime": 1795221368666u64, "size": 7, "type": "plain", "eden": {}},
        // Two chunks, one of them twice and shared with another file.
        "twice.md": {"path": "Twice.md", "children": ["h:1ecijke328qp3", "h:2mj7d2m7tephp", "h:1ecijke328qp3"],
            "ctime": 1, "mtime": 2, "size": 19, "type": "plain", "eden": {}},
        "image.png": {"path": "image.png", "children": pieces, "ctime": 1, "mtime": 2, "size": 20, "type": "newnote",
            "eden": {}},
        "empty.md": {"path": "empty.md", "children": [], "ctime": 1, "mtime": 2, "size": 0, "type": "plain", "eden": {}},
        // Deleted in LiveSync's way: a live document.
        "gone.md": {"path": "gone.md", "children": ["h:2mj7d2m7tephp"], "ctime": 1, "mtime": 3, "size": 5,
            "type": "plain", "deleted": true, "eden": {}},
        // New pieces are inside the file's document.
        "young.md": {"path": "young.md", "children": ["h:1ecijke328qp3", "h:2young"], "ctime": 1, "mtime": 2, "size": 12,
            "type": "plain", "eden": {"h:2young": {"data": "inline", "epoch": 1}}},
        // Obfuscated paths and encrypted pieces, as LiveSync's first encryption left them: the list is in clear.
        "f:5d41402abc4b2a76b9719d911017c592": {"path": path, "children": ["h:+u3yj679xuo58"], "ctime": 0,
            "mtime": 0, "size": 0, "type": "plain", "eden": {}, "e_": true},
        // Not a file: a document of LiveSync itself.
        "obsydian_livesync_version": {"version": 12, "type": "versioninfo"},
    });
    let documents = documents.as_object().unwrap().iter().map(|(id, body)| (id.clone(), body.clone())).collect();
    let files = BTreeMap::from([
        ("shared/from-a.txt", b"from-a\n".to_vec()),
        ("twice.md", b"from-a\nbase\nfrom-a\n".to_vec()),
        ("image.png", BINARY.concat()),
        ("empty.md", Vec::new()),
        ("gone.md", b"base\n".to_vec()),
        ("young.md", b"from-a\ninline".to_vec()),
    ]);
    (documents, files)
}

/// The bytes of a file, assembled as in LiveSync.
async fn read_file(chunks: &ChunkStore, id: &str) -> Vec<u8> {
    let file = chunks.store().leaves(&[id.to_owned()], false).await.unwrap().remove(0).remove(0).body;
    let children: Vec<String> =
        file["children"].as_array().unwrap().iter().map(|child| child.as_str().unwrap().to_owned()).collect();
    let found = chunks.get(&children).await.unwrap();
    let mut bytes = Vec::new();
    for child in &children {
        let inline = file["eden"].get(child).map(|piece| piece["data"].as_str().unwrap());
        let data = inline.or_else(|| found[child].as_ref().map(|chunk| chunk.data.as_str())).unwrap();
        match file["type"].as_str().unwrap() {
            "newnote" => bytes.extend(STANDARD.decode(data).unwrap()),
            _ => bytes.extend(data.as_bytes()),
        }
    }
    bytes
}

async fn assert_files(chunks: &ChunkStore, files: &Files) {
    for (id, bytes) in files {
        assert_eq!(read_file(chunks, id).await, *bytes, "{id}");
    }
    let secret = "h:+u3yj679xuo58".to_owned();
    let found = chunks.get(std::slice::from_ref(&secret)).await.unwrap();
    assert_eq!(found[&secret], Some(Chunk::encrypted("%=Lx6Xqs/Zqx")));
}

async fn count(store: &dyn DocumentStore, prefix: &str) -> usize {
    store.list(&IdRange::prefix(prefix)).await.unwrap().rows.len()
}

async fn every_file_comes_back(world: World) {
    let store = world.database("vault").await;
    let (documents, files) = vault();
    let edits = documents.iter().map(|(id, body)| edit(id, body.clone()));
    store.write(edits.collect()).await.unwrap().into_iter().for_each(|written| drop(written.unwrap()));
    let before = content(&*store).await;
    assert_eq!(before.len(), documents.len());
    let chunks = ChunkStore::new(store.clone());
    assert_files(&chunks, &files).await;

    let planned = chunks.migrate(true, |_, _| ()).await.unwrap();
    assert_eq!((planned.chunks, content(&*store).await), (5, before.clone()), "a dry run changes nothing");
    let migrated = chunks.migrate(false, |_, _| ()).await.unwrap();
    assert_eq!((migrated.chunks, migrated.left.len()), (5, 0));
    assert_eq!(count(&*store, "h:").await, 0);
    assert_files(&ChunkStore::new(store.clone()), &files).await;
    let verified = chunks.verify(|_| ()).await.unwrap();
    // Inline chunks cannot be missing.
    assert_eq!((verified.files, verified.chunks, verified.missing.len()), (7, 5, 0));
    // Files are unchanged, revisions included.
    let after = content(&*store).await;
    let is_file = |id: &String| !id.starts_with("h:") && id != "obsydian_livesync_version";
    for (id, body) in documents.iter().filter(|(id, _)| is_file(id)) {
        assert_eq!(after.get(id), Some(body), "{id}");
    }

    // A collection keeps the chunks of files that LiveSync marks as deleted, and the pieces of encrypted ones.
    set_grace(&*store, 0).await;
    for _ in 0..2 {
        let collected =
            chunks.collect(CollectOptions { unused_percent: 0, ..Default::default() }, |_| ()).await.unwrap();
        assert_eq!((collected.files, collected.condemned, collected.removed), (7, 0, 0));
    }
    assert_files(&chunks, &files).await;

    assert_eq!(chunks.migrate_back(false, |_, _| ()).await.unwrap().chunks, 5);
    assert_eq!(content(&*store).await, before);
    assert_files(&chunks, &files).await;
}
