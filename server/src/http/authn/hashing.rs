//! Bounds the cost of passwords: one thread hashes, for each network of clients in turn. A proven password is not
//! hashed again.
//!
//! ```text
//!   login ──► proven? ── yes ──► right
//!                │ no
//!                ▼
//!           queues, bounded ──► one thread: proven by now? else PBKDF2; a network that guessed wrong rests
//!                │ full, or waited too long
//!                ▼
//!              503
//! ```
//!
//! Failures are counted on that thread one by one, however many guesses arrive together, and also if clients do not
//! wait for the answer.
//!
//! Proofs are keyed digests of the password and its stored form. So a changed password or salt needs no invalidation:
//! the old proof is never looked up again.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::header::{HeaderValue, RETRY_AFTER};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::http::authn::lockout::{Attempt, network};
use crate::http::authn::passwords::{Scheme, Verifier};
use crate::http::error::{ApiError, Result};

/// Maximum number of waiting tasks.
const MOST_WAITING: usize = 256;

/// Maximum number of waiting tasks for clients of one network.
const MOST_OF_ONE: usize = 64;

/// Time after which a task that has not started is refused, so that a login is answered within a second.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time after which a login is refused while it is being hashed, if it had to wait for others: it is answered within a
/// second. The result of the hash is kept, so the next attempt need not wait for it.
const LATEST: Duration = Duration::from_millis(900);

/// A task that starts within this time (after its network's cooldown) counts as not delayed by others.
const AT_ONCE: Duration = Duration::from_millis(20);

/// After a wrong password, its network waits this many times the hash's duration, so that its guesses take a tenth of a
/// processor.
const COOLDOWN: u32 = 9;

/// The longest cooldown: a correct password that waits for it is answered within a second.
const LONGEST_COOLDOWN: Duration = Duration::from_millis(300);

/// Number of proofs in each of two generations.
const MOST_PROVEN: usize = 10_000;

type Task = Box<dyn FnOnce() + Send>;

/// The thread that hashes, started when it is first needed, and the proofs.
pub(crate) struct Hashing {
    /// A message for each added task.
    thread: OnceLock<Option<Sender<()>>>,
    waiting: Arc<Mutex<Waiting>>,
    proven: Arc<Mutex<Proven>>,
    /// The key of the proofs, of this process alone.
    key: [u8; 32],
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing")
    }
}

/// The waiting tasks, by the networks of their clients. A network gets its next turn after one task of every other
/// network, so many logins from one network delay those from others by one task.
#[derive(Default)]
struct Waiting {
    tasks: BTreeMap<IpAddr, VecDeque<Task>>,
    /// The network whose task was taken last.
    last: Option<IpAddr>,
    /// The networks that guessed wrong, and the end of each cooldown.
    resting: BTreeMap<IpAddr, Instant>,
}

impl Waiting {
    /// The rest of the network's cooldown. `None` if too many tasks wait.
    fn add(&mut self, network: IpAddr, task: Task) -> Option<Duration> {
        let all: usize = self.tasks.values().map(VecDeque::len).sum();
        if all >= MOST_WAITING || self.tasks.get(&network).is_some_and(|own| own.len() >= MOST_OF_ONE) {
            return None;
        }
        self.tasks.entry(network).or_default().push_back(task);
        let until = self.resting.get(&network);
        Some(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())))
    }

    /// The next task of a network without a cooldown. If there is none, the time at which there may be one.
    fn next(&mut self, now: Instant) -> Result<Task, Option<Instant>> {
        self.resting.retain(|_, until| *until > now);
        let is_ready = |network: &&IpAddr| !self.resting.contains_key(*network);
        let from = |after| self.tasks.range((after, Unbounded)).map(|(network, _)| network).find(is_ready).copied();
        let after = self.last.and_then(|last| from(Excluded(last))).or_else(|| from(Unbounded));
        let Some(network) = after else { return Err(self.resting.values().min().copied()) };
        self.last = Some(network);
        let Some(own) = self.tasks.get_mut(&network) else { return Err(None) };
        let task = own.pop_front();
        if own.is_empty() {
            self.tasks.remove(&network);
        }
        task.ok_or(None)
    }
}

/// Proofs in two generations: when the newer is full it becomes the older, and the older is forgotten.
#[derive(Default)]
struct Proven {
    newer: HashSet<[u8; 32]>,
    older: HashSet<[u8; 32]>,
}

impl Proven {
    fn knows(&mut self, proof: &[u8; 32]) -> bool {
        if self.older.remove(proof) {
            self.add(*proof);
        }
        self.newer.contains(proof)
    }

    fn add(&mut self, proof: [u8; 32]) {
        if self.newer.len() >= MOST_PROVEN {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(proof);
    }
}

/// Whether a password is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    No,
    /// It was proven before.
    Known,
    /// It was hashed.
    Now,
}

impl Hashing {
    /// `key` is random.
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Hashing { thread: OnceLock::new(), waiting: Arc::default(), proven: Arc::default(), key }
    }

    /// Whether this is the password. A wrong one counts as a failure of the attempt.
    pub(crate) async fn matches(&self, verifier: &Verifier, password: &str, attempt: &Attempt) -> Result<Match> {
        if self.knows(verifier, password) {
            return Ok(Match::Known);
        }
        let proof = verifier.proof(&self.key, password);
        let (proven, waiting) = (self.proven.clone(), self.waiting.clone());
        let (verifier, password) = (verifier.clone(), password.to_owned());
        let (network, attempt) = (attempt.network, attempt.clone());
        let found = self.run(network, Some(LATEST), move || {
            // If many equal logins arrive at once, only the first one is hashed.
            if proven.lock().knows(&proof) {
                return Ok(Match::Known);
            }
            attempt.check()?;
            let began = Instant::now();
            if !verifier.matches(&password) {
                attempt.failed();
                let rest = (COOLDOWN * began.elapsed()).min(LONGEST_COOLDOWN);
                waiting.lock().resting.insert(network, Instant::now() + rest);
                return Ok(Match::No);
            }
            proven.lock().add(proof);
            Ok(Match::Now)
        });
        found.await?
    }

    /// Hashes a new password.
    pub(crate) async fn hash(&self, address: IpAddr, password: &str, scheme: Scheme) -> Result<Verifier> {
        let password = password.to_owned();
        self.run(network(address), None, move || Verifier::new(&password, scheme)).await?.map_err(|error| {
            tracing::error!(%error, "the system's random number generator failed");
            ApiError::internal()
        })
    }

    /// Hashes a proven password again, by another scheme. It is proven for the new hash too.
    ///
    /// # Errors
    /// 503 while other passwords wait: a new scheme for all users delays a login by one hash at most.
    pub(crate) async fn upgrade(
        &self,
        address: IpAddr,
        verifier: &Verifier,
        password: &str,
        scheme: Scheme,
    ) -> Result<Verifier> {
        if !self.waiting.lock().tasks.is_empty() {
            return Err(busy());
        }
        let (verifier, own) = (verifier.clone(), password.to_owned());
        let upgraded = self.run(network(address), None, move || verifier.upgraded(&own, scheme)).await?;
        self.proven.lock().add(upgraded.proof(&self.key, password));
        Ok(upgraded)
    }

    /// Whether this password was proven, so that it need not be hashed.
    pub(crate) fn knows(&self, verifier: &Verifier, password: &str) -> bool {
        self.proven.lock().knows(&verifier.proof(&self.key, password))
    }

    /// Runs a task on the thread. With `latest` the caller waits no longer than that for a task that others delayed.
    async fn run<T: Send + 'static>(
        &self,
        network: IpAddr,
        latest: Option<Duration>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let ((begin, begun), (answer, answered)) = (oneshot::channel(), oneshot::channel());
        let task: Task = Box::new(move || {
            // An error means that the client no longer waits.
            if begin.send(()).is_ok() {
                let _ = answer.send(work());
            }
        });
        let thread = self.thread.get_or_init(|| start(self.waiting.clone())).as_ref().ok_or_else(busy)?;
        let rest = self.waiting.lock().add(network, task).ok_or_else(busy)?;
        thread.send(()).map_err(|_| busy())?;
        let added = Instant::now();
        let Ok(Ok(())) = tokio::time::timeout(QUEUE_TIMEOUT, begun).await else { return Err(busy()) };
        let waited = added.elapsed();
        let answer = match latest.filter(|_| waited > rest + AT_ONCE) {
            None => answered.await,
            Some(latest) => {
                let left = latest.saturating_sub(waited);
                tokio::time::timeout(left, answered).await.map_err(|_| busy())?
            }
        };
        answer.map_err(|_| busy())
    }
}

/// Starts the thread. It ends with the sender.
fn start(waiting: Arc<Mutex<Waiting>>) -> Option<Sender<()>> {
    let (thread, added) = channel();
    let work = move || {
        loop {
            let next = waiting.lock().next(Instant::now());
            let until = match next {
                Ok(task) => {
                    task();
                    continue;
                }
                Err(until) => until,
            };
            let woken = match until {
                None => added.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => added.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            // One look is enough for all added tasks.
            added.try_iter().for_each(|()| ());
        }
    };
    match std::thread::Builder::new().name("couch-hash".to_owned()).spawn(work) {
        Ok(_) => Some(thread),
        Err(error) => {
            tracing::error!(%error, "cannot start the thread for passwords");
            None
        }
    }
}

fn busy() -> ApiError {
    let refusal = ApiError::unavailable("Too many logins are waiting. Try again shortly.");
    refusal.with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::lockout::{Lockout, Rules};
    use crate::http::authn::passwords::Prf;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const QUICK: Scheme = Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: 2 };

    fn attempt() -> Attempt {
        Arc::new(Lockout::new([2; 32])).attempt(Rules::default(), HERE, "anna", "")
    }

    #[tokio::test]
    async fn a_network_rests_after_a_wrong_password() {
        let (hashing, attempt) = (Hashing::new([1; 32]), &attempt());
        let slow = Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: 10_000 };
        let verifier = hashing.hash(HERE, "right", slow).await.unwrap();
        assert_eq!(hashing.matches(&verifier, "right", attempt).await.unwrap(), Match::Now);
        assert!(hashing.waiting.lock().resting.is_empty(), "after a right one it does not");
        let took = |_| {
            let began = Instant::now();
            assert!(!verifier.matches("wrong"));
            began.elapsed()
        };
        let quickest = (0..5).map(took).min().unwrap();
        let began = Instant::now();
        assert_eq!(hashing.matches(&verifier, "wrong", attempt).await.unwrap(), Match::No);
        let until = hashing.waiting.lock().resting[&attempt.network];
        assert!(until - began > 2 * quickest, "{:?} after a hash of {quickest:?}", until - began);
        let next = hashing.run(attempt.network, None, Instant::now).await.unwrap();
        assert!(next >= until);
    }

    #[test]
    fn others_do_not_wait_for_a_network_that_rests() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let [one, other]: [IpAddr; 2] = [1, 2].map(|last| std::net::Ipv4Addr::new(192, 0, 2, last).into());
        let (done, order) = channel();
        for network in [one, one, other, other] {
            let done = done.clone();
            assert!(waiting.add(network, Box::new(move || done.send(network).unwrap())).is_some());
        }
        let end = now + LONGEST_COOLDOWN;
        waiting.resting.insert(one, end);
        (0..2).for_each(|_| waiting.next(now).unwrap()());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [other, other]);
        assert_eq!(waiting.next(now).err(), Some(Some(end)));
        (0..2).for_each(|_| waiting.next(end).unwrap()());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [one, one]);
        assert_eq!(waiting.next(end).err(), Some(None));
    }

    #[tokio::test]
    async fn guesses_that_arrive_together_are_counted_one_by_one() {
        let (hashing, attempt) = (Hashing::new([1; 32]), attempt());
        let verifier = hashing.hash(HERE, "right", QUICK).await.unwrap();
        let guess = |number: usize| {
            let (hashing, verifier, attempt) = (&hashing, &verifier, &attempt);
            async move { hashing.matches(verifier, &format!("wrong {number}"), attempt).await }
        };
        let found = futures_util::future::join_all((0..20).map(guess)).await;
        assert_eq!(found.iter().filter(|found| matches!(found, Ok(Match::No))).count(), 5);
        assert!(found.iter().flat_map(|found| found.as_ref().err()).all(|refused| refused.status() == 403));
    }

    #[tokio::test]
    async fn a_proven_password_is_not_hashed_again_and_another_is_not_proven() {
        let (hashing, attempt) = (Hashing::new([1; 32]), &attempt());
        let verifier = hashing.hash(HERE, "right", QUICK).await.unwrap();
        for (password, found) in
            [("wrong", Match::No), ("right", Match::Now), ("right", Match::Known), ("wrong", Match::No)]
        {
            assert_eq!(hashing.matches(&verifier, password, attempt).await.unwrap(), found);
        }
        assert_eq!(hashing.proven.lock().newer.len(), 1);
        // With the thread occupied and the queue full, only the proven one is answered.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let occupied = hashing.run(HERE, None, move || {
            begun.send(()).unwrap();
            held.recv().unwrap_or(());
        });
        let check = async {
            has_begun.await.unwrap();
            let waited = hashing.matches(&verifier, "wrong", attempt).await.unwrap_err();
            assert_eq!(waited.status(), 503, "its turn did not come in time");
            while hashing.waiting.lock().add(attempt.network, Box::new(|| {})).is_some() {}
            assert_eq!(hashing.matches(&verifier, "right", attempt).await.unwrap(), Match::Known);
            let refused = hashing.matches(&verifier, "wrong", attempt).await.unwrap_err();
            assert_eq!(refused.status(), 503);
            let other = Verifier::new("right", QUICK).unwrap();
            let refused = hashing.matches(&other, "right", attempt).await.unwrap_err();
            assert_eq!(refused.status(), 503, "another salt is another proof");
            release.send(()).unwrap();
        };
        let (occupied, ()) = tokio::join!(occupied, check);
        occupied.unwrap();
    }

    #[tokio::test]
    async fn a_task_that_had_to_wait_is_refused_in_time_and_goes_on() {
        let hashing = Hashing::new([1; 32]);
        let (soon, late) = (Some(Duration::from_millis(100)), Duration::from_millis(200));
        hashing.run(HERE, soon, move || std::thread::sleep(late)).await.expect("it began at once");
        let (done, is_done) = std::sync::mpsc::channel();
        let before = hashing.run(HERE, None, || std::thread::sleep(3 * AT_ONCE));
        let waiting = hashing.run(HERE, soon, move || {
            std::thread::sleep(late);
            done.send(()).unwrap();
        });
        let (before, refused) = tokio::join!(before, waiting);
        before.unwrap();
        assert_eq!(refused.unwrap_err().status(), 503);
        is_done.recv().expect("it was done all the same");
    }

    #[tokio::test]
    async fn a_task_that_waited_for_the_rest_of_its_own_network_is_answered() {
        let hashing = Hashing::new([1; 32]);
        hashing.waiting.lock().resting.insert(HERE, Instant::now() + 5 * AT_ONCE);
        let answer = hashing.run(HERE, Some(4 * AT_ONCE), || std::thread::sleep(5 * AT_ONCE)).await;
        answer.expect("it waited for no other");
    }

    #[tokio::test]
    async fn a_password_is_stored_by_another_scheme_while_none_waits_and_stays_proven() {
        let (hashing, attempt) = (Hashing::new([1; 32]), &attempt());
        let (verifier, other) = (hashing.hash(HERE, "right", QUICK).await.unwrap(), Scheme::Simple);
        assert!(!hashing.knows(&verifier, "right"));
        let upgraded = hashing.upgrade(HERE, &verifier, "right", other).await.unwrap();
        assert!(upgraded.is_by(other) && !hashing.knows(&upgraded, "wrong"));
        assert_eq!(hashing.matches(&upgraded, "right", attempt).await.unwrap(), Match::Known);
        hashing.waiting.lock().add(attempt.network, Box::new(|| {}));
        assert_eq!(hashing.upgrade(HERE, &verifier, "right", other).await.unwrap_err().status(), 503);
    }

    #[test]
    fn each_network_has_its_turn_and_its_share() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let (done, order) = channel();
        let networks: [IpAddr; 3] = [1, 2, 3].map(|last| std::net::Ipv4Addr::new(192, 0, 2, last).into());
        let mut add = |network: usize| {
            let done = done.clone();
            waiting.add(networks[network], Box::new(move || done.send(network).unwrap())).is_some()
        };
        assert!((0..MOST_OF_ONE).all(|_| add(1)) && !add(1), "one network has a part of the queue");
        assert!(add(0) && add(2) && add(2));
        for _ in 0..6 {
            waiting.next(now).unwrap()();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 1, 2, 1]);
        while let Ok(task) = waiting.next(now) {
            task();
        }
        assert!(waiting.tasks.is_empty());
    }

    #[test]
    fn proofs_are_forgotten_by_generations() {
        let mut proven = Proven::default();
        let proof = |number: usize| {
            let mut proof = [0; 32];
            proof[..8].copy_from_slice(&number.to_be_bytes());
            proof
        };
        for number in 0..2 * MOST_PROVEN {
            proven.add(proof(number));
            assert!(proven.knows(&proof(0)), "one that is asked for stays");
        }
        assert!(proven.newer.len() <= MOST_PROVEN && proven.older.len() <= MOST_PROVEN);
        for number in 2 * MOST_PROVEN..5 * MOST_PROVEN {
            proven.add(proof(number));
        }
        assert!(!proven.knows(&proof(0)));
    }
}
