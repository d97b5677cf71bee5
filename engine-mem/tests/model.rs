//! The document model's suite, in memory.

mod support;

use support::MemHarness;

model_suite::suite!(MemHarness);
model_suite::tape!(MemHarness, 25);
