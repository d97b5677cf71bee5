//! Mirrored engines of different kinds: they agree on the suite's scenarios for one thread, and on the tape.

mod engines;

use conformance::wrappers::{Mirrored, run_on_one_thread};
use engine_lsm::LsmDatabase;
use engine_sled::SledDatabase;

use engines::{InFolder, InMemory};

fn sled_and_memory() -> Mirrored<InFolder<SledDatabase>, InMemory> {
    Mirrored(InFolder::new(), InMemory)
}

fn lsm_and_memory() -> Mirrored<InFolder<LsmDatabase>, InMemory> {
    Mirrored(InFolder::new(), InMemory)
}

fn lsm_and_sled() -> Mirrored<InFolder<LsmDatabase>, InFolder<SledDatabase>> {
    Mirrored(InFolder::new(), InFolder::new())
}

#[test]
fn sled_and_memory_pass_what_one_thread_can_ask() {
    run_on_one_thread(&sled_and_memory());
}

#[test]
fn lsm_and_memory_pass_what_one_thread_can_ask() {
    run_on_one_thread(&lsm_and_memory());
}

#[test]
fn lsm_and_sled_pass_what_one_thread_can_ask() {
    run_on_one_thread(&lsm_and_sled());
}

mod tape_of_sled_and_memory {
    conformance::tape!(super::sled_and_memory(), 20);
}

mod tape_of_lsm_and_memory {
    conformance::tape!(super::lsm_and_memory(), 20);
}

mod tape_of_lsm_and_sled {
    conformance::tape!(super::lsm_and_sled(), 10);
}
