//! Shared by the examples: pieces of text, and a database in memory.

use std::sync::Arc;

use chunks::store::{DocumentStore, PeerStore};
use chunks::{Chunk, chunk_id};
use engine_mem::MemDatabase;
use model::{BodyFormat, CreateOptions, Layer, LayerOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

// A database in memory mostly exercises the allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// New pieces of text, each only once.
pub(crate) struct Pieces {
    dice: StdRng,
    serial: u64,
}

impl Pieces {
    /// Pieces from a seed. Different writers get different pieces.
    pub(crate) fn new(seed: u64, writer: u64) -> Self {
        Pieces { dice: StdRng::seed_from_u64(seed ^ writer << 40), serial: writer << 40 }
    }

    /// The next `count` pieces, with LiveSync's ids: three in four have 128 to 256 bytes, the others up to 1,024.
    pub(crate) fn take(&mut self, count: usize) -> Vec<(String, Chunk)> {
        let pieces = (0..count).map(|_| {
            self.serial += 1;
            let dice = &mut self.dice;
            let length =
                if dice.random_ratio(3, 4) { dice.random_range(128..256) } else { dice.random_range(256..1_024) };
            let mut text = format!("{} ", self.serial);
            while text.len() < length {
                text.push(char::from(dice.random_range(b' '..=b'~')));
            }
            (chunk_id(&text), Chunk::plain(text))
        });
        pieces.collect()
    }
}

/// A new database in memory. Bodies are packed, which changes no figure about documents.
pub(crate) async fn database() -> Result<Arc<dyn DocumentStore>, Failure> {
    let layer = Layer::open(MemDatabase::new(), LayerOptions::default()).await?;
    let documents = layer
        .create_database("vault", CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() })
        .await?;
    Ok(Arc::new(PeerStore::local(documents)))
}
