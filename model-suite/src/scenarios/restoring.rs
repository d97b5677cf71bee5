//! What backups and restores need of the model.

use kv_api::Pinned;
use model::{
    AllDocsRequest, ChangesRequest, CreateOptions, DatabaseEventKind, Edit, ErrorKind, JsonText, NotFound, Purge,
    RevHistory, Seq, Since, WriteMode,
};

use crate::stage::*;

/// An edit that merges a revision, as a restore writes it.
fn merged(id: &str, rev_text: &str) -> Edit {
    let rev = rev(rev_text);
    let history = RevHistory { position: rev.position(), ids: vec![rev.into_hash()] };
    Edit::new(id, JsonText::empty_object()).with_history(history)
}

pub(crate) async fn a_restored_database_is_seen_when_it_is_complete(stage: Stage) {
    let layer = stage.layer().await;
    let lost = layer.create_database("db", CreateOptions::default()).await.unwrap();
    lost.put(edit("a", "{}")).await.unwrap();
    lost.purge(&[Purge::new("a", vec![rev("1-967a00dff5e02add41819138abb3284d")])]).await.unwrap();
    let purged = lost.purged_infos(0).await.unwrap();
    lost.put(edit("b", "{}")).await.unwrap();
    let seq = lost.last_seq().await.unwrap();
    layer.delete_database("db").await.unwrap();
    let abandoned = layer.begin_restore("db", CreateOptions::default(), 1).await.unwrap();
    assert!(layer.has_unfinished_restore("db").await.unwrap());
    assert!(!layer.has_unfinished_restore("other").await.unwrap());
    let restored = layer.begin_restore("db", CreateOptions::default(), 1).await.unwrap();
    let gone = ErrorKind::NotFound(NotFound::Database);
    let late = abandoned.write(vec![merged("late", "1-aa")], WriteMode::Replicated).await;
    assert_eq!(*late.unwrap_err().kind(), gone, "the unfinished one was dropped");

    for written in restored.write(vec![merged("a", "1-aa"), merged("b", "3-bb")], WriteMode::Replicated).await.unwrap()
    {
        written.unwrap();
    }
    restored.put_local("_local/x", Some(6), json("{}")).await.unwrap();
    restored.set_revs_limit(7).await.unwrap();
    restored.remember_purges(&purged).await.unwrap();
    let client = layer.database("db").await.unwrap();
    assert_eq!(*client.info().await.unwrap_err().kind(), gone);
    assert_eq!(*client.put(edit("c", "{}")).await.unwrap_err().kind(), gone);
    let taken = layer.create_database("db", CreateOptions::default()).await.unwrap_err();
    assert_eq!(*taken.kind(), ErrorKind::FileExists);

    let before = layer.database_events(Seq::ZERO).await.unwrap().last_seq;
    let open = restored.finish_restore().await.unwrap();
    assert_eq!(*restored.finish_restore().await.unwrap_err().kind(), gone);
    assert!(!layer.has_unfinished_restore("db").await.unwrap());
    assert_eq!(*restored.drop_restore().await.unwrap_err().kind(), gone, "an open one is never dropped");
    assert_eq!(*abandoned.drop_restore().await.unwrap_err().kind(), gone, "nor another one of its name");
    assert_eq!(open.info().await.unwrap().doc_count, 2);
    let taken = layer.begin_restore("db", CreateOptions::default(), 1).await.unwrap_err();
    assert_eq!(*taken.kind(), ErrorKind::FileExists, "an open one is never dropped");
    let events = layer.database_events(before).await.unwrap().events;
    let found: Vec<_> = events.iter().map(|event| (event.kind, event.name.as_str())).collect();
    assert_eq!(found, [(DatabaseEventKind::Created, "db")]);
    let request = ChangesRequest { since: Since::Seq(seq), ..ChangesRequest::default() };
    let rows = feed(&open, request).await;
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a", "b"], "all come after the lost ones");
    assert_eq!(rows[0].seq.incarnation(), 1);
    assert_eq!(open.get_local("_local/x").await.unwrap().rev, 7);
    let again = Purge { uuid: Some(purged[0].uuid), revs: purged[0].revs.clone(), id: "a".into() };
    assert_eq!(open.purge(&[again]).await.unwrap()[0].as_ref().unwrap(), &purged[0].purged, "it is not repeated");
    assert_eq!(open.remember_purges(&purged).await.unwrap_err().status(), 400);
    assert_eq!((open.revs_limit().await.unwrap(), open.info().await.unwrap().doc_count), (7, 2));
    assert_sound(&open).await;
}

pub(crate) async fn what_is_read_at_one_version_belongs_together(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("a", "{}")).await.unwrap();
    documents.put_local("_local/x", None, json("{}")).await.unwrap();
    let pinned = Pinned::new(stage.engine()).await.unwrap();
    let then = documents.last_seq().await.unwrap();
    documents.put(edit("b", "{}")).await.unwrap();
    documents.delete_local("_local/x").await.unwrap();
    let seen = layer(pinned).await.database("db").await.unwrap();
    assert_eq!(seen.last_seq().await.unwrap(), then);
    assert_eq!(feed(&seen, ChangesRequest::default()).await.len(), 1);
    assert_eq!(seen.local_docs(&AllDocsRequest::default()).await.unwrap().rows.len(), 1);
    // A write at the version loses against later writes, even when it is retried.
    assert!(seen.put(edit("b", "{}")).await.is_err());
}
