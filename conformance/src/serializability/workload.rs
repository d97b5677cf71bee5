//! Real threads that append to lists and read them, and the recording of their results.
//!
//! A list is one value, with eight bytes for each element. Appends are made in both ways that a layer would use:
//! by reading and setting, which conflicts, and by `AppendIfFits`, which does not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kv_api::{Database, Error, MutationType, RangeRequest, Read, Transaction, TransactionExt};
use parking_lot::Mutex;

use crate::random::Random;

use super::history::{Element, History, Operation, Outcome, Recorded};

/// Size of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Number of concurrent threads.
    pub threads: u32,
    /// Number of transactions of each thread.
    pub transactions: u32,
    /// Number of shared keys: the fewer, the more conflicts.
    pub keys: u32,
    /// Maximum number of operations of a transaction.
    pub operations: u32,
    /// Seed of the choices. It does not determine the history, since threads interleave.
    pub seed: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Workload { threads: 4, transactions: 250, keys: 6, operations: 5, seed: 0 }
    }
}

/// Records workloads that run one after the other as one history, for example before and after a reopen.
#[derive(Debug, Default)]
pub struct Recorder {
    recorded: Mutex<Vec<Recorded>>,
    clock: AtomicU64,
    elements: AtomicU64,
}

impl Recorder {
    /// Runs a workload under `prefix`, which nothing else may touch, and records it.
    ///
    /// # Errors
    ///
    /// Errors of the engine that are not outcomes of transactions, such as an I/O error.
    pub fn run<D: Database>(&self, database: &D, prefix: &[u8], workload: Workload) -> Result<(), Error> {
        // A second run must not repeat the choices of the first.
        let runs = self.recorded.lock().len() as u64;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workload.threads)
                .map(|thread| {
                    let seed = workload.seed.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(thread));
                    let random = Random::new(seed.wrapping_add(runs));
                    let mut client = Client { database, prefix, workload, random, recorder: self };
                    scope.spawn(move || {
                        for _ in 0..workload.transactions {
                            let transaction = crate::runtime::block_on(client.run_one())?;
                            self.recorded.lock().push(transaction);
                        }
                        Ok::<(), Error>(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"))
        })
    }

    /// The history, with the final lists.
    ///
    /// # Errors
    ///
    /// An error while the lists are read.
    pub async fn finish<D: Database>(self, database: &D, prefix: &[u8]) -> Result<History, Error> {
        let last = read_all(database, prefix).await?;
        Ok(History { transactions: self.recorded.into_inner(), last })
    }
}

/// Runs one workload under `prefix`, which nothing else may touch, and records it.
///
/// # Errors
///
/// As for [`Recorder::run`].
pub fn record<D: Database>(database: &D, prefix: &[u8], workload: Workload) -> Result<History, Error> {
    let recorder = Recorder::default();
    recorder.run(database, prefix, workload)?;
    crate::runtime::block_on(recorder.finish(database, prefix))
}

struct Client<'a, D> {
    database: &'a D,
    prefix: &'a [u8],
    workload: Workload,
    random: Random,
    recorder: &'a Recorder,
}

impl<D: Database> Client<'_, D> {
    async fn run_one(&mut self) -> Result<Recorded, Error> {
        let begun = self.recorder.clock.fetch_add(1, Ordering::SeqCst);
        let mut operations = Vec::new();
        let failure = self.attempt(&mut operations).await.err();
        let ended = self.recorder.clock.fetch_add(1, Ordering::SeqCst);
        let outcome = match failure {
            None => Outcome::Committed,
            Some(error) if error.is_maybe_committed() => Outcome::Unknown,
            Some(error) if error.is_retryable_not_committed() => Outcome::Failed,
            Some(error) => return Err(error),
        };
        Ok(Recorded { operations, outcome, begun, ended })
    }

    async fn attempt(&mut self, operations: &mut Vec<Operation>) -> Result<(), Error> {
        let transaction = self.database.begin()?;
        for _ in 0..=self.random.below(u64::from(self.workload.operations.max(1))) {
            let key = self.random.below(u64::from(self.workload.keys)) as u32;
            let name = list_key(self.prefix, key);
            match self.random.below(4) {
                0 | 1 => {
                    let list = read_list(&transaction, &name).await?;
                    operations.push(Operation::Read { key, list });
                }
                2 => {
                    let mut list = read_list(&transaction, &name).await?;
                    operations.push(Operation::Read { key, list: list.clone() });
                    let element = self.recorder.elements.fetch_add(1, Ordering::Relaxed);
                    list.push(element);
                    transaction.set(&name, encode(&list));
                    operations.push(Operation::Append { key, element });
                }
                _ => {
                    let element = self.recorder.elements.fetch_add(1, Ordering::Relaxed);
                    transaction.atomic_op(MutationType::AppendIfFits, &name, encode(&[element]));
                    operations.push(Operation::Append { key, element });
                }
            }
            // Lets other threads run between the operations, even on a single core.
            if self.random.chance(0.3) {
                std::thread::yield_now();
            }
        }
        transaction.commit().await
    }
}

fn list_key(prefix: &[u8], key: u32) -> Vec<u8> {
    [prefix, &key.to_be_bytes()].concat()
}

async fn read_list<T: Transaction>(transaction: &T, name: &[u8]) -> Result<Vec<Element>, Error> {
    Ok(transaction.get(name, Read::Serializable).await?.map(|value| decode(&value)).unwrap_or_default())
}

async fn read_all<D: Database>(database: &D, prefix: &[u8]) -> Result<BTreeMap<u32, Vec<Element>>, Error> {
    let rows = database.begin()?.get_all(RangeRequest::prefix(prefix), Read::Snapshot).await?;
    let numbered = rows.iter().filter_map(|row| {
        let key = row.key.get(prefix.len()..)?.try_into().ok()?;
        Some((u32::from_be_bytes(key), decode(&row.value)))
    });
    Ok(numbered.collect())
}

fn encode(list: &[Element]) -> Vec<u8> {
    list.iter().flat_map(|element| element.to_be_bytes()).collect()
}

/// Decodes a list. A partial element becomes one that nobody wrote, which the checker reports.
fn decode(value: &Bytes) -> Vec<Element> {
    value.chunks(8).map(|bytes| bytes.try_into().map_or(Element::MAX, Element::from_be_bytes)).collect()
}
