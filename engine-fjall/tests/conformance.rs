//! The suite, on fjall in a fresh folder for each scenario.

mod support;

use support::FjallHarness;

conformance::suite!(FjallHarness);
conformance::tape!(FjallHarness, 40);
