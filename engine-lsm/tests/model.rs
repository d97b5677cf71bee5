//! The document model's suite on lsm.

use disk::testing::SuiteHarness;
use engine_lsm::LsmDatabase;

const LSM: SuiteHarness<LsmDatabase> = SuiteHarness::new();

model_suite::suite!(LSM);
model_suite::tape!(LSM, 2);
