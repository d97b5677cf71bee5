//! Plays a tape on an engine and on the oracle, and compares the two.

use std::fmt;

use kv_api::error::{
    ACCESSED_UNREADABLE, INVERTED_RANGE, KEY_OUTSIDE_LEGAL_RANGE, KEY_TOO_LARGE, NO_COMMIT_VERSION, NOT_COMMITTED,
    READ_VERSION_ALREADY_SET, TRANSACTION_CANCELLED,
};
use kv_api::{Database, Direction, Error, KeySelector, RangeRequest, Read, Transaction};

use super::instruction::{Action, Instruction, Step, TRANSACTIONS};
use super::watched::Watched;
use crate::oracle::{Map, Oracle, OracleTransaction, Row};

/// The first difference between the engine and the oracle.
pub struct Divergence(Box<Difference>);

struct Difference {
    at: usize,
    instruction: Instruction,
    engine: String,
    oracle: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { at, instruction, engine, oracle } = &*self.0;
        write!(f, "step {at}: {instruction}\n  engine: {engine}\n  oracle: {oracle}")
    }
}

impl fmt::Debug for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn same<T: fmt::Debug + PartialEq>(engine: T, oracle: T) -> Step {
    if engine == oracle { Ok(()) } else { Err((format!("{engine:?}"), format!("{oracle:?}"))) }
}

/// Checks an operation of a transaction that must fail.
fn refused<T: fmt::Debug>(engine: kv_api::Result<T>, model: &OracleTransaction) -> Step {
    match engine {
        Err(error) if model.refusals().contains(&error) => Ok(()),
        engine => Err((format!("{engine:?}"), format!("{:?}", model.refusals()))),
    }
}

fn unexpected(what: &str) -> impl FnOnce(Error) -> (String, String) {
    move |error| (error.to_string(), format!("{what} succeeds"))
}

/// Plays `tape` on `database`, which must be empty and used by nobody else. Needs a tokio runtime with timers.
pub async fn play<D: Database>(database: &D, tape: &[Instruction]) -> Result<(), Divergence> {
    let mut machine = match Machine::new(database) {
        Ok(machine) => machine,
        Err(error) => panic!("cannot begin: {error}"),
    };
    for (at, instruction) in tape.iter().enumerate() {
        if let Err((engine, oracle)) = machine.step(at, instruction).await {
            let instruction = instruction.clone();
            return Err(Divergence(Box::new(Difference { at, instruction, engine, oracle })));
        }
    }
    for watched in std::mem::take(&mut machine.watched) {
        let at = watched.step();
        if let Err((engine, oracle)) = watched.check(&machine.oracle).await {
            let instruction = tape[at].clone();
            return Err(Divergence(Box::new(Difference { at, instruction, engine, oracle })));
        }
    }
    Ok(())
}

/// A serializable read and its result, with a copy of the transaction.
#[derive(Clone)]
struct Seen {
    model: OracleTransaction,
    read: SeenRead,
}

#[derive(Clone)]
enum SeenRead {
    Value(Vec<u8>, Option<Vec<u8>>),
    Key(KeySelector, Vec<u8>),
    Rows(RangeRequest, Vec<Row>),
}

impl Seen {
    /// Whether the read has the same result over `stored`.
    fn holds(&self, stored: &Map) -> bool {
        let mut model = self.model.clone();
        match &self.read {
            SeenRead::Value(key, found) => model.get(stored, key, Read::Serializable).as_ref() == Ok(found),
            SeenRead::Key(selector, found) => model.get_key(stored, selector, Read::Serializable) == *found,
            SeenRead::Rows(request, found) => {
                let (mut rows, _) = model.rows(stored, request, Read::Serializable);
                if request.limit > 0 || request.target_bytes > 0 {
                    rows.truncate(found.len());
                }
                rows == *found
            }
        }
    }
}

struct Machine<T> {
    engine: Vec<T>,
    models: Vec<OracleTransaction>,
    oracle: Oracle,
    seen: Vec<Vec<Seen>>,
    watched: Vec<Watched>,
    /// Whether every write so far had a conflict range. Then commits are serializable.
    serializable: bool,
}

impl<T: Transaction> Machine<T> {
    fn new<D: Database<Transaction = T>>(database: &D) -> kv_api::Result<Self> {
        let engine = (0..TRANSACTIONS).map(|_| database.begin()).collect::<kv_api::Result<_>>()?;
        Ok(Machine {
            engine,
            models: vec![OracleTransaction::default(); TRANSACTIONS],
            oracle: Oracle::default(),
            seen: vec![Vec::new(); TRANSACTIONS],
            watched: Vec::new(),
            serializable: true,
        })
    }

    async fn step(&mut self, step: usize, instruction: &Instruction) -> Step {
        let at = instruction.transaction;
        let (engine, model) = (self.engine[at].clone(), &mut self.models[at]);
        match &instruction.action {
            Action::Get { key, read } => self.get(at, key, *read).await,
            Action::GetKey { selector, read } => self.get_key(at, selector, *read).await,
            Action::GetRange { request, read } => self.get_range(at, request, *read).await,
            Action::ReadVersion => self.stored(at).await.map(drop),
            Action::Watch { key } => self.watch(step, at, key).await,
            Action::Commit => self.commit(at).await,
            Action::OnError { code } => {
                let expected = if model.is_cancelled() { Err(Error::new(TRANSACTION_CANCELLED)) } else { Ok(()) };
                let decided = engine.on_error(Error::new(*code)).await;
                if decided.is_ok() {
                    self.watches_are_left_open(at);
                    self.anew(at);
                }
                same(decided, expected)
            }
            Action::Reset => {
                engine.reset();
                self.anew(at);
                Ok(())
            }
            Action::Cancel => {
                engine.cancel();
                model.cancel();
                self.watches_are_left_open(at);
                Ok(())
            }
            Action::SetReadVersion { back } => {
                if let Some(version) = self.oracle.version(*back) {
                    engine.set_read_version(version);
                    match model.read_version {
                        Some(_) => model.wrong(READ_VERSION_ALREADY_SET),
                        None => model.read_version = Some(version),
                    }
                }
                Ok(())
            }
            // Which of the two keys stays is not specified in FoundationDB: it depends on when the write map is
            // flushed.
            Action::StampedKey { template, .. } if model.stands_elsewhere(template) => Ok(()),
            write => {
                self.write(at, write);
                Ok(())
            }
        }
    }

    fn write(&mut self, at: usize, action: &Action) {
        action.write_to(&self.engine[at]);
        for watched in self.watched.iter_mut().filter(|watched| watched.is_of(at)) {
            watched.own_write(action);
        }
        let model = &mut self.models[at];
        match action {
            Action::Set { key, value } => model.set(key, value),
            Action::Clear { key } => model.clear(key, &[key.as_slice(), b"\0"].concat()),
            Action::ClearRange { begin, end } if begin > end => model.wrong(INVERTED_RANGE),
            Action::ClearRange { begin, end } => model.clear(begin, end),
            Action::Atomic { mutation, key, operand } => model.atomic(*mutation, key, operand),
            Action::StampedValue { key, operand } => model.stamped_value(key, operand),
            Action::StampedKey { template, value } => model.stamped_key(template, value),
            Action::ReadConflict { begin, end } => model.read_conflict(begin, end),
            Action::WriteConflict { begin, end } => model.write_conflict(begin, end),
            Action::NextWriteNoWriteConflictRange => {
                model.next_write_has_no_conflict();
                self.serializable = false;
            }
            Action::SnapshotRywDisable => model.snapshots_hide_own(1),
            Action::SnapshotRywEnable => model.snapshots_hide_own(-1),
            Action::KeyTooLong => model.wrong(KEY_TOO_LARGE),
            Action::KeyOutside => model.wrong(KEY_OUTSIDE_LEGAL_RANGE),
            _ => {}
        }
    }

    fn anew(&mut self, at: usize) {
        self.models[at] = OracleTransaction::default();
        self.seen[at].clear();
        // The watches that no commit has armed.
        self.watches_fail(at, TRANSACTION_CANCELLED);
    }

    fn watches_fail(&mut self, at: usize, code: i32) {
        self.watched.iter_mut().filter(|watched| watched.is_of(at)).for_each(|watched| watched.fail(code));
    }

    fn watches_are_left_open(&mut self, at: usize) {
        self.watched.iter_mut().filter(|watched| watched.is_of(at)).for_each(Watched::leave_open);
    }

    fn watches_are_armed(&mut self, at: usize, since: i64) {
        self.watched.iter_mut().filter(|watched| watched.is_of(at)).for_each(|watched| watched.arm(since));
    }

    fn saw(&mut self, at: usize, read: Read, model: &OracleTransaction, what: SeenRead) {
        if read == Read::Serializable {
            self.seen[at].push(Seen { model: model.clone(), read: what });
        }
    }

    /// The map at the read version. An unknown read version is asked from the engine. `None` when the transaction must
    /// fail, and both sides agree on the error.
    async fn stored(&mut self, at: usize) -> Result<Option<Map>, (String, String)> {
        let asked = self.engine[at].get_read_version().await;
        if !self.models[at].refusals().is_empty() {
            return refused(asked, &self.models[at]).map(|()| None);
        }
        let version = asked.map_err(unexpected("the read version"))?;
        match self.models[at].read_version {
            Some(known) => same(version, known)?,
            None if version < self.oracle.newest() => {
                return Err((format!("reads at {version}"), format!("committed at {}", self.oracle.newest())));
            }
            None => self.models[at].read_version = Some(version),
        }
        Ok(Some(self.oracle.at(version)))
    }

    async fn get(&mut self, at: usize, key: &[u8], read: Read) -> Step {
        let Some(stored) = self.stored(at).await? else {
            return refused(self.engine[at].get(key, read).await, &self.models[at]);
        };
        let before = self.models[at].clone();
        let expected = self.models[at].get(&stored, key, read);
        if let Ok(value) = &expected {
            self.saw(at, read, &before, SeenRead::Value(key.to_vec(), value.clone()));
        }
        let found = self.engine[at].get(key, read).await;
        same(found.map(|value| value.map(|value| value.to_vec())), expected)
    }

    async fn watch(&mut self, step: usize, at: usize, key: &[u8]) -> Step {
        let Some(stored) = self.stored(at).await? else {
            return refused(self.engine[at].watch(key).await, &self.models[at]);
        };
        let before = self.models[at].clone();
        match self.models[at].watched(&stored, key, Read::Serializable) {
            Err(error) => same(self.engine[at].watch(key).await, Err(error)),
            Ok(value) => {
                self.saw(at, Read::Serializable, &before, SeenRead::Value(key.to_vec(), value.clone()));
                let fires = Box::pin(self.engine[at].watch(key));
                self.watched.push(Watched::new(step, at, key, value, fires));
                Ok(())
            }
        }
    }

    async fn get_key(&mut self, at: usize, selector: &KeySelector, read: Read) -> Step {
        let Some(stored) = self.stored(at).await? else {
            return refused(self.engine[at].get_key(selector, read).await, &self.models[at]);
        };
        let found = self.engine[at].get_key(selector, read).await;
        let model = &mut self.models[at];
        match found {
            Err(error) if may_be_unreadable(model, &error, read) => {
                model.failed(&error);
                Ok(())
            }
            found => {
                let before = model.clone();
                let expected = model.get_key(&stored, selector, read);
                self.saw(at, read, &before, SeenRead::Key(selector.clone(), expected.clone()));
                same(found.map(|key| key.to_vec()), Ok(expected))
            }
        }
    }

    async fn get_range(&mut self, at: usize, request: &RangeRequest, read: Read) -> Step {
        let Some(stored) = self.stored(at).await? else {
            return refused(self.engine[at].get_range(request, read).await, &self.models[at]);
        };
        let found = self.engine[at].get_range(request, read).await;
        let model = &mut self.models[at];
        let batch = match found {
            Err(error) if may_be_unreadable(model, &error, read) => {
                model.failed(&error);
                return Ok(());
            }
            Err(error) => return Err(unexpected("the range")(error)),
            Ok(batch) => batch,
        };
        let (mut expected, ends) = model.rows(&stored, request, read);
        let rows: Vec<Row> = batch.rows.into_iter().map(|row| (row.key.to_vec(), row.value.to_vec())).collect();
        if request.limit > 0 {
            expected.truncate(request.limit);
        }
        let reached_limit = request.limit > 0 && rows.len() == request.limit;
        let left_open = request.target_bytes > 0 || request.limit == 0;
        if left_open && !expected.is_empty() {
            // The engine decides where a batch with a target or without a limit ends. It returns at least one row.
            if rows.is_empty() {
                return Err(("no rows".into(), format!("{expected:?}")));
            }
            if batch.more && !reached_limit {
                expected.truncate(rows.len());
            }
        } else if batch.more != reached_limit {
            return Err((format!("more: {}", batch.more), format!("limit reached: {reached_limit}")));
        }
        same(&rows, &expected)?;
        if let Some(range) = unreadable_within(model, request, &rows, batch.more, read) {
            return Err((format!("{rows:?}"), format!("{range} cannot be read: {ACCESSED_UNREADABLE}")));
        }
        if read == Read::Serializable {
            let before = model.clone();
            let keys: Vec<_> = rows.iter().map(|(key, _)| key.clone()).collect();
            model.range_conflict(request, &keys, batch.more, ends);
            // The conflict range covers the returned rows, not those beyond the end of the batch.
            let limit = if batch.more { rows.len() } else { request.limit };
            self.saw(at, read, &before, SeenRead::Rows(request.clone().limit(limit), rows));
        }
        Ok(())
    }

    async fn commit(&mut self, at: usize) -> Step {
        let engine = self.engine[at].clone();
        let expected = self.oracle.judge(&self.models[at]);
        let stamp = engine.get_versionstamp();
        let outcome = engine.commit().await;
        let version = engine.get_committed_version();
        if let Err(error) = &outcome {
            // Watches that no commit has armed: a commit refused by the client ends them with its error, or with the
            // reset that follows.
            if error.code() == NOT_COMMITTED {
                self.watches_fail(at, error.code());
            } else {
                self.watches_are_left_open(at);
            }
        }
        let step = match (&outcome, &expected) {
            (Ok(()), Ok(true)) => {
                let stamp = stamp.await.map_err(unexpected("the versionstamp"))?;
                let version = version.map_err(unexpected("the committed version"))?;
                same(stamp.version() as i64, version)?;
                if version <= self.oracle.newest() {
                    return Err((format!("committed at {version}"), format!("the newest is {}", self.oracle.newest())));
                }
                // The purpose of conflict ranges: each read would have the same result now.
                let now = self.oracle.at(i64::MAX);
                if self.serializable && !self.seen[at].iter().all(|seen| seen.holds(&now)) {
                    return Err(("committed".into(), "a read would find something else now".into()));
                }
                self.oracle.commit(&self.models[at], version, stamp);
                // A write without a conflict range may have come in between.
                let since = if self.serializable { version } else { self.models[at].read_version.unwrap_or(version) };
                self.watches_are_armed(at, since);
                Ok(())
            }
            (Ok(()), Ok(false)) => {
                self.watches_are_armed(at, self.models[at].read_version.unwrap_or(0));
                same(version.map_err(unexpected("the committed version"))?, -1)?;
                same(stamp.await.map_err(|error| error.code()).map(drop), Err(NO_COMMIT_VERSION))
            }
            _ if !self.models[at].refusals().is_empty() => refused(outcome, &self.models[at]),
            _ => same(outcome, expected.map(drop)),
        };
        engine.reset();
        self.anew(at);
        step
    }
}

/// Whether the oracle leaves this error of a range or selector read open: a pending versionstamp may be in its
/// way.
fn may_be_unreadable(model: &OracleTransaction, error: &Error, read: Read) -> bool {
    error.code() == ACCESSED_UNREADABLE && model.sees_own(read) && !model.unreadable().is_empty()
}

/// An unreadable range that a plain range read has certainly crossed.
fn unreadable_within(
    model: &OracleTransaction,
    request: &RangeRequest,
    rows: &[Row],
    more: bool,
    read: Read,
) -> Option<String> {
    let plain = |selector: &KeySelector| selector.offset == 1 && !selector.or_equal;
    if !plain(&request.begin) || !plain(&request.end) || !model.sees_own(read) {
        return None;
    }
    let (mut begin, mut end) = (request.begin.key.to_vec(), request.end.key.to_vec());
    if more {
        let last = rows.last().map(|(key, _)| key.clone())?;
        match request.direction {
            Direction::Forward => end = last,
            Direction::Reverse => begin = last,
        }
    }
    let met = model.unreadable().into_iter().find(|range| range.0 < end && begin < range.1 && begin < end);
    met.map(|range| format!("{range:?}"))
}
