//! Encrypted vaults: what cannot be read is not collected.

use chunks::{ChunkStore, CollectOptions, Error};

use crate::fixtures::Fixture;
use crate::interruption::content;
use crate::support::{World, set_grace};

crate::scenarios!(a_collection_that_cannot_read_references_collects_nothing);

const EAGER: CollectOptions = CollectOptions { dry_run: false, unused_percent: 0 };

async fn a_collection_that_cannot_read_references_collects_nothing(world: World) {
    let store = Fixture::Obfuscated.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone());
    assert_eq!(chunks.migrate(false, |_, _| ()).await.unwrap().chunks, 360);
    set_grace(&*store, 0).await;
    let before = content(&*store).await;
    for _ in 0..2 {
        let refused = chunks.collect(EAGER, |_| ()).await.unwrap_err();
        assert!(matches!(refused, Error::Unread { files: 27, .. }), "{refused:?}");
        let sentence = refused.to_string();
        assert!(
            sentence.contains("27 files") && sentence.contains("\"f:") && sentence.contains("passphrase"),
            "{sentence}"
        );
    }
    let refused = chunks.reindex(|_, _| ()).await.unwrap_err();
    assert!(matches!(refused, Error::Unread { files: 27, .. }), "{refused:?}");
    assert_eq!(content(&*store).await, before);
    // Nor are all chunks there just because none is known to be referred to.
    let verified = chunks.verify(|_| ()).await.unwrap();
    assert_eq!((verified.files, verified.chunks, verified.unread.len()), (0, 0, 27));

    // Without obfuscation the lists are in clear.
    let store = Fixture::Encrypted.load(&world, "clear").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.migrate(false, |_, _| ()).await.unwrap();
    set_grace(&*store, 0).await;
    let collected = chunks.collect(EAGER, |_| ()).await.unwrap();
    assert_eq!((collected.files, collected.referenced, collected.condemned), (27, 347, 13));
}
