//! The watches of a tape, and the required outcome of each.
//!
//! ```text
//!   open ── commit ──► armed: fires once a commit leaves a value that differs from the one seen
//!    ├── an own write of its key ──► anything: the written value decides
//!    ├── cancel, on_error, a commit that the client refuses ──► anything: FoundationDB ends it, or keeps it until the
//!    │                        transaction is dropped; it depends on when its read is answered
//!    └── reset, a conflict ──► fails, with that error
//! ```

use std::pin::Pin;
use std::time::Duration;

use kv_api::{Error, Result};
use tokio::time::timeout;

use super::instruction::{Action, Step};
use crate::oracle::Oracle;

/// Maximum time to wait for a watch that must end. Only a faulty engine needs so long.
const LONG: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(5) };

/// A watch.
pub(super) struct Watched {
    step: usize,
    transaction: usize,
    key: Vec<u8>,
    seen: Option<Vec<u8>>,
    fires: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Open,
    Armed { since: i64 },
    Fails(i32),
    Anything,
}

impl Watched {
    /// A watch made at `step` by a transaction that saw this value.
    pub(super) fn new(
        step: usize,
        transaction: usize,
        key: &[u8],
        seen: Option<Vec<u8>>,
        fires: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    ) -> Self {
        Watched { step, transaction, key: key.to_vec(), seen, fires, state: State::Open }
    }

    /// Index of the step that made it.
    pub(super) fn step(&self) -> usize {
        self.step
    }

    /// Whether it belongs to this transaction, which has not ended since.
    pub(super) fn is_of(&self, transaction: usize) -> bool {
        self.transaction == transaction && matches!(self.state, State::Open)
    }

    /// Handles a write of its own transaction.
    pub(super) fn own_write(&mut self, action: &Action) {
        if action.may_change(&self.key) {
            self.state = State::Anything;
        }
    }

    /// Its transaction has committed, and nobody changed the value it saw before this version.
    pub(super) fn arm(&mut self, since: i64) {
        self.state = State::Armed { since };
    }

    /// Its transaction ended in a way that leaves the outcome open.
    pub(super) fn leave_open(&mut self) {
        self.state = State::Anything;
    }

    /// Its transaction ended in any other way.
    pub(super) fn fail(&mut self, code: i32) {
        self.state = State::Fails(code);
    }

    /// Compares its outcome with the required one.
    pub(super) async fn check(mut self, oracle: &Oracle) -> Step {
        let expected = match self.state {
            State::Open | State::Anything => return Ok(()),
            State::Fails(code) => Some(Err(Error::new(code))),
            State::Armed { since } => {
                let values = oracle.values_since(since, &self.key);
                if values.last() != Some(&self.seen) {
                    Some(Ok(()))
                } else if values.iter().all(|value| *value == self.seen) {
                    None
                } else {
                    // The change may have been undone, and seen or missed.
                    let found = self.outcome(Duration::ZERO).await;
                    return if matches!(found, Some(Err(_))) { differ(&found, &Some(Ok(()))) } else { Ok(()) };
                }
            }
        };
        let found = self.outcome(if expected.is_some() { LONG } else { Duration::ZERO }).await;
        if found == expected { Ok(()) } else { differ(&found, &expected) }
    }

    /// Its outcome, if it has one.
    async fn outcome(&mut self, within: Duration) -> Option<Result<()>> {
        timeout(within, &mut self.fires).await.ok()
    }
}

fn differ(found: &Option<Result<()>>, expected: &Option<Result<()>>) -> Step {
    let tell = |outcome: &Option<Result<()>>| match outcome {
        None => "the watch has not fired".to_owned(),
        Some(Ok(())) => "the watch has fired".to_owned(),
        Some(Err(error)) => format!("the watch failed: {error}"),
    };
    Err((tell(found), tell(expected)))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use kv_api::Versionstamp;
    use kv_api::error::{NOT_COMMITTED, TRANSACTION_CANCELLED};

    use super::*;
    use crate::block_on;
    use crate::oracle::OracleTransaction;

    /// A database in which `key` had these values, at versions 1, 2 and so on.
    fn history(values: &[&str]) -> Oracle {
        let mut oracle = Oracle::default();
        for (version, value) in (1..).zip(values) {
            let mut transaction = OracleTransaction::default();
            transaction.set(b"key", value.as_bytes());
            oracle.commit(&transaction, version, Versionstamp::new(version as u64, 0));
        }
        oracle
    }

    fn watched(seen: &str, fires: Option<Result<()>>) -> Watched {
        let seen = Some(seen.as_bytes().to_vec());
        match fires {
            Some(outcome) => Watched::new(0, 0, b"key", seen, Box::pin(ready(outcome))),
            None => Watched::new(0, 0, b"key", seen, Box::pin(pending())),
        }
    }

    /// Which outcomes are right for a watch armed at version 2: firing, waiting, failing with 1020.
    fn right_when_armed(values: &[&str], seen: &str) -> [bool; 3] {
        [Some(Ok(())), None, Some(Err(Error::new(NOT_COMMITTED)))].map(|fires| {
            let mut watched = watched(seen, fires);
            watched.arm(2);
            block_on(watched.check(&history(values))).is_ok()
        })
    }

    #[test]
    fn a_watch_fires_when_the_value_is_another_and_only_then() {
        assert_eq!(right_when_armed(&["a", "b"], "b"), [false, true, false]);
        assert_eq!(right_when_armed(&["a", "b", "c"], "b"), [true, false, false]);
        assert_eq!(right_when_armed(&["a", "b", "b"], "b"), [false, true, false]);
        assert_eq!(right_when_armed(&["a", "b"], "a"), [true, false, false]);
        assert_eq!(right_when_armed(&["a", "b", "c", "b"], "b"), [true, true, false], "seen or missed");
    }

    #[test]
    fn a_watch_fails_with_what_ended_its_transaction() {
        for (fires, right) in [
            (Some(Err(Error::new(NOT_COMMITTED))), true),
            (Some(Err(Error::new(TRANSACTION_CANCELLED))), false),
            (Some(Ok(())), false),
            (None, false),
        ] {
            let mut watched = watched("b", fires);
            watched.fail(NOT_COMMITTED);
            assert_eq!(block_on(watched.check(&history(&["a", "b"]))).is_ok(), right);
        }
    }

    #[test]
    fn an_own_write_may_fire_it() {
        let other = Action::Clear { key: b"other".to_vec() };
        let own = Action::ClearRange { begin: b"a".to_vec(), end: b"z".to_vec() };
        let mut watched = watched("b", None);
        watched.own_write(&other);
        assert!(watched.is_of(0));
        watched.own_write(&own);
        assert!(!watched.is_of(0), "nothing is expected of it any more");
    }
}
