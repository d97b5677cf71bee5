//! Removes the chunks with documents of their own that no file needs.
//!
//! ```text
//!  run 1    begin ─► census ─► condemn                                            edits of files acquit, or bring back,
//!  run 2    begin ─► census ─► delete into the trash what run 1 condemned         what they name, at any time
//!  by the owner's word only:   purge what is in the trash for long
//! ```
//!
//! The database does the steps (`model`, `write/collect.rs`), and says why none of them takes a chunk that a file names.
//! Here the chunks are found, and what holds everything back. Nothing is condemned or removed while anything does.

use kv_api::Database;
use model::{Collection, Documents};
use serde_json::{Value, json};

use super::census::{Amount, CensusOptions};
use super::cut;
use super::json::amount;
use super::would_collect::WouldCollect;
use crate::ChunkStore;
use crate::error::{Result, StoreError};
use crate::store::PeerStore;

/// Rows of the trash that are read at a time.
const ROWS: usize = 1_000;
/// Number of chunks that stay for a reason and are named.
const NAMED_LEFT: usize = 20;

/// Options of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaultCollectOptions {
    /// Time between condemning a chunk and deleting it, in milliseconds.
    pub grace_ms: u64,
    /// Removes for good what is in the trash for at least this time, in milliseconds; `None` keeps everything there.
    pub purge_ms: Option<u64>,
    /// The census. A run condemns or deletes at most as many chunks as it names.
    pub census: CensusOptions,
}

/// What a collection did.
#[derive(Clone, Debug)]
pub struct VaultCollected {
    /// What was found. If it has anything that holds back, nothing was done.
    pub found: WouldCollect,
    /// Number of chunks that are condemned since this run.
    pub condemned: u64,
    /// Chunks that were deleted into the trash.
    pub deleted: Amount,
    /// Number of chunks that were removed from the trash for good.
    pub purged: u64,
    /// Number of chunks that are condemned after this run.
    pub waiting: u64,
    /// Number of chunks in the trash after this run.
    pub in_trash: u64,
    /// Chunks that were due and stay, with reasons: how many, and the first.
    pub left: (u64, Vec<(String, String)>),
    /// Whether there are more unreferenced chunks than one run takes.
    pub more: bool,
}

/// Collects the chunks of a vault in a database of this process. An interrupted run leaves a consistent state, and the
/// next one goes on. Of two runs at once the first ends with an error. `progress` gets the number of documents read.
///
/// # Errors
/// Those of [`ChunkStore::would_collect`], which has the reasons why nothing is done; the store's failures.
pub async fn collect_vault<D: Database>(
    documents: &Documents<D>,
    options: VaultCollectOptions,
    progress: impl FnMut(u64) + Send,
) -> Result<VaultCollected> {
    let chunks = ChunkStore::new(std::sync::Arc::new(PeerStore::local(documents.clone())));
    // The first one begins after its census, so a vault that is refused pays nothing. So it may only condemn: another
    // first run may have condemned meanwhile, and a file may have named a chunk before that.
    let collection = match documents.last_collection().await.map_err(StoreError::from)? {
        0 => None,
        _ => Some(documents.begin_collection().await.map_err(StoreError::from)?),
    };
    let found = chunks.would_collect(options.census, progress).await?;
    let unreferenced = found.census.unreferenced_named.first.clone();
    let more = found.census.unreferenced.count > unreferenced.len() as u64;
    let mut done = VaultCollected {
        found,
        condemned: 0,
        deleted: Amount::default(),
        purged: 0,
        waiting: 0,
        in_trash: 0,
        left: (0, Vec::new()),
        more,
    };
    if done.found.holds.is_empty() && done.found.census.is_known() {
        match collection {
            Some(collection) => done.take(documents, collection, &unreferenced, options).await,
            None if unreferenced.is_empty() => Ok(()),
            None => done.condemn_first(documents, &unreferenced).await,
        }
        .map_err(StoreError::from)?;
    }
    for (condemned, row) in [(true, &mut done.waiting), (false, &mut done.in_trash)] {
        *row = ids(documents, |deleted| deleted != condemned).await.map_err(StoreError::from)?.len() as u64;
    }
    Ok(done)
}

/// The ids that are in the trash, or condemned.
async fn ids<D: Database>(documents: &Documents<D>, is_one: impl Fn(bool) -> bool) -> model::Result<Vec<String>> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = documents.trash(after.as_deref(), ROWS).await?;
        after = page.last().map(|one| one.id.clone());
        if after.is_none() {
            return Ok(found);
        }
        found.extend(page.into_iter().filter(|one| is_one(one.deleted)).map(|one| one.id));
    }
}

impl VaultCollected {
    /// The only step of a vault's first collection.
    async fn condemn_first<D: Database>(
        &mut self,
        documents: &Documents<D>,
        unreferenced: &[String],
    ) -> model::Result<()> {
        let condemning = documents.begin_condemning().await?;
        self.condemned = documents.condemn(condemning, unreferenced).await?;
        Ok(())
    }

    /// Carries out the steps. `unreferenced` are in order.
    async fn take<D: Database>(
        &mut self,
        documents: &Documents<D>,
        collection: Collection,
        unreferenced: &[String],
        options: VaultCollectOptions,
    ) -> model::Result<()> {
        // A chunk that was condemned by mistake, beside an edit, begins anew.
        if !self.more {
            let mut named = ids(documents, |deleted| !deleted).await?;
            named.retain(|id| unreferenced.binary_search(id).is_err());
            documents.acquit(collection, &named).await?;
        }
        let discarded = documents.discard_condemned(collection, unreferenced, options.grace_ms).await?;
        self.deleted = Amount { count: discarded.documents, bytes: discarded.bytes };
        self.left.0 = discarded.left.len() as u64;
        self.left.1 = discarded.left.into_iter().take(NAMED_LEFT).collect();
        self.condemned = documents.condemn(collection, &discarded.not_condemned).await?;
        if let Some(purge_ms) = options.purge_ms {
            let in_trash = ids(documents, |deleted| deleted).await?;
            self.purged = documents.empty_trash(collection, &in_trash, purge_ms).await?;
        }
        Ok(())
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let mut told = self.found.to_json();
        let VaultCollected { condemned, deleted, purged, waiting, in_trash, left, more, .. } = self;
        let named: Vec<Value> = left.1.iter().map(|(id, why)| json!({"chunk": cut(id), "why": cut(why)})).collect();
        told["collected"] = json!({
            "condemned": condemned,
            "deleted": amount(deleted),
            "purged": purged,
            "waiting": waiting,
            "in_trash": in_trash,
            "left": {"count": left.0, "named": named},
            "more": more,
        });
        told
    }
}
