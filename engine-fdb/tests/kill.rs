//! Repeated SIGKILL and restart of the server under concurrent writers: no acknowledged write is lost, no document is
//! in `_changes` twice, and feeds continue by themselves.
//!
//! Uses a server of its own. Nothing here waits for a client to notice a kill: writers and feeds continue through
//! it.

#[path = "support/server.rs"]
mod server;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine_fdb::FdbDatabase;
use kv_api::RetryError;
use model::{
    AttachmentEdit, AttachmentSource, Change, ChangesRequest, CreateOptions, Edit, JsonText, Layer, LayerOptions,
    RevId, Seq, Since, UploadAs,
};

use server::LocalServer;

type Documents = model::Documents<FdbDatabase>;

const KILLS: usize = 4;
const WRITERS: usize = 16;
const FEEDS: usize = 3;

/// Acknowledged documents with their revisions, and the documents with an unknown outcome.
#[derive(Default)]
struct Log {
    acknowledged: HashMap<String, RevId>,
    in_doubt: HashSet<String>,
}

fn body(n: usize) -> JsonText {
    JsonText::parse(format!(r#"{{"n":{n},"text":"some words"}}"#).as_bytes()).expect("JSON")
}

/// Adds an attachment of 2.2 MB. Two transactions stage it before the edit. Its type is not compressed, and no other
/// document has the same bytes.
async fn attach(documents: &Documents, edit: &mut Edit) -> model::Result<()> {
    let mut upload = documents.upload("f", UploadAs::Plain { content_type: "x" });
    upload.write(format!("{:>16}", edit.id).repeat(140_000).as_bytes()).await?;
    let source = AttachmentSource::Content(upload.finish().await?);
    edit.attachments.push(AttachmentEdit { name: "f".into(), content_type: "x".into(), revpos: None, source });
    Ok(())
}

/// Writes new documents and edits its own ones until it is told to stop.
async fn write(documents: Documents, writer: usize, stop: Arc<AtomicBool>, log: Arc<Mutex<Log>>) {
    let mut own: Vec<(String, RevId)> = Vec::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let (id, mut edit) = if n % 3 == 0 && !own.is_empty() {
            let (id, rev) = own.swap_remove(n * 7 % own.len());
            let edit = Edit::new(&id, body(n)).over(rev);
            (id, edit)
        } else {
            let id = format!("w{writer}-{n}");
            (id.clone(), Edit::new(&id, body(n)))
        };
        let written = async {
            if (n + writer).is_multiple_of(20) {
                attach(&documents, &mut edit).await?;
            }
            documents.put(edit).await
        };
        match written.await {
            Ok(rev) => {
                log.lock().unwrap().acknowledged.insert(id.clone(), rev.clone());
                own.push((id, rev));
            }
            // The layer must report an unknown result. A conflict with its own edit would be a lost answer.
            Err(error) if error.kv_error().is_some() => {
                println!("in doubt: {id}: {error}");
                log.lock().unwrap().in_doubt.insert(id);
            }
            Err(error) => panic!("{id}: {error}"),
        }
    }
}

/// Follows the feed up to `end`, once that is known. Returns its rows.
async fn follow(documents: Documents, end: tokio::sync::watch::Receiver<Option<Seq>>) -> Vec<Change> {
    let mut rows = Vec::new();
    let mut since = Seq::ZERO;
    let mut watcher = documents.watch_changes(since);
    let mut stopped = end.clone();
    loop {
        let request = ChangesRequest { since: Since::Seq(since), ..ChangesRequest::default() };
        let batch = documents.changes(&request).await.expect("the feed goes on");
        rows.extend(batch.rows);
        since = batch.last_seq;
        watcher.saw(since);
        if end.borrow().is_some_and(|end| since >= end) {
            return rows;
        }
        if !batch.more {
            tokio::select! {
                changed = watcher.changed() => drop(changed.expect("the wait goes on")),
                ended = stopped.changed() => ended.expect("the test runs"),
            }
        }
    }
}

async fn feed(documents: &Documents) -> Vec<Change> {
    let (mut rows, mut since) = (Vec::new(), Seq::ZERO);
    loop {
        let request = ChangesRequest { since: Since::Seq(since), ..ChangesRequest::default() };
        let batch = documents.changes(&request).await.expect("the feed");
        rows.extend(batch.rows);
        since = batch.last_seq;
        if !batch.more {
            return rows;
        }
    }
}

#[test]
fn kills_lose_nothing_acknowledged_and_feeds_go_on() {
    let server = match LocalServer::start() {
        Ok(server) => server,
        Err(missing) => return missing.skip("the kill of a FoundationDB server"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(run(server));
}

async fn run(mut server: LocalServer) {
    let engine = FdbDatabase::open(Some(&server.cluster_file())).await.unwrap();
    let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();

    let (stop, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Log::default())));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(documents.clone(), writer, stop.clone(), log.clone()))).collect();
    let (end, ended) = tokio::sync::watch::channel(None);
    let feeds: Vec<_> = (0..FEEDS).map(|_| tokio::spawn(follow(documents.clone(), ended.clone()))).collect();

    let acknowledged = || log.lock().unwrap().acknowledged.len();
    for kill in 0..KILLS {
        // Waits for a write since the last kill, so that each kill meets commits in progress.
        let before = acknowledged();
        while acknowledged() < before + 100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart();
            server.wait_until_available();
            server
        })
        .await
        .unwrap();
        println!("kill {kill}: {} documents acknowledged before, {} after", before, acknowledged());
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let last = documents.last_seq().await.unwrap();
    end.send(Some(last)).unwrap();

    let rows = feed(&documents).await;
    let found: HashMap<&str, &Change> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    assert_eq!(found.len(), rows.len(), "a document stands in the feed twice");
    let Log { acknowledged, in_doubt } = std::mem::take(&mut *log.lock().unwrap());
    for (id, rev) in &acknowledged {
        let row = found.get(id.as_str()).unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
        if !in_doubt.contains(id) {
            assert_eq!(row.revs, std::slice::from_ref(rev), "{id}");
        }
    }
    for id in found.keys() {
        assert!(acknowledged.contains_key(*id) || in_doubt.contains(*id), "{id} was never written");
    }
    let report = documents.check(|_| {}).await.unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(report.contents > 0, "nothing was attached");

    for feed in feeds {
        let read = feed.await.unwrap();
        assert!(read.is_sorted_by(|a, b| a.seq < b.seq), "a feed goes forward only");
        let mut last_of: HashMap<&str, &Change> = HashMap::new();
        for row in &read {
            let before = last_of.insert(&row.id, row);
            assert!(before.is_none_or(|before| before.revs != row.revs), "{} came twice at {:?}", row.id, row.revs);
        }
        assert_eq!(last_of.len(), found.len(), "the feed has every document");
        for (id, row) in found.iter() {
            assert_eq!(last_of[id], *row, "the feed ends where the database does");
        }
    }
    let (documents, contents, in_doubt) = (acknowledged.len(), report.contents, in_doubt.len());
    println!("{documents} documents, {contents} attachments, {in_doubt} in doubt, {KILLS} kills, {FEEDS} feeds");
}
