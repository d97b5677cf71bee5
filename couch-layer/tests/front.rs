//! This crate as seen by a program that depends on nothing else.

use std::time::Duration;

use couch_layer::attachments::{AttachmentEdit, UploadAs};
use couch_layer::engine_mem::MemDatabase;
use couch_layer::kv::AnyDatabase;
use couch_layer::{
    ChangesRequest, CouchLayer, Db, Edit, Edits, Error, GetOptions, JsonText, Layer, LayerOptions, NameRange, block_on,
    kv, model,
};
use server::http::{Options, Server};

fn edit(id: &str) -> Edit {
    Edit::new(id, JsonText::parse(br#"{"text":"Gute Nacht"}"#).unwrap())
}

async fn memory() -> CouchLayer {
    CouchLayer::over(MemDatabase::new(), LayerOptions::default()).await.unwrap()
}

/// A server with the database `notes`, and its URL.
async fn server() -> (Server, String) {
    let layer = Layer::open(AnyDatabase::new(MemDatabase::new()), LayerOptions::default()).await.unwrap();
    layer.create_database("notes", Default::default()).await.unwrap();
    let server = Server::start(layer, "127.0.0.1:0".parse().unwrap(), Options::default()).await.unwrap();
    let url = format!("http://{}/notes", server.address());
    (server, url)
}

#[test]
fn a_folder_is_opened_created_and_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    block_on(async {
        let store = CouchLayer::open(&folder).await.unwrap();
        let notes = store.database("notes").await.unwrap();
        notes.put(edit("song")).await.unwrap();
        assert!(matches!(CouchLayer::open(&folder).await, Err(Error::Locked(_))));
        assert!(matches!(store.database("UPPER").await, Err(Error::Documents(error)) if error.status() == 400));
    });
    block_on(async {
        let store = CouchLayer::open(&folder).await.unwrap();
        let notes = store.database("notes").await.unwrap();
        assert!(notes.get("song", &GetOptions::default()).await.is_ok());
        assert_eq!(store.layer().database_names(&NameRange::default()).await.unwrap(), ["notes"]);
    });
    let mark = folder.join("couch-layer.json");
    let text = std::fs::read_to_string(&mark).unwrap();
    std::fs::write(&mark, text.replace(r#""format":"#, r#""format":9"#)).unwrap();
    assert!(
        matches!(block_on(CouchLayer::open(&folder)), Err(Error::OtherFormat(why)) if why.contains("export or replicate"))
    );
    std::fs::write(&mark, "{").unwrap();
    assert!(matches!(block_on(CouchLayer::open(&folder)), Err(Error::Damaged(_))));
    // The mark is as it was, and the file that names the tables is damaged.
    std::fs::write(&mark, text).unwrap();
    for file in std::fs::read_dir(folder.join("data")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            std::fs::write(file, "damaged").unwrap();
        }
    }
    let damaged = block_on(CouchLayer::open(&folder));
    assert!(matches!(damaged, Err(Error::Damaged(_))), "{damaged:?}");
    // A file where a folder is needed.
    assert!(matches!(block_on(CouchLayer::open(&mark)), Err(Error::Foreign(why)) if why.contains("this is a file")));
    let foreign = root.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), "").unwrap();
    assert!(matches!(block_on(CouchLayer::open(&foreign)), Err(Error::Foreign(why)) if why.contains("letter.txt")));
}

#[test]
fn a_database_is_synced_both_ways() {
    block_on(async {
        let (server, url) = server().await;
        let phone: Db = memory().await.database("notes").await.unwrap();
        let laptop: Db = memory().await.database("notes").await.unwrap();
        phone.put(edit("a")).await.unwrap();
        laptop.put(edit("b")).await.unwrap();
        let figures =
            |synced: couch_layer::Synced| (synced.sent.figures.docs_written, synced.fetched.figures.docs_written);
        assert_eq!(figures(phone.sync(&url).unwrap().run().await.unwrap()), (1, 0));
        assert_eq!(figures(laptop.sync(&url).unwrap().run().await.unwrap()), (1, 1));

        // A continuous one brings what the other device writes later, until it is stopped.
        let live = phone.sync(&url).unwrap().continuous();
        let arrived = {
            let phone = phone.clone();
            async move {
                let mut since = phone.last_seq().await.unwrap();
                while phone.get("late", &GetOptions::default()).await.is_err() {
                    since = phone.watch_changes(since).changed().await.unwrap();
                }
            }
        };
        let writes = async {
            laptop.put(edit("late")).await.unwrap();
            laptop.sync(&url).unwrap().run().await.unwrap();
        };
        let (synced, ()) = tokio::join!(live.run_until(arrived), writes);
        assert!(synced.unwrap().fetched.figures.docs_written >= 2);

        assert!(matches!(phone.sync("notes"), Err(Error::Address(_))));
        assert!(matches!(phone.sync("ftp://127.0.0.1/notes"), Err(Error::Address(_))));
        let elsewhere = url.replace("/notes", "/none");
        let error = phone.sync(&elsewhere).unwrap().run().await.unwrap_err();
        assert!(matches!(&error, Error::NoDatabase(_)), "{error}");
        let stranger = url.replace("http://", "http://nobody:wrong@");
        let error = phone.sync(&stranger).unwrap().run().await.unwrap_err();
        assert!(matches!(&error, Error::Unauthorized(_)), "{error}");
        tokio::time::timeout(Duration::from_secs(20), server.stop()).await.unwrap();
        let error = phone.sync(&url).unwrap().run().await.unwrap_err();
        assert!(matches!(&error, Error::Unreachable(_)), "{error}");
        assert_eq!(phone.changes(&ChangesRequest::default()).await.unwrap().rows.len(), 3);
    });
}

#[test]
fn an_edit_replaces_a_document_as_it_was_read() {
    block_on(async {
        let notes = memory().await.database("notes").await.unwrap();
        let mut upload = notes.upload("score", UploadAs::Plain { content_type: "text/plain" });
        upload.write(b"Fremd bin ich eingezogen").await.unwrap();
        let content = upload.finish().await.unwrap();
        let attachments = vec![AttachmentEdit::new("score", "text/plain", content)];
        notes.put(Edit { attachments, ..edit("song") }).await.unwrap();

        let read = notes.get("song", &GetOptions::default()).await.unwrap();
        let body = JsonText::parse(br#"{"text":"Die Post"}"#).unwrap();
        let rev = notes.put(Edit::replacing(&read, body.clone())).await.unwrap();
        let replaced = notes.get("song", &GetOptions::default()).await.unwrap();
        assert_eq!((&replaced.rev, &replaced.body, replaced.attachments.len()), (&rev, &body, 1));
        // The one that was read is not a leaf any more.
        assert_eq!(notes.put(Edit::replacing(&read, body.clone())).await.unwrap_err().status(), 409);
        notes.put(Edit::replacing(&replaced, body).deleting()).await.unwrap();
        assert_eq!(notes.get("song", &GetOptions::default()).await.unwrap_err().status(), 404);
    });
}

/// A program prints an error and then its sources, so sources must not repeat the text.
#[test]
fn an_error_does_not_repeat_its_source() {
    let store = || kv::Error::new(kv::error::IO_ERROR).with_context("the cable is cut");
    let errors = [
        Error::from(store()),
        Error::from(model::Error::from(store())),
        Error::from(JsonText::parse(b"{").unwrap_err()),
    ];
    for error in errors {
        let mut told = vec![error.to_string()];
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            assert!(!told.last().unwrap().contains(&source.to_string()), "{told:?} {source}");
            told.push(source.to_string());
            cause = source.source();
        }
    }
}

/// The body of a transaction may return this crate's error, and is tried again after a conflict.
#[test]
fn a_transaction_is_tried_again_with_the_error_of_this_crate() {
    block_on(async {
        let store = memory().await;
        let notes = store.database("notes").await.unwrap();
        let attempts = std::sync::atomic::AtomicUsize::new(0);
        let written = store.layer().transact(async |edits: Edits<AnyDatabase>| {
            if attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                return Err(Error::from(kv::Error::new(kv::error::NOT_COMMITTED)));
            }
            Ok(edits.put(&notes, edit("song"))?)
        });
        assert_eq!(written.await.unwrap().1.len(), 1);
        assert_eq!(attempts.into_inner(), 2);
    });
}
