//! Recorded tapes survive their text form, engines of one kind give the same answers, and every wrong answer is
//! reported.

use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::recorded::{Answer, Recording, Unfit, record, replay, settled, tapes};
use conformance::tape::Action;
use engine_mem::{MemDatabase, MemStore};
use futures_executor::block_on;
use kv_api::{Database, Prefixed, Transaction};
use occ::{Fault, ManualClock, OccBuilder};

const LENGTH: usize = 150;

/// A recording of `seed` on the engine in memory.
fn recorded(seed: u64) -> Recording {
    let database = Prefixed::new(MemDatabase::new(), "tape/");
    match block_on(record(&database, "engine-mem", "here", seed, LENGTH)) {
        Ok(recording) => recording,
        Err(unfit) => panic!("seed {seed}: {unfit}"),
    }
}

/// An engine with other versions, and with neighbours on both sides of its tapes.
fn elsewhere() -> Prefixed<MemDatabase> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_000_000));
    let database: MemDatabase = OccBuilder::new().clock(clock).build();
    for key in ["", "a", "place", "place.", "place/\u{1}", "place0", "placf", "z"] {
        let tx = database.begin().expect("it is open");
        tx.set(key.as_bytes(), b"a neighbour's");
        block_on(tx.commit()).expect("a blind write commits");
    }
    Prefixed::new(database, "place/\u{1}\u{1}")
}

#[test]
fn a_recording_is_the_same_wherever_it_is_made() {
    for seed in 1..=200 {
        let again = block_on(record(&elsewhere(), "engine-mem", "here", seed, LENGTH));
        let again = again.unwrap_or_else(|unfit| panic!("seed {seed}: {unfit}"));
        for ((_, again), (line, first)) in again.steps.iter().zip(&recorded(seed).steps) {
            assert_eq!(again, first, "seed {seed}, line {line}");
        }
    }
}

#[test]
fn a_recording_comes_back_from_its_text() {
    for seed in 1..=40 {
        let recording = recorded(seed);
        assert_eq!(recording.to_string().parse(), Ok(recording), "seed {seed}");
    }
    for (name, recording) in tapes() {
        assert_eq!(
            recording.to_string().parse::<Recording>().map(|again| again.steps.len()),
            Ok(recording.steps.len())
        );
        assert!(recording.steps.iter().any(|(_, step)| step.answer != Answer::Nothing), "{name} answers nothing");
    }
}

#[test]
fn recordings_have_every_kind_of_action_and_answer() {
    let mut actions = std::collections::BTreeSet::new();
    let mut answers = std::collections::BTreeSet::new();
    let word = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
    for seed in 1..=60 {
        for (_, step) in recorded(seed).steps {
            actions.insert(word(format!("{:?}", step.action)));
            answers.insert(match step.answer {
                Answer::Error(code) => code.to_string(),
                answer => word(format!("{answer:?}")),
            });
        }
    }
    // All actions of a tape except watches.
    assert_eq!(actions.len(), 22, "{actions:?}");
    let missing: Vec<_> = [
        "Nothing",
        "Value",
        "Key",
        "Rows",
        "Sees",
        "Committed",
        "ReadOnly",
        "1020",
        "1025",
        "1036",
        "2004",
        "2005",
        "2010",
        "2102",
    ]
    .into_iter()
    .filter(|kind| !answers.contains(*kind))
    .collect();
    assert!(missing.is_empty(), "no {missing:?} among {answers:?}");
}

#[test]
fn settled_tapes_leave_nothing_to_chance() {
    for seed in 1..=200 {
        let tape = settled(seed, LENGTH);
        assert_eq!(tape.len(), LENGTH);
        let mut asked = [false; conformance::tape::TRANSACTIONS];
        for instruction in tape {
            let asked = &mut asked[instruction.transaction];
            match instruction.action {
                Action::GetRange { request, .. } => {
                    assert_eq!(request.target_bytes, 0);
                    assert!(*asked, "seed {seed}");
                }
                Action::Get { .. } | Action::GetKey { .. } | Action::StampedKey { .. } => {
                    assert!(*asked, "seed {seed}")
                }
                Action::ReadVersion => *asked = true,
                Action::Commit | Action::Reset => *asked = false,
                _ => {}
            }
        }
    }
}

#[test]
fn every_answer_that_is_not_the_recorded_one_is_shown() {
    let recording = recorded(7);
    let other = |answer: &Answer| match answer {
        Answer::Nothing => Answer::Error(2000),
        Answer::Error(code) => Answer::Error(code + 1),
        Answer::Value(value) => Answer::Value(value.is_none().then(|| "%{1}".to_owned())),
        Answer::Key(key) => Answer::Key(format!("{key}%00")),
        Answer::Rows { rows, more } => Answer::Rows { rows: rows.clone(), more: !more },
        Answer::Sees(commits) => Answer::Sees(commits + 1),
        Answer::Committed(number) => Answer::Committed(number + 1),
        Answer::ReadOnly(_) => Answer::Committed(1),
    };
    for at in 0..recording.steps.len() {
        let mut altered = recording.clone();
        let (line, step) = &mut altered.steps[at];
        step.answer = other(&step.answer);
        let (line, answer) = (*line, format!("{:?}", step.answer));
        let difference = block_on(replay(&elsewhere(), &altered)).expect_err("it is another answer").to_string();
        assert!(difference.starts_with(&format!("line {line}: {{\"transaction\":")), "{difference}");
        assert!(difference.contains(&format!("engine-mem here: {answer}\n  this engine: ")), "{difference}");
    }
}

#[test]
fn a_stamp_is_known_by_its_commit_and_a_changed_value_of_the_same_length_is_not() {
    let text = r#"{"format":1,"engine":"a person","version":"1"}
{"transaction":0,"action":{"stamped_value":{"key":"k","operand":"%{}%00%00%00%00"}}}
{"transaction":0,"action":"commit","answer":{"committed":1}}
{"transaction":1,"action":{"stamped_value":{"key":"l","operand":"%{}%00%00%00%00"}}}
{"transaction":1,"action":"commit","answer":{"committed":2}}
{"transaction":0,"action":{"get":{"key":"k","read":"snapshot"}},"answer":{"value":"%{1}"}}
{"transaction":0,"action":{"get":{"key":"l","read":"snapshot"}},"answer":{"value":"%{2}"}}
"#;
    let replayed = |text: &str| block_on(replay(&elsewhere(), &text.parse().expect("a recording")));
    replayed(text).expect("as recorded");
    let swapped = text.replace(r#""value":"%{1}""#, r#""value":"%{2}""#);
    assert!(replayed(&swapped).expect_err("the stamp of another commit").to_string().contains("line 6"));
}

#[test]
fn recordings_of_a_sound_engine_show_faults_of_others() {
    for fault in [Fault::ConflictRangesDropped, Fault::RangeConflictOffByOne, Fault::VersionstampReused] {
        let caught = (1..=200).find_map(|seed| {
            let database = OccBuilder::new().fault(fault).open(MemStore::default()).expect("a map opens");
            block_on(replay(&Prefixed::new(database, "tape/"), &recorded(seed))).err().map(|found| (seed, found))
        });
        let (seed, difference) = caught.unwrap_or_else(|| panic!("nobody noticed {fault:?}"));
        println!("{fault:?}: seed {seed}, {difference}");
    }
}

#[test]
fn a_disturbed_recording_is_none() {
    let rates = Rates { unknown_committed: 0.5, ..Rates::default() };
    let database = Chaos::new(Prefixed::new(MemDatabase::new(), "tape/"), 1, rates);
    let outcome = block_on(record(&database, "engine-mem", "here", 1, LENGTH));
    assert!(matches!(&outcome, Err(Unfit::Disturbed(error)) if error.code() == 1021), "{outcome:?}");
    let outcome = block_on(record(&database, "engine-mem", "here", 1, LENGTH));
    assert!(matches!(outcome, Err(Unfit::NotEmpty)), "{outcome:?}");
}

#[test]
fn a_malformed_file_says_where() {
    let why = |text: &str| text.parse::<Recording>().map(drop).expect_err("it is malformed").to_string();
    let origin = r#"{"format":1,"engine":"a person","version":"1"}"#;
    assert_eq!(why("# nothing\n"), "line 1: there is nothing that says where the tape was recorded");
    assert_eq!(why(r#"{"format":2,"elsewhere":"?"}"#), "line 1: the format is 2; this suite reads 1");
    assert!(why(r#"{"format":1,"engine":"a person"}"#).starts_with("line 1: missing field `version`"));
    let step = |step: &str| why(&format!("{origin}\n# a remark\n\n{step}\n"));
    assert_eq!(step(r#"{"transaction":4,"action":"commit"}"#), "line 4: transaction 4 of 4, counted from 0");
    assert!(step(r#"{"transaction":0,"action":"comit"}"#).starts_with("line 4: unknown variant `comit`"));
    assert!(step(r#"{"transaction":0,"action":"commit","anser":{}}"#).starts_with("line 4: unknown field `anser`"));
    assert!(step(r#"{"transaction":0,"action":{"clear":{"key":"%0"}}}"#).contains("\"%0\" is not a text of bytes"));
    assert!(step(r#"{"transaction":0,"action":{"watch":{"key":"a"}}}"#).contains("are not recorded"));
    assert!(step("no JSON").starts_with("line 4: expected"));
}
