//! Edits in the caller's own transaction: all happen once, or none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::chaos::{Chaos, Fault, Rates};
use conformance::random::Random;
use kv_api::{Database, DatabaseExt, Read, RetryError, Transaction};
use model::{
    AttachmentEdit, Begun, ChangesRequest, CreateOptions, Documents, Edits, Error, ErrorKind, Layer, LayerOptions,
    NotFound, RevId, Token,
};

use super::attachments::inline;
use super::unknown::Ticking;
use crate::stage::*;

const ACCOUNTS: usize = 4;
const MONEY: i64 = 100;

/// A layer in a store that also has rows of the caller.
async fn beside<D: Database>(engine: D) -> Layer<D> {
    let prefix = "documents".into();
    Layer::open(engine, LayerOptions { prefix, ..LayerOptions::default() }).await.unwrap()
}

/// A row of the caller: a number.
async fn own<T: Transaction>(transaction: &T) -> u64 {
    own_row(transaction).await.unwrap()
}

async fn own_row<T: Transaction>(transaction: &T) -> kv_api::Result<u64> {
    let row = transaction.get(b"own", Read::Serializable).await?;
    Ok(row.map_or(0, |row| std::str::from_utf8(&row).unwrap().parse().unwrap()))
}

async fn own_of<D: Database>(engine: &D) -> u64 {
    own(&engine.begin().unwrap()).await
}

/// Increments the row, which is not idempotent.
async fn count<T: Transaction>(transaction: &T) -> kv_api::Result<u64> {
    let next = own_row(transaction).await? + 1;
    transaction.set(b"own", next.to_string().into_bytes());
    Ok(next)
}

async fn two_databases<D: Database>(layer: &Layer<D>) -> (Documents<D>, Documents<D>) {
    let left = layer.create_database("left", CreateOptions::default()).await.unwrap();
    let right = layer.create_database("right", CreateOptions::default()).await.unwrap();
    (left, right)
}

async fn ids_of<D: Database>(documents: &Documents<D>) -> Vec<String> {
    feed(documents, ChangesRequest::default()).await.into_iter().map(|change| change.id).collect()
}

pub(crate) async fn edits_of_several_databases_commit_with_rows_of_the_callers(stage: Stage) {
    let layer = beside(stage.engine()).await;
    let (left, right) = two_databases(&layer).await;
    let design =
        r#"{"language":"query","views":{"n":{"map":{"fields":{"n":"asc"}},"options":{"def":{"fields":["n"]}}}}}"#;
    left.put(edit("_design/n", design)).await.unwrap();
    left.build_indexes(|_| {}).await.unwrap();
    let first = left.put(edit("m", r#"{"n":1}"#)).await.unwrap();
    let pictured = edit("pictured", "{}");
    let pictured = model::Edit { attachments: vec![inline("a", "text/plain", "picture")], ..pictured };
    let pictured = left.put(pictured).await.unwrap();

    let design = get(&left, "_design/n").await.rev;
    let (answer, revs) = layer
        .transact(async |edits: Edits<_>| {
            // The order is not that of ids or databases; each feed has this order.
            edits.put(&left, edit("z", r#"{"n":2}"#))?;
            edits.put(&right, edit("m", r#"{"n":3}"#))?;
            edits.put(&left, edit("m", r#"{"n":4}"#).over(first.clone()))?;
            edits.put(&right, edit("a", "{}"))?;
            edits.put(&left, edit("a", r#"{"n":5}"#))?;
            edits.put(&left, edit("_design/n", "{}").over(design.clone()))?;
            let stub = AttachmentEdit::stub("a");
            let pictured = edit("pictured", r#"{"n":6}"#).over(pictured.clone());
            edits.put(&left, model::Edit { attachments: vec![stub], ..pictured })?;
            Ok::<_, Error>(count(edits.transaction()).await?)
        })
        .await
        .unwrap();
    assert_eq!((answer, own_of(&stage.engine()).await), (1, 1));
    assert_eq!(ids_of(&left).await, ["z", "m", "a", "_design/n", "pictured"]);
    assert_eq!(ids_of(&right).await, ["m", "a"]);
    let made = [(&left, "z"), (&right, "m"), (&left, "m"), (&right, "a"), (&left, "a")];
    for ((documents, id), rev) in made.into_iter().zip(&revs) {
        assert_eq!(get(documents, id).await.rev, *rev, "{id}");
    }
    assert_eq!(get(&left, "m").await.body, json(r#"{"n":4}"#));
    assert_eq!(get(&left, "pictured").await.attachments.len(), 1);
    // They are the revisions that ordinary edits make.
    let other = layer.create_database("other", CreateOptions::default()).await.unwrap();
    let first = other.put(edit("m", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(other.put(edit("m", r#"{"n":4}"#).over(first)).await.unwrap(), revs[2]);
    // Later edits continue from these.
    left.put(edit("m", "{}").over(revs[2].clone()).deleting()).await.unwrap();
    for documents in [&left, &right] {
        assert_sound(documents).await;
    }
}

pub(crate) async fn a_refused_edit_refuses_the_whole_transaction(stage: Stage) {
    let layer = beside(stage.engine()).await;
    let (left, right) = two_databases(&layer).await;
    left.put(edit("old", r#"{"n":1}"#)).await.unwrap();
    right.put(edit("old", "{}")).await.unwrap();
    let before = (left.info().await.unwrap(), right.info().await.unwrap());
    let refused = layer
        .transact(async |edits: Edits<_>| {
            count(edits.transaction()).await?;
            edits.put(&right, edit("new", "{}"))?;
            edits.put(&right, edit("ghost", "{}").over(rev("3-c")))?;
            edits.put(&left, edit("new", "{}"))?;
            edits.put(&left, edit("old", "{}"))?;
            Ok::<_, Error>(())
        })
        .await
        .unwrap_err();
    let ErrorKind::Refused(each) = refused.kind() else { panic!("{refused}") };
    let each: Vec<_> = each.iter().map(|one| (one.turn, &*one.database, &*one.id, one.error.status())).collect();
    assert_eq!(each, [(1, "right", "ghost", 409), (3, "left", "old", 409)]);
    assert_eq!((refused.status(), refused.error()), (409, "conflict"));
    assert!(refused.reason().contains(r#""ghost" in right: Document update conflict."#), "{refused}");

    // Errors of a single edit are returned at once. An error of the caller ends the transaction too.
    let elsewhere = beside(stage.engine()).await.database("left").await.unwrap();
    let own_error = layer
        .transact(async |edits: Edits<_>| {
            edits.put(&left, edit("new", "{}"))?;
            assert_eq!(edits.put(&left, edit("_bad", "{}")).unwrap_err().status(), 400);
            assert_eq!(edits.put(&elsewhere, edit("a", "{}")).unwrap_err().status(), 400);
            assert_eq!(edits.get(&elsewhere, "old").await.unwrap_err().status(), 400);
            let attached = model::Edit { attachments: vec![inline("a", "text/plain", "x")], ..edit("a", "{}") };
            assert_eq!(edits.put(&left, attached).unwrap_err().status(), 400);
            let missing = edits.get(&left, "ghost").await.unwrap_err();
            assert_eq!(*missing.kind(), ErrorKind::NotFound(NotFound::Missing));
            Err::<(), _>(missing)
        })
        .await
        .unwrap_err();
    assert_eq!(own_error.status(), 404);

    let twice = layer
        .transact(async |edits: Edits<_>| {
            edits.put(&left, edit("new", r#"{"n":1}"#))?;
            edits.put(&left, edit("new", r#"{"n":2}"#))
        })
        .await
        .unwrap_err();
    assert_eq!(twice.status(), 400, "{twice}");

    // Two collections would give their changes the same numbers.
    let transaction = stage.engine().begin().unwrap();
    for (turn, id) in ["one", "two"].into_iter().enumerate() {
        let Begun::Edits(edits) = layer.edits(&transaction, &layer.token()).await.unwrap() else { panic!() };
        edits.put(&left, edit(id, "{}")).unwrap();
        let finished = edits.finish().await;
        assert_eq!(finished.is_ok(), turn == 0);
        assert_eq!(edits.put(&left, edit("late", "{}")).unwrap_err().status(), 400);
        assert_eq!(edits.get(&left, "old").await.unwrap_err().status(), 400);
    }
    drop(transaction);

    // The rest of a refused transaction cannot be committed.
    let transaction = stage.engine().begin().unwrap();
    let Begun::Edits(edits) = layer.edits(&transaction, &layer.token()).await.unwrap() else { panic!() };
    count(&transaction).await.unwrap();
    edits.put(&left, edit("old", "{}")).unwrap();
    assert_eq!(edits.finish().await.unwrap_err().status(), 409);
    assert_eq!(transaction.commit().await.unwrap_err().code(), kv_api::error::TRANSACTION_CANCELLED);

    // Neither can the rest of one that failed in another way: here a database is gone.
    let gone = layer.create_database("gone", CreateOptions::default()).await.unwrap();
    layer.delete_database("gone").await.unwrap();
    let transaction = stage.engine().begin().unwrap();
    let Begun::Edits(edits) = layer.edits(&transaction, &layer.token()).await.unwrap() else { panic!() };
    count(&transaction).await.unwrap();
    edits.put(&left, edit("new", "{}")).unwrap();
    edits.put(&gone, edit("new", "{}")).unwrap();
    assert_eq!(edits.finish().await.unwrap_err().status(), 404);
    assert_eq!(transaction.commit().await.unwrap_err().code(), kv_api::error::TRANSACTION_CANCELLED);

    // Neither can the rest of one whose future was dropped.
    let rates = Rates { latency: 1.0, longest: Duration::from_millis(1), ..Rates::default() };
    let slow = beside(Chaos::new(stage.engine(), 1, rates)).await;
    let transaction = slow.engine().begin().unwrap();
    let Begun::Edits(edits) = slow.edits(&transaction, &slow.token()).await.unwrap() else { panic!() };
    count(&transaction).await.unwrap();
    edits.put(&slow.database("left").await.unwrap(), edit("new", "{}")).unwrap();
    assert!(poll_once(Box::pin(edits.finish()).as_mut()).is_none());
    assert_eq!(transaction.commit().await.unwrap_err().code(), kv_api::error::TRANSACTION_CANCELLED);

    let after = (left.info().await.unwrap(), right.info().await.unwrap());
    assert_eq!((after, own_of(&stage.engine()).await), (before, 0), "nothing was written");
    assert_sound(&left).await;
}

/// Documents that the caller reads are unchanged when the transaction commits.
pub(crate) async fn documents_that_are_read_do_not_change_before_the_commit(stage: Stage) {
    let layer = beside(stage.engine()).await;
    let (left, right) = two_databases(&layer).await;
    let rate = left.put(edit("rate", r#"{"n":2}"#)).await.unwrap();
    let price = right.put(edit("price", r#"{"n":1}"#)).await.unwrap();
    let attempts = AtomicUsize::new(0);
    let (seen, _) = layer
        .transact(async |edits: Edits<_>| {
            let seen = edits.get(&left, "rate").await?;
            let missing = edits.get(&left, "discount").await.is_err();
            let price = edits.get(&right, "price").await?.rev;
            // Another client writes in between: the document that is read, one that did not exist, or the one that is
            // edited.
            match attempts.fetch_add(1, Ordering::Relaxed) {
                0 => drop(left.put(edit("rate", r#"{"n":3}"#).over(rate.clone())).await.unwrap()),
                1 => drop(left.put(edit("discount", "{}")).await.unwrap()),
                2 => drop(right.put(edit("price", r#"{"n":9}"#).over(price.clone())).await.unwrap()),
                _ => {}
            }
            edits.put(&right, edit("price", seen.body.as_str()).over(price))?;
            Ok::<_, Error>((seen.body, missing))
        })
        .await
        .unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 4, "no attempt has a conflict of documents: it is begun anew");
    assert_eq!(seen, (json(r#"{"n":3}"#), false));
    let now = get(&right, "price").await;
    assert_eq!((now.rev.position(), now.body), (price.position() + 2, json(r#"{"n":3}"#)));
}

/// The same in the layer's loop and in the caller's own.
async fn new_document<D: Database>(layer: &Layer<D>, own_loop: bool, id: &str) -> Result<Vec<RevId>, Error> {
    let (left, right) = (&layer.database("left").await.unwrap(), &layer.database("right").await.unwrap());
    let put = async |edits: &Edits<D>| {
        edits.put(left, edit(id, r#"{"n":1}"#))?;
        edits.put(right, edit(id, r#"{"n":2}"#))?;
        count(edits.transaction()).await?;
        Ok::<_, Error>(())
    };
    if !own_loop {
        return layer.transact(async |edits: Edits<_>| put(&edits).await).await.map(|((), revs)| revs);
    }
    let token: Token = layer.token();
    let transaction = layer.engine().begin()?;
    loop {
        let attempt = async {
            let edits = match layer.edits(&transaction, &token).await? {
                Begun::Edits(edits) => edits,
                Begun::Landed(revs) => return Ok(revs),
            };
            put(&edits).await?;
            let revs = edits.finish().await?;
            transaction.commit().await?;
            Ok::<_, Error>(revs)
        };
        match attempt.await {
            Ok(revs) => return Ok(revs),
            Err(error) => match error.kv_error() {
                Some(store) => transaction.on_error(store.clone()).await?,
                None => return Err(error),
            },
        }
    }
}

pub(crate) async fn transactions_of_unknown_result_happen_once(stage: Stage) {
    let sound = beside(stage.engine()).await;
    let (left, right) = two_databases(&sound).await;
    let mut done = 0;
    for fault in [Fault::UnknownCommitted, Fault::UnknownNotCommitted] {
        for own_loop in [false, true] {
            let faults = [fault, fault, Fault::NotCommitted, fault].map(Some);
            let layer = beside(Chaos::scripted(stage.engine(), faults)).await;
            let id = format!("doc-{done}");
            let what = format!("{fault:?}, {own_loop}");
            let revs = new_document(&layer, own_loop, &id).await.expect(&what);
            assert_eq!(revs, [get(&left, &id).await.rev, get(&right, &id).await.rev], "{what}");
            done += 1;
            assert_eq!(own_of(&stage.engine()).await, done, "{what}");
            // A true conflict is reported, whatever happened to the transaction.
            let faults = [fault].map(Some);
            let again = new_document(&beside(Chaos::scripted(stage.engine(), faults)).await, own_loop, &id).await;
            assert_eq!(again.unwrap_err().status(), 409, "{what}");
        }
    }
    assert_eq!(feed(&right, ChangesRequest::default()).await.len() as u64, done);
    assert_sound(&left).await;

    // If the transaction id of an attempt may have expired, it is unknown whether the attempt committed.
    for (by, is_written) in [(10_000, true), (70_000, false)] {
        for own_loop in [false, true] {
            let chaos = Chaos::scripted(stage.engine(), [Some(Fault::UnknownNotCommitted)]);
            let options =
                LayerOptions { prefix: "documents".into(), environment: Ticking::by(by), ..LayerOptions::default() };
            let layer = Layer::open(chaos, options).await.unwrap();
            let made = new_document(&layer, own_loop, &format!("{by}-{own_loop}")).await;
            match made {
                Ok(_) => assert!(is_written, "{by} {own_loop}"),
                Err(error) => {
                    assert!(!is_written, "{by} {own_loop}: {error}");
                    // The caller's loop repeats every 1021.
                    let is_final = *error.kind() == ErrorKind::OutcomeUnknown;
                    assert!(if own_loop { is_final } else { error.kv_error().is_some_and(|e| e.code() == 1021) });
                }
            }
        }
    }
}

fn balance(body: &model::JsonText) -> i64 {
    body.root().get("n").and_then(model::JsonRef::as_i64).unwrap()
}

/// Moves money between accounts of two databases, and counts in a row of the caller.
async fn transfer<D: Database>(layer: &Layer<D>, from: usize, to: usize, money: i64) -> Result<bool, Error> {
    let of = ["left", "right"];
    let (one, other) = (layer.database(of[from % 2]).await?, layer.database(of[to % 2]).await?);
    let moved = layer.transact(async |edits: Edits<_>| {
        let (giver, taker) = (edits.get(&one, &from.to_string()).await?, edits.get(&other, &to.to_string()).await?);
        let (left, given) = (balance(&giver.body) - money, balance(&taker.body) + money);
        if left < 0 {
            return Ok::<_, Error>(false);
        }
        edits.put(&one, edit(&from.to_string(), &format!(r#"{{"n":{left}}}"#)).over(giver.rev))?;
        edits.put(&other, edit(&to.to_string(), &format!(r#"{{"n":{given}}}"#)).over(taker.rev))?;
        count(edits.transaction()).await?;
        Ok(true)
    });
    Ok(moved.await?.0)
}

pub(crate) async fn money_is_moved_once_through_faults(stage: Stage) {
    let seed = 23;
    let calm = beside(stage.engine()).await;
    let (left, right) = two_databases(&calm).await;
    for account in 0..ACCOUNTS {
        let documents = if account % 2 == 0 { &left } else { &right };
        documents.put(edit(&account.to_string(), &format!(r#"{{"n":{MONEY}}}"#))).await.unwrap();
    }
    let rates = Rates { latency: 0.2, longest: Duration::from_millis(1), ..Rates::retryable(0.04) };
    let layer = beside(Chaos::new(stage.engine(), seed, rates)).await;
    let clerks = (0..3).map(|clerk| {
        let (layer, mut random) = (layer.clone(), Random::new(seed + clerk));
        async move {
            // The gains of each account, as far as this clerk knows.
            let (mut moved, mut gains) = (0, [0; ACCOUNTS]);
            for _ in 0..8 {
                let from = random.below(ACCOUNTS as u64) as usize;
                let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
                let money = 1 + random.below(60) as i64;
                let done = transfer(&layer, from, to, money).await;
                if done.unwrap_or_else(|error| panic!("{error}; seed {seed}")) {
                    moved += 1;
                    gains[from] -= money;
                    gains[to] += money;
                }
            }
            (moved, gains)
        }
    });
    let clerks = futures_util::future::join_all(clerks).await;
    for account in 0..ACCOUNTS {
        let documents = if account % 2 == 0 { &left } else { &right };
        let gained: i64 = clerks.iter().map(|(_, gains)| gains[account]).sum();
        let has = balance(&get(documents, &account.to_string()).await.body);
        assert_eq!(has, MONEY + gained, "account {account}; seed {seed}");
    }
    let moved: u64 = clerks.iter().map(|(moved, _)| moved).sum();
    assert_eq!(own_of(&stage.engine()).await, moved, "seed {seed}");
    for documents in [&left, &right] {
        assert_sound(documents).await;
    }
}

/// The runner of `kv-api`, which does not know documents, runs them with a token.
pub(crate) async fn a_loop_that_knows_no_documents_may_have_edits(stage: Stage) {
    let layer = beside(Chaos::scripted(stage.engine(), [Some(Fault::UnknownCommitted)])).await;
    let token = layer.token();
    let (left, _) = two_databases(&beside(stage.engine()).await).await;
    let database = layer.database("left").await.unwrap();
    let revs = layer
        .engine()
        .run(|transaction, _| {
            let (layer, token, database) = (&layer, &token, &database);
            async move {
                match layer.edits(&transaction, token).await? {
                    Begun::Landed(revs) => Ok::<_, Error>(revs),
                    Begun::Edits(edits) => {
                        edits.put(database, edit("a", "{}"))?;
                        edits.finish().await
                    }
                }
            }
        })
        .await
        .unwrap();
    assert_eq!(revs, [get(&left, "a").await.rev]);
    assert_eq!(left.info().await.unwrap().doc_count, 1);
}
