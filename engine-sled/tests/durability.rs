//! The data that sled keeps after kills, damage and a full disk.

use disk::testing::DurabilityHarness;
use engine_sled::SledDatabase;

const SLED: DurabilityHarness<SledDatabase> = DurabilityHarness::with_cache(8 << 20);

conformance::durability!(SLED);
