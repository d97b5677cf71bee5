//! The conformance suite on lsm, in a new folder for each scenario.

use disk::testing::SuiteHarness;
use engine_lsm::LsmDatabase;

const LSM: SuiteHarness<LsmDatabase> = SuiteHarness::new();

conformance::suite!(LSM);
conformance::tape!(LSM, 40);
