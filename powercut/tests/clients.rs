//! Several clients at once on a disk that loses power. Their commits share batches and syncs.
//!
//! Each transaction writes a row under its versionstamp, so the rows tell in which order the transactions were
//! committed. A loss of power leaves a prefix of this order: with all acknowledged transactions, and without those that
//! had not begun.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Barrier;

use engine_lsm::LsmDatabase;
use futures_executor::block_on;
use kv_api::{Bytes, Database, MutationType, Result, Transaction};
use powercut::dice::Dice;
use powercut::harness::{History, cut};
use powercut::recorder::Recording;
use powercut::trace::{Event, Trace};
use powercut::workload::FOLDER;
use powercut::{Engine, Rows};
use support::{cuts, rows, without_log_syncs};

struct Store;

impl Engine for Store {
    type Database = LsmDatabase;
    const NAME: &'static str = "clients of lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        support::open(folder)
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

const CLIENTS: usize = 8;

/// Number of commits of each client.
const COMMITS: usize = 12;

const ORDER: &[u8] = b"order/";

/// The row that a transaction sets besides the row of its order.
fn change(transaction: usize) -> (Bytes, Bytes) {
    let (client, turn) = (transaction / COMMITS, transaction % COMMITS);
    let mut dice = Dice::new(transaction as u64);
    let value: Vec<u8> = (0..600 + dice.below(600)).map(|_| dice.next_number() as u8).collect();
    (format!("client/{client}/{}", turn % 7).into(), value.into())
}

/// The key of the order: a versionstamp, then the transaction's number. The last four bytes say where the stamp is.
fn order_key(transaction: usize) -> Vec<u8> {
    let offset = (ORDER.len() as u32).to_le_bytes();
    [ORDER, &[0; 10], &(transaction as u32).to_be_bytes(), &offset].concat()
}

fn number_of(order_key: &[u8]) -> usize {
    let number = order_key.last_chunk().expect("a number");
    u32::from_be_bytes(*number) as usize
}

/// Records clients that commit at once. The notes have numbers of transactions.
fn record() -> (Trace, Rows) {
    let root = tempfile::tempdir().expect("a folder");
    let recording = Recording::begin(root.path(), Trace::default());
    let database = Store::open(&root.path().join(FOLDER)).expect("a database");
    let together = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (database, recording, together) = (&database, &recording, &together);
            scope.spawn(move || {
                for number in (client * COMMITS..).take(COMMITS) {
                    let transaction = database.begin().expect("a transaction");
                    let (key, value) = change(number);
                    transaction.set(&key, value);
                    transaction.atomic_op(MutationType::SetVersionstampedKey, order_key(number), b"");
                    together.wait();
                    recording.note(Event::Begun(number));
                    block_on(transaction.commit()).expect("it is committed");
                    recording.note(Event::Known(number));
                }
            });
        }
    });
    let last = rows(&database);
    Store::close(&database).expect("closed");
    drop(database);
    (recording.finish(), last)
}

/// The history: its state number `n` is the one after the first `n` transactions in the order of their commits.
fn history(trace: &Trace, last: &Rows) -> History {
    let order: Vec<&Bytes> = last.keys().filter(|key| key.starts_with(ORDER)).collect();
    assert_eq!(order.len(), CLIENTS * COMMITS);
    let mut states = vec![Rows::new()];
    let mut state_of = BTreeMap::new();
    for key in order {
        let mut state = states.last().cloned().unwrap_or_default();
        state.extend([change(number_of(key)), (key.clone(), Bytes::new())]);
        state_of.insert(number_of(key), states.len());
        states.push(state);
    }
    assert_eq!(states.last(), Some(last));

    let mut noted = trace.prefix(0);
    noted.push(Event::Known(0));
    let (mut acknowledged, mut begun) = (0, BTreeSet::new());
    for event in trace.events() {
        match event {
            Event::Begun(number) => drop(begun.insert(state_of[number])),
            Event::Known(number) => acknowledged = acknowledged.max(state_of[number]),
            other => {
                noted.push(other.clone());
                continue;
            }
        }
        noted.push(Event::Known(acknowledged));
        let possible = (acknowledged + 1..).take_while(|state| begun.contains(state));
        possible.for_each(|state| noted.push(Event::Begun(state)));
    }
    History { trace: noted, states, from: 0 }
}

/// Number of transactions that share the batch of another one: the first eight bytes of a stamp are the batch's
/// version.
fn sharing(last: &Rows) -> usize {
    let stamps = last.keys().filter_map(|key| key.strip_prefix(ORDER));
    let batches: BTreeSet<&[u8]> = stamps.map(|stamp| &stamp[..8]).collect();
    CLIENTS * COMMITS - batches.len()
}

#[test]
fn commits_of_several_clients_outlive_a_loss_of_power_in_their_order() {
    // Whether commits meet in a batch depends on the schedule.
    let mut attempts = 0;
    let (trace, last) = loop {
        let (trace, last) = record();
        if sharing(&last) >= 10 {
            break (trace, last);
        }
        attempts += 1;
        assert!(attempts < 100, "commits at once share no batches");
    };
    println!(
        "{} of {} transactions share a batch with an earlier one, attempt {attempts}",
        sharing(&last),
        CLIENTS * COMMITS
    );
    let history = history(&trace, &last);
    let seed = support::seed(7);
    cut::<Store>(&history, 2 * cuts(), &mut Dice::new(seed)).unwrap_or_else(|found| found.report(seed));

    // An acknowledgement that comes before its sync is found by the same cuts.
    cut::<Store>(&without_log_syncs(history), 2_000, &mut Dice::new(seed)).expect_err("a missing sync");
}
