//! Tapes that are played while their databases move from store to store. Each relocation is interrupted and started
//! again at random, and the tape continues in between. At the end all data must be in place.

use std::ops::ControlFlow;

use conformance::chaos::Chaos;
use conformance::random::Random;
use conformance::tape::seeds;
use conformance::{block_on, shrink};
use kv_api::AnyDatabase;
use model::{CreateOptions, Documents, ErrorKind, Layer, LayerOptions, RelocateOptions, RelocatePhase, relocate};

use super::Run;
use super::compare::{Failure, compare, ensure};
use super::generate::{FIRST_LIMIT, generate};
use super::oracle::{Oracle, PURGES_KEPT};
use super::play::{check, play_step};
use super::queries;
use super::step::{CLIENTS, Step};

const NAME: &str = "tape";

/// Plays tapes in databases that move from the first store to the last: the pinned tapes, then random ones. `open`
/// returns empty stores, with values that must live as long as the stores.
///
/// # Panics
///
/// Like [`run`](super::run).
pub fn run_relocating<K>(open: impl Fn() -> (Vec<AnyDatabase>, K), run: Run) {
    let play = |seed, tape: &[Step]| {
        let (stores, _kept) = open();
        block_on(journey(&stores, &run, seed, tape))
    };
    let random = (run.seed..run.seed.saturating_add(run.tapes)).map(|seed| (seed, run.steps));
    for (seed, steps) in seeds(include_str!("../../seeds/tape.txt")).into_iter().chain(random) {
        let tape = generate(seed, steps, run.conflicts);
        let Err(found) = play(seed, &tape) else { continue };
        let tape = shrink(tape, |tape| play(seed, tape).is_err());
        let shortest = play(seed, &tape).err().unwrap_or(found);
        let left: Vec<String> = tape.iter().map(|step| format!("  {step:?}")).collect();
        panic!(
            "relocating, {:?}, {:?}: tape of seed {seed}, {steps} steps (pin it in model-suite/seeds/tape.txt):\n{shortest}\nafter:\n{}",
            run.format,
            run.faults,
            left.join("\n"),
        );
    }
}

/// The stores of a journey, and the database's position.
struct Journey {
    /// The stores without faults.
    calm: Vec<Layer<AnyDatabase>>,
    /// The stores as a relocation sees them.
    faulty: Vec<Layer<AnyDatabase>>,
    /// The stores as clients see them.
    clients: Vec<Vec<Layer<AnyDatabase>>>,
    at: usize,
    random: Random,
}

impl Journey {
    fn name(at: usize) -> String {
        format!("store {at}:")
    }

    /// Runs some steps of the relocation to the next store. Returns whether the tape may continue.
    async fn move_on(&mut self, steps: u64) -> Result<bool, Failure> {
        let verify = self.random.chance(0.5);
        let options =
            RelocateOptions { from: Self::name(self.at), to: Self::name(self.at + 1), verify, delete_source: false };
        let (mut left, mut phase) = (steps, RelocatePhase::Copying);
        let moved = relocate(&self.faulty[self.at], &self.faulty[self.at + 1], NAME, &options, |progress| {
            phase = progress.phase;
            left = left.saturating_sub(1);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match moved.await {
            Ok(report) => {
                ensure("moved, with all the same", &(report.moved, report.is_same()), &(true, true))?;
                self.at += 1;
                Ok(true)
            }
            Err(error) if *error.kind() == ErrorKind::Stopped => {
                Ok(matches!(phase, RelocatePhase::Copying | RelocatePhase::Verifying))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn documents(&self) -> Result<(Documents<AnyDatabase>, Vec<Documents<AnyDatabase>>), Failure> {
        let mut clients = Vec::new();
        for client in &self.clients[self.at] {
            clients.push(client.database(NAME).await?);
        }
        Ok((self.calm[self.at].database(NAME).await?, clients))
    }
}

async fn journey(engines: &[AnyDatabase], run: &Run, seed: u64, tape: &[Step]) -> Result<(), Failure> {
    let mut journey =
        Journey { calm: Vec::new(), faulty: Vec::new(), clients: Vec::new(), at: 0, random: Random::new(seed) };
    let mut dice = seed.wrapping_mul(31);
    for engine in engines {
        journey.calm.push(Layer::open(engine.clone(), LayerOptions::default()).await?);
        let mut wrapped = Vec::new();
        for _ in 0..=CLIENTS {
            dice += 1;
            let chaos = AnyDatabase::new(Chaos::new(engine.clone(), dice, run.faults));
            wrapped.push(Layer::open(chaos, LayerOptions::default()).await?);
        }
        journey.faulty.extend(wrapped.pop());
        journey.clients.push(wrapped);
    }
    let observer = journey.calm[0]
        .create_database(
            NAME,
            CreateOptions { format: Some(run.format), conflicts: run.conflicts, ..CreateOptions::default() },
        )
        .await?;
    observer.set_revs_limit(FIRST_LIMIT).await?;
    observer.set_purged_infos_limit(PURGES_KEPT as u64).await?;
    let mut oracle = Oracle::new(FIRST_LIMIT as usize, run.conflicts);
    for (at, step) in tape.iter().enumerate() {
        let in_step = |failure: Failure| Failure(format!("step {at}: {failure}"));
        if journey.at + 1 < engines.len() && journey.random.chance(0.4) {
            let mut steps = 1 + journey.random.below(12);
            // A database that is left closed refuses writes, so the move is continued until it accepts them.
            while !journey.move_on(steps).await.map_err(in_step)? {
                steps += 1 + journey.random.below(8);
            }
        }
        let (observer, clients) = journey.documents().await?;
        oracle = play_step(&observer, &clients, oracle, at, step).await.map_err(in_step)?;
        compare(&observer, &oracle, at as u64).await.map_err(in_step)?;
    }
    let mut steps = 1;
    while journey.at + 1 < engines.len() {
        steps += journey.random.below(30);
        journey.move_on(steps).await?;
    }
    let (observer, _) = journey.documents().await?;
    compare(&observer, &oracle, seed).await?;
    check(&observer, &oracle).await?;
    queries::finish(&observer, &oracle).await?;
    ensure("the incarnation", &usize::from(observer.info().await?.incarnation), &(engines.len() - 1))
}
