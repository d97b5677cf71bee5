//! The suite, on redb in a fresh folder for each scenario.

mod support;

use support::RedbHarness;

conformance::suite!(RedbHarness);
conformance::tape!(RedbHarness, 40);
