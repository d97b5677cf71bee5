//! The work of the report as criterion's benchmarks: the time for one unit.

use std::time::Duration;

use benches::work::Work;
use criterion::{Criterion, SamplingMode, Throughput};

/// Part of a work that one sample does. There are many samples, each with its own preparation.
const SCALE: f64 = 0.25;

/// Few samples, since each is a whole run on new data.
pub(crate) fn config() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(2))
}

/// Measures each work and its comparison.
pub(crate) fn measure(criterion: &mut Criterion, works: Vec<Work>) {
    for work in works {
        let format = work.format.map(|format| format!("/{format}")).unwrap_or_default();
        let mut group = criterion.benchmark_group(format!("{}/{}{format}", work.name, work.engine));
        group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(1));
        let sides = [Some(("couch-layer", &work.ours)), work.baseline.as_ref().map(|(name, side)| (*name, side))];
        for (name, side) in sides.into_iter().flatten() {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let rate = side(SCALE).expect("the work is done");
                    Duration::from_secs_f64(iterations as f64 / rate)
                });
            });
        }
    }
}

/// The function `main` of a benchmark: measures the works of a module of `benches::work` on each engine.
macro_rules! on_each_engine {
    ($module:ident) => {
        fn engine<E: benches::engines::Engine + 'static>(criterion: &mut criterion::Criterion) {
            $crate::support::measure(criterion, benches::work::$module::works::<E>());
        }

        fn all(criterion: &mut criterion::Criterion) {
            engine::<benches::engines::Mem>(criterion);
            #[cfg(feature = "lsm")]
            engine::<benches::engines::Lsm>(criterion);
            #[cfg(feature = "sled")]
            engine::<benches::engines::Sled>(criterion);
        }

        criterion::criterion_group! {
            name = works;
            config = $crate::support::config();
            targets = all
        }
        criterion::criterion_main!(works);
    };
}

pub(crate) use on_each_engine;
