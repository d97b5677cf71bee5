//! The conformance suite on the engine in memory, and on every wrapper around it.

mod support;

use conformance::wrappers::{Mirrored, run_on_one_thread};

use support::MemHarness;

conformance::suite!(MemHarness);
conformance::tape!(MemHarness, 600);

mod prefixed {
    conformance::suite!(conformance::wrappers::prefixed(super::MemHarness));
}

mod counted {
    conformance::suite!(conformance::wrappers::counted(super::MemHarness));
}

mod boxed {
    conformance::suite!(conformance::wrappers::boxed(super::MemHarness));
}

mod chaos_at_rate_zero {
    conformance::suite!(conformance::wrappers::calm(super::MemHarness));
}

#[test]
fn a_mirror_of_two_passes_what_one_thread_can_ask() {
    run_on_one_thread(&Mirrored(MemHarness, MemHarness));
}

mod mirrored {
    use super::{MemHarness, Mirrored};

    conformance::tape!(Mirrored(MemHarness, MemHarness), 30);
}
