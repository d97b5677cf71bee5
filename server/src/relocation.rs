//! Options, progress and outcome of a relocation, as the command line and the HTTP endpoint exchange them.

use model::{JsonRef, JsonText, JsonWriter, RelocateOptions, RelocatePhase, RelocateReport};

use crate::engine::EngineUrl;

/// A requested relocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedRelocation {
    /// The store that the database moves to.
    pub(crate) to: String,
    pub(crate) verify: bool,
    pub(crate) delete_source: bool,
}

impl RequestedRelocation {
    pub(crate) fn options(&self, from: &EngineUrl, to: &EngineUrl) -> RelocateOptions {
        let (verify, delete_source) = (self.verify, self.delete_source);
        RelocateOptions { from: from.to_string(), to: to.to_string(), verify, delete_source }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut json = JsonWriter::new(&mut text);
        json.begin_object().name("to").str(&self.to);
        json.name("verify").bool(self.verify).name("delete_source").bool(self.delete_source).end_object();
        text
    }

    pub(crate) fn from_json(json: &JsonText) -> Option<RequestedRelocation> {
        let flag = |name| json.get(name).map_or(Some(false), JsonRef::as_bool);
        let to = json.get("to")?.as_str()?.into_owned();
        Some(RequestedRelocation { to, verify: flag("verify")?, delete_source: flag("delete_source")? })
    }
}

/// A phase's name.
pub(crate) fn phase_name(phase: RelocatePhase) -> &'static str {
    match phase {
        RelocatePhase::Copying => "copying",
        RelocatePhase::Verifying => "verifying",
        RelocatePhase::Finishing => "finishing",
        RelocatePhase::Leaving => "leaving",
    }
}

/// The outcome of a relocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) moved: bool,
    pub(crate) moved_before: bool,
    pub(crate) documents: u64,
    pub(crate) incarnation: u64,
    pub(crate) verified: Option<Verified>,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) documents: u64,
    pub(crate) edited_since: u64,
    pub(crate) difference_count: u64,
    /// A sentence for each of the first differences.
    pub(crate) differences: Vec<String>,
}

impl From<RelocateReport> for Outcome {
    fn from(report: RelocateReport) -> Self {
        Outcome {
            moved: report.moved,
            moved_before: report.moved_before,
            documents: report.documents,
            incarnation: report.incarnation.into(),
            verified: report.verified.map(|verified| Verified {
                documents: verified.documents,
                edited_since: verified.edited_since,
                difference_count: verified.difference_count,
                differences: verified.differences.iter().map(ToString::to_string).collect(),
            }),
        }
    }
}

impl Outcome {
    /// Writes the members into an open object.
    fn write(&self, json: &mut JsonWriter<'_>) {
        json.name("moved").bool(self.moved).name("moved_before").bool(self.moved_before);
        json.name("documents").u64(self.documents).name("incarnation").u64(self.incarnation);
        let Some(verified) = &self.verified else { return };
        json.name("verified").begin_object();
        json.name("documents").u64(verified.documents).name("edited_since").u64(verified.edited_since);
        json.name("difference_count").u64(verified.difference_count).name("differences").begin_array();
        for difference in &verified.differences {
            json.str(difference);
        }
        json.end_array().end_object();
    }

    fn read(json: JsonRef<'_>) -> Option<Outcome> {
        let verified = match json.get("verified") {
            None => None,
            Some(verified) => {
                let number = |name| verified.get(name)?.as_u64();
                let differences = verified.get("differences")?.elements();
                Some(Verified {
                    documents: number("documents")?,
                    edited_since: number("edited_since")?,
                    difference_count: number("difference_count")?,
                    differences: differences.filter_map(|one| Some(one.as_str()?.into_owned())).collect(),
                })
            }
        };
        Some(Outcome {
            moved: json.get("moved")?.as_bool()?,
            moved_before: json.get("moved_before")?.as_bool()?,
            documents: json.get("documents")?.as_u64()?,
            incarnation: json.get("incarnation")?.as_u64()?,
            verified,
        })
    }

    /// As JSON for programs, with the database's name.
    pub(crate) fn to_json(&self, name: &str, to: &str) -> Vec<u8> {
        let mut text = Vec::new();
        let mut json = JsonWriter::new(&mut text);
        json.begin_object().name("db_name").str(name).name("to").str(to);
        self.write(&mut json);
        json.end_object();
        text
    }

    /// As text for people.
    pub(crate) fn to_text(&self, name: &str, to: &str) -> String {
        let mut text = match (self.moved, self.moved_before) {
            (true, true) => format!("{name} had already moved to {to}"),
            (true, false) => format!("{name} has moved to {to}: {} documents copied", self.documents),
            (false, _) => format!("{name} has not moved: the two sides differ"),
        };
        if let Some(verified) = &self.verified {
            text.push_str(&format!("; {} are the same on both sides", verified.documents));
            if verified.edited_since > 0 {
                text.push_str(&format!(", {} were edited since", verified.edited_since));
            }
            if verified.difference_count > 0 {
                text.push_str(&format!(", {} differences", verified.difference_count));
            }
            for difference in &verified.differences {
                text.push_str(&format!("\n  {difference}"));
            }
        }
        text
    }
}

/// The state of a relocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// No relocation is known.
    None,
    Running {
        phase: &'static str,
        documents: u64,
        expected: u64,
    },
    Ended(Outcome),
    /// Abandoned. The value tells whether there was one to abandon.
    Abandoned(bool),
    /// Failed, for this reason.
    Failed(String),
}

impl Status {
    /// Writes the members into an open object.
    pub(crate) fn write(&self, json: &mut JsonWriter<'_>) {
        match self {
            Status::None => {
                json.name("state").str("none");
            }
            Status::Running { phase, documents, expected } => {
                json.name("state").str("running").name("phase").str(phase);
                json.name("documents").u64(*documents).name("expected").u64(*expected);
            }
            Status::Ended(outcome) => {
                json.name("state").str("ended").name("outcome").begin_object();
                outcome.write(json);
                json.end_object();
            }
            Status::Abandoned(abandoned) => {
                json.name("state").str("abandoned").name("abandoned").bool(*abandoned);
            }
            Status::Failed(reason) => {
                json.name("state").str("failed").name("reason").str(reason);
            }
        }
    }

    /// The phase of this name.
    pub(crate) fn phase(name: &str) -> Option<&'static str> {
        const PHASES: [RelocatePhase; 4] =
            [RelocatePhase::Copying, RelocatePhase::Verifying, RelocatePhase::Finishing, RelocatePhase::Leaving];
        PHASES.into_iter().map(phase_name).find(|phase| *phase == name)
    }

    pub(crate) fn from_json(json: &JsonText) -> Option<Status> {
        match json.get("state")?.as_str()?.as_ref() {
            "none" => Some(Status::None),
            "running" => Some(Status::Running {
                phase: Status::phase(json.get("phase")?.as_str()?.as_ref())?,
                documents: json.get("documents")?.as_u64()?,
                expected: json.get("expected")?.as_u64()?,
            }),
            "abandoned" => Some(Status::Abandoned(json.get("abandoned")?.as_bool()?)),
            "ended" => Outcome::read(json.get("outcome")?).map(Status::Ended),
            "failed" => Some(Status::Failed(json.get("reason")?.as_str()?.into_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read_back() {
        let verified = Verified {
            documents: 3,
            edited_since: 1,
            difference_count: 2,
            differences: vec!["\"a\": differs".to_owned(), String::new()],
        };
        let outcome =
            Outcome { moved: true, moved_before: false, documents: 4, incarnation: 1, verified: Some(verified) };
        for status in [
            Status::None,
            Status::Running { phase: "finishing", documents: 1 << 40, expected: 0 },
            Status::Ended(Outcome { verified: None, ..outcome.clone() }),
            Status::Ended(outcome),
            Status::Failed("a \"reason\"\n".to_owned()),
            Status::Abandoned(true),
        ] {
            let mut text = Vec::new();
            let mut json = JsonWriter::new(&mut text);
            json.begin_object();
            status.write(&mut json);
            json.end_object();
            assert_eq!(Status::from_json(&JsonText::parse(&text).unwrap()), Some(status));
        }
        let asked = RequestedRelocation { to: "lsm:/x".to_owned(), verify: true, delete_source: false };
        assert_eq!(RequestedRelocation::from_json(&JsonText::parse(&asked.to_json()).unwrap()), Some(asked));
        for wrong in ["{}", r#"{"to":1}"#, r#"{"to":"a","verify":"yes"}"#] {
            assert_eq!(RequestedRelocation::from_json(&JsonText::parse(wrong.as_bytes()).unwrap()), None);
        }
    }
}
