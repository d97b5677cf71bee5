//! The tape: random instructions over interleaved transactions, compared step by step with the oracle.
//!
//! An instruction is self-contained: a tape without some of its instructions is still a tape, so a failing tape
//! can be shrunk. There are a few transactions; one that has ended begins anew, as after `on_error`.
//!
//! Modelled on FoundationDB's binding tester (`bindingApiTester.md`), without its stack machine: no other language
//! has to read these tapes.

mod generate;
mod instruction;
mod play;
mod run;
pub(crate) mod text;
mod watched;

pub use generate::generate;
pub use instruction::{Action, Instruction, TRANSACTIONS};
pub use play::{Divergence, play};
pub use run::{Failure, Run, pinned, run, run_long, run_pinned, seeds};

/// Two tests for an engine: the pinned tapes, and a short random run. The second argument is the number of random
/// tapes, each of which opens a database.
#[macro_export]
macro_rules! tape {
    ($harness:expr, $tapes:expr) => {
        #[test]
        fn pinned_tapes_agree_with_the_oracle() {
            $crate::tape::run_pinned(&$harness);
        }

        #[test]
        fn random_tapes_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::Run::short($tapes));
        }
    };
}
