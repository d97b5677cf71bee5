//! Random tapes with many collisions: few keys, close together.

use kv_api::error::{COMMIT_UNKNOWN_RESULT, FUTURE_VERSION, NOT_COMMITTED, TRANSACTION_TOO_OLD};
use kv_api::{Direction, KeySelector, MutationType, RangeRequest, Read, Versionstamp};

use super::instruction::{Action, Instruction, TRANSACTIONS};
use crate::random::Random;

/// Keys that are neighbours, prefixes and successors of each other, and the keys around stamped keys.
const KEYS: &[&[u8]] = &[
    b"a",
    b"a\0",
    b"a\0\0",
    b"aa",
    b"ab",
    b"b",
    b"ba",
    b"bb",
    b"b\xff",
    b"c",
    b"c\0",
    b"ca",
    b"d",
    b"da",
    b"db",
    b"e",
    b"f",
    b"u",
    b"v",
    b"w",
    b"\x01",
    b"\xfe\xff",
];

/// The tape of `seed`.
pub fn generate(seed: u64, instructions: usize) -> Vec<Instruction> {
    let mut random = Random::new(seed);
    // Some tapes write more, some read more, some keep their transactions open for long.
    let habit = Habit {
        commits: 2 + random.below(12),
        reads: 10 + random.below(60),
        keys: 4 + random.below(KEYS.len() as u64 - 3),
        hides_writes: random.chance(0.3),
    };
    let mut tape = Vec::with_capacity(instructions);
    let duels = random.chance(0.5);
    while tape.len() < instructions {
        if duels {
            duel(&mut random, &habit, &mut tape);
        } else {
            let transaction = random.below(TRANSACTIONS as u64) as usize;
            tape.push(Instruction { transaction, action: action(&mut random, &habit) });
        }
    }
    if seed % 3 == 2 {
        watch(seed, &habit, &mut tape);
    }
    tape.truncate(instructions);
    tape
}

/// Inserts watches into a tape. They use a generator of their own, so that the other instructions of a seed do not
/// change.
fn watch(seed: u64, habit: &Habit, tape: &mut Vec<Instruction>) {
    let mut random = Random::new(!seed);
    for _ in 0..tape.len() / 16 {
        let at = random.below(tape.len() as u64) as usize;
        // In a transaction with a later instruction, so that it may commit.
        let transaction = tape[at].transaction;
        tape.insert(at, Instruction { transaction, action: Action::Watch { key: key(&mut random, habit) } });
    }
}

/// One read against one write, so that only they decide whether there is a conflict. In a commit with many reads, the
/// others hide a wrong conflict range of one read.
fn duel(random: &mut Random, habit: &Habit, tape: &mut Vec<Instruction>) {
    let mut step = |transaction, action| tape.push(Instruction { transaction, action });
    let (reader, writer) = (0, 1);
    for _ in 0..random.below(3) {
        step(writer, write(random, habit));
    }
    step(writer, Action::Commit);
    for _ in 0..random.below(3) {
        step(reader, write(random, habit));
    }
    step(reader, read(random, habit));
    step(writer, write(random, habit));
    step(writer, Action::Commit);
    step(reader, Action::Set { key: b"~".to_vec(), value: Vec::new() });
    step(reader, Action::Commit);
}

struct Habit {
    commits: u64,
    reads: u64,
    keys: u64,
    /// Whether it has writes without a conflict range, which break serializability.
    hides_writes: bool,
}

fn action(random: &mut Random, habit: &Habit) -> Action {
    let choice = random.below(100);
    if choice < habit.commits {
        return Action::Commit;
    }
    if random.below(100) < habit.reads {
        read(random, habit)
    } else if random.below(100) < 73 {
        write(random, habit)
    } else {
        other(random, habit)
    }
}

fn read(random: &mut Random, habit: &Habit) -> Action {
    let read = if random.chance(0.3) { Read::Snapshot } else { Read::Serializable };
    match random.below(10) {
        0..3 => Action::Get { key: key(random, habit), read },
        3..6 => Action::GetKey { selector: selector(random, habit), read },
        _ => Action::GetRange { request: request(random, habit), read },
    }
}

/// A random write.
fn write(random: &mut Random, habit: &Habit) -> Action {
    match random.below(73) {
        0..30 => Action::Set { key: key(random, habit), value: value(random) },
        30..38 => Action::Clear { key: key(random, habit) },
        38..48 => {
            let (begin, end) = ends(random, habit);
            Action::ClearRange { begin, end }
        }
        48..68 => Action::Atomic {
            mutation: *random.pick(
                &MutationType::ALL
                    .map(|mutation| if mutation.is_versionstamped() { MutationType::Add } else { mutation }),
            ),
            key: key(random, habit),
            operand: value(random),
        },
        68..70 => Action::StampedValue { key: key(random, habit), operand: with_stamp(b"<", b">") },
        _ => Action::StampedKey {
            template: with_stamp(b"v", random.pick::<&[u8]>(&[b"", b"1", b"2"])),
            value: value(random),
        },
    }
}

fn other(random: &mut Random, habit: &Habit) -> Action {
    match random.below(27) {
        0..5 => {
            let (begin, end) = ends(random, habit);
            Action::ReadConflict { begin: begin.clone().min(end.clone()), end: end.max(begin) }
        }
        5..9 => {
            let (begin, end) = ends(random, habit);
            Action::WriteConflict { begin: begin.clone().min(end.clone()), end: end.max(begin) }
        }
        9..12 if habit.hides_writes => Action::NextWriteNoWriteConflictRange,
        9..15 => Action::ReadVersion,
        15..17 => Action::SnapshotRywDisable,
        17 => Action::SnapshotRywEnable,
        18..21 => Action::SetReadVersion { back: random.below(6) as usize },
        21 if random.chance(0.5) => Action::KeyTooLong,
        21 => Action::KeyOutside,
        22..25 => Action::OnError {
            code: *random.pick(&[NOT_COMMITTED, TRANSACTION_TOO_OLD, FUTURE_VERSION, COMMIT_UNKNOWN_RESULT]),
        },
        25 => Action::Reset,
        _ => Action::Cancel,
    }
}

fn key(random: &mut Random, habit: &Habit) -> Vec<u8> {
    KEYS[random.below(habit.keys) as usize].to_vec()
}

/// Two keys, nearly always in order.
fn ends(random: &mut Random, habit: &Habit) -> (Vec<u8>, Vec<u8>) {
    let (a, b) = (key(random, habit), key(random, habit));
    if a <= b || random.chance(0.02) { (a, b) } else { (b, a) }
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = random.below(4);
    (0..length).map(|_| *random.pick(&[0, 1, 2, 0x7f, 0x80, 0xff])).collect()
}

fn with_stamp(before: &[u8], after: &[u8]) -> Vec<u8> {
    let offset = before.len() as u32;
    [before, Versionstamp::PENDING.as_bytes(), after, &offset.to_le_bytes()].concat()
}

fn selector(random: &mut Random, habit: &Habit) -> KeySelector {
    let offset = if random.chance(0.7) { random.below(2) as i32 } else { random.below(12) as i32 - 5 };
    KeySelector { key: key(random, habit).into(), or_equal: random.chance(0.5), offset }
}

fn request(random: &mut Random, habit: &Habit) -> RangeRequest {
    let (begin, end) = ends(random, habit);
    let mut request = if random.chance(0.3) {
        RangeRequest::selectors(selector(random, habit), selector(random, habit))
    } else if random.chance(0.1) {
        RangeRequest::keys(b"".as_slice(), b"\xff".as_slice())
    } else {
        RangeRequest::keys(begin, end)
    };
    if random.chance(0.5) {
        request.limit = 1 + random.below(4) as usize;
    }
    if random.chance(0.2) {
        request.target_bytes = 1 + random.below(20) as usize;
    }
    if random.chance(0.5) {
        request.direction = Direction::Reverse;
    }
    request
}
