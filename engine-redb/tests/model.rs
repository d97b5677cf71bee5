//! The document model's suite, on redb.

mod support;

use support::RedbHarness;

model_suite::suite!(RedbHarness);
model_suite::tape!(RedbHarness, 2);
