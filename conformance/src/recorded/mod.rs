//! Recorded tapes: the answers of one engine, recorded once and required of every engine.
//!
//! The oracle and `occ` could share a misunderstanding of FoundationDB. A tape recorded on FoundationDB itself
//! cannot: its answers are committed beside its instructions, and every engine replays them.
//!
//! ```text
//!   tapes/NAME.tape        {"format":1,"engine":"…","version":"…","seed":7}        where it was recorded
//!                          # a remark
//!                          {"transaction":0,"action":{"get":{…}},"answer":{"value":"1"}}
//!                          {"transaction":0,"action":"commit","answer":{"committed":3}}
//!
//!   engine ── answer ──► Answers: versions and stamps as numbers of commits ── answer ──► compare
//! ```
//!
//! Values that differ between engines are replaced by properties that must agree. A commit version becomes the number
//! of the commit on its tape, and must be above the one before. A read version becomes the number of the tape's commits
//! that it sees. A stamp in a key or a value becomes the number of its commit. So order and equality are compared
//! instead of values.
//!
//! One thread replays a tape and awaits each instruction before the next, so nothing depends on timing.
//! [`settled`] removes the instructions whose answers FoundationDB leaves open. Estimates, split points and sizes
//! depend on where keys are stored, and are tested by scenarios only.
//!
//! A tape has an empty keyspace to itself. The keyspace is a prefix of a larger one, whose other keys change no
//! answer.

mod answer;
mod file;
mod record;
mod replay;

pub use answer::Answer;
pub use file::{FORMAT, Malformed, Origin, Recording, Step};
pub use record::{Unfit, record, settled};
pub use replay::{Difference, replay, replay_all, tapes};
