//! Several processes claim one upload: the first to commit gets it, and the others find it gone.

use conformance::interleave::interleave;
use kv_api::{AnyDatabase, Database};
use model::{Content, Documents, Error, Layer, RevId, Upload, UploadAs};

use super::attachments::rows;
use crate::stage::*;

const DAY_MS: u64 = 86_400_000;

/// Bytes that one transaction stages.
const PIECE: &[u8] = &[7; 2_000_000];

/// A process that has swept: its first write sweeps.
async fn process<D: Database>(engine: D, clock: &Clock) -> Documents<D> {
    let documents = Layer::open(engine, clock.options()).await.unwrap().database("db").await.unwrap();
    documents.put_local("_local/first", None, json("{}")).await.unwrap();
    documents
}

/// A process that starts when all uploads have expired.
async fn sweep<D: Database>(engine: D, clock: &Clock) {
    clock.pass(2 * DAY_MS);
    process(engine, clock).await;
}

async fn begin<D: Database>(documents: &Documents<D>) -> Result<Upload<D>, Error> {
    let mut upload = documents.upload("f", UploadAs::Plain { content_type: "x/y" });
    upload.write(PIECE).await?;
    Ok(upload)
}

async fn go_on<D: Database>(documents: &Documents<D>, mut upload: Upload<D>) -> Result<RevId, Error> {
    upload.write(PIECE).await?;
    name(documents, upload.finish().await?).await
}

/// A small content that is staged.
async fn staged<D: Database>(documents: &Documents<D>) -> Content {
    let mut upload = documents.upload("f", UploadAs::Plain { content_type: "x/y" });
    upload.write(b"some bytes").await.unwrap();
    documents.staged(&upload.finish().await.unwrap()).await.unwrap()
}

async fn name<D: Database>(documents: &Documents<D>, content: Content) -> Result<RevId, Error> {
    documents.put_attachment("a", None, "f", "x/y", content).await
}

/// Checks that a content is whole if an edit named it, and gone otherwise. Leaves nothing.
async fn settle(engine: &AnyDatabase, clock: &Clock, named: Option<Result<RevId, Error>>, what: &str) {
    let documents = process(engine.clone(), clock).await;
    assert_sound(&documents).await;
    match named {
        Some(Ok(rev)) => {
            let (_, mut reader) = documents.attachment("a", None, "f").await.unwrap();
            while reader.next().await.unwrap_or_else(|error| panic!("{what}: {error}")).is_some() {}
            documents.put(edit("a", "{}").over(rev).deleting()).await.unwrap();
        }
        Some(Err(error)) => assert_eq!(error.status(), 503, "{what}: {error}"),
        None => {}
    }
    sweep(engine.clone(), clock).await;
    assert_eq!(rows(engine).await, [0, 0, 0, 0], "{what}");
}

pub(crate) async fn an_upload_is_swept_or_named_and_never_both(stage: Stage) {
    let (engine, clock) = (stage.engine(), Clock::default());
    stage.documents().await;
    let documents = process(engine.clone(), &clock).await;
    // The sweep waits before its commit, while the upload continues, is named, or is discarded.
    for step in ["goes on", "is named", "is discarded"] {
        for nth in 0.. {
            let (begun, content) = match step {
                "goes on" => (Some(begin(&documents).await.unwrap()), None),
                _ => (None, Some(staged(&documents).await)),
            };
            let mut named = None;
            let meanwhile = async || match (begun, content) {
                (Some(begun), _) => named = Some(go_on(&documents, begun).await),
                (_, Some(content)) if step == "is named" => named = Some(name(&documents, content).await),
                (_, Some(content)) => documents.discard(content).await.unwrap(),
                _ => unreachable!("one of both"),
            };
            let (_, was_held) =
                interleave(engine.clone(), nth, async |engine| sweep(engine, &clock).await, meanwhile).await;
            settle(&engine, &clock, named, &format!("{step}, sweep held at {nth}")).await;
            if !was_held {
                assert!(nth > 0, "the sweep commits");
                break;
            }
        }
    }
    // The uploader waits before a commit, and the upload is swept meanwhile.
    for nth in 0.. {
        let operation = async |engine| {
            let documents = process(engine, &clock).await;
            let begun = begin(&documents).await?;
            go_on(&documents, begun).await
        };
        let meanwhile = async || sweep(engine.clone(), &clock).await;
        let (named, was_held) = interleave(engine.clone(), nth, operation, meanwhile).await;
        settle(&engine, &clock, Some(named), &format!("upload held at {nth}")).await;
        if !was_held {
            assert!(nth > 3, "a process begins, stages two pieces and names the content");
            break;
        }
    }
}

pub(crate) async fn an_upload_is_discarded_or_named_and_never_both(stage: Stage) {
    let (engine, clock) = (stage.engine(), Clock::default());
    stage.documents().await;
    let documents = process(engine.clone(), &clock).await;
    for nth in 0.. {
        let mut named = None;
        let content = staged(&documents).await;
        let discard = async |engine| process(engine, &clock).await.discard(content.clone()).await;
        let naming = async || named = Some(name(&documents, content.clone()).await);
        let (discarded, was_held) = interleave(engine.clone(), nth, discard, naming).await;
        discarded.unwrap();
        settle(&engine, &clock, named, &format!("discard held at {nth}")).await;

        let content = staged(&documents).await;
        let name = async |engine| name(&process(engine, &clock).await, content.clone()).await;
        let (named, also_held) =
            interleave(engine.clone(), nth, name, async || documents.discard(content.clone()).await.unwrap()).await;
        settle(&engine, &clock, Some(named), &format!("edit held at {nth}")).await;
        if !was_held && !also_held {
            assert!(nth > 1, "a process begins, and takes the upload");
            break;
        }
    }
}
