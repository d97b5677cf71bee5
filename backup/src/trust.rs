//! Whether a database is still the one that a run has.
//!
//! Its instance and sequences do not show that. A folder that was replaced by an older copy has the same instance, and
//! its next changes have higher sequences, since those follow the clock: changes between the copy and the run would be
//! missing from the database but stay in the backup. So a run remembers the last changes of a database. Each must still
//! be there, unless the document was changed or purged later, and no other change may be among them.

use kv_api::Database;
use model::{Change, ChangesRequest, DatabaseInfo, Documents, Seq};

use crate::error::Result;
use crate::manifest::{self, Recent};

/// Number of changes that a run remembers of a database.
const REMEMBERED: usize = 8;

/// The last changes of a database, oldest first.
pub(crate) async fn recent<D: Database>(documents: &Documents<D>) -> Result<Vec<Recent>> {
    let mut found = Vec::new();
    let mut request = ChangesRequest { descending: true, limit: Some(REMEMBERED), ..ChangesRequest::default() };
    loop {
        let page = documents.changes(&request).await?;
        found.extend(page.rows.iter().map(of));
        if !page.more || found.len() >= REMEMBERED {
            break;
        }
        request.before = Some(page.last_seq);
    }
    found.truncate(REMEMBERED);
    found.reverse();
    Ok(found)
}

/// Where a copy may continue the run's state of this database; `None` if it is another database, or has another
/// history.
pub(crate) async fn trusted<D: Database>(
    documents: &Documents<D>,
    info: &DatabaseInfo,
    base: &manifest::Database,
) -> Result<Option<Seq>> {
    let Ok(seq) = base.seq.parse::<Seq>() else { return Ok(None) };
    let is_same = base.instance == model::hex(&info.instance_id)
        && base.incarnation == info.incarnation
        && seq <= info.update_seq.seq
        && base.purge_seq <= info.purge_seq
        && has_purge(documents, base).await?
        && has_changes(documents, base, seq).await?;
    Ok(is_same.then_some(seq))
}

/// Whether the last purge is the same. A purge that is no longer remembered counts as the same.
async fn has_purge<D: Database>(documents: &Documents<D>, base: &manifest::Database) -> Result<bool> {
    let Some(uuid) = &base.last_purge else { return Ok(true) };
    let page = documents.purged_infos(base.purge_seq.saturating_sub(1)).await?;
    Ok(page.first().is_none_or(|purge| purge.seq != base.purge_seq || model::hex(&purge.uuid) == *uuid))
}

async fn has_changes<D: Database>(documents: &Documents<D>, base: &manifest::Database, seq: Seq) -> Result<bool> {
    // The feed is read after the oldest remembered change, or from its start if these are all changes.
    let (after, recent) = match &base.recent[..] {
        all if all.len() < REMEMBERED => (Seq::ZERO, all),
        [oldest, later @ ..] => match oldest.seq.parse::<Seq>() {
            Ok(after) => (after, later),
            Err(_) => return Ok(false),
        },
        [] => return Ok(true),
    };
    let mut missing: Vec<&Recent> = recent.iter().collect();
    let limit = Some(REMEMBERED + 1);
    let mut request = ChangesRequest { since: after.into(), limit, ..ChangesRequest::default() };
    'feed: loop {
        let page = documents.changes(&request).await?;
        let is_last = !page.more && page.rows.len() <= REMEMBERED;
        for row in page.rows {
            if row.seq > seq {
                break 'feed;
            }
            let row = of(&row);
            if !recent.contains(&row) {
                return Ok(false);
            }
            missing.retain(|recent| **recent != row);
        }
        if is_last {
            break;
        }
        request.since = page.last_seq.into();
    }
    // The missing ones must have been changed or purged later.
    let ids = Some(missing.iter().map(|recent| &recent.id).collect());
    let mut request = ChangesRequest { since: seq.into(), doc_ids: ids, ..ChangesRequest::default() };
    while !missing.is_empty() {
        let page = documents.changes(&request).await?;
        missing.retain(|recent| !page.rows.iter().any(|row| row.id == recent.id));
        if !page.more {
            break;
        }
        request.since = page.last_seq.into();
    }
    let mut after = base.purge_seq;
    while !missing.is_empty() {
        let page = documents.purged_infos(after).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        missing.retain(|recent| !page.iter().any(|purge| purge.id == recent.id));
    }
    Ok(missing.is_empty())
}

fn of(row: &Change) -> Recent {
    let rev = row.revs.first().map(ToString::to_string).unwrap_or_default();
    Recent { seq: row.seq.to_string(), id: row.id.clone(), rev }
}
