//! Which task may update a view group in this process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use model::ViewGroup;
use parking_lot::Mutex;

use crate::http::app::stores::Documents;

/// By the database's instance and the group's signature.
type Turns = HashMap<([u8; 16], [u8; 16]), Weak<tokio::sync::Mutex<()>>>;

/// The running updates.
#[derive(Debug, Default)]
pub(crate) struct ViewTurns(Mutex<Turns>);

impl ViewTurns {
    /// The lock of an update. Several updates of one group at once would be safe, but map the same documents twice.
    pub(crate) fn of(&self, database: &Documents, group: &ViewGroup) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock();
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
