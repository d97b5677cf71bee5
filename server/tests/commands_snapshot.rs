//! `couch-layer snapshot` as a process, of a store that is served and of one that is not.
#![cfg(all(feature = "lsm", feature = "mem"))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use serde_json::{Value, json};

use program::commands::{couch_layer, refused, succeed};
use server::{Process, get, put};

/// The digits of a sequence, which sort.
fn digits(seq: &Value) -> String {
    seq.as_str().and_then(|seq| seq.split_once('-')).expect("a sequence").1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_copied_while_it_serves() {
    let (root, client) = (tempfile::tempdir().expect("a folder"), Client::new());
    let path = |name: &str| root.path().join(name).display().to_string();
    let (store, copy) = (path("store"), path("copy"));
    let open = Process::start(&["--engine", &format!("lsm:{store}")]);
    let said = refused(&["snapshot", &copy, "--url", &open.base]);
    assert!(said.contains("this server has none") && !Path::new(&copy).exists(), "{said}");
    assert!(open.stop("-TERM").success());

    let served = Process::with_administrator(&store, &[]);
    let here = served.administrator_url();
    assert!(put(&client, format!("{here}/db"), Value::Null).await);
    assert!(put(&client, format!("{here}/db/a"), json!({})).await);
    let by_stranger = refused(&["snapshot", &copy, "--url", &served.base]);
    assert!(by_stranger.contains("401"), "{by_stranger}");
    assert!(refused(&["snapshot", "copy", "--url", &here]).contains("absolute path"));
    for (to, why) in [(&store, "file_exists"), (&format!("{store}/data/copy"), "inside"), (&path("no/copy"), "400")] {
        let said = refused(&["snapshot", to, "--url", &here]);
        assert!(said.contains(why), "{said}");
    }
    assert!(refused(&["snapshot", &copy, "--engine", &store]).contains("another process"));
    assert!(succeed(&["snapshot", &copy, "--url", &here]).contains("takes it into use"));
    assert!(put(&client, format!("{here}/db/lost"), json!({})).await);
    let last = get(&client, format!("{here}/db")).await["update_seq"].clone();
    assert!(served.stop("-TERM").success(), "and the copied server goes on");

    // A store that is not open is copied by the command itself.
    let second = path("second");
    succeed(&["snapshot", &second, "--engine", &store]);
    let said = refused(&["export", "db", "--engine", &second]);
    assert!(said.contains("is a snapshot") && said.contains("couch-layer adopt"), "{said}");
    assert!(succeed(&["adopt", &second]).contains("1 database has a new incarnation"));
    assert_eq!(succeed(&["export", "db", "--engine", &second]).lines().count(), 2);

    let copied = Process::with_administrator(&copy, &[]);
    let there = copied.administrator_url();
    let info = get(&client, format!("{there}/db")).await;
    assert_eq!(info["doc_count"], json!(1));
    assert!(digits(&info["update_seq"]) > digits(&last), "every old sequence lies below all new ones");
    assert!(put(&client, format!("{there}/db/new"), json!({})).await);
    let since = last.as_str().expect("a sequence");
    let feed = get(&client, format!("{there}/db/_changes?since={since}")).await;
    assert_eq!(feed["results"].as_array().expect("rows").len(), 1, "{feed}");
    assert_eq!(feed["results"][0]["id"], json!("new"));
    assert!(copied.stop("-TERM").success());
    // It is a store as any other now, and has the same incarnation at the next start.
    let copied = Process::with_administrator(&copy, &[]);
    let seq = get(&client, format!("{}/db", copied.administrator_url())).await["update_seq"].clone();
    assert_eq!(digits(&seq)[..2], digits(&info["update_seq"])[..2]);
    assert!(copied.stop("-TERM").success());
    succeed(&["check", "db", "--engine", &copy]);

    let memory = Process::with_administrator("mem:", &[]);
    let said = refused(&["snapshot", &path("third"), "--url", &memory.administrator_url()]);
    assert!(said.contains("501") && !Path::new(&path("third")).exists(), "{said}");
}

/// How far one writer is: documents that were sent, and those that were acknowledged.
#[derive(Default)]
struct Writer {
    sent: AtomicU64,
    acknowledged: AtomicU64,
}

impl Writer {
    /// Writes the next document until the server is gone.
    async fn write(self: Arc<Self>, name: usize, here: String) {
        let client = Client::new();
        loop {
            let at = self.sent.fetch_add(1, Ordering::AcqRel);
            if !put(&client, format!("{here}/db/w{name}-{at:05}"), json!({ "n": at })).await {
                return;
            }
            self.acknowledged.store(at + 1, Ordering::Release);
        }
    }
}

/// The server is killed while it is copied, or soon after. A copy that is there has all that was acknowledged before it
/// was asked for, nothing that was sent after it was there, and no gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_whole_or_not_there_whenever_the_server_is_killed() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().expect("a folder");
    let store = root.path().join("store").display().to_string();
    let writers: Vec<Arc<Writer>> = (0..3).map(|_| Arc::default()).collect();
    let mut whole = 0;
    for round in 0..6 {
        let mut served = Process::with_administrator(&store, &[]);
        let here = served.administrator_url();
        put(&Client::new(), format!("{here}/db"), Value::Null).await;
        for writer in &writers {
            // What is written goes on after what was acknowledged. The last one before the kill may be there, or not.
            let known = writer.acknowledged.load(Ordering::Acquire);
            let id = writers.iter().position(|other| Arc::ptr_eq(other, writer)).expect("a writer");
            let last = Client::new().get(format!("{here}/db/w{id}-{known:05}")).send().await.expect("an answer");
            let known = known + u64::from(last.status().is_success());
            writer.acknowledged.store(known, Ordering::Release);
            writer.sent.store(known, Ordering::Release);
        }
        let tasks: Vec<_> = writers
            .iter()
            .enumerate()
            .map(|(id, writer)| tokio::spawn(writer.clone().write(id, here.clone())))
            .collect();
        let until = writers[0].acknowledged.load(Ordering::Acquire) + random.random_range(0..60);
        while writers[0].acknowledged.load(Ordering::Acquire) < until {
            tokio::task::yield_now().await;
        }
        let copy = root.path().join(format!("copy{round}"));
        let before: Vec<u64> = writers.iter().map(|writer| writer.acknowledged.load(Ordering::Acquire)).collect();
        let copying = {
            let (copy, here) = (copy.display().to_string(), here.clone());
            tokio::task::spawn_blocking(move || couch_layer(&["snapshot", &copy, "--url", &here]))
        };
        let made = if random.random_bool(0.5) {
            let made = copying.await.expect("a command");
            served.child.kill().expect("a kill");
            made
        } else {
            // From when the copy begins, about.
            let (turns, partial) = (random.random_range(0..200), root.path().join(format!("copy{round}.partial-0")));
            for _ in 0..1_000_000 {
                if copying.is_finished() || partial.exists() || copy.exists() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            served.child.kill().expect("a kill");
            copying.await.expect("a command")
        };
        drop(served);
        for task in tasks {
            task.await.expect("a writer");
        }
        let after: Vec<u64> = writers.iter().map(|writer| writer.sent.load(Ordering::Acquire)).collect();
        // What has the name is whole. Its parts have another one until then.
        if !copy.exists() {
            assert!(!made.0, "{made:?}");
            continue;
        }
        whole += u64::from(made.0);
        let copied = Process::with_administrator(&copy.display().to_string(), &[]);
        let listed = get(&Client::new(), format!("{}/db/_all_docs", copied.administrator_url())).await;
        let ids: Vec<&str> =
            listed["rows"].as_array().expect("rows").iter().filter_map(|row| row["id"].as_str()).collect();
        for id in 0..writers.len() {
            let own: Vec<_> = ids.iter().filter(|found| found.starts_with(&format!("w{id}-"))).collect();
            let expected: Vec<String> = (0..own.len()).map(|at| format!("w{id}-{at:05}")).collect();
            assert_eq!(own, expected.iter().collect::<Vec<_>>(), "without a gap");
            let found = own.len() as u64;
            assert!((before[id]..=after[id]).contains(&found), "{} <= {found} <= {}", before[id], after[id]);
        }
        assert!(copied.stop("-TERM").success());
        succeed(&["check", "db", "--engine", &copy.display().to_string()]);
    }
    println!("{whole} copies were made before the kill");
}

/// Runs this with the closed store.
async fn with_layer<F: Future<Output = ()>>(store: &str, change: impl FnOnce(model::Layer<kv_api::AnyDatabase>) -> F) {
    let url = format!("lsm:{store}").parse().expect("a URL");
    let engine = ::server::engine::open(&url, ::server::engine::IfMissing::Fail).expect("an engine");
    change(model::Layer::open(engine, model::LayerOptions::default()).await.expect("a layer")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_would_touch_its_original_is_not_taken_into_use() {
    use kv_api::{Database, RangeRequest, Read, Transaction};

    let (root, client) = (tempfile::tempdir().expect("a folder"), Client::new());
    let path = |name: &str| root.path().join(name).display().to_string();
    let (store, other) = (path("store"), format!("lsm:{}", path("other")));
    let served = Process::with_administrator(&store, &[]);
    for db in ["left", "stays"] {
        assert!(put(&client, format!("{}/{db}", served.administrator_url()), Value::Null).await);
    }
    assert!(served.stop("-TERM").success());
    let is_refused = |name: &str, why: &str| {
        let copy = path(name);
        succeed(&["snapshot", &copy, "--engine", &store]);
        for command in [&["adopt", &copy][..], &["serve", "--engine", &copy, "--listen", "127.0.0.1:0"]] {
            let said = refused(command);
            assert!(said.contains("cannot be taken into use") && said.contains(why), "{said}");
        }
        assert!(refused(&["export", "stays", "--engine", &copy]).contains("is a snapshot"));
        let mark = std::fs::read_to_string(root.path().join(name).join("couch-layer.json")).expect("a mark");
        assert!(mark.contains("snapshot of lsm"), "{mark}");
    };

    // A server on it would go on with the relocation.
    let id = jobs::JobId::new("relocation", "stays");
    let job = jobs::NewJob::default();
    with_layer(&store, async |layer| {
        assert_eq!(layer.jobs().add(&id, &job).await.expect("a job"), jobs::JobState::Pending)
    })
    .await;
    is_refused("relocating", "stays (being relocated)");
    with_layer(&store, async |layer| assert!(layer.jobs().remove(&id).await.expect("no job"))).await;
    // A server on it would write to the other store.
    let from = format!("lsm:{store}");
    succeed(&["relocate", "left", "--from", &from, "--to", &other]);
    is_refused("relocated", &format!("left (in {other})"));
    succeed(&["relocate", "left", "--from", &other, "--to", &from]);
    // A database whose incarnation cannot be raised would give out the original's sequences.
    with_layer(&store, async |layer| {
        let engine = layer.engine();
        let transaction = engine.begin().expect("a transaction");
        let request = RangeRequest::keys(vec![], vec![0xff]);
        let rows = transaction.get_range(&request, Read::Snapshot).await.expect("rows").rows;
        let row = rows.iter().rfind(|row| model::is_instance_key(&row.key)).expect("an instance");
        transaction.set(row.key.to_vec(), b"torn");
        transaction.commit().await.expect("a commit");
    })
    .await;
    is_refused("damaged", "these databases cannot be read: left");
}
