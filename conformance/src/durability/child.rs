//! The process that is killed: how a test starts it and reads its output, and what it does.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Database, MutationType, Result, Transaction};

use super::damage;
use super::{DiskHarness, Point};
use crate::scenario::block_on;

/// Environment variable with the child's task. Without it, the test named `child` does nothing.
const PLAN: &str = "COUCH_LAYER_DURABILITY_PLAN";
const FOLDER: &str = "COUCH_LAYER_DURABILITY_FOLDER";

/// Marks the beginning and end of each line for the parent: a line that the kill cut off does not count.
const SAYS: &str = "the child says: ";
const END: &str = " .";

/// Task of a child in its folder, until it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Commits with several writers. `run` tells the commits of this child from those of others.
    Write { run: usize, writers: usize },
    /// The same, until commit number `nth` reaches `point`.
    Stop { run: usize, writers: usize, point: Point, nth: usize },
    /// Writes many rows and clears them, repeatedly.
    Clear { run: usize },
    /// Damages files and checks the effects.
    Damage,
}

impl Plan {
    fn encode(self) -> String {
        match self {
            Plan::Write { run, writers } => format!("write {run} {writers}"),
            Plan::Stop { run, writers, point, nth } => format!("stop {run} {writers} {} {nth}", point as usize),
            Plan::Clear { run } => format!("clear {run}"),
            Plan::Damage => "damage".into(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let plan = words.next()?;
        let mut number = || words.next()?.parse().ok();
        Some(match plan {
            "write" => Plan::Write { run: number()?, writers: number()? },
            "stop" => {
                Plan::Stop { run: number()?, writers: number()?, point: *Point::ALL.get(number()?)?, nth: number()? }
            }
            "clear" => Plan::Clear { run: number()? },
            "damage" => Plan::Damage,
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
    fn say(&self) {
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
    pub(super) fn start(module: &str, plan: Plan, folder: &Path) -> Self {
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

    /// Kills it. What it said before can still be read.
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

/// The child's side. Does nothing in a process that no test of this module started.
pub fn child<H: DiskHarness>(harness: &H) {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap_or_default());
    let Some(plan) = Plan::decode(&plan) else { panic!("no plan is called {plan:?}") };
    Said::Opening.say();
    let opened = match plan {
        Plan::Damage => return damage::child(harness, &folder, |text| Said::Note(text).say()),
        Plan::Stop { point, nth, .. } => {
            let arrived = AtomicUsize::new(0);
            let opened = harness.open_with(
                &folder,
                Box::new(move |at| {
                    if at == point && arrived.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                        std::process::abort();
                    }
                }),
            );
            // The engine has no such points: the parent reads of no commit.
            let Some(opened) = opened else { return };
            opened
        }
        Plan::Write { .. } | Plan::Clear { .. } => harness.open(&folder),
    };
    let database = match opened {
        Ok(database) => database,
        Err(error) => panic!("{} cannot open: {error}", harness.engine()),
    };
    Said::Opened.say();
    let outcome = match plan {
        Plan::Write { run, writers } | Plan::Stop { run, writers, .. } => write(&database, run, writers),
        Plan::Clear { run } => clear(&database, run),
        Plan::Damage => Ok(()),
    };
    if let Err(error) = outcome {
        panic!("{}: a commit fails: {error}", harness.engine());
    }
}

/// Commits, and reports it.
pub(super) fn commit<D: Database>(database: &D, change: impl FnOnce(&D::Transaction)) -> Result<i64> {
    let transaction = database.begin()?;
    change(&transaction);
    block_on(transaction.commit())?;
    transaction.get_committed_version()
}

fn tell<D: Database>(database: &D, name: &str, change: impl FnOnce(&D::Transaction)) -> Result<()> {
    Said::Begun(name.into()).say();
    let version = commit(database, change)?;
    Said::Acknowledged(name.into(), version).say();
    Ok(())
}

/// Value of a writer's commit number `count`. Some values are large.
pub(super) fn value(count: usize) -> Vec<u8> {
    vec![count as u8; if count % 7 == 3 { 50_000 } else { 50 }]
}

/// Each commit sets two keys, moves a third one, and counts.
fn write<D: Database>(database: &D, run: usize, writers: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads = (0..writers).map(|writer| {
            scope.spawn(move || {
                for count in 0.. {
                    let name = format!("{run:03}/{writer}/{count:06}");
                    tell(database, &name, |tx| {
                        tx.set(format!("a/{name}").as_bytes(), value(count));
                        tx.set(format!("b/{name}").as_bytes(), b"");
                        if let Some(before) = count.checked_sub(1) {
                            tx.clear(format!("last/{run:03}/{writer}/{before:06}").as_bytes());
                        }
                        tx.set(format!("last/{name}").as_bytes(), b"");
                        tx.atomic_op(MutationType::Add, b"total", &1_u64.to_le_bytes());
                    })?;
                }
                Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

/// Number of commits before a clear of all their rows. A store should not like to clear so many rows at once.
pub(super) const FILLS: usize = 6;
pub(super) const ROWS: usize = 1_000;

/// Number of commits after the clear, each with a row in the cleared range.
pub(super) const AFTER: usize = 20;

fn clear<D: Database>(database: &D, run: usize) -> Result<()> {
    for generation in 0.. {
        let of = format!("{run:03}/{generation:03}");
        for fill in 0..FILLS {
            tell(database, &format!("{of}/fill/{fill:03}"), |tx| {
                for row in 0..ROWS {
                    tx.set(format!("rows/{of}/{fill:03}/{row:04}").as_bytes(), b"of a fill");
                }
                tx.set(format!("done/{of}/fill/{fill:03}").as_bytes(), b"");
            })?;
        }
        tell(database, &format!("{of}/gone"), |tx| {
            tx.clear_range(format!("rows/{of}/").as_bytes(), format!("rows/{of}0").as_bytes());
            tx.set(format!("rows/{of}/{:03}/{:04}", FILLS / 2, 0).as_bytes(), b"of the clear");
            tx.set(format!("done/{of}/gone").as_bytes(), b"");
        })?;
        for after in 0..AFTER {
            tell(database, &format!("{of}/then/{after:03}"), |tx| {
                // Spread over the range, from its front, where the purge begins.
                let (fill, row) = (after % FILLS, after * 40 + 1);
                tx.set(format!("rows/{of}/{fill:03}/{row:04}").as_bytes(), b"of after");
                tx.set(format!("done/{of}/then/{after:03}").as_bytes(), b"");
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_words_come_through() {
        let plans = [
            Plan::Write { run: 1, writers: 4 },
            Plan::Stop { run: 2, writers: 1, point: Point::AfterApply, nth: 9 },
            Plan::Clear { run: 3 },
            Plan::Damage,
        ];
        for plan in plans {
            assert_eq!(Plan::decode(&plan.encode()), Some(plan));
        }
        let line = format!("test child ... {SAYS}acknowledged 000/1/000002 77{END}");
        assert_eq!(Said::hear(&line), Some(Said::Acknowledged("000/1/000002".into(), 77)));
        assert_eq!(Said::hear(&line[..line.len() - 1]), None, "it was cut off");
    }
}
