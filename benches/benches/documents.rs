//! Benchmarks of documents through the model, beside the same rows on the raw store, on each engine, in both
//! layouts.

mod support;

#[cfg(feature = "lsm")]
use benches::engines::Lsm;
#[cfg(feature = "sled")]
use benches::engines::Sled;
use benches::engines::{Engine, Mem};
use benches::work::documents;
use criterion::{Criterion, criterion_group, criterion_main};

fn engine<E: Engine + 'static>(criterion: &mut Criterion) {
    support::measure(criterion, documents::works::<E>());
}

fn all(criterion: &mut Criterion) {
    engine::<Mem>(criterion);
    #[cfg(feature = "lsm")]
    engine::<Lsm>(criterion);
    #[cfg(feature = "sled")]
    engine::<Sled>(criterion);
}

criterion_group! {
    name = works;
    config = support::config();
    targets = all
}
criterion_main!(works);
