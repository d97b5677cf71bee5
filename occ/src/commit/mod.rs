//! The commit pipeline.
//!
//! ```text
//!   request ─► queue ─► round ─┬─ resolver     does it conflict with what was written since it read?
//!                              ├─ batch        one sorted batch of all accepted requests
//!                              ├─ store        apply, sync
//!                              ├─ window       the new version becomes readable
//!                              └─ ticket       each committer gets its answer
//! ```

mod batch;
mod queue;
mod request;
mod resolver;
mod round;

pub(crate) use queue::Pipeline;
pub(crate) use request::{Request, Ticket};
