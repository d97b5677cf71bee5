//! The file format of a recording: a line with its origin, then a line for each step. Empty lines and lines that
//! begin with `#` are comments.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Answer;
use crate::tape::{Action, Instruction, TRANSACTIONS};

/// Number of the format that this suite writes and reads.
pub const FORMAT: u32 = 1;

/// Origin of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Number of the file's format: [`FORMAT`].
    pub format: u32,
    /// Name of the engine that answered.
    pub engine: String,
    /// Version of that engine; for FoundationDB, of its server.
    pub version: String,
    /// Seed of the tape, unless a person wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// An instruction and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Index of the transaction.
    pub transaction: usize,
    /// Action of the transaction.
    pub action: Action,
    /// Answer of the engine.
    #[serde(default, skip_serializing_if = "Answer::is_nothing")]
    pub answer: Answer,
}

impl Step {
    pub(super) fn instruction(&self) -> Instruction {
        Instruction { transaction: self.transaction, action: self.action.clone() }
    }
}

/// A tape with an engine's answers. Its text is the file's text; [`str::parse`] reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Origin of the recording.
    pub origin: Origin,
    /// The steps, each with its line number.
    pub steps: Vec<(usize, Step)>,
}

impl Recording {
    /// A recording of these steps.
    pub fn new(origin: Origin, steps: impl IntoIterator<Item = Step>) -> Self {
        Recording { origin, steps: (2..).zip(steps).collect() }
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", json(&self.origin)?)?;
        self.steps.iter().try_for_each(|(_, step)| writeln!(f, "{}", json(step)?))
    }
}

fn json(line: &impl Serialize) -> Result<String, fmt::Error> {
    serde_json::to_string(line).map_err(|_| fmt::Error)
}

/// A malformed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    line: usize,
    why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for Malformed {}

impl FromStr for Recording {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
        let Some((line, first)) = lines.next() else {
            return Err(Malformed { line: 1, why: "there is nothing that says where the tape was recorded".into() });
        };
        // The format number is parsed first: other formats may have other fields.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let malformed = |line, error: serde_json::Error| Malformed { line, why: error.to_string() };
        let Format { format } = serde_json::from_str(first).map_err(|error| malformed(line, error))?;
        if format != FORMAT {
            return Err(Malformed { line, why: format!("the format is {format}; this suite reads {FORMAT}") });
        }
        let origin = serde_json::from_str(first).map_err(|error| malformed(line, error))?;
        let steps = lines.map(|(line, text)| {
            let step: Step = serde_json::from_str(text).map_err(|error| malformed(line, error))?;
            if step.transaction >= TRANSACTIONS {
                let why = format!("transaction {} of {TRANSACTIONS}, counted from 0", step.transaction);
                return Err(Malformed { line, why });
            }
            if let Action::Watch { .. } = step.action {
                return Err(Malformed { line, why: "watches fire at no fixed moment, and are not recorded".into() });
            }
            Ok((line, step))
        });
        Ok(Recording { origin, steps: steps.collect::<Result<_, _>>()? })
    }
}
