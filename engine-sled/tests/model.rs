//! The document model's suite, on sled.

mod support;

use support::SledHarness;

model_suite::suite!(SledHarness);
model_suite::tape!(SledHarness, 2);
