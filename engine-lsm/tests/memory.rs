//! Memory used to write and read a large attachment.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use model::{CreateOptions, Layer, LayerOptions, UploadAs};

/// The system's allocator, and the bytes that are allocated.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all blocks are the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The most that was allocated during `work`, beyond what is allocated before it.
fn most_during(work: impl Future<Output = ()>) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    block_on(work);
    MOST.load(Ordering::Relaxed).saturating_sub(before)
}

const PIECE: usize = 64 << 10;
const PIECES: usize = 2_000;

/// The cache has nothing of it. The write-ahead log's runs and the window's snapshots have a few flushes of it,
/// whatever its length.
#[test]
fn a_large_attachment_takes_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    let layer = block_on(Layer::open(database, LayerOptions::default())).unwrap();
    let documents = block_on(layer.create_database("db", CreateOptions::default())).unwrap();
    let mut seed = 7_u64;
    let mut piece: Vec<u8> = (0..PIECE)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .collect();
    let upload = most_during(async {
        let mut upload = documents.upload("file", UploadAs::Plain { content_type: "image/png" });
        for n in 0..PIECES {
            piece[..8].copy_from_slice(&n.to_be_bytes());
            upload.write(&piece).await.unwrap();
        }
        let content = upload.finish().await.unwrap();
        documents.put_attachment("doc", None, "file", "image/png", content).await.unwrap();
    });
    assert!(upload < 50_000_000, "an upload takes {upload} bytes");
    let download = most_during(async {
        let (_, mut contents) = documents.attachment("doc", None, "file").await.unwrap();
        let mut length = 0;
        while let Some(piece) = contents.next().await.unwrap() {
            length += piece.len();
        }
        assert_eq!(length, PIECE * PIECES);
    });
    // A compaction of the upload may still run, which takes some 16 MB.
    assert!(download < 30_000_000, "a download takes {download} bytes");
}
