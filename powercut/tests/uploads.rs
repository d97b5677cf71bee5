//! Uploads of attachments to a disk that becomes full.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_lsm::LsmDatabase;
use futures_executor::block_on;
use model::{
    AttachmentEdit, AttachmentSource, CreateOptions, Documents, Edit, Environment, Layer, LayerOptions,
    SystemEnvironment, UploadAs,
};
use powercut::recorder::Recording;
use powercut::trace::{Failure, Kind, Trace, Verdict};
use powercut::workload::FOLDER;
use support::{assert_sound, edit};

/// A clock that is moved by hand, so that uploads become too old.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

/// Incompressible bytes.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| byte()).collect()
}

async fn upload(documents: &Documents<LsmDatabase>, rev: &model::RevId, bytes: &[u8]) -> model::Result<model::RevId> {
    let mut upload = documents.upload("big", UploadAs::Plain { content_type: "x" });
    for piece in bytes.chunks(700_000) {
        upload.write(piece).await?;
    }
    let content = upload.finish().await?;
    documents.put_attachment("doc", Some(rev), "big", "x", content).await
}

async fn read(documents: &Documents<LsmDatabase>, name: &str) -> Vec<u8> {
    let (_, mut reader) = documents.attachment("doc", None, name).await.expect("an attachment");
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.expect("its content") {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// The disk has room for some more calls, then for none. The upload fails and says why, and the document is unchanged.
/// Once there is room again, the same upload works. Rows of the failed uploads are swept.
#[test]
fn an_upload_to_a_full_disk_fails_as_a_whole_and_works_when_there_is_room() {
    let root = tempfile::tempdir().expect("a folder");
    let recording = Recording::begin(root.path(), Trace::default());
    let database = support::open(&root.path().join(FOLDER)).expect("a database");
    let clock = Arc::new(Clock(AtomicU64::new(1_000_000)));
    let options =
        LayerOptions { prefix: support::PREFIX.into(), environment: clock.clone(), ..LayerOptions::default() };
    let layer = block_on(Layer::open(database.clone(), options)).expect("a layer");
    let documents = block_on(layer.create_database("db", CreateOptions::default())).expect("a database");
    let small = noise(150_000, 1);
    let source = AttachmentSource::Data(small.clone().into());
    let attachment = AttachmentEdit { name: "small".to_owned(), content_type: "x".to_owned(), revpos: None, source };
    let put = documents.put(Edit { attachments: vec![attachment], ..edit("doc", "{}") });
    let mut rev = block_on(put).expect("it is written");

    for room in 0..6 {
        let bytes = noise(9_000_000, 100 + room as u64);
        let needs_room = |kind: Kind, _: &str| matches!(kind, Kind::Write | Kind::Length | Kind::Create);
        let how = Verdict::Fail(libc::ENOSPC);
        recording.fail(Some(Failure { of: Box::new(needs_room), after: room, times: usize::MAX, how, count: 0 }));
        let error = block_on(upload(&documents, &rev, &bytes)).expect_err("a full disk");
        assert!(recording.failed() > 0);
        assert!(error.to_string().contains("os error 28"), "room for {room}: {error}");
        assert_eq!(error.status(), 507, "room for {room}: {error}");
        assert_eq!(block_on(read(&documents, "small")), small, "room for {room}");
        let found = block_on(documents.get("doc", &Default::default())).expect("a document");
        assert_eq!(found.rev, rev, "room for {room}");

        recording.fail(None);
        let mut tries = 0;
        rev = loop {
            match block_on(upload(&documents, &rev, &bytes)) {
                Ok(rev) => break rev,
                Err(error) => {
                    tries += 1;
                    assert!(tries < 200, "room for {room}: no upload works after there is room: {error}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        };
        assert_eq!(block_on(read(&documents, "big")), bytes, "room for {room}");
    }

    // A day later, an upload sweeps the rows of the failed ones.
    clock.0.fetch_add(2 * 86_400_000, Ordering::Relaxed);
    let mut other = documents.upload("other", UploadAs::Plain { content_type: "x" });
    block_on(other.write(&noise(2_100_000, 7))).expect("it is written");
    let content = block_on(other.finish()).expect("a content");
    block_on(documents.discard(content)).expect("discarded");
    block_on(assert_sound(&database));
    let contents: usize = 150_000 + 9_000_000;
    let stored: usize = support::rows(&database).iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(stored > contents && stored < contents + 100_000, "{stored} bytes");
}
