//! Recorded answers of FoundationDB, and answers from its documentation, required of every engine.

use crate::recorded::replay_all;
use crate::{Outcome, Space};

pub(crate) async fn recorded_tapes_are_answered_as_recorded(s: Space) -> Outcome {
    if let Err((tape, difference)) = replay_all(s.database(), &s.key("")).await {
        panic!("{tape}.tape, {difference}");
    }
    Ok(())
}
