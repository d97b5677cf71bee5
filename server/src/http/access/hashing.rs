//! Bounds what passwords cost: one thread hashes, and a password that was proven is not hashed again.
//!
//! ```text
//!   login ──► proven? ── yes ──► right
//!                │ no
//!                ▼
//!           queue, bounded ──► one thread: proven by now? else PBKDF2
//!                │ full, or waited too long
//!                ▼
//!              503
//! ```
//!
//! Failures are counted on that thread, so that guesses which arrive together are counted one by one, and those of clients
//! that do not wait for the answer too.
//!
//! Proofs are keyed digests of the password together with what is stored of it. So a changed password or a changed salt
//! needs no invalidation: nobody asks for the old proof any more.

use std::collections::HashSet;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::{HeaderValue, RETRY_AFTER};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::http::access::lockout::Attempt;
use crate::http::access::passwords::{Recipe, Verifier};
use crate::http::error::{ApiError, Result};

/// Maximum number of tasks that wait.
const MOST_WAITING: usize = 64;

/// Time after which a task that has not begun is refused, so that a login is answered within a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// Number of proofs in each of two generations.
const MOST_PROVEN: usize = 10_000;

type Task = Box<dyn FnOnce() + Send>;

/// The thread that hashes, started when it is first needed, and the proofs.
pub(crate) struct Hashing {
    queue: OnceLock<Option<SyncSender<Task>>>,
    proven: Arc<Mutex<Proven>>,
    /// The key of the proofs, of this process alone.
    key: [u8; 32],
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing")
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
        Hashing { queue: OnceLock::new(), proven: Arc::default(), key }
    }

    /// Whether this is the password. A wrong one counts as a failure of the attempt.
    pub(crate) async fn matches(&self, verifier: &Verifier, password: &str, attempt: &Attempt) -> Result<Match> {
        let proof = verifier.proof(&self.key, password);
        if lock(&self.proven).knows(&proof) {
            return Ok(Match::Known);
        }
        let (proven, verifier, password) = (self.proven.clone(), verifier.clone(), password.to_owned());
        let attempt = attempt.clone();
        let found = self.run(move || {
            // Of many equal logins at once, the first one is hashed.
            if lock(&proven).knows(&proof) {
                return Ok(Match::Known);
            }
            attempt.check()?;
            if !verifier.matches(&password) {
                attempt.failed();
                return Ok(Match::No);
            }
            lock(&proven).add(proof);
            Ok(Match::Now)
        });
        found.await?
    }

    /// Hashes a new password.
    pub(crate) async fn hash(&self, password: &str, recipe: Recipe) -> Result<Verifier> {
        let password = password.to_owned();
        self.run(move || Verifier::new(&password, recipe)).await?.map_err(|error| {
            tracing::error!(%error, "the system gives no random numbers");
            ApiError::internal()
        })
    }

    /// Hashes a password again, by another recipe.
    pub(crate) async fn upgrade(&self, verifier: &Verifier, password: &str, recipe: Recipe) -> Result<Verifier> {
        let (verifier, password) = (verifier.clone(), password.to_owned());
        self.run(move || verifier.upgraded(&password, recipe)).await
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let ((begin, begun), (answer, answered)) = (oneshot::channel(), oneshot::channel());
        let task: Task = Box::new(move || {
            // An error says that nobody waits any more.
            if begin.send(()).is_ok() {
                let _ = answer.send(work());
            }
        });
        let queue = self.queue.get_or_init(start).as_ref().ok_or_else(busy)?;
        queue.try_send(task).map_err(|_| busy())?;
        match tokio::time::timeout(PATIENCE, begun).await {
            Ok(Ok(())) => answered.await.map_err(|_| busy()),
            _ => Err(busy()),
        }
    }
}

/// Starts the thread. It ends with the sender.
fn start() -> Option<SyncSender<Task>> {
    let (queue, tasks): (_, Receiver<Task>) = sync_channel(MOST_WAITING);
    let work = move || tasks.into_iter().for_each(|task| task());
    match std::thread::Builder::new().name("couch-hash".to_owned()).spawn(work) {
        Ok(_) => Some(queue),
        Err(error) => {
            tracing::error!(%error, "the thread for passwords cannot be started");
            None
        }
    }
}

fn lock(proven: &Mutex<Proven>) -> MutexGuard<'_, Proven> {
    proven.lock()
}

fn busy() -> ApiError {
    let refusal = ApiError::unavailable("Too many passwords are to be checked at the same time. Try again.");
    refusal.with_header(RETRY_AFTER, HeaderValue::from_static("1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::access::lockout::Lockout;
    use crate::http::access::passwords::Prf;

    const QUICK: Recipe = Recipe { prf: Prf::Sha256, iterations: 2 };

    fn attempt() -> Attempt {
        Arc::new(Lockout::new([2; 32])).attempt("192.0.2.1".parse().unwrap(), "anna", "")
    }

    #[tokio::test]
    async fn guesses_that_arrive_together_are_counted_one_by_one() {
        let (hashing, attempt) = (Hashing::new([1; 32]), attempt());
        let verifier = hashing.hash("right", QUICK).await.unwrap();
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
        let verifier = hashing.hash("right", QUICK).await.unwrap();
        for (password, found) in
            [("wrong", Match::No), ("right", Match::Now), ("right", Match::Known), ("wrong", Match::No)]
        {
            assert_eq!(hashing.matches(&verifier, password, attempt).await.unwrap(), found);
        }
        assert_eq!(lock(&hashing.proven).newer.len(), 1);
        // With the thread occupied and the queue full, only the proven one is answered.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let queue = hashing.queue.get().unwrap().as_ref().unwrap();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let occupy = move || {
            begun.send(()).unwrap();
            held.recv().unwrap_or(());
        };
        queue.send(Box::new(occupy)).unwrap();
        has_begun.recv().unwrap();
        let waited = hashing.matches(&verifier, "wrong", attempt).await.unwrap_err();
        assert_eq!(waited.status(), 503, "its turn did not come in time");
        while queue.try_send(Box::new(|| {})).is_ok() {}
        assert_eq!(hashing.matches(&verifier, "right", attempt).await.unwrap(), Match::Known);
        let refused = hashing.matches(&verifier, "wrong", attempt).await.unwrap_err();
        assert_eq!(refused.status(), 503);
        let other = Verifier::new("right", QUICK).unwrap();
        assert_eq!(
            hashing.matches(&other, "right", attempt).await.unwrap_err().status(),
            503,
            "another salt is another proof"
        );
        drop(release);
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
