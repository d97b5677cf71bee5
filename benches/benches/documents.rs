//! Benchmarks of documents through the model, beside the same rows on the raw store, on each engine, in both
//! layouts.

mod support;

support::on_each_engine!(documents);
