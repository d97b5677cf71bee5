//! Batches.

use kv_api::Counted;
use model::{BodyFormat, ChangesRequest, CreateOptions, Edit, ErrorKind, JsonText, Layer, LayerOptions, WriteMode};

use crate::stage::*;

pub(crate) async fn results_come_in_order_and_failures_stay_alone(stage: Stage) {
    let documents = stage.documents().await;
    let known = documents.put(edit("known", "{}")).await.unwrap();
    let too_large = format!(r#"{{"a":"{}"}}"#, "x".repeat(8_000_000));
    let edits = vec![
        edit("a", r#"{"n":1}"#),
        edit("known", "{}"),
        edit("_bad", "{}"),
        edit("large", &too_large),
        edit("known", r#"{"n":2}"#).over(known),
        edit("ghost", "{}").over(rev("3-c")),
        edit("array", "[]"),
        edit("z", "{}"),
    ];
    let results = documents.write(edits, WriteMode::Interactive).await.unwrap();
    let statuses: Vec<u16> =
        results.iter().map(|result| result.as_ref().map_or_else(|e| e.status(), |_| 201)).collect();
    assert_eq!(statuses, [201, 409, 400, 413, 201, 409, 400, 201]);
    assert_eq!(results[4].as_ref().unwrap().position(), 2);
    let ids: Vec<String> = feed(&documents, ChangesRequest::default()).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["a", "z", "known"], "the second edit of a document comes in a later transaction");
    assert_sound(&documents).await;

    let merges = vec![replicated("m", "2-b a", "{}"), edit("n", "{}"), replicated("m", "2-c a", "{}")];
    let results = documents.write(merges, WriteMode::Replicated).await.unwrap();
    assert!(matches!(results[1].as_ref().unwrap_err().kind(), ErrorKind::BadRequest(_)));
    assert_eq!((get(&documents, "m").await.rev, lost(&documents, "m").await), (rev("2-c"), vec![rev("2-b")]));
    assert_eq!(documents.write(Vec::new(), WriteMode::Interactive).await.unwrap(), []);
    assert_sound(&documents).await;
}

/// A batch may be read and written in any order, but the feed has the order of its edits.
pub(crate) async fn sequences_follow_the_order_of_the_edits(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("known", "{}")).await.unwrap();
    let ids: Vec<String> = (0..60).map(|n| format!("{:02}", n * 37 % 60)).collect();
    // A refused edit among them takes no sequence.
    let mut edits: Vec<Edit> = ids.iter().map(|id| edit(id, r#"{"n":1}"#)).collect();
    edits.insert(20, edit("known", "{}"));
    edits.insert(40, edit("ghost", "{}").over(rev("3-c")));
    let results = documents.write(edits, WriteMode::Interactive).await.unwrap();
    assert!(results.iter().enumerate().all(|(at, result)| result.is_ok() != [20, 40].contains(&at)));
    let fed = feed(&documents, ChangesRequest::default()).await;
    let fed: Vec<&str> = fed.iter().map(|row| row.id.as_str()).collect();
    assert_eq!((fed[0], &fed[1..]), ("known", ids.iter().map(String::as_str).collect::<Vec<_>>().as_slice()));

    let merges: Vec<Edit> = ids.iter().rev().map(|id| replicated(id, "2-b a", "{}")).collect();
    assert!(documents.write(merges, WriteMode::Replicated).await.unwrap().iter().all(Result::is_ok));
    let fed = feed(&documents, ChangesRequest::default()).await;
    assert!(fed.iter().skip(1).map(|row| &row.id).eq(ids.iter().rev()));
    assert_sound(&documents).await;
}

pub(crate) async fn edits_of_one_document_follow_each_other(stage: Stage) {
    let documents = stage.documents().await;
    let chain = |n: u64| {
        let ids: Vec<String> = (1..=n).rev().map(|n| format!("r{n}")).collect();
        replicated("a", &format!("{n}-{}", ids.join(" ")), &format!(r#"{{"n":{n}}}"#))
    };
    let results = documents.write((1..=30).map(chain).collect(), WriteMode::Replicated).await.unwrap();
    assert!(results.iter().all(Result::is_ok));
    assert_eq!((get(&documents, "a").await.rev, lost(&documents, "a").await.len()), (rev("30-r30"), 0));
    // The same new document twice: the first is created, the second conflicts.
    let twice = vec![edit("b", r#"{"n":1}"#), edit("b", r#"{"n":2}"#)];
    let results = documents.write(twice, WriteMode::Interactive).await.unwrap();
    assert!(results[0].is_ok() && *results[1].as_ref().unwrap_err().kind() == ErrorKind::Conflict);
    assert_sound(&documents).await;
}

pub(crate) async fn large_batches_take_several_transactions(stage: Stage) {
    /// Size of an operation in a transaction, without its keys and values; a generous estimate.
    const OPERATION_BYTES: u64 = 100;
    let counted = Counted::new(stage.engine());
    let layer = Layer::open(counted.clone(), LayerOptions { threads: 3, ..LayerOptions::default() }).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    // 12 MB of long texts, 1 MB of short values (twenty times as much in rows), and many empty documents.
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(60_000));
    let short = format!(r#"{{"a":[{}0]}}"#, "12345,".repeat(2_000));
    for (name, count, body, most) in [("long", 200, &*long, 8), ("short", 60, &*short, 12), ("none", 5_000, "{}", 5)] {
        counted.take();
        let edits: Vec<Edit> = (0..count).map(|n| edit(&format!("{name}-{n:04}"), body)).collect();
        let results = documents.write(edits, WriteMode::Interactive).await.unwrap();
        assert!(results.iter().all(Result::is_ok));
        let counts = counted.take();
        assert!((3..=most).contains(&counts.len()), "{name}: {} transactions", counts.len());
        for counts in counts {
            let operations = counts.sets + counts.clears + counts.range_clears + counts.atomic_ops;
            let size = counts.bytes_written + operations * OPERATION_BYTES;
            assert!(size < 10_000_000, "{name}: about {size} bytes");
            assert_eq!(counts.commits, 1, "{name}: none was begun again");
        }
    }
    let rows = feed(&documents, ChangesRequest::default()).await;
    assert!(rows.is_sorted_by(|a, b| a.seq < b.seq));
    assert!(rows[..200].is_sorted_by(|a, b| a.id < b.id), "one after another");
    assert_eq!(rows.len(), 5_260);
    assert_sound(&documents).await;
}

pub(crate) async fn a_document_at_the_limit_is_written(stage: Stage) {
    let options = LayerOptions { max_document_size: 8_000_000, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    // The worst case of an exploded document: more leaves than a transaction can have rows.
    let numbers = format!(r#"{{"n":[{}1]}}"#, "1,".repeat(100_000));
    let text = format!(r#"{{"t":"{}"}}"#, "x".repeat(7_999_992));
    // Slow to hash and to lay out. That time must not shorten the transaction's time to read.
    let escapes = format!(r#"{{"t":"{}"}}"#, "\\n".repeat(3_999_990));
    let all = [&numbers, &text, &escapes];
    for (name, format, bodies) in
        [("exploded", BodyFormat::Exploded, &all[..]), ("packed", BodyFormat::Packed, &all[..2])]
    {
        let documents = layer
            .create_database(name, CreateOptions { format: Some(format), ..CreateOptions::default() })
            .await
            .unwrap();
        for body in bodies {
            let body = JsonText::parse(body.as_bytes()).unwrap();
            let id = body.len().to_string();
            let made = documents.put(Edit::new(id.clone(), body.clone())).await.unwrap();
            assert_eq!(get(&documents, &id).await.body, body);
            documents.put(Edit::new(id.clone(), body).over(made)).await.unwrap();
        }
        assert_sound(&documents).await;
    }
}
