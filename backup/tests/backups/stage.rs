//! Shared parts of the tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backup::{Folder, Protection, Repository};
use kv_api::Database;
use model::{AllDocsRequest, BulkGet, ChangesRequest, Documents, Edit, JsonText, OpenRev, SystemEnvironment};

pub(crate) fn quiet(_: &str, _: u64) {}

/// Says when it is dropped that something is over, so that a test that panics does not wait for its threads.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).unwrap()
}

pub(crate) fn edit(id: &str, body: &str) -> Edit {
    Edit::new(id, json(body))
}

pub(crate) async fn new_repository(folder: &Path) -> Repository {
    let place = Arc::new(Folder::new(folder));
    Repository::open_or_create(place, &Protection::None, Arc::new(SystemEnvironment)).await.unwrap()
}

/// Begins the names of members that are ancestors of a leaf.
const ANCESTORS: &str = "ancestors\0";

/// Everything of a database that clients can see, except sequences.
pub(crate) type Dump = BTreeMap<String, String>;

pub(crate) async fn dump<D: Database>(documents: &Documents<D>) -> Dump {
    let mut all = Dump::new();
    let mut request = ChangesRequest { limit: Some(100), ..ChangesRequest::default() };
    loop {
        let page = documents.changes(&request).await.unwrap();
        let is_last = page.rows.len() < 100 && !page.more;
        for row in page.rows {
            let wanted = [BulkGet { id: row.id.clone(), rev: None }];
            let (_, stored) = documents.get_stored(&wanted).await.unwrap().remove(0);
            for (place, opened) in stored.unwrap().into_iter().enumerate() {
                let OpenRev::Found(mut document) = opened else { panic!("no leaf") };
                let history = document.revisions.take().unwrap();
                let ids: Vec<String> = history.ids.iter().map(ToString::to_string).collect();
                all.insert(format!("{ANCESTORS}{}\0{}", row.id, document.rev), ids.join(" "));
                let mut text = format!("{:?} ", document.attachments);
                documents.load_all_attachments(&mut document).await.unwrap();
                text.push_str(&String::from_utf8(document.to_json()).unwrap());
                all.insert(format!("{} {place} deleted {}", row.id, row.deleted), text);
            }
        }
        if is_last {
            break;
        }
        request.since = page.last_seq.into();
    }
    let mut next = Some(AllDocsRequest { include_docs: true, ..AllDocsRequest::default() });
    while let Some(request) = next {
        let batch = documents.local_docs(&request).await.unwrap();
        for row in batch.rows {
            all.insert(row.id.clone(), format!("{row:?}"));
        }
        next = batch.next;
    }
    for (at, info) in documents.purged_infos(0).await.unwrap().into_iter().enumerate() {
        all.insert(format!("purge {at}"), format!("{info:?}"));
    }
    let info = documents.info().await.unwrap();
    let settings = format!(
        "{:?} {:?} {} {:?} {} {} {} {} {:?} {}",
        info.format,
        info.conflicts,
        info.partitioned,
        info.keep_replaced,
        info.revs_limit,
        info.doc_count,
        info.doc_del_count,
        info.purge_seq,
        documents.deleted_document_ttl().await.unwrap(),
        documents.purged_infos_limit().await.unwrap(),
    );
    all.insert("settings".to_owned(), settings);
    all.insert("security".to_owned(), documents.security().await.unwrap().as_str().to_owned());
    all
}

/// Whether the ancestors are the leaf's own, followed at most by some of another leaf: a merge adds them where branches
/// that were stemmed at different times meet.
fn are_ancestors(all: &Dump, member: &str, expected: &str, found: &str) -> bool {
    let document = member.rsplit_once('\0').unwrap().0;
    let known = |id: &str| {
        let mut leaves = all.iter().filter(|(other, _)| other.rsplit_once('\0').is_some_and(|(of, _)| of == document));
        leaves.any(|(_, ids)| ids.split(' ').any(|other| other == id))
    };
    let more = found.strip_prefix(expected);
    more.is_some_and(|more| more.split(' ').all(|id| id.is_empty() || known(id)))
}

pub(crate) fn assert_same(expected: &Dump, found: &Dump, what: &str) {
    for (member, value) in expected {
        let other = found.get(member).map_or("nothing", |other| other.as_str());
        let is_same = match member.starts_with(ANCESTORS) {
            true => are_ancestors(expected, member, value, other),
            false => value == other,
        };
        assert!(is_same, "{what}: {member}:\n{}\n{}", cut(value), cut(other));
    }
    for member in found.keys() {
        assert!(expected.contains_key(member), "{what}: {member} is too much");
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(2_000)]
}

/// The files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, target).unwrap();
    }
}
