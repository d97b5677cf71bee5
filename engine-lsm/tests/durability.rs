//! Lsm keeps its data through kills, damage and a full disk.

use disk::testing::DurabilityHarness;
use engine_lsm::LsmDatabase;

const LSM: DurabilityHarness<LsmDatabase> = DurabilityHarness::with_cache(256 << 10);

conformance::durability!(LSM);
