//! The document model's suite, on lsm.

mod support;

use support::LsmHarness;

model_suite::suite!(LsmHarness);
model_suite::tape!(LsmHarness, 2);
