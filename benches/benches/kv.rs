//! Benchmarks of keys and values through transactions, beside the raw store, on each engine.

mod support;

support::on_each_engine!(kv);
