//! The document model's suite, on fjall.

mod support;

use support::FjallHarness;

model_suite::suite!(FjallHarness);
model_suite::tape!(FjallHarness, 2);
