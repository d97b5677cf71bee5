//! The conformance suite on lsm, in a fresh folder for each scenario.

mod support;

use support::LsmHarness;

conformance::suite!(LsmHarness);
conformance::tape!(LsmHarness, 40);
