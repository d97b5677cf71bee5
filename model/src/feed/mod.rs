//! Feeds: the changes of a database, the events of all databases, and waiting for them.

pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod complete;
pub(crate) mod consumer;
pub(crate) mod epoch;
pub(crate) mod events;
pub(crate) mod seq;
pub(crate) mod tail;
pub(crate) mod watcher;
