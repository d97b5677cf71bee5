//! The view groups that this process has ready, and whose turn it is to update them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use model::ViewGroup;
use parking_lot::Mutex;

use crate::http::app::stores::Documents;

/// Maximum number of groups whose functions are kept ready. Each has a thread and a heap.
const MOST: usize = 32;

/// By the database's instance and the group's signature.
type Turns = HashMap<([u8; 16], [u8; 16]), Weak<tokio::sync::Mutex<()>>>;

/// The view groups of this process.
#[derive(Default)]
pub(crate) struct Views {
    ready: Mutex<HashMap<[u8; 16], ViewGroup>>,
    turns: Mutex<Turns>,
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Views")
    }
}

impl Views {
    /// The same group with its functions ready, if there is one; this one from now on otherwise.
    pub(crate) fn ready(&self, group: ViewGroup) -> ViewGroup {
        let mut ready = self.ready.lock();
        if let Some(known) = ready.get(group.signature()) {
            return known.clone();
        }
        if ready.len() >= MOST {
            // Their threads end with their last call.
            ready.clear();
        }
        ready.insert(*group.signature(), group.clone());
        group
    }

    /// The lock of an update. Several updates of one group at once would do no harm, but map the same documents.
    pub(crate) fn turn(&self, database: &Documents, group: &ViewGroup) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        let key = (database.instance_id(), *group.signature());
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}
