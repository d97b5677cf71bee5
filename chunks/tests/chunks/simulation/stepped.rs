//! A document store under control of a scheduler: every operation of every actor waits for its turn, so one seed
//! decides the order of all of them, whatever the engine below. The seed also decides failures and interruptions.
//! The store can have planted faults.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use chunks::store::{
    Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, Refusal, StoreResult, Written,
};
use chunks::{StoreError, StoreErrorKind, TimedEnvironment};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A planted fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Collections without a grace period.
    NoGrace,
    /// Data documents are written after the indexes that name them.
    IndexFirst,
    /// A conflict on an index or a data document is overwritten.
    LastWriterWins,
}

/// State shared by all actors: whose turn it is, the clock, the dice.
pub(crate) struct Stage {
    state: Mutex<State>,
}

struct State {
    now_ms: u64,
    dice: StdRng,
    waiting: HashSet<usize>,
    turn: Option<usize>,
    /// A hash of all events, to compare runs.
    trace: u64,
    /// Number of steps.
    steps: u64,
    is_rough: bool,
    /// Remaining failures of an actor: some end at once, some last longer than all retries.
    outages: HashMap<usize, u64>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}

impl Stage {
    pub(crate) fn new(seed: u64) -> Arc<Stage> {
        let state = State {
            now_ms: 1_795_000_000_000,
            dice: StdRng::seed_from_u64(seed),
            waiting: HashSet::new(),
            turn: None,
            trace: seed,
            steps: 0,
            is_rough: false,
            outages: HashMap::new(),
        };
        Arc::new(Stage { state: Mutex::new(state) })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    pub(crate) fn roll(&self, below: u64) -> u64 {
        self.with(|state| state.dice.random_range(0..below))
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.with(|state| state.now_ms += ms);
    }

    pub(crate) fn set_rough(&self, is_rough: bool) {
        self.with(|state| state.is_rough = is_rough);
    }

    pub(crate) fn trace(&self) -> u64 {
        self.with(|state| state.trace)
    }

    /// Number of steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.with(|state| state.steps)
    }

    pub(crate) fn note(&self, what: &str) {
        self.with(|state| {
            for byte in what.bytes() {
                state.trace = state.trace.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(byte);
            }
        });
    }

    /// Waits for the actor's turn. Outside a play (`None`) it never waits.
    pub(crate) async fn step(&self, actor: Option<usize>) {
        let Some(actor) = actor else { return };
        let mut asked = false;
        poll_fn(|context| {
            // Several requests of an actor may be in progress. The next poll finds out whose turn it is.
            context.waker().wake_by_ref();
            self.with(|state| {
                if asked && state.turn == Some(actor) {
                    state.turn = None;
                    state.waiting.remove(&actor);
                    return Poll::Ready(());
                }
                asked = true;
                state.waiting.insert(actor);
                Poll::Pending
            })
        })
        .await;
    }

    /// Lets one actor run until it waits again. Returns whether it has ended.
    pub(crate) async fn drive(&self, actor: usize, future: &mut BoxFuture<'_, ()>) -> bool {
        self.with(|state| {
            state.steps += 1;
            if state.waiting.contains(&actor) {
                state.turn = Some(actor);
            }
        });
        poll_fn(|context| match future.poll_unpin(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => {
                let waits = self.with(|state| state.turn.is_none() && state.waiting.contains(&actor));
                if waits { Poll::Ready(false) } else { Poll::Pending }
            }
        })
        .await
    }

    pub(crate) fn forget(&self, actor: usize) {
        self.with(|state| {
            state.waiting.remove(&actor);
            state.outages.remove(&actor);
            state.turn = None;
        });
    }

    /// Whether an operation of the actor fails now.
    pub(crate) fn fails(&self, actor: usize) -> bool {
        self.with(|state| {
            if let Some(left) = state.outages.get_mut(&actor).filter(|left| **left > 0) {
                *left -= 1;
                return true;
            }
            let fails = state.is_rough && state.dice.random_range(0..60) == 0;
            if fails {
                let more = [0, 0, 1, 4, 40][state.dice.random_range(0..5)];
                state.outages.insert(actor, more);
            }
            fails
        })
    }
}

/// Time and dice of an actor.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) stage: Arc<Stage>,
    pub(crate) actor: Option<usize>,
}

impl model::Environment for Played {
    fn now_ms(&self) -> u64 {
        self.stage.with(|state| state.now_ms)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.stage.with(|state| state.dice.fill(bytes));
    }
}

impl TimedEnvironment for Played {
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        let (stage, actor) = (self.stage.clone(), self.actor);
        async move { stage.step(actor).await }.boxed()
    }
}

/// A store as one actor sees it.
#[derive(Debug)]
pub(crate) struct Stepped {
    pub(crate) inner: Arc<dyn DocumentStore>,
    pub(crate) played: Played,
    pub(crate) fault: Fault,
    /// Data documents whose writes are delayed by a fault.
    pub(crate) held: Mutex<Vec<Edit>>,
}

impl Stepped {
    /// Before an operation: waits for the turn, and may fail.
    async fn before(&self, what: &str) -> StoreResult<()> {
        self.played.stage.step(self.played.actor).await;
        self.played.stage.note(what);
        self.fail("not done")
    }

    /// After an operation: the actor may be interrupted here, or get no answer.
    async fn after(&self) -> StoreResult<()> {
        self.played.stage.step(self.played.actor).await;
        self.fail("done, perhaps")
    }

    fn fail(&self, sentence: &str) -> StoreResult<()> {
        match self.played.actor {
            Some(actor) if self.played.stage.fails(actor) => {
                Err(StoreError::new(StoreErrorKind::Unavailable, sentence))
            }
            _ => Ok(()),
        }
    }

    async fn overwrite(&self, edit: Edit) -> StoreResult<Written> {
        let leaves = self.inner.leaves(std::slice::from_ref(&edit.id), false).await?.pop().unwrap_or_default();
        let rev = leaves.iter().find(|leaf| !leaf.deleted).map(|leaf| leaf.rev.clone());
        Ok(self.inner.write(vec![Edit { rev, ..edit }]).await?.pop().unwrap())
    }
}

#[async_trait]
impl DocumentStore for Stepped {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.before("leaves").await?;
        let mut leaves = self.inner.leaves(ids, with_ancestors).await?;
        if self.fault == Fault::NoGrace {
            for leaf in leaves.iter_mut().flatten() {
                if let Some(grace) = leaf.body.get_mut("grace_ms") {
                    *grace = 1.into();
                }
            }
        }
        Ok(leaves)
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.before("local").await?;
        self.inner.local(id).await
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.before("revs").await?;
        let revs = self.inner.revs(ids).await?;
        let held = self.held.lock().unwrap();
        let is_held = |id: &String| held.iter().any(|edit| edit.id == *id);
        Ok(ids.iter().zip(revs).map(|(id, rev)| rev.or_else(|| is_held(id).then(String::new))).collect())
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        self.before(&format!("write {:?}", edits.iter().map(|edit| &edit.id).collect::<Vec<_>>())).await?;
        let is = |edits: &[Edit], prefix: &str| edits.iter().any(|edit| edit.id.starts_with(prefix) && !edit.deleted);
        if self.fault == Fault::IndexFirst && is(&edits, "dat:") {
            let fake = edits.iter().map(|_| Ok("1-fake".to_owned())).collect();
            self.held.lock().unwrap().extend(edits);
            return Ok(fake);
        }
        let is_index = is(&edits, "idx:");
        let mut written = self.inner.write(edits.clone()).await?;
        if self.fault == Fault::LastWriterWins {
            for (edit, written) in edits.into_iter().zip(&mut written) {
                let is_ours = edit.id.starts_with("idx:") || edit.id.starts_with("dat:");
                if *written == Err(Refusal::Conflict) && is_ours && !edit.deleted {
                    *written = self.overwrite(edit).await?;
                }
            }
        }
        self.after().await?;
        let late = if is_index { std::mem::take(&mut *self.held.lock().unwrap()) } else { Vec::new() };
        if !late.is_empty() {
            self.inner.write(late).await?;
        }
        Ok(written)
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.before("graft").await?;
        self.inner.graft(leaves).await?;
        self.after().await
    }

    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.before("list").await?;
        self.inner.list(range).await
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.before("changes").await?;
        self.inner.changes(since, limit).await
    }

    async fn figures(&self) -> StoreResult<Figures> {
        self.before("figures").await?;
        self.inner.figures().await
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.inner.takes(bytes).await
    }
}
