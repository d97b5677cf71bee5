//! The work of the process that is killed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Database, MutationType, Result, Transaction};

use super::damage;
use super::folder::commit;
use super::harness::DiskHarness;
use super::process::{ChildTask, FOLDER, PLAN, Said};

/// The child's side. Does nothing in a process that no test of this module started.
pub fn child<H: DiskHarness>(harness: &H) {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap_or_default());
    let Some(plan) = ChildTask::decode(&plan) else { panic!("no plan is called {plan:?}") };
    Said::Opening.say();
    let opened = match plan {
        ChildTask::Damage => return damage::child(harness, &folder, |text| Said::Note(text).say()),
        ChildTask::Stop { point, nth, .. } => {
            let arrived = AtomicUsize::new(0);
            let opened = harness.open_with(
                &folder,
                Box::new(move |at| {
                    if at == point && arrived.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                        std::process::abort();
                    }
                }),
            );
            // The engine has no such points: the parent sees no commit.
            let Some(opened) = opened else { return };
            opened
        }
        ChildTask::Write { .. } | ChildTask::Clear { .. } => harness.open(&folder),
    };
    let database = match opened {
        Ok(database) => database,
        Err(error) => panic!("{} cannot open: {error}", harness.engine()),
    };
    Said::Opened.say();
    let outcome = match plan {
        ChildTask::Write { run, writers } | ChildTask::Stop { run, writers, .. } => write(&database, run, writers),
        ChildTask::Clear { run } => clear(&database, run),
        ChildTask::Damage => Ok(()),
    };
    if let Err(error) = outcome {
        panic!("{}: a commit fails: {error}", harness.engine());
    }
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

/// Number of commits before a clear of all their rows. A store should find so many rows hard to clear at once.
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
