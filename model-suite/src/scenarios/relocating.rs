//! A database moves to another store. The stores are two prefixes of one engine, so every engine is tested on both
//! sides.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use conformance::chaos::Chaos;
use kv_api::{Counted, Counts, Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use model::{
    BodyFormat, Change, ChangesRequest, Content, CreateOptions, DatabaseInfo, Documents, Edit, Error, ErrorKind,
    GetOptions, Layer, LayerOptions, NotFound, RelocateOptions, RelocatePhase, RelocateProgress, RelocateReport, Since,
    Style, UploadAs, WriteMode, abandon_relocation, relocate,
};

use tokio::sync::watch;

use super::attachments::inline;
use super::index_oracle::{VIEWS, design};
use crate::stage::*;

pub(super) async fn at<D: Database>(engine: &D, prefix: &'static str) -> Layer<D> {
    let options = LayerOptions { prefix: Bytes::from_static(prefix.as_bytes()), ..LayerOptions::default() };
    Layer::open(engine.clone(), options).await.expect("a layer")
}

pub(super) fn options(verify: bool) -> RelocateOptions {
    RelocateOptions { from: "a:".into(), to: "b:".into(), verify, delete_source: false }
}

pub(super) fn go_on(_: RelocateProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Continues until it was called this often.
pub(super) fn stop_at(calls: usize) -> impl FnMut(RelocateProgress) -> ControlFlow<()> {
    let mut left = calls;
    move |_| {
        left = left.saturating_sub(1);
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

pub(super) async fn run<S: Database, T: Database>(
    source: &Layer<S>,
    target: &Layer<T>,
    options: RelocateOptions,
    progress: impl FnMut(RelocateProgress) -> ControlFlow<()> + Send,
) -> Result<RelocateReport, Error> {
    relocate(source, target, "db", &options, progress).await
}

/// A document whose rows take several transactions and pages, on a separate branch.
pub(super) fn large(n: usize) -> Edit {
    let members: Vec<String> = (0..400).map(|at| format!(r#""m{at}":"{}""#, "x".repeat(800))).collect();
    replicated("large", &format!("2-{n} a"), &format!("{{{}}}", members.join(",")))
}

/// A staged content: one byte longer than another attachment's content.
async fn documents_content<D: Database>(documents: &Documents<D>) -> Content {
    let mut upload = documents.upload("f", UploadAs::Plain { content_type: "x" });
    upload.write(&[7; 2_000_001]).await.unwrap();
    upload.finish().await.unwrap()
}

/// A database with all kinds of content.
pub(super) async fn fill<D: Database>(documents: &Documents<D>, plain: usize) {
    documents.set_revs_limit(3).await.unwrap();
    documents.set_security(json(r#"{"admins":{"names":["anna"]}}"#)).await.unwrap();
    let edits: Vec<Edit> = (0..plain).map(|n| edit(&format!("doc-{n:03}"), r#"{"n":1,"l":[1,{}]}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    for path in ["2-b a", "2-c a", "3-d c a", "6-g f e d"] {
        merge(documents, replicated("conflicted", path, r#"{"x":1}"#)).await;
    }
    merge(documents, replicated("conflicted", "2-dead a", r#"{"why":1}"#).deleting()).await;
    merge(documents, replicated("a\0b", "1-\u{1}x", "{}")).await;
    let first = documents.put(edit("deleted", "{}")).await.unwrap();
    documents.put(edit("deleted", "{}").over(first).deleting()).await.unwrap();
    let contents = vec![inline("f", "x", vec![7; 300_000]), inline("g", "text/plain", "some text")];
    let attached = Edit { attachments: contents.clone(), ..replicated("conflicted", "2-f a", "{}") };
    merge(documents, attached).await;
    let first = documents.put(Edit { attachments: contents, ..edit("attached", "{}") }).await.unwrap();
    documents.put_attachment("attached", Some(&first), "f", "x", documents_content(documents).await).await.unwrap();
    documents.put_local("_local/one", None, json(r#"{"checkpoint":1}"#)).await.unwrap();
    let long = format!(r#"{{"long":"{}"}}"#, "y".repeat(300_000));
    documents.put_local("_local/two", Some(6), json(&long)).await.unwrap();
}

pub(super) async fn filled<D: Database>(layer: &Layer<D>, format: BodyFormat, plain: usize) -> Documents<D> {
    let documents =
        layer.create_database("db", CreateOptions { format: Some(format), ..CreateOptions::default() }).await.unwrap();
    fill(&documents, plain).await;
    documents
}

/// Everything that can be read.
#[derive(Debug, PartialEq)]
pub(super) struct Contents {
    pub(super) info: DatabaseInfo,
    pub(super) feed: Vec<Change>,
    pub(super) trees: Vec<String>,
    pub(super) locals: String,
    pub(super) security: String,
}

pub(super) async fn contents<D: Database>(documents: &Documents<D>) -> Contents {
    let mut info = documents.info().await.unwrap();
    (info.sizes.active, info.sizes.file) = (0, 0);
    let request = ChangesRequest { style: Style::AllDocs, include_docs: true, ..ChangesRequest::default() };
    let feed = feed(documents, request).await;
    let mut trees = Vec::new();
    for change in &feed {
        let options = GetOptions { revs: true, ..GetOptions::default() };
        let leaves = documents.open_revs(&change.id, &model::OpenRevs::All, &options).await.unwrap();
        trees.push(format!("{leaves:?}"));
    }
    let mut request = model::AllDocsRequest { include_docs: true, ..Default::default() };
    let mut locals = String::new();
    loop {
        let batch = documents.local_docs(&request).await.unwrap();
        locals.push_str(&format!("{:?}", batch.rows));
        match batch.next {
            Some(next) => request = next,
            None => break,
        }
    }
    let security = documents.security().await.unwrap().as_str().to_owned();
    Contents { info, feed, trees, locals, security }
}

/// A database's rows as stored.
pub(super) async fn rows_under<D: Database>(engine: &D, prefix: &str) -> Vec<KeyValue> {
    engine.begin().unwrap().get_all(RangeRequest::prefix(prefix.as_bytes()), Read::Snapshot).await.unwrap()
}

#[track_caller]
pub(super) fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

pub(crate) async fn a_database_that_moves_arrives_as_it_was(stage: Stage) {
    let engine = stage.engine();
    let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
    target.create_database("other", CreateOptions::default()).await.unwrap();
    let here = filled(&source, BodyFormat::Exploded, 500).await;
    for n in 0..3 {
        merge(&here, large(n)).await;
    }
    // Bodies of both formats, in a database whose new bodies are packed.
    let before = contents(&here).await;
    let seen = here.last_seq().await.unwrap();
    let mut watcher = here.watch_changes(seen);
    let mut waiting = pin!(watcher.changed());
    assert!(poll_once(waiting.as_mut()).is_none());

    let mut phases = Vec::new();
    let report = run(&source, &target, options(true), |at| {
        if phases.last() != Some(&at.phase) {
            phases.push(at.phase);
        }
        assert_eq!(at.expected, 505);
        ControlFlow::Continue(())
    });
    let report = report.await.unwrap();
    let verified = report.verified.clone().expect("a comparison");
    assert_eq!((verified.documents, verified.difference_count, verified.edited_since), (505, 0, 0));
    assert_eq!((report.moved, report.moved_before, report.documents, report.incarnation), (true, false, 505, 1));
    use RelocatePhase::{Copying, Finishing, Leaving, Verifying};
    assert_eq!(phases, [Copying, Verifying, Finishing, Leaving]);

    // The source tells the target's name to clients that wait, read, write or look it up.
    let moved = ErrorKind::Moved("b:".into());
    assert_eq!(kind(waiting.await), moved);
    assert_eq!(kind(here.get("doc-001", &GetOptions::default()).await), moved);
    assert_eq!(kind(here.put(edit("late", "{}")).await), moved);
    assert_eq!(kind(source.database("db").await), moved);
    assert_eq!(kind(source.create_database("db", CreateOptions::default()).await), ErrorKind::FileExists);

    let there = target.database("db").await.unwrap();
    let after = contents(&there).await;
    let info = DatabaseInfo { incarnation: 1, ..before.info.clone() };
    assert_eq!(after, Contents { info, ..before });
    assert_sound(&there).await;
    // The remains are sound too, and can be read explicitly.
    let remains = source.remains("db").await.unwrap().expect("remains");
    assert_sound(&remains).await;
    assert_eq!(feed(&remains, ChangesRequest::default()).await.len(), 505);
    assert!(remains.put(edit("late", "{}")).await.is_err());
    assert!(target.remains("db").await.unwrap().is_none());

    // The feed continues where it was, and new sequences sort after all others.
    let since = ChangesRequest { since: Since::Seq(seen), ..ChangesRequest::default() };
    assert_eq!(feed(&there, since.clone()).await, []);
    there.put(edit("new", "{}")).await.unwrap();
    let old = get(&there, "doc-007").await.rev;
    there.put(edit("doc-007", "{}").over(old)).await.unwrap();
    let rows = feed(&there, since).await;
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["new", "doc-007"]);
    assert!(rows.iter().all(|row| row.seq > seen && row.seq.incarnation() == 1));
    assert_sound(&there).await;

    // Moving again finds everything done. The comparison leaves out the edited document.
    let again = relocate(&source, &target, "db", &options(true), go_on).await.unwrap();
    let verified = again.verified.clone().expect("a comparison");
    assert!(again.moved && again.moved_before && again.is_same(), "{again:?}");
    assert_eq!((verified.documents, verified.edited_since), (504, 1));
    assert_eq!(kind(relocate(&source, &source, "db", &options(false), go_on).await), moved);
    // The store has another name now: the marker gets it.
    let renamed = RelocateOptions { to: "renamed:".into(), ..options(false) };
    assert!(relocate(&source, &target, "db", &renamed, go_on).await.unwrap().moved_before);
    assert_eq!(kind(source.database("db").await), ErrorKind::Moved("renamed:".into()));
    assert_eq!(kind(here.get("doc-001", &GetOptions::default()).await), ErrorKind::Moved("renamed:".into()));
}

pub(crate) async fn what_stands_in_the_way_of_a_relocation_is_said(stage: Stage) {
    let engine = stage.engine();
    let (source, target, third) = (at(&engine, "a").await, at(&engine, "b").await, at(&engine, "c").await);
    let here = filled(&source, BodyFormat::Exploded, 3).await;
    let begin = |stop| run(&source, &target, options(false), stop_at(stop));
    assert_eq!(
        kind(relocate(&source, &target, "none", &options(false), go_on).await).to_string(),
        "Database does not exist."
    );
    assert_eq!(kind(relocate(&source, &source, "db", &options(false), go_on).await), ErrorKind::FileExists);

    // Another database of that name exists, or is created meanwhile. The source stays open.
    target.create_database("db", CreateOptions::default()).await.unwrap();
    assert_eq!(kind(begin(usize::MAX).await), ErrorKind::FileExists);
    target.delete_database("db").await.unwrap();
    assert_eq!(kind(begin(3).await), ErrorKind::Stopped);
    target.create_database("db", CreateOptions::default()).await.unwrap();
    assert_eq!(kind(begin(usize::MAX).await), ErrorKind::FileExists);
    here.put(edit("still-open", "{}")).await.unwrap();
    target.delete_database("db").await.unwrap();

    // Another database is being moved there.
    let other = third.create_database("db", CreateOptions::default()).await.unwrap();
    other.put(edit("a", "{}")).await.unwrap();
    let refused = kind(relocate(&third, &target, "db", &options(false), go_on).await);
    assert!(matches!(&refused, ErrorKind::Relocation(why) if why.contains("from a:")), "{refused:?}");
    assert!(!abandon_relocation(&third, &target, "db").await.unwrap(), "it is not its to abandon");

    // Closed for a move to one store, it cannot move to another.
    let closed = run(&source, &target, options(false), |at| {
        if at.phase == RelocatePhase::Finishing && at.documents > 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(kind(closed.await), ErrorKind::Stopped);
    let mut stop = 1;
    while here.put(edit(&format!("open-{stop}"), "{}")).await.is_ok() {
        stop += 1;
        assert_eq!(kind(begin(stop).await), ErrorKind::Stopped);
    }
    assert_eq!(kind(here.put(edit("late", "{}")).await), ErrorKind::Moving);
    assert_eq!(kind(here.set_revs_limit(5).await), ErrorKind::Moving);
    assert_eq!(kind(here.put_local("_local/late", None, json("{}")).await), ErrorKind::Moving);
    assert_eq!(kind(source.delete_database("db").await), ErrorKind::Moving);
    let elsewhere = RelocateOptions { to: "c:".into(), ..options(false) };
    let fourth = at(&engine, "d").await;
    assert!(matches!(
        kind(relocate(&source, &fourth, "db", &elsewhere, go_on).await),
        ErrorKind::Relocation(why) if why.contains("b:")
    ));
    assert!(begin(usize::MAX).await.unwrap().moved);
}

pub(crate) async fn differences_are_found_before_the_target_is_published(stage: Stage) {
    let engine = stage.engine();
    for (what, subspace) in [("a revision", 4), ("a change", 5), ("a body", 6), ("a listing", 7)] {
        for damage in ["changed", "gone", "added"] {
            if (subspace, damage) == (7, "added") {
                // A listing of an unknown document does not belong to a document on either side. `check` finds it.
                continue;
            }
            let (source, target) = (at(&engine, "a").await, at(&engine, "b").await);
            let here = filled(&source, BodyFormat::Packed, 5).await;
            merge(&here, large(0)).await;
            // Everything is copied when the comparison begins.
            let stopped = run(&source, &target, options(true), |at| match at.phase {
                RelocatePhase::Verifying => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            });
            assert_eq!(kind(stopped.await), ErrorKind::Stopped);
            let all = rows_under(&engine, "b").await;
            let of = |row: &&KeyValue| {
                // (4, Number, subspace …), where the number is 0 or has one byte.
                match &row.key[1..] {
                    [0x15, 4, 0x14, 0x15, of, ..] | [0x15, 4, 0x15, _, 0x15, of, ..] => *of == subspace,
                    _ => false,
                }
            };
            let rows: Vec<&KeyValue> = all.iter().filter(of).collect();
            let row = rows[rows.len() / 2];
            let transaction = engine.begin().unwrap();
            match damage {
                "changed" => {
                    let mut value = row.value.to_vec();
                    *value.last_mut().unwrap() ^= 1;
                    transaction.set(&row.key, &value);
                }
                "gone" => transaction.clear(&row.key),
                // An additional change is an additional document. Another additional row belongs to a document.
                _ if subspace == 5 => {
                    let mut key = row.key.to_vec();
                    *key.last_mut().unwrap() ^= 0x80;
                    transaction.set(&key, &row.value);
                }
                _ => {
                    let mut key = row.key.to_vec();
                    key.push(0x14);
                    transaction.set(&key, &row.value);
                }
            }
            transaction.commit().await.unwrap();
            let what = format!("{what} is {damage}");
            match relocate(&source, &target, "db", &options(true), go_on).await {
                Ok(report) => {
                    let verified = report.verified.expect("a comparison");
                    if verified.difference_count == 0 {
                        panic!("{what}: not found");
                    }
                    assert!(!report.moved, "{what}");
                    assert!(!verified.differences.is_empty(), "{what}");
                }
                // A row that cannot be read is found when it is read.
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{what}: {error}"),
            }
            here.put(edit("open", "{}")).await.unwrap();
            assert!(abandon_relocation(&source, &target, "db").await.unwrap());
            let report = relocate(&source, &target, "db", &options(true), go_on).await.unwrap();
            assert!(report.moved && report.is_same(), "{what}: {report:?}");
            for side in [source, target] {
                side.delete_database("db").await.unwrap();
            }
        }
    }
}

pub(crate) async fn databases_move_on_and_come_back(stage: Stage) {
    let engine = stage.engine();
    let (a, b) = (at(&engine, "a").await, at(&engine, "b").await);
    let mut documents = filled(&a, BodyFormat::Exploded, 20).await;
    let id = documents.instance_id();
    let named = |from: &str, to: &str| RelocateOptions { from: from.into(), to: to.into(), ..options(true) };
    let mut stale = Vec::new();
    for round in 0..6u8 {
        let (from, to, names) = if round % 2 == 0 { (&a, &b, named("a:", "b:")) } else { (&b, &a, named("b:", "a:")) };
        let report = relocate(from, to, "db", &names, go_on).await.unwrap();
        assert!(report.moved && report.is_same(), "round {round}: {report:?}");
        assert_eq!(report.incarnation, round + 1);
        stale.push(std::mem::replace(&mut documents, to.database("db").await.unwrap()));
        assert_eq!(documents.instance_id(), id, "it is the same database");
        let before = documents.last_seq().await.unwrap();
        documents.put(edit(&format!("round-{round}"), "{}")).await.unwrap();
        assert!(documents.last_seq().await.unwrap() > before);
        assert_sound(&documents).await;
    }
    // Handles of an earlier store do not reach a later one.
    for old in stale {
        let refused = kind(old.put(edit("late", "{}")).await);
        assert!(matches!(refused, ErrorKind::Moved(_) | ErrorKind::NotFound(NotFound::Database)), "{refused:?}");
    }
    assert_eq!(a.identity().await.unwrap(), b.identity().await.unwrap());
    assert_eq!(a.database_names(&Default::default()).await.unwrap(), ["db"]);

    // Moved once more, deleting everything at the source except the marker.
    let deleting = RelocateOptions { delete_source: true, ..named("a:", "b:") };
    assert!(relocate(&a, &b, "db", &deleting, go_on).await.unwrap().moved);
    let remains = a.remains("db").await.unwrap().expect("a marker");
    assert_eq!(remains.info().await.unwrap().doc_count, 0);
    assert_sound(&remains).await;
    assert_eq!(kind(a.database("db").await), ErrorKind::Moved("b:".into()));
    assert_sound(&b.database("db").await.unwrap()).await;
}

pub(crate) async fn indexes_are_built_anew_where_their_database_moved(stage: Stage) {
    let (source, target) = (at(&stage.engine(), "a").await, at(&stage.engine(), "b").await);
    let documents = source.create_database("db", CreateOptions::default()).await.unwrap();
    let view = r#"{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{}}}"#;
    let design = format!(r#"{{"language":"query","views":{{"n":{view}}}}}"#);
    documents.put(edit("_design/gone", &design)).await.unwrap();
    documents.put(edit("_design/gone", "{}").over(get(&documents, "_design/gone").await.rev).deleting()).await.unwrap();
    documents.put(edit("_design/x", &design)).await.unwrap();
    let edits: Vec<Edit> = (0..30).map(|n| edit(&format!("doc-{n:03}"), &format!(r#"{{"n":{n}}}"#))).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    documents.build_indexes_batch(10, None).await.unwrap();
    for is_active in [false, true] {
        let known: Vec<_> = documents.indexes().await.unwrap().iter().map(|info| (info.number, info.active)).collect();
        assert_eq!(known, [(1, is_active)]);
        documents.build_indexes(|_| ()).await.unwrap();
    }
    let job = documents.build_job();
    documents.put(edit("_design/last", &design)).await.unwrap();
    assert!(source.jobs().get(&job).await.unwrap().is_some());
    run(&source, &target, options(true), go_on).await.unwrap();
    assert_eq!(source.jobs().get(&job).await, Ok(None), "it is built where it went");
    assert!(target.jobs().get(&job).await.unwrap().is_some());
    let moved = target.database("db").await.unwrap();
    let known: Vec<_> = moved.indexes().await.unwrap().iter().map(|info| (info.number, info.active)).collect();
    assert_eq!(known, [(1, false), (2, false)], "with its number, and to be built");
    assert_sound(&moved).await;
    moved.put(edit("doc-new", r#"{"n":7}"#)).await.unwrap();
    moved.build_indexes(|_| ()).await.unwrap();
    assert_eq!(target.jobs().get(&job).await, Ok(None));
    assert_sound(&moved).await;
    let all = model::IndexRequest { number: 1, end: vec![0xff], ..model::IndexRequest::default() };
    assert_eq!(moved.index_rows(&all).await.unwrap().rows.len(), 31);
    assert_sound(&source.remains("db").await.unwrap().unwrap()).await;
}

pub(crate) async fn a_relocation_copies_in_the_background_until_writers_wait_for_it(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let (source, target) = (at(&counted, "a/").await, at(&counted, "b/").await);
    fill(&source.create_database("db", CreateOptions::default()).await.unwrap(), 50).await;
    counted.take();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let progress = |at: RelocateProgress| {
        match at.phase {
            RelocatePhase::Copying | RelocatePhase::Verifying => before.extend(counted.take()),
            // The first call comes before the database is closed.
            _ => after.push(counted.take()),
        }
        ControlFlow::Continue(())
    };
    assert!(run(&source, &target, options(true), progress).await.unwrap().moved);
    after.push(counted.take());
    before.extend(after.remove(0));
    let bytes = |counts: &[Counts], background| -> u64 {
        let counts = counts.iter().filter(|counts| counts.in_background == background);
        counts.map(|counts| counts.bytes_read + counts.bytes_written).sum()
    };
    // The rest is the beginning of a run: who is where.
    assert!(bytes(&before, true) > 10 * bytes(&before, false), "{before:#?}");
    let after = after.concat();
    assert_eq!((bytes(&after, true), bytes(&after, false) > 0), (0, true));
}

pub(crate) async fn a_relocation_and_a_build_outlast_a_cluster_without_room(stage: Stage) {
    /// More answers than any transaction has retries.
    const ANSWERS: u64 = 200;
    let (switch, starved) = watch::channel(true);
    let refusals = Arc::new(AtomicU64::new(0));
    let engine = Chaos::refusing(stage.engine(), starved, refusals.clone());
    // Turns the switch off after the answers.
    let outlast = async || {
        let end = refusals.load(Ordering::SeqCst) + ANSWERS;
        while refusals.load(Ordering::SeqCst) < end {
            tokio::task::yield_now().await;
        }
        switch.send_replace(false);
    };
    let (source, target) = (at(&engine, "a/").await, at(&engine, "b/").await);
    let documents = source.create_database("db", CreateOptions::default()).await.unwrap();
    documents.put(edit("a", r#"{"a":1,"b":1}"#)).await.unwrap();
    documents.put(edit("_design/x", &design(&VIEWS[..1]))).await.unwrap();
    let quiet = documents.clone().in_background();
    let (built, ()) = tokio::join!(quiet.build_indexes(|_| ()), outlast());
    built.unwrap();
    assert!(documents.indexes().await.unwrap().iter().all(|index| index.active));
    switch.send_replace(true);
    let (moved, ()) = tokio::join!(run(&source, &target, options(true), go_on), outlast());
    assert!(moved.unwrap().moved);
    assert!(target.database("db").await.unwrap().get("a", &GetOptions::default()).await.is_ok());
}
