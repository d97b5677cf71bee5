//! Follows purges of documents during a copy.
//!
//! The feed does not show that a document is gone. So after each page of the feed, the purges that the target lacks are
//! read at the source. Documents that are gone there are cleared at the target, then the purges' rows are copied. A
//! document with remaining leaves has a new sequence, and is copied again.
//!
//! If purges were forgotten before they were read, their documents are unknown: the copy starts over.

use kv_api::{Database, Read};

use crate::admin::purge::PurgeInfo;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, Subspace};
use crate::read::winner::TreePart;
use crate::write::unguarded::Unguarded;

use super::arrival::Arriving;
use super::mirror::{self, Ranges};

/// Clears the documents that were purged at the source since the last call. Returns whether the copy had to start over.
/// If the source is `closed`, that is too late.
pub(super) async fn follow<S: Database, T: Database>(
    source: &Documents<S>,
    target: &mut Arriving<T>,
    closed: bool,
) -> Result<bool> {
    let (seq, known) = (source.purge_seq().await?, target.documents.purge_seq().await?);
    if seq == known {
        return Ok(false);
    }
    let mut reached = known;
    let mut all_known = known < seq;
    while all_known && reached < seq {
        let infos = source.purged_infos(reached).await?;
        all_known = infos.first().is_some_and(|info| info.seq == reached + 1);
        if let (true, Some(last)) = (all_known, infos.last()) {
            clear(target, &gone(source, &infos).await?).await?;
            reached = last.seq;
        }
    }
    if !all_known {
        if closed {
            let reason =
                "Purges were forgotten before they were copied. Start again, with a higher _purged_infos_limit.";
            return Err(Error::relocation(reason));
        }
        target.start_over().await?;
    }
    let ranges = Ranges::whole(source, &target.documents, DatabaseKey::All(Subspace::Purges));
    // The documents of later purges are not known yet.
    let ranges = ranges.up_to(source, DatabaseKey::Purge(seq));
    let mut cursor = Some(ranges.begin());
    while let Some(from) = cursor {
        cursor = mirror::mirror(source, target, &ranges, &from).await?;
    }
    Ok(!all_known)
}

/// The documents of these purges that are gone at the source.
async fn gone<'p, S: Database>(source: &Documents<S>, infos: &'p [PurgeInfo]) -> Result<Vec<&'p str>> {
    let keys = source.keys();
    source
        .read(|transaction| async move {
            let instance = source.instance(&transaction, Read::Snapshot);
            let winners: Vec<_> =
                infos.iter().map(|info| (info, TreePart::Winner.read(&transaction, keys, &info.id))).collect();
            instance.await?;
            let mut gone = Vec::new();
            for (info, winner) in winners {
                if winner.await?.is_empty() {
                    gone.push(info.id.as_str());
                }
            }
            Ok(gone)
        })
        .await
}

/// Clears documents at the target.
async fn clear<T: Database>(target: &Arriving<T>, ids: &[&str]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let keys = target.documents.keys().clone();
    target
        .write(None, |transaction| {
            let winners: Vec<_> = ids.iter().map(|id| (*id, TreePart::Winner.read(&transaction, &keys, id))).collect();
            let keys = &keys;
            async move {
                for (id, winner) in winners {
                    if let Some(winner_info) = winner.await?.first().and_then(|winner| winner.winner_info) {
                        transaction.clear_unguarded(&keys.key(DatabaseKey::Change(winner_info.seq)));
                    }
                    for key in [DatabaseKey::RevisionsOf(id), DatabaseKey::DocsOf(id), DatabaseKey::AllDoc(id)] {
                        let (begin, end) = keys.bounds(key);
                        transaction.clear_range_unguarded(&begin, &end);
                    }
                }
                Ok(())
            }
        })
        .await
}
