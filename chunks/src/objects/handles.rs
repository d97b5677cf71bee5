//! Opened object stores, and a cache of objects, which never change.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Connect, Objects};
use crate::data::Data;
use crate::stub::Stub;

/// Size of the cache in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// State shared by the handles of one database.
pub(crate) struct Handles {
    pub(crate) connect: Arc<dyn Connect>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<String, (String, Arc<dyn Objects>)>,
    read: HashMap<String, (Stub, Arc<Data>)>,
    /// Keys in the cache, the oldest first.
    order: VecDeque<String>,
    bytes: u64,
}

impl Handles {
    pub(crate) fn new(connect: Arc<dyn Connect>) -> Self {
        Handles { connect, state: Mutex::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // The state is consistent after any panic.
        act(&mut self.state.lock())
    }

    /// The store and location of a place.
    pub(crate) fn opened(&self, place: &str) -> Option<(String, Arc<dyn Objects>)> {
        self.with(|state| state.open.get(place).cloned())
    }

    pub(crate) fn keep_open(&self, place: &str, location: &str, objects: Arc<dyn Objects>) {
        self.with(|state| state.open.insert(place.to_owned(), (location.to_owned(), objects)));
    }

    /// The cached object of this stub.
    pub(crate) fn read(&self, stub: &Stub) -> Option<Arc<Data>> {
        self.with(|state| state.read.get(&stub.object).filter(|(known, _)| known == stub).map(|(_, data)| data.clone()))
    }

    pub(crate) fn keep_read(&self, stub: Stub, data: &Arc<Data>) {
        self.with(|state| {
            if stub.bytes > CACHE_BYTES || state.read.contains_key(&stub.object) {
                return;
            }
            state.bytes += stub.bytes;
            state.order.push_back(stub.object.clone());
            state.read.insert(stub.object.clone(), (stub, data.clone()));
            while state.bytes > CACHE_BYTES {
                let Some(oldest) = state.order.pop_front() else { break };
                if let Some((stub, _)) = state.read.remove(&oldest) {
                    state.bytes -= stub.bytes;
                }
            }
        });
    }
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").field("connect", &self.connect).finish_non_exhaustive()
    }
}
