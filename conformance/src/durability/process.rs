//! The process that is killed: how a test starts it, and the messages between the two.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use super::harness::Point;

/// Environment variable with the child's task. Without it, the test named `child` does nothing.
pub(super) const PLAN: &str = "COUCH_LAYER_DURABILITY_PLAN";
pub(super) const FOLDER: &str = "COUCH_LAYER_DURABILITY_FOLDER";

/// Marks the beginning and end of each line for the parent: a line that the kill cut off does not count.
const SAYS: &str = "the child says: ";
const END: &str = " .";

/// Task of a child in its folder, until it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildTask {
    /// Commits with several writers. `run` distinguishes the commits of this child from those of others.
    Write { run: usize, writers: usize },
    /// The same, until commit number `nth` reaches `point`.
    Stop { run: usize, writers: usize, point: Point, nth: usize },
    /// Writes many rows and clears them, repeatedly.
    Clear { run: usize },
    /// Damages files and checks the effects.
    Damage,
}

impl ChildTask {
    fn encode(self) -> String {
        match self {
            ChildTask::Write { run, writers } => format!("write {run} {writers}"),
            ChildTask::Stop { run, writers, point, nth } => format!("stop {run} {writers} {} {nth}", point as usize),
            ChildTask::Clear { run } => format!("clear {run}"),
            ChildTask::Damage => "damage".into(),
        }
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let plan = words.next()?;
        let mut number = || words.next()?.parse().ok();
        Some(match plan {
            "write" => ChildTask::Write { run: number()?, writers: number()? },
            "stop" => ChildTask::Stop {
                run: number()?,
                writers: number()?,
                point: *Point::ALL.get(number()?)?,
                nth: number()?,
            },
            "clear" => ChildTask::Clear { run: number()? },
            "damage" => ChildTask::Damage,
            _ => return None,
        })
    }
}

/// A message from a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is about to open the folder.
    Opening,
    /// It has opened the folder.
    Opened,
    /// It is about to make this commit.
    Begun(String),
    /// This commit was acknowledged, at this version.
    Acknowledged(String, i64),
    /// A line for the test's output.
    Note(String),
}

impl Said {
    pub(super) fn say(&self) {
        let line = match self {
            Said::Opening => "opening".into(),
            Said::Opened => "opened".into(),
            Said::Begun(name) => format!("begun {name}"),
            Said::Acknowledged(name, version) => format!("acknowledged {name} {version}"),
            Said::Note(text) => format!("note {text}"),
        };
        println!("{SAYS}{line}{END}");
    }

    fn hear(line: &str) -> Option<Self> {
        let (_, line) = line.split_once(SAYS)?;
        let line = line.strip_suffix(END)?;
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match verb {
            "opening" => Said::Opening,
            "opened" => Said::Opened,
            "begun" => Said::Begun(rest.into()),
            "acknowledged" => {
                let (name, version) = rest.split_once(' ')?;
                Said::Acknowledged(name.into(), version.parse().ok()?)
            }
            "note" => Said::Note(rest.into()),
            _ => return None,
        })
    }
}

/// A child process, which ends with this handle.
pub(super) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts one. `module` is the module of the tests, from `module_path!()`.
    pub(super) fn start(module: &str, plan: ChildTask, folder: &Path) -> Self {
        // libtest leaves out the first part of a module's path, the name of the test binary.
        let test = module.split_once("::").map_or("child".to_owned(), |(_, inner)| format!("{inner}::child"));
        let spawned = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["--exact", &test, "--nocapture", "--test-threads=1"])
                .env(PLAN, plan.encode())
                .env(FOLDER, folder)
                // A core dump, if this user has them enabled, is deleted with the test's folder.
                .current_dir(folder.parent().unwrap_or(folder))
                .stdout(Stdio::piped())
                .spawn()
        });
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => panic!("cannot start a process for {plan:?}: {error}"),
        };
        match child.stdout.take() {
            Some(output) => Process { child, lines: BufReader::new(output).lines() },
            None => unreachable!("its output is piped"),
        }
    }

    /// Kills it. Its earlier messages can still be read.
    pub(super) fn kill(&mut self) {
        // Fails for a child that has already ended. The test finds that out from the output.
        let _ = self.child.kill();
    }

    /// Exit status. Read all messages first.
    pub(super) fn ended(mut self) -> ExitStatus {
        match self.child.wait() {
            Ok(status) => status,
            Err(error) => panic!("cannot wait for a process: {error}"),
        }
    }
}

impl Iterator for Process {
    type Item = Said;

    fn next(&mut self) -> Option<Said> {
        loop {
            let line = self.lines.next()?.ok()?;
            if let Some(said) = Said::hear(&line) {
                return Some(said);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_words_come_through() {
        let plans = [
            ChildTask::Write { run: 1, writers: 4 },
            ChildTask::Stop { run: 2, writers: 1, point: Point::AfterApply, nth: 9 },
            ChildTask::Clear { run: 3 },
            ChildTask::Damage,
        ];
        for plan in plans {
            assert_eq!(ChildTask::decode(&plan.encode()), Some(plan));
        }
        let line = format!("test child ... {SAYS}acknowledged 000/1/000002 77{END}");
        assert_eq!(Said::hear(&line), Some(Said::Acknowledged("000/1/000002".into(), 77)));
        assert_eq!(Said::hear(&line[..line.len() - 1]), None, "it was cut off");
    }
}
