//! The conformance suite on sled, in a new folder for each scenario.

use disk::testing::SuiteHarness;
use engine_sled::SledDatabase;

const SLED: SuiteHarness<SledDatabase> = SuiteHarness::new();

conformance::suite!(SLED);
conformance::tape!(SLED, 40);
