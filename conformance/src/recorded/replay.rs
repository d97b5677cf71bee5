//! Replays recorded tapes.

use std::fmt;
use std::path::Path;

use kv_api::{Database, Error, Prefixed};

use super::answer::{Answers, Unanswered};
use super::{Answer, Origin, Recording, Step};

/// Number of attempts at a tape that is disturbed, for example because the machine stood still for seconds.
const ATTEMPTS: usize = 5;

/// The first answer that differs from the recorded one.
#[derive(Clone, Debug)]
pub struct Difference(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    origin: Origin,
    line: usize,
    step: Step,
    found: Deviation,
}

#[derive(Clone, Debug)]
enum Deviation {
    Another(Answer),
    Disturbed(Error),
    Broken(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { origin, line, step, found } = &*self.0;
        let Origin { engine, version, .. } = origin;
        let recorded = &step.answer;
        write!(f, "line {line}: {}\n  {engine} {version}: {recorded:?}\n  this engine: ", step.instruction())?;
        match found {
            Deviation::Another(answer) => write!(f, "{answer:?}"),
            Deviation::Disturbed(error) => write!(f, "{error}"),
            Deviation::Broken(promise) => f.write_str(promise),
        }
    }
}

impl std::error::Error for Difference {}

/// Replays a tape on `database`, whose keyspace must be empty and used by nobody else.
///
/// # Errors
///
/// The first answer that differs from the recorded one.
///
/// # Panics
///
/// When no transaction can begin.
pub async fn replay<D: Database>(database: &D, recording: &Recording) -> Result<(), Difference> {
    let mut answers = match Answers::new(database) {
        Ok(answers) => answers,
        Err(error) => panic!("cannot begin: {error}"),
    };
    for (line, step) in &recording.steps {
        let found = match answers.answer(&step.instruction()).await {
            Ok(answer) if answer == step.answer => continue,
            Ok(answer) => Deviation::Another(answer),
            Err(Unanswered::Disturbed(error)) => Deviation::Disturbed(error),
            Err(Unanswered::Broken(promise)) => Deviation::Broken(promise),
        };
        let (origin, step) = (recording.origin.clone(), step.clone());
        return Err(Difference(Box::new(Details { origin, line: *line, step, found })));
    }
    Ok(())
}

/// Replays every recorded tape, each under a prefix of its own below `prefix`, which must be empty.
///
/// # Errors
///
/// The first difference, with the tape's name.
///
/// # Panics
///
/// As [`tapes`] and [`replay`] do.
pub async fn replay_all<D: Database>(database: &D, prefix: &[u8]) -> Result<(), (String, Difference)> {
    for (name, recording) in tapes() {
        for attempt in 1.. {
            let place = [prefix, format!("{name}/{attempt}/").as_bytes()].concat();
            match replay(&Prefixed::new(database.clone(), place), &recording).await {
                Ok(()) => break,
                Err(difference) if attempt < ATTEMPTS && matches!(difference.0.found, Deviation::Disturbed(_)) => {}
                Err(difference) => return Err((name, difference)),
            }
        }
    }
    Ok(())
}

/// The recorded tapes of this suite, by name: the files of `conformance/tapes`.
///
/// # Panics
///
/// When a tape cannot be read or is malformed, or when no tape exists.
pub fn tapes() -> Vec<(String, Recording)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tapes");
    let read = || -> std::io::Result<Vec<(String, String)>> {
        let mut tapes = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if let (Some(name), Some("tape")) = (path.file_stem(), path.extension().and_then(|end| end.to_str())) {
                tapes.push((name.to_string_lossy().into_owned(), std::fs::read_to_string(&path)?));
            }
        }
        tapes.sort();
        Ok(tapes)
    };
    let tapes = read().unwrap_or_else(|error| panic!("the recorded tapes in {}: {error}", folder.display()));
    assert!(!tapes.is_empty(), "there is no recorded tape in {}", folder.display());
    let parse = |(name, text): (String, String)| match text.parse() {
        Ok(recording) => (name, recording),
        Err(malformed) => panic!("{name}.tape: {malformed}"),
    };
    tapes.into_iter().map(parse).collect()
}
