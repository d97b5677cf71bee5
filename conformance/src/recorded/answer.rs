//! Answers of an engine, without versions and other values that differ between engines.

use std::collections::HashMap;

use kv_api::error::{NOT_COMMITTED, TRANSACTION_TIMED_OUT};
use kv_api::{Database, Error, RangeBatch, Result, Transaction, TransactionOption, Versionstamp};
use serde::{Deserialize, Serialize};

use crate::tape::{Action, Instruction, TRANSACTIONS, text};

/// The answer to an instruction. Keys and values are text as in instructions; `%{3}` is the stamp of the tape's
/// third commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// No value: a write, or a success.
    #[default]
    Nothing,
    /// An error, by its code.
    Error(i32),
    /// A value, if there is one.
    Value(Option<String>),
    /// A key.
    Key(String),
    /// Rows, and whether there are more.
    Rows {
        /// Rows of the batch.
        rows: Vec<(String, String)>,
        /// Whether the range may have more.
        more: bool,
    },
    /// A read version that sees this many of the tape's commits.
    Sees(usize),
    /// A commit, by its number from 1.
    Committed(usize),
    /// A commit of a transaction that wrote nothing, with the error of its stamp.
    ReadOnly(i32),
}

impl Answer {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Answer::Nothing
    }
}

/// The reason why a step has no comparable answer.
#[derive(Clone, Debug)]
pub(super) enum Unanswered {
    /// A disturbance that another attempt may avoid: elapsed time, or a lost node.
    Disturbed(Error),
    /// The engine breaks a promise that every engine makes.
    Broken(String),
}

/// The state of a replay: the engine's transactions, and its versions and stamps by commit number.
pub(super) struct Answers<T> {
    transactions: Vec<T>,
    versions: Vec<i64>,
    stamps: HashMap<[u8; Versionstamp::LEN], usize>,
    crowded: bool,
}

impl<T: Transaction> Answers<T> {
    pub(super) fn new<D: Database<Transaction = T>>(database: &D) -> Result<Self> {
        let begin = || database.begin().inspect(|transaction| hurry(transaction));
        let transactions = (0..TRANSACTIONS).map(|_| begin()).collect::<Result<_>>()?;
        Ok(Answers { transactions, versions: Vec::new(), stamps: HashMap::new(), crowded: false })
    }

    /// Carries out an instruction and waits for its answer.
    pub(super) async fn answer(&mut self, instruction: &Instruction) -> Result<Answer, Unanswered> {
        let transaction = &self.transactions[instruction.transaction];
        let answered = match &instruction.action {
            Action::Get { key, read } => {
                transaction.get(key, *read).await.map(|value| Answer::Value(value.map(|value| self.text(&value))))
            }
            Action::GetKey { selector, read } => {
                transaction.get_key(selector, *read).await.map(|key| Answer::Key(self.text(&key)))
            }
            Action::GetRange { request, read } => transaction.get_range(request, *read).await.map(|b| self.rows(b)),
            Action::ReadVersion => transaction.get_read_version().await.map(|version| self.sees(version)),
            Action::Commit => return self.commit(instruction.transaction).await,
            // The pause of a retry is not a disturbance, and the error belongs to the instruction.
            Action::OnError { code } => {
                let decided = transaction.on_error(Error::new(*code)).await;
                return Ok(decided.map_or_else(|error| Answer::Error(error.code()), |()| Answer::Nothing));
            }
            Action::SetReadVersion { back } => {
                if let Some(version) = self.versions.iter().rev().nth(*back) {
                    transaction.set_read_version(*version);
                }
                Ok(Answer::Nothing)
            }
            Action::Reset => {
                transaction.reset();
                hurry(transaction);
                Ok(Answer::Nothing)
            }
            Action::Watch { .. } => Err(broken("a watch has no answer".into()))?,
            Action::Cancel => {
                transaction.cancel();
                Ok(Answer::Nothing)
            }
            write => {
                write.write_to(transaction);
                Ok(Answer::Nothing)
            }
        };
        answered.or_else(expected)
    }

    /// Whether a commit was not the first of its batch.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }

    async fn commit(&mut self, at: usize) -> Result<Answer, Unanswered> {
        let transaction = self.transactions[at].clone();
        let stamp = transaction.get_versionstamp();
        let outcome = transaction.commit().await;
        let version = transaction.get_committed_version();
        let answer = match outcome {
            Err(error) => expected(error),
            Ok(()) => {
                let version = version.map_err(|error| broken(format!("a commit has no version: {error}")))?;
                match (version, stamp.await) {
                    (-1, Ok(stamp)) => Err(broken(format!("a commit of nothing has the stamp {stamp:?}"))),
                    (-1, Err(error)) => Ok(Answer::ReadOnly(error.code())),
                    (_, Err(error)) => Err(broken(format!("the stamp of a commit: {error}"))),
                    (version, Ok(stamp)) => self.committed(version, stamp),
                }
            }
        };
        transaction.reset();
        hurry(&transaction);
        answer
    }

    fn committed(&mut self, version: i64, stamp: Versionstamp) -> Result<Answer, Unanswered> {
        if u64::try_from(version) != Ok(stamp.version()) {
            return Err(broken(format!("a commit at version {version} has the stamp {stamp:?}")));
        }
        if let Some(before) = self.versions.last().filter(|before| **before >= version) {
            return Err(broken(format!("a commit at version {version} comes after one at version {before}")));
        }
        self.crowded |= stamp.order() != 0;
        self.versions.push(version);
        self.stamps.insert(*stamp.as_bytes(), self.versions.len());
        Ok(Answer::Committed(self.versions.len()))
    }

    fn text(&self, bytes: &[u8]) -> String {
        text::encode(bytes, |stamp| self.stamps.get(stamp).copied())
    }

    fn rows(&self, batch: RangeBatch) -> Answer {
        let rows = batch.rows.iter().map(|row| (self.text(&row.key), self.text(&row.value)));
        Answer::Rows { rows: rows.collect(), more: batch.more }
    }

    fn sees(&self, version: i64) -> Answer {
        Answer::Sees(self.versions.iter().filter(|committed| **committed <= version).count())
    }
}

fn broken(promise: String) -> Unanswered {
    Unanswered::Broken(promise)
}

/// An error as an answer, unless it is a disturbance.
fn expected(error: Error) -> Result<Answer, Unanswered> {
    let disturbed = error.is_retryable() && error.code() != NOT_COMMITTED || error.code() == TRANSACTION_TIMED_OUT;
    if disturbed { Err(Unanswered::Disturbed(error)) } else { Ok(Answer::Error(error.code())) }
}

/// Makes retry pauses as short as possible: read versions last only a few seconds.
fn hurry<T: Transaction>(transaction: &T) {
    transaction.set_option(TransactionOption::MaxRetryDelay(std::time::Duration::ZERO));
}
