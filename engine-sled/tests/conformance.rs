//! The conformance suite on sled, in a fresh folder for each scenario.

mod support;

use support::SledHarness;

conformance::suite!(SledHarness);
conformance::tape!(SledHarness, 40);
