//! Attachments at their limits, with damage, and with repeated contents.

use model::{AttachmentEdit, CreateOptions, Edit, GetOptions, Layer, LayerOptions, RevId, UploadAs, WriteMode};

use super::attachments::{inline, revision, rows, with};
use super::damage;
use crate::stage::*;

const PLAIN: UploadAs<'static> = UploadAs::Plain { content_type: "application/octet-stream" };

pub(crate) async fn contents_that_cannot_be_read_refuse_their_edits_alone(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let first = documents.put(with(edit("a", "{}"), vec![inline("f", "x", "content")])).await.unwrap();
    let row = damage::rows(&engine, 9, "").await.remove(0);
    for (n, value) in [&[0x15, 9][..], &row.value[..5]].into_iter().enumerate() {
        damage::put(&engine, &[(&row.key, Some(value))]).await;
        let batch = vec![
            with(edit("a", "{}").over(first.clone()), vec![AttachmentEdit::stub("f")]),
            with(edit("same", "{}"), vec![inline("g", "x", "content")]),
            with(edit(&format!("other-{n}"), "{}"), vec![inline("f", "x", "another content")]),
            edit(&format!("none-{n}"), "{}"),
        ];
        let results = documents.write(batch, WriteMode::Interactive).await.unwrap();
        let statuses: Vec<u16> = results.iter().map(|one| one.as_ref().map_or_else(|e| e.status(), |_| 201)).collect();
        assert_eq!(statuses, [500, 500, 201, 201], "{results:?}");
        assert!(results[0].as_ref().unwrap_err().reason().contains(r#""a""#), "{results:?}");
        assert_eq!(damage::rows(&engine, 9, "").await.iter().find(|one| one.key == row.key).unwrap().value, value);
    }
    damage::put(&engine, &[(&row.key, Some(&row.value))]).await;
    assert_sound(&documents).await;
}

pub(crate) async fn attachments_whose_list_cannot_be_read_stay(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let first = documents.put(with(edit("a", "{}"), vec![inline("f", "x", "content")])).await.unwrap();
    let list = damage::rows(&engine, damage::DOCS, "a").await.pop().unwrap();
    for (n, value) in [&[0x15, 9][..], &list.value[..list.value.len() - 3]].into_iter().enumerate() {
        damage::put(&engine, &[(&list.key, Some(value))]).await;
        let before = damage::rows(&engine, damage::DOCS, "a").await;
        let over = || edit("a", "{}").over(first.clone());
        for (edit_of_a, mode) in [
            (over(), WriteMode::Interactive),
            (over().deleting(), WriteMode::Interactive),
            (with(over(), vec![inline("g", "x", "new")]), WriteMode::Interactive),
            (replicated("a", &format!("2-x {}", first.hash()), "{}"), WriteMode::Replicated),
        ] {
            let other = replicated(&format!("other-{n}"), "1-x", "{}");
            let other = if mode == WriteMode::Interactive {
                edit(&format!("{mode:?}-{n}-{}-{}", edit_of_a.deleted, edit_of_a.attachments.len()), "{}")
            } else {
                other
            };
            let results = documents.write(vec![edit_of_a, other], mode).await.unwrap();
            assert_eq!(results[0].as_ref().unwrap_err().status(), 500, "{results:?}");
            assert!(results[0].as_ref().unwrap_err().reason().contains(r#""a""#) && results[1].is_ok(), "{results:?}");
            assert_eq!(damage::rows(&engine, damage::DOCS, "a").await, before);
        }
        assert_eq!(rows(&engine).await, [1, 1, 1, 0]);
    }
    damage::put(&engine, &[(&list.key, Some(&list.value))]).await;
    assert_sound(&documents).await;
    documents.put(edit("a", "{}").over(first)).await.unwrap();
    assert_eq!(rows(&engine).await, [0, 0, 0, 0]);
}

pub(crate) async fn a_bad_stub_of_attachments_fails_large_batches_before_they_are_written(stage: Stage) {
    let documents = stage.documents().await;
    let stub = || vec![AttachmentEdit::stub("f")];
    // Several transactions write, and the bad stub is in the last.
    let mut batch: Vec<Edit> = (0..2_000).map(|n| edit(&format!("a-{n:04}"), "{}")).collect();
    batch.push(with(edit("z", "{}"), stub()));
    let error = documents.write(batch, WriteMode::Interactive).await.unwrap_err();
    assert_eq!((error.status(), error.error()), (412, "missing_stub"));
    assert!(is_missing(&documents, "a-0000").await);
    let mut batch: Vec<Edit> = (0..2_000).map(|n| replicated(&format!("a-{n:04}"), "1-x", "{}")).collect();
    batch.push(with(replicated("z", "2-x y", "{}"), stub()));
    assert_eq!(documents.write(batch, WriteMode::Replicated).await.unwrap_err().status(), 412);
    assert!(is_missing(&documents, "a-0000").await);
    // A second edit of a document is in a later transaction.
    let twice = vec![edit("b", "{}"), with(edit("b", "{}"), stub())];
    assert_eq!(documents.write(twice, WriteMode::Interactive).await.unwrap_err().status(), 412);
    assert!(is_missing(&documents, "b").await);

    // An error found after another transaction has written affects only its own edit.
    let first = documents.put(with(edit("a", "{}"), vec![inline("f", "x", "content")])).await.unwrap();
    let second = revision(false, Some(&first), "{}", &[]);
    let chain: Vec<RevId> = [None, Some(()), Some(())]
        .iter()
        .scan(None, |parent, _| {
            let made = revision(false, parent.as_ref(), "{}", &[]);
            Some(parent.insert(made).clone())
        })
        .collect();
    let batch = vec![
        edit("a", "{}").over(first),
        with(edit("a", "{}").over(second), stub()),
        edit("c", "{}"),
        edit("c", "{}").over(chain[0].clone()),
        edit("c", "{}").over(chain[1].clone()),
    ];
    let results = documents.write(batch, WriteMode::Interactive).await.unwrap();
    let statuses: Vec<u16> = results.iter().map(|one| one.as_ref().map_or_else(|e| e.status(), |_| 201)).collect();
    assert_eq!(statuses, [201, 412, 201, 201, 201], "{results:?}");
    assert_eq!(results[4].as_ref().unwrap(), &chain[2]);
    assert_sound(&documents).await;
}

pub(crate) async fn contents_that_come_again_have_parts_of_their_own(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let mut upload = documents.upload("f", PLAIN);
    upload.write(b"content").await.unwrap();
    let content = upload.finish().await.unwrap();
    let put = async || documents.put_attachment("a", None, "f", "x", content.clone()).await.unwrap();
    let first = put().await;
    let before = damage::rows(&engine, 10, "").await;
    documents.put(edit("a", "{}").over(first).deleting()).await.unwrap();
    assert_eq!(rows(&engine).await, [0, 0, 0, 0]);
    put().await;
    let after = damage::rows(&engine, 10, "").await;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before[0].key, after[0].key, "whoever copied the first would take the second for copied");
    assert_sound(&documents).await;
}

pub(crate) async fn attachments_beside_a_large_body_fit(stage: Stage) {
    let options = LayerOptions { max_document_size: 8_000_000, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let body = format!(r#"{{"t":"{}"}}"#, "x".repeat(7_999_000));
    let put = with(edit("a", &body), vec![inline("f", "x", vec![1; 1_000_000]), inline("g", "x", vec![2; 1_000_000])]);
    let first = documents.put(put).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [2, 24, 2, 0]);
    documents.put(edit("a", "{}").over(first).deleting()).await.unwrap();
    assert_sound(&documents).await;
}

pub(crate) async fn attachments_count_as_many_bytes_as_they_unpack_to(stage: Stage) {
    let unlimited = stage.documents().await;
    let zeros = |bytes| inline("f", "text/plain", vec![0; bytes]);
    let put =
        with(edit("a", "{}"), vec![AttachmentEdit { name: "g".to_owned(), ..zeros(2_500_000) }, zeros(2_500_001)]);
    unlimited.put(put).await.unwrap();
    let mut packed = Vec::new();
    for name in ["g", "f"] {
        let (_, reader) = unlimited.attachment("a", None, name).await.unwrap();
        let mut reader = reader.stored();
        packed.push(reader.next().await.unwrap().unwrap());
    }
    assert!(packed.iter().all(|packed| packed.len() < 10_000));

    let options = LayerOptions { max_attachment_size: 2_500_000, ..LayerOptions::default() };
    let limited = Layer::open(stage.engine(), options).await.unwrap().database("db").await.unwrap();
    let mut bomb = limited.upload("f", UploadAs::Gzip { length: Some(1) });
    bomb.write(&packed[1].repeat(5)).await.unwrap_err();
    for (packed, fits) in packed.iter().zip([true, false]) {
        let mut upload = limited.upload("f", UploadAs::Gzip { length: None });
        let uploaded = async {
            upload.write(packed).await?;
            upload.finish().await.map(drop)
        };
        let uploaded = uploaded.await.map_err(|error| (error.status(), error.error().to_owned()));
        assert_eq!(uploaded, if fits { Ok(()) } else { Err((413, "attachment_too_large".to_owned())) });
    }
}

pub(crate) async fn attachments_have_limits_of_number_and_of_names(stage: Stage) {
    let documents = stage.documents().await;
    let id = "i".repeat(2_000);
    let many = |count: u32| (0..count).map(|n| inline(&n.to_string(), "x", n.to_be_bytes())).collect::<Vec<_>>();
    // As many as a deletion can remove in one transaction.
    let first = documents.put(with(edit(&id, "{}"), many(606))).await.unwrap();
    let replaced = documents.put(edit(&id, "{}").over(first)).await.unwrap();
    let error = documents.put(with(edit(&id, "{}").over(replaced), many(607))).await.unwrap_err();
    assert_eq!((error.status(), error.error()), (413, "document_too_large"));
    let stubs: Vec<String> = (0..20_000).map(|n| format!(r#""{n}":{{"stub":true}}"#)).collect();
    let text = json(&format!(r#"{{"_attachments":{{{}}},"_id":"a"}}"#, stubs.join(",")));
    let error = Edit::from_json(None, &text, WriteMode::Interactive).unwrap_err();
    assert_eq!((error.status(), error.error(), error.reason().as_ref()), (413, "document_too_large", "a"));

    let (longest, longer) = ("n".repeat(4_096), "n".repeat(4_097));
    documents.put(with(edit("a", "{}"), vec![inline(&longest, &longest, "")])).await.unwrap();
    for bad in [inline(&longer, "x", ""), inline("x", &longer, "")] {
        let error = documents.put(with(edit("b", "{}"), vec![bad])).await.unwrap_err();
        assert_eq!((error.status(), error.error()), (400, "bad_request"));
    }
    assert_sound(&documents).await;
}

pub(crate) async fn attachments_that_are_replaced_while_they_are_read_are_read_again(stage: Stage) {
    let documents = stage.documents().await;
    let put = async |rev: Option<RevId>, text: &str| {
        let put = Edit { rev, ..with(edit("a", "{}"), vec![inline("f", "x", text)]) };
        documents.put(put).await.unwrap()
    };
    let first = put(None, "old").await;
    let mut winner = get(&documents, "a").await;
    let options = GetOptions { rev: Some(first.clone()), attachments: true, ..GetOptions::default() };
    let mut leaf = documents.get("a", &options).await.unwrap();
    let mut same = leaf.clone();
    assert!(documents.load_attachments_of_leaf(&mut same).await.unwrap());
    let second = put(Some(first), "new").await;
    assert!(!documents.load_attachments_of_leaf(&mut leaf).await.unwrap());
    documents.load_all_attachments(&mut winner).await.unwrap();
    assert_eq!((&winner.rev, winner.attachments[0].data.as_deref()), (&second, Some(&b"new"[..])));
    documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    let error = documents.load_all_attachments(&mut winner).await.unwrap_err();
    assert_eq!((error.status(), error.reason().as_ref()), (404, "deleted"));
}

pub(crate) async fn uploads_that_failed_stay_failed(stage: Stage) {
    let options = LayerOptions { max_attachment_size: 100, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    for goes_on in [false, true] {
        let mut upload = documents.upload("f", PLAIN);
        upload.write(&[1; 90]).await.unwrap();
        assert_eq!(upload.write(&[2; 20]).await.unwrap_err().status(), 413);
        if goes_on {
            assert_eq!(upload.write(b"").await.unwrap_err().status(), 503);
        }
        assert_eq!(upload.finish().await.unwrap_err().status(), 503);
    }
    // Their staged data are not kept until the next day.
    let options = LayerOptions { max_attachment_size: 3_000_000, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.database("db").await.unwrap();
    let mut upload = documents.upload("f", PLAIN);
    upload.write(&[1; 2_000_000]).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [0, 22, 0, 1]);
    assert_eq!(upload.write(&[2; 2_000_000]).await.unwrap_err().status(), 413);
    assert_eq!(rows(&stage.engine()).await, [0, 0, 0, 0]);
}

pub(crate) async fn uploads_are_swept_behind_rows_that_cannot_be_read(stage: Stage) {
    let clock = Clock::default();
    let options = clock.options();
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let unreadable: Vec<[u8; 5]> = (0..250).map(|n| [0x15, 7, 0x15, 1, n]).collect();
    let unreadable: Vec<(&[u8], Option<&[u8]>)> = unreadable.iter().map(|key| (&key[..], Some(&b""[..]))).collect();
    damage::put(&stage.engine(), &unreadable).await;
    let stage_one = async || {
        let mut upload = documents.upload("f", PLAIN);
        upload.write(&[7; 2_000_000]).await.unwrap();
    };
    stage_one().await;
    assert_eq!(rows(&stage.engine()).await, [0, 22, 0, 251]);
    clock.pass(100_000_000);
    stage_one().await;
    assert_eq!(rows(&stage.engine()).await, [0, 22, 0, 251], "the first is gone, the second is there");
    clock.pass(100_000_000);
    documents.put(edit("a", "{}")).await.unwrap();
    stage_one().await;
    assert_eq!(rows(&stage.engine()).await, [0, 22, 0, 251]);
}
