//! The document model's suite, on a cluster.

mod support;

use support::FdbHarness;

model_suite::suite!(FdbHarness);
model_suite::tape!(FdbHarness, 8);
