//! Contents that are written and read in pieces, contents without an owner, and checks of them.

use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use kv_api::{AnyDatabase, Database};
use model::{
    AttachmentEdit, AttachmentSource, Content, ContentAhead, CreateOptions, Documents, Edit, Encoding, Error, Follows,
    Layer, LayerOptions, UploadAs,
};

use super::attachments::{inline, rows};
use super::damage::put as put_rows;
use crate::stage::*;

/// Incompressible bytes, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut random = conformance::random::Random::new(7);
    (0..length).map(|_| random.below(256) as u8).collect()
}

async fn upload<D: Database>(
    documents: &Documents<D>,
    how: UploadAs<'_>,
    bytes: &[u8],
    piece: usize,
) -> Result<Content, Error> {
    let mut upload = documents.upload("f", how);
    for piece in bytes.chunks(piece) {
        upload.write(piece).await?;
    }
    upload.finish().await
}

const PLAIN: UploadAs<'static> = UploadAs::Plain { content_type: "application/octet-stream" };

pub(crate) async fn large_contents_are_staged_and_read_in_pieces(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let bytes = noise(3_000_017);
    let large = upload(&documents, PLAIN, &bytes, 70_001).await.unwrap();
    assert_eq!((large.length(), large.encoded_length(), large.encoding()), (3_000_017, 3_000_017, Encoding::Identity));
    assert_eq!(rows(&engine).await, [0, 34, 0, 1], "staged, and no content yet");
    assert_sound(&documents).await;
    let first = documents.put_attachment("a", None, "f", "application/octet-stream", large.clone()).await.unwrap();
    assert_eq!(rows(&engine).await, [1, 34, 1, 0]);
    assert_sound(&documents).await;

    let (_, mut reader) = documents.attachment("a", None, "f").await.unwrap();
    let (mut read, mut pieces) = (Vec::new(), 0);
    while let Some(piece) = reader.next().await.unwrap() {
        assert!(piece.len() <= 1_000_000);
        read.extend_from_slice(&piece);
        pieces += 1;
    }
    assert!(read == bytes && pieces > 3);
    for range in [0..1, 0..90_000, 89_999..90_001, 2_999_000..3_000_017, 2_999_000..9_000_000, 5..5, 1_000..2_500_000] {
        let attachment = get(&documents, "a").await.attachments.remove(0);
        let mut reader = documents.attachment_reader(&attachment).range(range.clone());
        let mut read = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            read.extend_from_slice(&piece);
        }
        let end = usize::try_from(range.end).unwrap().min(bytes.len());
        assert!(read == bytes[usize::try_from(range.start).unwrap()..end], "{range:?}");
    }

    // The same content is not stored twice, and an abandoned upload is removed at once.
    let again = upload(&documents, PLAIN, &bytes, 1 << 20).await.unwrap();
    assert_eq!(rows(&engine).await, [1, 68, 1, 1]);
    documents.put_attachment("b", None, "f", "application/octet-stream", again).await.unwrap();
    assert_eq!(rows(&engine).await, [1, 34, 2, 0]);
    documents.put_attachment("c", None, "f", "application/octet-stream", large.clone()).await.unwrap();
    assert_eq!(rows(&engine).await, [1, 34, 3, 0], "an upload may be named twice");
    let given_up = upload(&documents, PLAIN, &bytes, 1 << 20).await.unwrap();
    documents.discard(given_up).await.unwrap();
    documents.discard(large).await.unwrap();
    assert_eq!(rows(&engine).await, [1, 34, 3, 0], "what is named stays");
    assert_sound(&documents).await;

    // Compressed here, and decompressed by the reader.
    let text: Vec<u8> = noise(900_000).iter().flat_map(|byte| format!("{byte:03}\n").into_bytes()).collect();
    let packed = upload(&documents, UploadAs::Plain { content_type: "text/plain" }, &text, 99_991).await.unwrap();
    assert_eq!((packed.length(), packed.encoding()), (3_600_000, Encoding::Gzip));
    assert!(packed.encoded_length() > 1_000_000 && packed.encoded_length() < 2_000_000);
    documents.put_attachment("a", Some(&first), "t", "text/plain", packed.clone()).await.unwrap();
    let (_, mut reader) = documents.attachment("a", None, "t").await.unwrap();
    let mut read = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        assert!(piece.len() <= 2_000_000);
        read.extend_from_slice(&piece);
    }
    assert!(read == text, "who does not ask for it gets no gzip");
    let (_, reader) = documents.attachment("a", None, "t").await.unwrap();
    let (mut reader, mut stored) = (reader.stored(), Vec::new());
    while let Some(piece) = reader.next().await.unwrap() {
        stored.extend_from_slice(&piece);
    }
    assert_eq!((stored.len() as u64, &stored[..2]), (packed.encoded_length(), &[0x1f, 0x8b][..]));
    // The same content inline, large enough that the edit stages it.
    documents.put(Edit { attachments: vec![inline("t", "text/plain", text)], ..edit("d", "{}") }).await.unwrap();
    assert_eq!(get(&documents, "d").await.attachments[0].digest, packed.digest());
    assert_eq!(rows(&engine).await[0], 2);
    let many = (0..4u8).map(|n| inline(&n.to_string(), "x", vec![n; 900_000])).collect();
    documents.put(Edit { attachments: many, ..edit("e", "{}") }).await.unwrap();
    assert_eq!((rows(&engine).await[0], rows(&engine).await[3]), (6, 0));
    assert_sound(&documents).await;

    for id in ["a", "b", "c", "d", "e"] {
        let rev = get(&documents, id).await.rev;
        documents.put(edit(id, "{}").over(rev).deleting()).await.unwrap();
    }
    assert_eq!(rows(&engine).await, [0, 0, 0, 0]);
    assert_sound(&documents).await;
}

pub(crate) async fn bad_uploads_are_refused_and_leave_nothing(stage: Stage) {
    let options = LayerOptions { max_attachment_size: 2_500_000, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let refused = |result: Result<Content, Error>| {
        let error = result.unwrap_err();
        (error.status(), error.error().to_owned(), error.reason().into_owned())
    };
    let large = refused(upload(&documents, PLAIN, &noise(2_500_001), 100_000).await);
    assert_eq!(large, (413, "attachment_too_large".to_owned(), "f".to_owned()));
    let inline_large = Edit { attachments: vec![inline("g", "x", vec![0; 2_500_001])], ..edit("a", "{}") };
    assert_eq!(documents.put(inline_large).await.unwrap_err().status(), 413);
    let gzip = UploadAs::Gzip { length: None };
    assert_eq!(refused(upload(&documents, gzip, b"no gzip", 3).await).0, 400);
    assert_eq!(refused(upload(&documents, gzip, b"", 3).await).0, 400);
    // 20 bytes: an empty content, compressed.
    let nothing = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let packed = upload(&documents, gzip, &nothing, 3).await.unwrap();
    assert_eq!((packed.length(), packed.encoded_length(), packed.encoding()), (20, 20, Encoding::Gzip));

    let part = async |follows: Follows, bytes: &[u8]| {
        let source = AttachmentSource::Follows(follows);
        let attachment = AttachmentEdit { source, ..inline("p", "x", "") };
        let mut upload = documents.upload_part(&attachment).unwrap();
        upload.write(bytes).await?;
        upload.finish().await
    };
    let plain = Follows { length: 3, encoding: Encoding::Identity, unpacked: 3, digest: None };
    assert_eq!(part(plain, b"abc").await.unwrap().length(), 3);
    assert_eq!(refused(part(plain, b"abcd").await).2, "attachment longer than expected");
    assert_eq!(refused(part(plain, b"ab").await).2, "attachment shorter than expected");
    assert_eq!(refused(part(Follows { digest: Some([0; 16]), ..plain }, b"abc").await).0, 400);
    let packed = Follows { length: 20, encoding: Encoding::Gzip, unpacked: 0, digest: Some(packed.digest()) };
    assert_eq!(part(packed, &nothing).await.unwrap().length(), 0);
    assert!(documents.upload_part(&AttachmentEdit::stub("x")).is_err());
    // A promised content that does not come.
    let follows = AttachmentEdit { source: AttachmentSource::Follows(plain), ..inline("p", "x", "") };
    let error = documents.put(Edit { attachments: vec![follows], ..edit("a", "{}") }).await.unwrap_err();
    assert_eq!(error.status(), 400);
    let [contents, _, references, _] = rows(&stage.engine()).await;
    assert_eq!((contents, references), (0, 0));
    assert_sound(&documents).await;
}

pub(crate) async fn uploads_through_faults_are_stored_once(stage: Stage) {
    let documents = stage.documents().await;
    let rates = Rates { not_committed: 0.1, unknown_committed: 0.2, unknown_not_committed: 0.1, ..Rates::default() };
    let bytes = noise(4_100_000);
    let mut last = None;
    for seed in 0..6 {
        let engine = Chaos::new(stage.engine(), seed, rates);
        let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
        let faulty = layer.database("db").await.unwrap();
        let content = upload(&faulty, PLAIN, &bytes, 1 << 20).await.unwrap();
        let rev = faulty.put_attachment("a", last.as_ref(), "f", "x", content).await.unwrap();
        assert_eq!(rev.position(), seed + 1);
        last = Some(rev);
        assert_eq!(rows(&stage.engine()).await, [1, 46, 1, 0]);
        assert_sound(&documents).await;
    }
}

pub(crate) async fn the_last_of_two_writers_removes_the_content(stage: Stage) {
    let documents = stage.documents().await;
    let have = |id: String| Edit { attachments: vec![inline("f", "x", "shared")], ..edit(&id, "{}") };
    // Some documents with the content lose it, while others get it.
    for (round, (losers, winners)) in [(2, 0), (1, 1), (3, 1), (4, 0)].into_iter().cycle().take(20).enumerate() {
        let mut edits = Vec::new();
        for n in 0..losers {
            let id = format!("loser-{round}-{n}");
            let rev = documents.put(have(id.clone())).await.unwrap();
            edits.push(edit(&id, "{}").over(rev));
        }
        edits.extend((0..winners).map(|n| have(format!("winner-{round}-{n}"))));
        // Responses are slow, so that each transaction reads before the others commit.
        let writers = (0u64..).zip(edits).map(|(seed, edit)| {
            let slow = Rates { latency: 1.0, longest: Duration::from_millis(2), ..Rates::default() };
            let engine = Chaos::new(stage.engine(), seed + 10 * round as u64, slow);
            async move { layer(engine).await.database("db").await.unwrap().put(edit).await }
        });
        let results = futures_util::future::join_all(writers).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(rows(&stage.engine()).await, [winners, winners, winners, 0], "{losers} losers");
        assert_sound(&documents).await;
        if let (1, Some(Ok(rev))) = (winners, results.last()) {
            let last = edit(&format!("winner-{round}-0"), "{}").over(rev.clone());
            documents.put(last).await.unwrap();
        }
    }
}

pub(crate) async fn uploads_that_nobody_names_are_swept(stage: Stage) {
    const DAY_MS: u64 = 86_400_000;
    let clock = Clock::default();
    let options = clock.options();
    let layer = Layer::open(stage.engine(), options.clone()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let bytes = noise(2_100_000);
    let kept = upload(&documents, PLAIN, &bytes, 1 << 20).await.unwrap();
    let left = upload(&documents, PLAIN, &noise(2_000_001), 1 << 20).await.unwrap();
    let mut late = documents.upload("late", PLAIN);
    late.write(&bytes).await.unwrap();
    documents.put_attachment("a", None, "f", "x", kept).await.unwrap();
    clock.pass(DAY_MS - 1);
    documents.discard(upload(&documents, PLAIN, &bytes, 1 << 20).await.unwrap()).await.unwrap();
    assert_eq!(rows(&stage.engine()).await[3], 2, "their time is not over");

    clock.pass(2);
    documents.discard(upload(&documents, PLAIN, &bytes, 1 << 20).await.unwrap()).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [1, 24, 1, 0], "whoever uploads sweeps");
    let gone = documents.put_attachment("b", None, "f", "x", left.clone()).await.unwrap_err();
    assert_eq!((gone.status(), gone.error()), (503, "service unavailable"));
    // Continuing a swept upload writes nothing more.
    let error = late.write(&bytes).await.unwrap_err();
    assert_eq!(error.status(), 503);
    assert_eq!(rows(&stage.engine()).await, [1, 24, 1, 0]);
    assert_sound(&documents).await;

    // A process that writes anything sweeps too.
    let left = upload(&documents, PLAIN, &noise(2_000_001), 1 << 20).await.unwrap();
    clock.pass(2 * DAY_MS);
    let other = Layer::open(stage.engine(), options).await.unwrap();
    other.database("db").await.unwrap().put(edit("x", "{}")).await.unwrap();
    assert_eq!(rows(&stage.engine()).await, [1, 24, 1, 0]);
    drop(left);
    assert_sound(&documents).await;
}

pub(crate) async fn uploads_that_are_dropped_give_their_space_back(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let mut begun = documents.upload("f", PLAIN);
    begun.write(&noise(4_200_000)).await.unwrap();
    let finished = upload(&documents, PLAIN, &noise(2_100_000), 1 << 20).await.unwrap();
    let named = upload(&documents, PLAIN, &noise(2_200_000), 1 << 20).await.unwrap();
    documents.put_attachment("a", None, "f", "x", named.clone()).await.unwrap();
    let also = finished.clone();
    drop(finished);
    layer.give_back_uploads().await;
    assert_eq!(rows(&stage.engine()).await[3], 2, "nothing that is held");
    drop((begun, also, named));
    assert_eq!(rows(&stage.engine()).await[3], 2);
    layer.give_back_uploads().await;
    let [contents, _, references, staged] = rows(&stage.engine()).await;
    assert_eq!([contents, references, staged], [1, 1, 0], "what an edit named stays");
    assert_sound(&documents).await;
    // The next upload does it too.
    drop(upload(&documents, PLAIN, &noise(2_100_000), 1 << 20).await.unwrap());
    drop(upload(&documents, PLAIN, &noise(2_100_000), 1 << 20).await.unwrap());
    assert_eq!(rows(&stage.engine()).await[3], 1);
}

pub(crate) async fn damage_to_contents_is_found_and_what_nobody_has_is_removed(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let fill = vec![inline("f", "x", noise(200_000)), inline("g", "text/plain", "some text")];
    documents.put(Edit { attachments: fill, ..edit("a", "{}") }).await.unwrap();
    documents.put(Edit { attachments: vec![inline("h", "x", "other")], ..edit("b", "{}") }).await.unwrap();
    let of = |subspace| super::damage::rows(&engine, subspace, "");
    let (contents, parts, references) = (of(9).await, of(10).await, of(11).await);
    assert_eq!((contents.len(), parts.len(), references.len()), (3, 5, 3));
    let problems = async || documents.check(|_| {}).await.unwrap().problems.len();
    let flipped = |value: &[u8]| {
        let mut value = value.to_vec();
        *value.last_mut().unwrap() ^= 1;
        value
    };
    assert_eq!(documents.check(|_| {}).await.unwrap().contents, 3);
    // Number of attachments that cannot be read to their end.
    let unreadable = async || {
        let mut unreadable = 0;
        for (id, name) in [("a", "f"), ("a", "g"), ("b", "h")] {
            let (_, mut reader) = documents.attachment(id, None, name).await.unwrap();
            unreadable += loop {
                match reader.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break 0,
                    Err(_) => break 1,
                }
            };
        }
        unreadable
    };
    assert_eq!(unreadable().await, 0);

    // A repair finds and keeps it: the right value is unknown.
    for row in parts.iter().chain(&contents) {
        for value in [None, Some(flipped(&row.value))] {
            put_rows(&engine, &[(&row.key, value.as_deref())]).await;
            assert!(problems().await > 0, "{:?} {}", row.key, value.is_none());
            if parts.contains(row) {
                assert_eq!(unreadable().await, 1, "{:?} {}", row.key, value.is_none());
            }
            let before = rows(&engine).await;
            let report = documents.repair(|_| {}).await.unwrap();
            assert!(!report.after.is_sound());
            if value.is_some() {
                assert_eq!(rows(&engine).await, before, "nothing is removed");
            }
            put_rows(&engine, &[(&row.key, Some(&row.value))]).await;
            let all = parts.iter().chain(&contents).chain(&references);
            let all: Vec<(&[u8], Option<&[u8]>)> = all.map(|row| (&row.key[..], Some(&row.value[..]))).collect();
            put_rows(&engine, &all).await;
            assert_sound(&documents).await;
        }
    }
    // A lost reference is written again.
    put_rows(&engine, &[(&references[0].key, None)]).await;
    assert!(problems().await > 0);
    assert!(documents.repair(|_| {}).await.unwrap().after.is_sound());
    assert_eq!(rows(&engine).await, [3, 5, 3, 0]);

    // A document that lost its list of attachments leaves contents without an owner.
    let lists = super::damage::rows(&engine, super::damage::DOCS, "b").await;
    put_rows(&engine, &[(&lists.last().unwrap().key, None)]).await;
    assert!(problems().await > 0);
    let report = documents.repair(|_| {}).await.unwrap();
    assert!(report.after.is_sound(), "{:?}", report.after.problems);
    assert_eq!(rows(&engine).await, [2, 4, 2, 0], "{report:?}");
    // Parts without an owner.
    let mut nobody = parts[0].key.to_vec();
    // A byte of the random address after its code, which is not part of an escaped zero.
    let at = (6..nobody.len()).find(|at| !matches!(nobody[*at], 0 | 1 | 0xff)).unwrap();
    nobody[at] ^= 1;
    put_rows(&engine, &[(&nobody, Some(b"x"))]).await;
    assert!(problems().await > 0);
    assert!(documents.repair(|_| {}).await.unwrap().after.is_sound());
    assert_eq!(rows(&engine).await, [2, 4, 2, 0]);
    // If a list cannot be read, the contents that it may name are kept.
    let list = super::damage::rows(&engine, super::damage::DOCS, "a").await.pop().unwrap();
    put_rows(&engine, &[(&list.key, Some(&list.value[..list.value.len() - 3]))]).await;
    assert!(problems().await > 0);
    let report = documents.repair(|_| {}).await.unwrap();
    assert!(report.after.is_sound() && report.moved > 0, "{report:?}");
    assert_eq!(rows(&engine).await, [2, 4, 2, 0]);
}

/// Two contents with the same MD5, found by Wang and others in 2004. They differ in the highest bit of six bytes.
pub(crate) async fn contents_with_the_same_md5_are_two(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    const TWIN: [u64; 16] = [
        0xd131dd02c5e6eec4,
        0x693d9a0698aff95c,
        0x2fcab58712467eab,
        0x4004583eb8fb7f89,
        0x55ad340609f4b302,
        0x83e488832571415a,
        0x085125e8f7cdc99f,
        0xd91dbdf280373c5b,
        0xd8823e3156348f5b,
        0xae6dacd436c919c6,
        0xdd53e2b487da03fd,
        0x02396306d248cda0,
        0xe99f33420f577ee8,
        0xce54b67080a80d1e,
        0xc69821bcb6a88393,
        0x96f9652b6ff72a70,
    ];
    let first: Vec<u8> = TWIN.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut second = first.clone();
    [19, 45, 59, 83, 109, 123].iter().for_each(|at: &usize| second[*at] ^= 0x80);
    for (id, bytes) in [("a", &first), ("b", &second)] {
        let content = upload(&documents, PLAIN, bytes, 1 << 20).await.unwrap();
        documents.put_attachment(id, None, "f", "application/octet-stream", content).await.unwrap();
    }
    let digest = async |id: &str| get(&documents, id).await.attachments[0].digest;
    assert_eq!(digest("a").await, digest("b").await);
    for (id, bytes) in [("a", &first), ("b", &second)] {
        let (_, mut reader) = documents.attachment(id, None, "f").await.unwrap();
        assert_eq!(reader.next().await.unwrap().unwrap(), *bytes, "{id}");
    }
    assert_eq!(rows(&engine).await, [2, 2, 2, 0]);
    // Removing one leaves the other.
    let rev = get(&documents, "a").await.rev;
    documents.delete_attachment("a", Some(&rev), "f").await.unwrap();
    let (_, mut reader) = documents.attachment("b", None, "f").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), second);
    assert_sound(&documents).await;
}

/// Contents of several readings. A reader hashes one while it reads the next.
pub(crate) async fn damaged_contents_are_never_returned_whole(stage: Stage) {
    let (engine, documents) = (stage.engine(), stage.documents().await);
    let bytes = noise(1_500_017);
    let text: Vec<u8> = bytes[..900_000].iter().flat_map(|byte| format!("{byte:03}\n").into_bytes()).collect();
    type Spawn = fn(ContentAhead<AnyDatabase>) -> ContentAhead<AnyDatabase>;
    // Steps on the caller's task, and on a separate task.
    let spawns: [Spawn; 2] = [
        |step| step,
        |step| {
            let step = tokio::spawn(step);
            Box::pin(async move { step.await.ok()? })
        },
    ];
    for (id, content_type, content) in [("a", "application/octet-stream", bytes), ("b", "text/plain", text)] {
        let others = super::damage::rows(&engine, 10, "").await;
        let uploaded = upload(&documents, UploadAs::Plain { content_type }, &content, 1 << 20).await.unwrap();
        documents.put_attachment(id, None, "f", content_type, uploaded).await.unwrap();
        let mut parts = super::damage::rows(&engine, 10, "").await;
        parts.retain(|part| others.iter().all(|other| other.key != part.key));
        assert!(parts.len() > 10);
        // Everything that a reader returns, and whether it reached the end.
        let read = async |spawn: Spawn| {
            let (_, reader) = documents.attachment(id, None, "f").await.unwrap();
            let (mut reader, mut read) = (reader.ahead(spawn), Vec::new());
            loop {
                match reader.next().await {
                    Ok(Some(piece)) => read.extend_from_slice(&piece),
                    Ok(None) => break (read, true),
                    Err(error) => {
                        assert_eq!(error.status(), 500, "{error}");
                        // After the error the reader does not report the end.
                        assert!(reader.next().await.is_err());
                        break (read, false);
                    }
                }
            }
        };
        for spawn in spawns {
            assert!(read(spawn).await == (content.clone(), true), "{id}");
            for at in [0, 7, 8, parts.len() - 1] {
                let mut other = parts[at].value.to_vec();
                other[0] ^= 1;
                for value in [None, Some(&other[..])] {
                    put_rows(&engine, &[(&parts[at].key, value)]).await;
                    let (got, is_whole) = read(spawn).await;
                    assert!(!is_whole && got.len() < content.len(), "{id}, part {at}: {} bytes", got.len());
                }
                put_rows(&engine, &[(&parts[at].key, Some(&parts[at].value))]).await;
            }
        }
        assert!(read(spawns[1]).await == (content, true), "{id}");
    }
}
