//! Requirements on a document store.

use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, IdRange, Leaf, PeerStore, Refusal};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{DOCUMENT_LIMIT, World};

crate::scenarios!(
    edits_have_outcomes_of_their_own,
    leaves_travel_with_their_ancestors,
    listings_and_feeds_go_on_where_a_page_ends,
    sizes_are_known_without_writing,
);

fn body(value: serde_json::Value) -> Body {
    value.as_object().unwrap().clone()
}

fn create(id: &str, value: serde_json::Value) -> Edit {
    Edit { id: id.into(), rev: None, deleted: false, body: body(value) }
}

async fn edits_have_outcomes_of_their_own(world: World) {
    let store = world.database("db").await;
    let first = store.write(vec![create("a/b c", json!({"n": 1})), create("b", json!({}))]).await.unwrap();
    let rev = first[0].clone().unwrap();
    let edits = vec![
        create("b", json!({"late": true})),
        Edit {
            id: "a/b c".into(),
            rev: Some(rev.clone()),
            deleted: false,
            body: body(json!({"n": 2.5, "\u{fc}": "\u{1f600}\\\""})),
        },
        Edit { id: "c".into(), rev: Some("1-abc".into()), deleted: false, body: Body::new() },
    ];
    let second = store.write(edits).await.unwrap();
    assert_eq!(second[0], Err(Refusal::Conflict));
    assert!(second[1].as_ref().unwrap().starts_with("2-"));
    assert_eq!(second[2], Err(Refusal::Conflict));
    store.write(vec![Edit::delete("b", first[1].clone().unwrap())]).await.unwrap()[0].clone().unwrap();

    let ids: Vec<String> = ["a/b c", "b", "none"].map(str::to_owned).to_vec();
    assert_eq!(store.live(&ids).await.unwrap(), [true, false, false]);
    let leaves = store.leaves(&ids, false).await.unwrap();
    assert_eq!(leaves[0].len(), 1);
    assert_eq!(leaves[0][0].body, body(json!({"n": 2.5, "\u{fc}": "\u{1f600}\\\""})));
    assert!(leaves[1][0].deleted && leaves[1].len() == 1 && leaves[2].is_empty());
    let figures = store.figures().await.unwrap();
    assert_eq!((figures.documents, figures.deleted), (1, 1));
    assert!(store.write(Vec::new()).await.unwrap().is_empty() && store.leaves(&[], false).await.unwrap().is_empty());
}

async fn leaves_travel_with_their_ancestors(world: World) {
    let (one, other) = (world.database("one").await, world.database("other").await);
    let rev = store_one(&*one, None, 1).await;
    let rev = store_one(&*one, Some(rev), 2).await;
    let leaves = one.leaves(&["x".to_owned()], true).await.unwrap().pop().unwrap();
    assert_eq!(leaves[0].ancestors.len(), 1);
    other.graft(leaves.iter().map(|leaf| ("x".to_owned(), leaf.clone())).collect()).await.unwrap();
    // The history was copied too: the next edit on either side continues it.
    let next = store_one(&*other, Some(rev), 3).await;
    let back = other.leaves(&["x".to_owned()], true).await.unwrap().pop().unwrap();
    one.graft(back.into_iter().map(|leaf| ("x".to_owned(), leaf)).collect()).await.unwrap();
    let leaves = one.leaves(&["x".to_owned()], true).await.unwrap().pop().unwrap();
    assert_eq!((leaves.len(), &leaves[0].rev, leaves[0].ancestors.len()), (1, &next, 2));
    // A leaf without a common ancestor becomes a second leaf. Tombstones are leaves too.
    let alien = Leaf { rev: "1-00".into(), deleted: true, body: Body::new(), ancestors: Vec::new() };
    one.graft(vec![("x".into(), alien)]).await.unwrap();
    let leaves = one.leaves(&["x".to_owned()], false).await.unwrap().pop().unwrap();
    assert_eq!((leaves.len(), leaves[0].deleted, leaves[1].deleted), (2, false, true));
}

async fn store_one(store: &dyn chunks::store::DocumentStore, rev: Option<String>, n: u32) -> String {
    let edit = Edit { id: "x".into(), rev, deleted: false, body: body(json!({"n": n})) };
    store.write(vec![edit]).await.unwrap().pop().unwrap().unwrap()
}

async fn listings_and_feeds_go_on_where_a_page_ends(world: World) {
    let store = world.database("db").await;
    let edits = (0..25).map(|n| create(&format!("dat:a-{n:03}"), json!({"n": n}))).collect();
    store.write(edits).await.unwrap();
    store.write(vec![create("dat:b-1", json!({})), create("dat:", json!({}))]).await.unwrap();
    let (mut range, mut seen) = (Some(IdRange::prefix("dat:a-").limit(10).with_bodies()), Vec::new());
    while let Some(next) = range {
        let page = store.list(&next).await.unwrap();
        seen.extend(page.rows.into_iter().map(|row| row.body.unwrap()["n"].as_u64().unwrap()));
        range = page.rest;
    }
    assert_eq!(seen, (0..25).collect::<Vec<u64>>());

    let (mut since, mut ids) = (None, Vec::new());
    loop {
        let changes = store.changes(since.as_deref(), 7).await.unwrap();
        assert!(changes.rows.iter().all(|row| !row.deleted));
        ids.extend(changes.rows.into_iter().map(|row| row.id));
        since = Some(changes.last_seq);
        if !changes.more {
            break;
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 27);
}

async fn sizes_are_known_without_writing(world: World) {
    let store = world.database("db").await;
    assert!(store.takes(DOCUMENT_LIMIT).await.unwrap());
    assert!(!store.takes(DOCUMENT_LIMIT + 1).await.unwrap());
    assert_eq!(store.figures().await.unwrap().documents, 0);
    let large = create("x", json!({"pad": "x".repeat(DOCUMENT_LIMIT)}));
    let written = store.write(vec![large, create("y", json!({}))]).await.unwrap();
    assert_eq!(written[0], Err(Refusal::TooLarge));
    assert!(written[1].is_ok());
}

/// A server that answers every request with this.
async fn always(answer: &'static str) -> Arc<dyn DocumentStore> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            // The requests of these tests are small, and arrive in one piece.
            let _ = stream.read(&mut request).await;
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
        }
    });
    Arc::new(PeerStore::http(&format!("http://{address}/db"), None).unwrap())
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_not_one_that_is_not_there() {
    let ids = ["x".to_owned()];
    let absent = always(r#"{"rows":[{"key":"x","error":"not_found"}]}"#).await;
    assert_eq!(absent.live(&ids).await.unwrap(), [false]);
    let damaged = always(r#"{"rows":[{"key":"x","error":"internal_server_error","reason":"torn"}]}"#).await;
    let refused = damaged.live(&ids).await.unwrap_err().to_string();
    assert!(refused.contains("\"x\"") && refused.contains("torn"), "{refused}");
}
