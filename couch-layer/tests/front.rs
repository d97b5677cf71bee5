//! This crate as a program sees it that depends on nothing else.

use std::time::Duration;

use couch_layer::engine_mem::MemDatabase;
use couch_layer::kv::AnyDatabase;
use couch_layer::{
    CouchLayer, Db, Edit, Error, GetOptions, JsonText, Layer, LayerOptions, NameRange, Since, block_on, peer,
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
        let elsewhere = url.replace("/notes", "/none");
        let error = phone.sync(&elsewhere).unwrap().run().await.unwrap_err();
        assert!(matches!(&error, Error::Peer(error) if error.kind() == peer::ErrorKind::NoDatabase), "{error}");
        let stranger = url.replace("http://", "http://nobody:wrong@");
        let error = phone.sync(&stranger).unwrap().run().await.unwrap_err();
        assert!(matches!(&error, Error::Peer(error) if error.kind() == peer::ErrorKind::Refused), "{error}");
        tokio::time::timeout(Duration::from_secs(20), server.stop()).await.unwrap();
        assert_eq!(
            phone
                .changes(&couch_layer::ChangesRequest { since: Since::default(), ..Default::default() })
                .await
                .unwrap()
                .rows
                .len(),
            3
        );
    });
}
