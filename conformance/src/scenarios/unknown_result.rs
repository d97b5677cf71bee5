//! Unknown commit results, and how the runner handles them.
//!
//! Source: `developer-guide.rst`, "Transactions with unknown results".

use kv_api::error::{
    COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, OPERATION_FAILED, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_OLD,
};
use kv_api::{
    Attempt, Bytes, Database, DatabaseExt, Error, Observer, Read, Result, RetryError, Runner, Transaction,
    TransactionOption,
};
use parking_lot::Mutex;

use crate::chaos::{Chaos, Fault, Rates};
use crate::expect::{fails, some};
use crate::{Outcome, Space};

/// Sets `key` under a script of `faults`. Returns the attempts.
async fn attempts(s: &Space, faults: &[Fault]) -> (Result<()>, Vec<Attempt>) {
    let database = Chaos::scripted(s.database().clone(), faults.iter().copied().map(Some));
    let (key, seen) = (s.key("a"), Mutex::new(Vec::new()));
    let outcome = database
        .run(|tx, attempt| {
            seen.lock().push(attempt);
            tx.set(&key, attempt.number.to_string().as_bytes());
            async { Ok::<(), Error>(()) }
        })
        .await;
    (outcome, seen.into_inner())
}

fn attempt(number: u32, maybe_committed: bool) -> Attempt {
    Attempt { number, maybe_committed }
}

/// Adds one to `counter`, unless the transaction with this `id` has already done so.
async fn count_once<D: Database>(database: &D, counter: Bytes, id: Bytes) -> Result<()> {
    database
        .run(|tx, attempt| {
            let (counter, id) = (counter.clone(), id.clone());
            async move {
                if attempt.maybe_committed && tx.get(&id, Read::Serializable).await?.is_some() {
                    return Ok(());
                }
                let value = tx.get(&counter, Read::Serializable).await?.unwrap_or_default();
                let count: u64 = std::str::from_utf8(&value).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
                tx.set(&counter, (count + 1).to_string().as_bytes());
                tx.set(&id, b"");
                Ok::<(), Error>(())
            }
        })
        .await
}

pub(crate) async fn the_first_attempt_is_not_maybe_committed(s: Space) -> Outcome {
    assert_eq!(attempts(&s, &[]).await, (Ok(()), vec![attempt(1, false)]));
    Ok(())
}

pub(crate) async fn an_attempt_after_a_refused_one_is_not_maybe_committed(s: Space) -> Outcome {
    let (outcome, seen) = attempts(&s, &[Fault::NotCommitted, Fault::NotCommitted]).await;
    outcome?;
    assert_eq!(seen, [attempt(1, false), attempt(2, false), attempt(3, false)]);
    assert_eq!(s.get("a").await?, some("3"));
    Ok(())
}

pub(crate) async fn maybe_committed_is_sticky(s: Space) -> Outcome {
    let (outcome, seen) =
        attempts(&s, &[Fault::NotCommitted, Fault::UnknownNotCommitted, Fault::NotCommitted, Fault::NotCommitted])
            .await;
    outcome?;
    assert_eq!(seen, [attempt(1, false), attempt(2, false), attempt(3, true), attempt(4, true), attempt(5, true)]);
    Ok(())
}

pub(crate) async fn an_unknown_result_that_was_committed_is_seen_by_the_next_attempt(s: Space) -> Outcome {
    let database = Chaos::scripted(s.database().clone(), [Some(Fault::UnknownCommitted)]);
    let key = s.key("a");
    let found = database
        .run(|tx, attempt| {
            let key = key.clone();
            async move {
                let found = tx.get(&key, Read::Serializable).await?;
                if !attempt.maybe_committed {
                    tx.set(&key, b"first");
                }
                Ok::<_, Error>(found)
            }
        })
        .await?;
    assert_eq!(found, some("first"));
    Ok(())
}

pub(crate) async fn a_body_that_looks_first_counts_once(s: Space) -> Outcome {
    for fault in [Fault::UnknownCommitted, Fault::UnknownNotCommitted, Fault::NotCommitted] {
        let database = Chaos::scripted(s.database().clone(), [Some(fault), Some(fault)]);
        s.write(|tx| tx.clear_range("a", "z")).await?;
        count_once(&database, s.key("counter"), s.key("id")).await?;
        assert_eq!(s.get("counter").await?, some("1"), "{fault:?}");
    }
    Ok(())
}

/// The reason for the predicate: without a check, the retry adds a second time.
pub(crate) async fn a_body_that_does_not_look_counts_twice(s: Space) -> Outcome {
    let database = Chaos::scripted(s.database().clone(), [Some(Fault::UnknownCommitted)]);
    let key = s.key("n");
    database
        .run(|tx, _| {
            tx.atomic_op(kv_api::MutationType::Add, &key, &[1]);
            async { Ok::<(), Error>(()) }
        })
        .await?;
    assert_eq!(s.get("n").await?, some([2]));
    Ok(())
}

pub(crate) async fn a_run_that_gives_up_in_doubt_is_1021(s: Space) -> Outcome {
    let (outcome, seen) = attempts(&s, &[Fault::UnknownCommitted, Fault::TimedOutNotCommitted]).await;
    fails(outcome, COMMIT_UNKNOWN_RESULT);
    assert_eq!(seen.len(), 2);
    Ok(())
}

pub(crate) async fn a_timeout_at_the_commit_is_not_retried(s: Space) -> Outcome {
    for fault in [Fault::TimedOutCommitted, Fault::TimedOutNotCommitted] {
        let (outcome, seen) = attempts(&s, &[fault]).await;
        fails(outcome, TRANSACTION_TIMED_OUT);
        assert_eq!(seen, [attempt(1, false)]);
    }
    Ok(())
}

pub(crate) async fn the_runner_retries_an_error_of_a_read(s: Space) -> Outcome {
    let seen = Mutex::new(Vec::new());
    let key = s.key("a");
    s.database()
        .run(|tx, attempt| {
            seen.lock().push(attempt.number);
            tx.set(&key, b"1");
            async move { if attempt.number < 3 { Err(Error::new(TRANSACTION_TOO_OLD)) } else { Ok(()) } }
        })
        .await?;
    assert_eq!(seen.into_inner(), [1, 2, 3]);
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Own {
    Store(Error),
    NotEnough,
}

impl From<Error> for Own {
    fn from(error: Error) -> Self {
        Own::Store(error)
    }
}

impl RetryError for Own {
    fn kv_error(&self) -> Option<&Error> {
        match self {
            Own::Store(error) => Some(error),
            Own::NotEnough => None,
        }
    }
}

pub(crate) async fn an_error_of_the_bodys_own_ends_the_run_and_commits_nothing(s: Space) -> Outcome {
    let key = s.key("a");
    let outcome: Result<(), Own> = s
        .database()
        .run(|tx, _| {
            tx.set(&key, b"1");
            async { Err(Own::NotEnough) }
        })
        .await;
    assert_eq!(outcome, Err(Own::NotEnough));
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn an_error_of_the_store_keeps_its_code_in_the_bodys_error(s: Space) -> Outcome {
    let outcome: Result<(), Own> = s.database().run(|_, _| async { Err(Error::new(OPERATION_FAILED).into()) }).await;
    assert_eq!(outcome, Err(Own::Store(Error::new(OPERATION_FAILED))));
    Ok(())
}

pub(crate) async fn the_runners_options_hold_for_every_attempt(s: Space) -> Outcome {
    let database = Chaos::scripted(s.database().clone(), [Some(Fault::NotCommitted); 9]);
    let (key, count) = (s.key("a"), Mutex::new(0));
    let outcome = Runner::new(&database)
        .option(TransactionOption::RetryLimit(Some(2)))
        .run(|tx, _| {
            *count.lock() += 1;
            tx.set(&key, b"1");
            async { Ok::<(), Error>(()) }
        })
        .await;
    fails(outcome, NOT_COMMITTED);
    assert_eq!(count.into_inner(), 3);
    Ok(())
}

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, line: String) {
        self.0.lock().push(line);
    }
}

impl Observer for Log {
    fn retrying(&self, attempt: Attempt, error: &Error) {
        self.note(format!("{} retried after {}", attempt.number, error.code()));
    }

    fn committed(&self, attempt: Attempt) {
        self.note(format!("{} committed", attempt.number));
    }

    fn gave_up(&self, attempt: Attempt, error: &Error) {
        self.note(format!("{} gave up with {}", attempt.number, error.code()));
    }
}

pub(crate) async fn an_observer_sees_every_attempt(s: Space) -> Outcome {
    let log = Log::default();
    let script = [Some(Fault::UnknownNotCommitted), Some(Fault::NotCommitted), None, Some(Fault::TimedOutCommitted)];
    let database = Chaos::scripted(s.database().clone(), script);
    for _ in 0..2 {
        let key = s.key("a");
        let body = |tx: <Chaos<kv_api::AnyDatabase> as Database>::Transaction, _: Attempt| {
            tx.set(&key, b"1");
            async { Ok::<(), Error>(()) }
        };
        Runner::new(&database).observer(&log).run(body).await.ok();
    }
    let expected = ["1 retried after 1021", "2 retried after 1020", "3 committed", "1 gave up with 1031"];
    assert_eq!(log.0.into_inner(), expected);
    Ok(())
}

pub(crate) async fn a_counter_under_chaos_ends_exact(s: Space) -> Outcome {
    s.threads(4, |s, thread| async move {
        let seed = 0xc0_ffee + thread as u64;
        let database = Chaos::new(s.database().clone(), seed, Rates::retryable(0.1));
        for n in 0..25 {
            count_once(&database, s.key("counter"), s.key(format!("id/{thread}/{n}"))).await?;
        }
        Ok(())
    })?;
    assert_eq!(s.get("counter").await?, some("100"));
    Ok(())
}
