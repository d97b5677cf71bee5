//! The document model's suite on sled.

use disk::testing::SuiteHarness;
use engine_sled::SledDatabase;

const SLED: SuiteHarness<SledDatabase> = SuiteHarness::new();

model_suite::suite!(SLED);
model_suite::tape!(SLED, 2);
