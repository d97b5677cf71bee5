//! Mirrored engines of different kinds: they agree on the suite's scenarios for one thread, and on the tape.

mod engines;

use conformance::wrappers::{Mirrored, run_on_one_thread};
use engine_fjall::FjallDatabase;
use engine_redb::RedbDatabase;
use engine_sled::SledDatabase;

use engines::{InFolder, InMemory};

fn sled_and_memory() -> Mirrored<InFolder<SledDatabase>, InMemory> {
    Mirrored(InFolder::new(), InMemory)
}

fn redb_and_memory() -> Mirrored<InFolder<RedbDatabase>, InMemory> {
    Mirrored(InFolder::new(), InMemory)
}

fn redb_and_sled() -> Mirrored<InFolder<RedbDatabase>, InFolder<SledDatabase>> {
    Mirrored(InFolder::new(), InFolder::new())
}

fn fjall_and_memory() -> Mirrored<InFolder<FjallDatabase>, InMemory> {
    Mirrored(InFolder::new(), InMemory)
}

#[test]
fn sled_and_memory_pass_what_one_thread_can_ask() {
    run_on_one_thread(&sled_and_memory());
}

#[test]
fn redb_and_memory_pass_what_one_thread_can_ask() {
    run_on_one_thread(&redb_and_memory());
}

#[test]
fn redb_and_sled_pass_what_one_thread_can_ask() {
    run_on_one_thread(&redb_and_sled());
}

#[test]
fn fjall_and_memory_pass_what_one_thread_can_ask() {
    run_on_one_thread(&fjall_and_memory());
}

mod tape_of_sled_and_memory {
    conformance::tape!(super::sled_and_memory(), 20);
}

mod tape_of_redb_and_memory {
    conformance::tape!(super::redb_and_memory(), 20);
}

mod tape_of_fjall_and_memory {
    conformance::tape!(super::fjall_and_memory(), 20);
}

mod tape_of_redb_and_sled {
    conformance::tape!(super::redb_and_sled(), 10);
}
