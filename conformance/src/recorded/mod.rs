//! Recorded tapes: what an engine answered, written down once and asked of every engine since.
//!
//! The oracle and `occ` could share a misunderstanding of FoundationDB. A tape that was recorded on a
//! real one cannot: its answers are committed beside its instructions, and every engine that runs the
//! suite replays it.
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
//! What no two engines share is replaced by what they must share. A commit version is the number of the
//! commit on its tape, and must be above the one before. A read version is how many of the tape's
//! commits it sees. A stamp in a key or a value is the number of the commit that made it. So the order
//! and the equality of all of them are compared, and their values are not.
//!
//! A tape is replayed by one thread that awaits each instruction before the next: what happens is then
//! in the hands of the tape, not of chance. What FoundationDB leaves to chance all the same, [`settled`]
//! takes out of a tape first. Estimates, split points and sizes depend on where keys lie and are left to
//! scenarios.
//!
//! A tape's keyspace is empty and nobody else's. It is a prefix of a larger one, and what lies around it
//! changes no answer.

mod answer;
mod file;
mod record;
mod replay;

pub use answer::Answer;
pub use file::{FORMAT, Malformed, Origin, Recording, Step};
pub use record::{Unfit, record, settled};
pub use replay::{Difference, replay, replay_all, tapes};
