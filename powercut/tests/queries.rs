//! Mango indexes and views on a disk that loses power while they are built and edited.
//!
//! The harness compares the rows with those that clients were told of. Also, each opening checks the database, and
//! continues the builds in a copy in memory: they must end with the same rows as new builds.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::path::Path;

use engine_lsm::LsmDatabase;
use engine_mem::MemDatabase;
use futures_executor::block_on;
use kv_api::{Database, DatabaseExt, Result, Transaction};
use model::{
    CreateOptions, Documents, Edit, Emit, FunctionError, GetOptions, Grouping, IndexRequest, JsonText, Purge, Reduce,
    RevId, RustView, ViewGroup, ViewRequest, WriteMode,
};
use powercut::dice::Dice;
use powercut::harness::cut;
use powercut::{Engine, Rows};
use support::{Workload, cuts, edit, has_layer, json, layer, record, rows, without_log_syncs};

struct Store;

impl Engine for Store {
    type Database = LsmDatabase;
    const NAME: &'static str = "indexes and views on lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        let database = support::open(folder)?;
        if has_layer(&database)? {
            block_on(assert_builds_go_on(rows(&database)));
        }
        Ok(database)
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

/// A design document with indexes over these fields.
fn design(indexes: &[&str]) -> String {
    let views: Vec<String> = indexes
        .iter()
        .map(|field| {
            let map = format!(r#"{{"fields":{{"{field}":"asc"}},"partial_filter_selector":{{}}}}"#);
            let def = format!(r#"{{"fields":["{field}"]}}"#);
            format!(r#""by {field}":{{"map":{map},"reduce":"_count","options":{{"def":{def}}}}}"#)
        })
        .collect();
    format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(","))
}

/// Emits the members of `list`. `version` makes another group of the same functions.
fn group(version: u64) -> ViewGroup {
    let map = |document: &JsonText, emit: &mut Emit| {
        for (at, one) in document.get("list").into_iter().flat_map(|list| list.elements()).enumerate() {
            emit.row(document.slice_ref(one), json(&at.to_string()));
        }
        match document.get("fails") {
            Some(_) => Err(FunctionError::new("map_error", "it says so")),
            None => Ok(()),
        }
    };
    let views = vec![RustView::new("list", map), RustView::new("sum", map).reduced(Reduce::Sum)];
    ViewGroup::of_closures("g", version, views)
}

const GROUPS: [u64; 2] = [1, 2];

/// What a query sees: the rows of all indexes and views.
async fn all<D: Database>(documents: &Documents<D>, groups: &[ViewGroup]) -> Vec<String> {
    let mut found = Vec::new();
    for info in documents.indexes().await.expect("indexes") {
        let request = IndexRequest { number: info.number, end: vec![0xff], ..IndexRequest::default() };
        let page = documents.index_rows(&request).await.expect("rows of an index");
        assert!(page.next.is_none());
        let (design, name) = (info.index.design_id(), info.index.name());
        found.extend(page.rows.iter().map(|row| format!("{design} {name} {:?} {} {:?}", row.key, row.id, row.values)));
    }
    found.sort();
    for group in groups {
        let rows = documents.view_rows(group, "list", &ViewRequest::default()).await.expect("rows of a view");
        found.extend(rows.rows.iter().map(|row| format!("{} {} {}", row.key, row.id, row.value)));
        let sums = documents.view_reductions(group, "sum", &ViewRequest::default(), Grouping::Exact).await;
        found.extend(sums.expect("sums").rows.iter().map(|row| format!("{} {:?}", row.key, row.value)));
    }
    found
}

/// Continues all builds in a copy of the store, and compares them with new builds.
async fn assert_builds_go_on(rows: Rows) {
    let copy = MemDatabase::new();
    let copied = copy.run(|transaction, _| {
        rows.iter().for_each(|(key, value)| transaction.set(key, value));
        async { Ok::<_, kv_api::Error>(()) }
    });
    copied.await.expect("a copy");
    let Ok(documents) = layer(&copy).await.database("documents").await else { return };
    let known = documents.view_groups().await.expect("view groups");
    let groups = GROUPS.map(group).into_iter();
    let groups: Vec<_> = groups.filter(|one| known.iter().any(|known| known.signature == *one.signature())).collect();
    for group in &groups {
        assert_eq!(documents.check_views(group).await.expect("a check"), [""; 0]);
    }
    documents.build_indexes(|_| ()).await.expect("a build");
    let went_on = all(&documents, &groups).await;
    support::assert_sound(&copy).await;

    for group in &groups {
        assert!(documents.remove_view_group(group.signature()).await.expect("removed"));
        documents.update_views(group).await.expect("a view");
    }
    let indexes = documents.indexes().await.expect("indexes");
    let mut designs: Vec<&str> = indexes.iter().map(|info| info.index.design_id()).collect();
    designs.dedup();
    for id in designs {
        let design = documents.get(id, &GetOptions::default()).await.expect("a design document");
        documents.put(edit(id, "{}").over(design.rev).deleting()).await.expect("deleted");
        documents.put(Edit::new(id, design.body)).await.expect("made again");
    }
    documents.build_indexes(|_| ()).await.expect("a build");
    assert_eq!(all(&documents, &groups).await, went_on);
}

fn body(n: u64) -> String {
    let fails = if n.is_multiple_of(11) { r#","fails":true"# } else { "" };
    format!(r#"{{"a":{},"b":{{"c":"{}"}},"list":[{},{n}]{fails}}}"#, n % 5, "x".repeat(n as usize % 40), n % 3)
}

fn run(workload: &mut Workload) {
    let database = workload.database.clone();
    let layer = workload.step(async { Ok::<_, model::Error>(layer(&database).await) });
    let documents = workload.step(layer.create_database("documents", CreateOptions::default()));
    let mut revs: Vec<RevId> = Vec::new();
    // Each group is added in a transaction of its own, when there is nothing to map yet.
    workload.step(documents.update_views_batch(&group(1), 1, None));
    for n in 0..10 {
        revs.push(workload.step(documents.put(edit(&format!("d{n}"), &body(n)))));
    }
    let mut design_rev: Option<RevId> = None;
    let mut made = 10;
    for round in 0..4u64 {
        // Another set of indexes: the earlier one may still be building.
        let fields = [&["a"][..], &["a", "b.c"], &["b.c", "list"], &["a"]][round as usize];
        let mut brought = edit("_design/x", &design(fields));
        brought.rev = design_rev.take();
        design_rev = Some(workload.step(documents.put(brought)));
        for n in 0..6 {
            // Edits of a document that the build has not reached, of one that it has passed, and of a new one.
            let at = ((5 * n + 3 * round) % revs.len() as u64) as usize;
            let over = edit(&format!("d{at}"), &body(100 * round + n)).over(revs[at].clone());
            revs[at] = workload.step(documents.put(over));
            if n < 4 {
                workload.step(documents.build_indexes_batch(3, None));
            }
            if n % 2 == 0 {
                workload.step(documents.update_views_batch(&group(1), 3, None));
            }
            if n == 4 {
                revs.push(workload.step(documents.put(edit(&format!("d{made}"), &body(made)))));
                made += 1;
            }
        }
        // The feed is read to its end, so that only the purge is left for the next update.
        while workload.step(documents.update_views_batch(&group(1), 100, None)).more {}
        let purges = [Purge::new("d1", vec![revs[1].clone()])];
        workload.step(documents.purge(&purges));
        revs[1] = workload.step(documents.put(edit("d1", &body(round))));
        let branch = edit("d2", &body(7 * round))
            .with_history(model::RevHistory { position: 1, ids: vec![format!("{round}c").parse().expect("a hash")] });
        workload.step(documents.write(vec![branch], WriteMode::Replicated));
    }
    while workload.step(documents.build_indexes_batch(4, None)).is_some() {}
}

#[test]
fn indexes_and_views_outlive_a_loss_of_power() {
    let history = record::<Store>(run);
    let seed = support::seed(5);
    cut::<Store>(&history, cuts(), &mut Dice::new(seed)).unwrap_or_else(|found| found.report(seed));

    // Without the log's syncs, the same cuts find that acknowledged builds are gone.
    cut::<Store>(&without_log_syncs(history), 2_000, &mut Dice::new(seed)).expect_err("a missing sync");
}
