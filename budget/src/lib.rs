//! The memory of a program, as one budget of bytes. Code that keeps bytes from outside reserves them here first.
//!
//! ```text
//!  Budget ── part of an owner ── take, grow ──► Held ── dropped ──► the next one that waits and fits
//!                                  │
//!                                  └── waits; after its timeout: Full
//! ```
//!
//! Two rules decide whether a reservation is granted:
//!
//! * **An owner holds at most three times what is free.** A single owner may hold three quarters of the budget, and two
//!   owners three sevenths each. Something is always left for one more, so the number of owners need not be known.
//!   (This is how switches share their buffers: A. K. Choudhury and E. L. Hahne, *Dynamic queue length thresholds for
//!   shared-memory packet switches*, 1998.) An owner that holds little may always take a small reservation, if it is
//!   free.
//! * **A reservation whose end depends on somebody outside is granted only while less than half of the budget is
//!   taken** ([`Use::Slow`]): a body that is being received, an answer that is being read. The other half is for work
//!   that ends by itself ([`Use::Quick`]). So such work never waits for clients that stopped.
//!
//! A reservation that grows keeps its bytes while it waits. Such a wait is never endless: it ends with [`Full`], and
//! then its owner gives everything back.
//!
//! Bytes that exist already are [counted](Held::count) without a wait. They may exceed the budget; then nothing is
//! granted until enough is given back. Callers that count keep the excess small: they [wait for room](Budget::room)
//! before they make more.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// An owner may hold this many times what is free.
const TIMES_FREE: usize = 3;

/// An owner that holds at most this fraction of the budget may take any free bytes.
const SMALL_PART: usize = 256;

/// The holder of reserved bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A user that has logged in.
    User(Arc<str>),
    /// Clients without a login, at this address.
    Address(IpAddr),
    /// Work of the program itself.
    Work(&'static str),
}

/// The event that ends a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It ends by itself.
    Quick,
    /// It ends when a client or a peer continues.
    Slow,
}

/// There was no room for a reservation in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for this at the moment")]
pub struct Full;

/// A budget. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    total: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    most: usize,
    /// Number of bytes that each owner holds; never zero.
    held: HashMap<Owner, usize>,
    /// Reservations that grow come first, then the others. Each group is in the order of arrival.
    waiting: Vec<Waiting>,
}

struct Waiting {
    part: Part,
    bytes: usize,
    kind: Use,
    grows: bool,
    granted: oneshot::Sender<Held>,
}

/// The budget as one owner sees it.
#[derive(Clone)]
pub struct Part {
    budget: Budget,
    owner: Owner,
}

/// Reserved bytes. Dropping it gives them back.
pub struct Held {
    part: Part,
    bytes: usize,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(total: usize) -> Budget {
        Budget(Arc::new(Shared { total, state: Mutex::default() }))
    }

    /// Its size in bytes.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// Number of bytes that are taken.
    pub fn used(&self) -> usize {
        self.0.state.lock().used
    }

    /// The largest number of bytes that were taken at any time.
    pub fn most_used(&self) -> usize {
        self.0.state.lock().most
    }

    /// Number of reservations that wait.
    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting.iter().filter(|one| !one.granted.is_closed()).count()
    }

    /// The largest possible reservation: for an owner without others, while nobody else holds anything.
    pub fn most_of_one(&self) -> usize {
        self.0.total / (TIMES_FREE + 1) * TIMES_FREE
    }

    /// The budget as this owner sees it.
    pub fn part(&self, owner: Owner) -> Part {
        Part { budget: self.clone(), owner }
    }

    /// Waits until a byte is free, for work whose size is known only at its end.
    ///
    /// # Errors
    /// [`Full`], after this timeout.
    pub async fn room(&self, timeout: Duration) -> Result<(), Full> {
        if self.used() < self.0.total {
            return Ok(());
        }
        self.part(Owner::Work("room")).take(1, Use::Quick, timeout).await.map(drop)
    }

    fn fits(&self, state: &State, owner: &Owner, bytes: usize, kind: Use) -> bool {
        let total = match kind {
            Use::Quick => self.0.total,
            Use::Slow => self.0.total / 2,
        };
        let Some(free) = total.checked_sub(state.used).and_then(|free| free.checked_sub(bytes)) else { return false };
        let holds = state.held.get(owner).copied().unwrap_or(0).saturating_add(bytes);
        holds <= self.0.total / SMALL_PART || holds <= free.saturating_mul(TIMES_FREE)
    }

    fn give(&self, state: &mut State, owner: &Owner, bytes: usize) -> Held {
        state.used = state.used.saturating_add(bytes);
        state.most = state.most.max(state.used);
        if bytes > 0 {
            let held = state.held.entry(owner.clone()).or_default();
            *held = held.saturating_add(bytes);
        }
        Held { part: self.part(owner.clone()), bytes }
    }

    fn take_back(&self, owner: &Owner, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut granted = Vec::new();
        let mut state = self.0.state.lock();
        state.used = state.used.saturating_sub(bytes);
        if let Some(held) = state.held.get_mut(owner) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                state.held.remove(owner);
            }
        }
        // Owners with a reservation that must wait longer. Their later ones wait too: otherwise small reservations
        // would always overtake a large one.
        let mut behind = HashSet::new();
        for next in std::mem::take(&mut state.waiting) {
            if next.granted.is_closed() {
                continue;
            }
            let owner = &next.part.owner;
            if (next.grows || !behind.contains(owner)) && self.fits(&state, owner, next.bytes, next.kind) {
                let held = self.give(&mut state, owner, next.bytes);
                granted.push((next.granted, held));
            } else {
                if !next.grows {
                    behind.insert(owner.clone());
                }
                state.waiting.push(next);
            }
        }
        drop(state);
        for (asking, held) in granted {
            // If it has stopped waiting, this gives the bytes back.
            drop(asking.send(held));
        }
    }
}

impl Part {
    /// The budget of which it is a part.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A reservation of nothing, which may grow.
    pub fn nothing(&self) -> Held {
        Held { part: self.clone(), bytes: 0 }
    }

    /// Reserves bytes if there is room at once, and the same owner has no waiting reservation.
    pub fn try_take(&self, bytes: usize, kind: Use) -> Option<Held> {
        self.take_now(&mut self.budget.0.state.lock(), bytes, kind, false)
    }

    /// Reserves bytes. Waits until there is room for them.
    ///
    /// # Errors
    /// [`Full`], after this timeout. At once, if so many bytes can never be reserved.
    pub async fn take(&self, bytes: usize, kind: Use, timeout: Duration) -> Result<Held, Full> {
        self.wait(bytes, kind, timeout, false).await
    }

    fn take_now(&self, state: &mut State, bytes: usize, kind: Use, grows: bool) -> Option<Held> {
        let waits = |one: &Waiting| !one.grows && one.part.owner == self.owner && !one.granted.is_closed();
        let is_behind = !grows && state.waiting.iter().any(waits);
        (!is_behind && self.budget.fits(state, &self.owner, bytes, kind))
            .then(|| self.budget.give(state, &self.owner, bytes))
    }

    /// `grows`: the bytes are added to a reservation that the owner has. They do not wait for the owner's other
    /// reservations, which may wait for that one.
    async fn wait(&self, bytes: usize, kind: Use, timeout: Duration, grows: bool) -> Result<Held, Full> {
        if bytes > self.budget.most_of_one() {
            return Err(Full);
        }
        let (granted, grant) = oneshot::channel();
        {
            let mut state = self.budget.0.state.lock();
            if let Some(held) = self.take_now(&mut state, bytes, kind, grows) {
                return Ok(held);
            }
            state.waiting.retain(|one| !one.granted.is_closed());
            let end = state.waiting.len();
            let place = state.waiting.iter().position(|one| grows && !one.grows).unwrap_or(end);
            state.waiting.insert(place, Waiting { part: self.clone(), bytes, kind, grows, granted });
        }
        match tokio::time::timeout(timeout, grant).await {
            Ok(Ok(held)) => Ok(held),
            _ => Err(Full),
        }
    }
}

impl Held {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part of the budget that it comes from.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Makes it at least this large. Waits until there is room.
    ///
    /// # Errors
    /// [`Full`], as in [`Part::take`]. Then the reservation is unchanged.
    pub async fn grow(&mut self, to: usize, kind: Use, timeout: Duration) -> Result<(), Full> {
        let Some(more) = to.checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        if to > self.part.budget.most_of_one() {
            return Err(Full);
        }
        let taken = self.part.wait(more, kind, timeout, true).await?;
        self.add(taken);
        Ok(())
    }

    /// Makes it exactly this large, for bytes that exist.
    pub fn count(&mut self, to: usize) {
        match to.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => {
                let budget = &self.part.budget;
                let taken = budget.give(&mut budget.0.state.lock(), &self.part.owner, more);
                self.add(taken);
            }
            None => {
                let back = std::mem::replace(&mut self.bytes, to) - to;
                self.part.budget.take_back(&self.part.owner, back);
            }
        }
    }

    /// Adds another reservation of the same owner.
    pub fn add(&mut self, mut taken: Held) {
        self.bytes = self.bytes.saturating_add(std::mem::take(&mut taken.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.part.budget.take_back(&self.part.owner, self.bytes);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("total", &self.0.total).field("used", &self.used()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
