//! Ids and names of attachments that a URL changes, or cannot have.

use std::sync::Arc;

use model::{AttachmentEdit, AttachmentSource, BulkGet, Edit, WriteMode};
use peer::{Peer, ReadOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use replicate::{Figures, replicate};

use crate::support::{World, contents, identity, json};

/// Characters that URLs escape, drop, resolve or read as something else.
const CHARACTERS: [&str; 26] = [
    ".",
    "..",
    "\t",
    "\n",
    "\r",
    "\0",
    " ",
    "/",
    "\\",
    "%",
    "%2e",
    "%2F",
    "+",
    "?",
    "#",
    "&",
    ";",
    "=",
    ":",
    "\"",
    "\u{7f}",
    "\u{85}",
    "\u{2028}",
    "é",
    "\u{1f600}",
    "a",
];

const NAMES: [&str; 19] = [
    ".",
    "..",
    "\t",
    "\r\n",
    "report\tMarch",
    "\tx",
    "x\n",
    "...",
    "%2E%2e",
    "/",
    "//",
    "./..",
    "../a",
    "a/..",
    "a/./b",
    "\\..",
    " ",
    "+",
    "?x#y",
];

fn names(dice: &mut StdRng) -> Vec<String> {
    let mut names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    for _ in 0..30 {
        let pieces = (0..dice.random_range(1..5)).map(|_| CHARACTERS[dice.random_range(0..CHARACTERS.len())]);
        names.push(pieces.collect());
    }
    names.sort();
    names.dedup();
    names
}

/// A document with attachments of these names. Some are compressed where they are stored.
fn document(id: String, names: &[&str]) -> Edit {
    let mut edit = Edit::new(id, json(r#"{"n":1}"#));
    for (place, name) in names.iter().enumerate() {
        let kind = if place % 2 == 0 { "application/octet-stream" } else { "text/plain" };
        let bytes = format!("{name} of {} ", edit.id).repeat(1 + 400 * (place % 3));
        let source = AttachmentSource::Data(bytes.into_bytes().into());
        let (name, content_type) = ((*name).to_owned(), kind.to_owned());
        edit.attachments.push(AttachmentEdit { name, content_type, revpos: None, source });
    }
    edit
}

async fn copy(source: &Arc<dyn Peer>, target: &Arc<dyn Peer>, leaves: usize) {
    let report = replicate(source.clone(), target.clone(), identity()).run().await.unwrap();
    let Figures { docs_written, doc_write_failures, .. } = report.figures;
    assert_eq!((docs_written, doc_write_failures), (leaves as u64, 0), "{}", report.record);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_urls_change_arrive_as_they_are() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let names = names(&mut StdRng::seed_from_u64(seed));
    for (source_is_far, target_is_far) in [(true, false), (false, true), (true, true)] {
        let world = World::new().await;
        let source = world.create("one").await;
        world.create("other").await;
        let plain: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut edits: Vec<Edit> =
            plain.iter().map(|name| document((*name).to_owned(), &[".", "plain", "a\tb", "/"])).collect();
        edits.extend(plain.iter().map(|name| document(format!("_design/{name}"), &["plain", ".."])));
        edits.extend(plain.chunks(7).enumerate().map(|(place, some)| document(format!("files {place}"), some)));
        edits.extend(plain.iter().map(|name| Edit::new(format!("without {name}"), json("{}"))));
        edits.push(document("empty".to_owned(), &[""]));
        let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
        let written = source.write(edits, WriteMode::Interactive).await.unwrap();
        let revs: Vec<_> = written.into_iter().map(Result::unwrap).collect();
        let one = if source_is_far { world.far("one").await } else { world.local("one").await };
        let other = if target_is_far { world.far("other").await } else { world.local("other").await };
        copy(&one, &other, ids.len()).await;
        let (left, right) = (world.local("one").await, world.local("other").await);
        assert_eq!(contents(&*left).await, contents(&*right).await, "{source_is_far} {target_is_far}");
        // A new revision that keeps its attachments.
        let of = |(id, rev): (&String, &model::RevId)| BulkGet { id: id.clone(), rev: Some(rev.clone()) };
        let wanted: Vec<BulkGet> = ids.iter().zip(&revs).map(of).collect();
        let next = left.read(&wanted, ReadOptions::default()).await.unwrap().into_iter().map(|leaves| {
            let mut leaf = leaves.unwrap().remove(0);
            leaf.body = json(r#"{"n":2}"#);
            let stubs: Vec<_> = leaf.attachments.iter().map(|one| AttachmentEdit::stub(&one.name)).collect();
            let mut edit = leaf.into_edit();
            edit.attachments = stubs;
            edit
        });
        let written = source.write(next.collect(), WriteMode::Interactive).await.unwrap();
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        copy(&one, &other, ids.len()).await;
        assert_eq!(contents(&*left).await, contents(&*right).await, "{source_is_far} {target_is_far}");
    }
}
