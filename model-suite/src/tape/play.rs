//! Plays a tape on a database. Compares every result and, after every step, everything that can be read with the
//! oracle.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use kv_api::{Database, Read, Transaction};
use model::{
    CreateOptions, Documents, Edit, EditResult, Edits, ErrorKind, JsonText, Layer, LayerOptions, NotFound, Patch, Purge,
};

use super::compare::{Failure, compare, ensure};
use super::generate::FIRST_LIMIT;
use super::oracle::{Answer, Oracle, PURGES_KEPT, Refused};
use super::queries;
use super::step::{Batch, CLIENTS, Step};

/// The clients' own row, and the database that has a document for each transaction.
const OWN: &[u8] = b"own";
const LEDGER: &str = "ledger";

/// Number of steps between two checks. There is also one after the last step.
const STEPS_BETWEEN_CHECKS: usize = 6;

/// Plays `tape` in a new database on `engine`. Each client has its own `wrap` of it.
pub(super) async fn play<D: Database, C: Database>(
    engine: D,
    wrap: impl Fn(D, u64) -> C,
    options: CreateOptions,
    tape: &[Step],
) -> Result<(), Failure> {
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await?;
    let observer = layer.create_database("tape", options).await?;
    observer.set_revs_limit(FIRST_LIMIT).await?;
    observer.set_purged_infos_limit(PURGES_KEPT as u64).await?;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let layer = Layer::open(wrap(engine.clone(), client as u64), LayerOptions::default()).await?;
        clients.push(layer.database("tape").await?);
    }
    let ledger = layer.create_database(LEDGER, options).await?;
    let mut oracle = Oracle::new(FIRST_LIMIT as usize, options.conflicts);
    for (at, step) in tape.iter().enumerate() {
        let in_step = |failure: Failure| Failure(format!("step {at}: {failure}"));
        oracle = play_step(&observer, &clients, oracle, at, step).await.map_err(in_step)?;
        compare(&observer, &oracle, at as u64).await.map_err(in_step)?;
        let own = own(&engine.begin().map_err(model::Error::from)?).await?;
        let found = (own, ledger.info().await?.doc_count);
        ensure("transactions", &found, &(oracle.transactions, oracle.transactions)).map_err(in_step)?;
        if at % STEPS_BETWEEN_CHECKS == 0 || at + 1 == tape.len() {
            check(&observer, &oracle).await.map_err(in_step)?;
            queries::compare_indexes(&clients[at % CLIENTS], &oracle).await.map_err(in_step)?;
            // A client reads through its faults. Each fault costs a pause before the retry.
            compare(&clients[at % CLIENTS], &oracle, at as u64).await.map_err(in_step)?;
        }
    }
    queries::finish(&observer, &oracle).await?;
    check(&observer, &oracle).await?;
    let problems = ledger.check(|_| {}).await?.problem_count;
    ensure("problems of the ledger", &problems, &0)
}

/// The number of transactions, in the clients' own row.
async fn own<T: Transaction>(transaction: &T) -> Result<u64, model::Error> {
    let row = transaction.get(OWN, Read::Serializable).await?;
    Ok(row.map_or(0, |row| row.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))))
}

/// Carries out edits in one transaction. The transaction counts itself in the clients' own row, and in a new document
/// of the other database, if there is one.
async fn transact<C: Database>(client: &Documents<C>, edits: &[Edit]) -> Result<Vec<Answer>, Failure> {
    let layer = client.layer();
    let ledger = match layer.database(LEDGER).await {
        Ok(ledger) => Some(ledger),
        Err(error) if error.status() == 404 => None,
        Err(error) => return Err(error.into()),
    };
    let done = layer.transact(async |all: Edits<C>| {
        for edit in edits {
            all.put(client, edit.clone())?;
        }
        if let Some(ledger) = &ledger {
            let number = own(all.transaction()).await?;
            all.transaction().set(OWN, (number + 1).to_le_bytes().to_vec());
            all.put(ledger, Edit::new(format!("{number:06}"), JsonText::empty_object()))?;
        }
        Ok::<_, model::Error>(())
    });
    match done.await {
        Ok(((), revs)) => Ok(revs.into_iter().take(edits.len()).map(Ok).collect()),
        Err(error) => match error.kind() {
            ErrorKind::Refused(refused) => {
                let one = |one: &model::Refused| answer(Err(one.error.clone()), &one.id);
                refused.iter().map(one).collect()
            }
            _ => Err(error.into()),
        },
    }
}

pub(super) async fn play_step<D: Database, C: Database>(
    observer: &Documents<D>,
    clients: &[Documents<C>],
    mut oracle: Oracle,
    at: usize,
    step: &Step,
) -> Result<Oracle, Failure> {
    match step {
        Step::RevsLimit(limit) => {
            clients[at % CLIENTS].set_revs_limit(*limit).await?;
            oracle.revs_limit = *limit as usize;
            ensure("revs_limit", &observer.revs_limit().await?, limit)?;
            Ok(oracle)
        }
        Step::BuildIndexes(client, most) => {
            clients[*client].build_indexes_batch(*most, None).await?;
            Ok(oracle)
        }
        Step::UpdateViews(client, most) => {
            clients[*client].update_views_batch(&queries::group(), *most, None).await?;
            Ok(oracle)
        }
        Step::Write(batch) => {
            let before = observer.last_seq().await?;
            let answers = write(&clients[batch.client], batch).await?;
            let known = oracle.trees.clone();
            ensure("answers", &answers, &oracle.act(batch, at))?;
            let moved = observer.last_seq().await? > before;
            ensure("whether the sequence moved", &moved, &(known != oracle.trees))?;
            Ok(oracle)
        }
        Step::Race(batches) => {
            let answers = join_all(batches.iter().map(|batch| write(&clients[batch.client], batch))).await;
            let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
            explain(observer, &oracle, at, batches, &answers).await
        }
    }
}

/// Finds an order of the batches, each atomic, that explains these results and the state of the database.
async fn explain<D: Database>(
    observer: &Documents<D>,
    before: &Oracle,
    at: usize,
    batches: &[Batch],
    answers: &[Vec<Answer>],
) -> Result<Oracle, Failure> {
    let mut last = Failure(format!("no order of the batches has the answers {answers:?}"));
    let mut tried: Vec<Oracle> = Vec::new();
    for order in orders(batches.len()) {
        let mut oracle = before.clone();
        let fits = order.iter().all(|&client| oracle.act(&batches[client], at) == answers[client]);
        let is_same = |other: &Oracle| {
            (&other.trees, &other.purged, other.transactions) == (&oracle.trees, &oracle.purged, oracle.transactions)
        };
        if !fits || tried.iter().any(is_same) {
            continue;
        }
        match compare(observer, &oracle, at as u64).await {
            Ok(()) => return Ok(oracle),
            Err(failure) => last = failure,
        }
        tried.push(oracle);
    }
    Err(last)
}

/// All permutations of this number of items.
fn orders(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |shorter, next| {
        let longer = |order: Vec<usize>| {
            (0..=order.len()).map(move |place| {
                let mut order = order.clone();
                order.insert(place, next);
                order
            })
        };
        shorter.into_iter().flat_map(longer).collect()
    })
}

async fn write<C: Database>(client: &Documents<C>, batch: &Batch) -> Result<Vec<Answer>, Failure> {
    if !batch.purges.is_empty() {
        let purges: Vec<Purge> = batch.purges.iter().map(|(id, revs)| Purge::new(id, revs.clone())).collect();
        let purged = client.purge(&purges).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
        return Ok(purged.into_iter().flatten().map(Ok).collect());
    }
    if let Some(patch) = &batch.patch {
        let merged = JsonText::parse(format!(r#"{{"n":{},"a":null}}"#, patch.n).as_bytes()).expect("JSON");
        let patched = client.patch(&patch.id, patch.rev.as_ref(), &Patch::merge(merged)).await;
        return Ok(vec![answer(patched, &patch.id)?]);
    }
    if batch.together {
        return transact(client, &batch.edits).await;
    }
    let results: Vec<EditResult> = match (batch.edits.as_slice(), batch.mode) {
        // Half of the single edits use the method for single edits.
        ([edit], model::WriteMode::Interactive) if edit.body.len() % 2 == 0 => vec![client.put(edit.clone()).await],
        (edits, mode) => match client.write(edits.to_vec(), mode).await {
            // Such an error fails the whole batch. Only single edits have stubs.
            Err(error) if edits.len() == 1 => vec![Err(error)],
            results => results?,
        },
    };
    results.into_iter().zip(&batch.edits).map(|(result, edit)| answer(result, &edit.id)).collect()
}

fn answer(result: EditResult, id: &str) -> Result<Answer, Failure> {
    match result {
        Ok(rev) => Ok(Ok(rev)),
        Err(error) => match error.kind() {
            ErrorKind::Conflict => Ok(Err(Refused::Conflict)),
            ErrorKind::MissingStub { .. } => Ok(Err(Refused::MissingStub)),
            ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted) => Ok(Err(Refused::Absent)),
            _ => Err(Failure(format!("{id:?}: {error}"))),
        },
    }
}

pub(super) async fn check<D: Database>(observer: &Documents<D>, oracle: &Oracle) -> Result<(), Failure> {
    let report = observer.check(|_| {}).await?;
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    ensure("problems", &problems, &Vec::new())?;
    // An interactive edit reads at most two branches. So it cannot see that its new revision is an ancestor on another
    // branch, which was replicated without the edit's parent.
    let trees = oracle.trees.values();
    let unjoined = trees.flat_map(|tree| tree.branches.iter().filter(|branch| tree.has_child_of(branch.leaf())));
    ensure("unjoined leaves", &report.unjoined, &(unjoined.count() as u64))?;
    let documents = oracle.trees.len() as u64;
    let branches: usize = oracle.trees.values().map(|tree| tree.branches.len()).sum();
    let attachments = oracle.trees.values().flat_map(|tree| &tree.branches).flat_map(|branch| &branch.attachments);
    let contents: BTreeSet<usize> = attachments.map(|attachment| attachment.content).collect();
    ensure("contents", &report.contents, &(contents.len() as u64))?;
    ensure("purges", &report.purges, &(oracle.purged.len().min(PURGES_KEPT) as u64))?;
    let found = (report.documents, report.revisions, report.changes, report.changed_meanwhile);
    ensure("report", &found, &(documents, branches as u64, documents, false))
}
