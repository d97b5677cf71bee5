//! The tape: random instructions over interleaved transactions, compared step by step with the oracle.
//!
//! An instruction says everything it needs, so that a tape with any of its instructions left out is a
//! tape too: that is how a failing one is shrunk. The machine has a few transactions; a transaction
//! that ended begins anew, as it does after `on_error`.
//!
//! Modelled on FoundationDB's binding tester (`bindingApiTester.md`), whose stack machine this leaves
//! out: nobody else has to read these tapes.

mod generate;
mod play;
mod run;

use kv_api::{KeySelector, MutationType, RangeRequest, Read};

pub use generate::generate;
pub use play::{Divergence, play};
pub use run::{Failure, Run, pinned, run, run_long, run_pinned, seeds};

/// How many transactions a tape interleaves.
pub const TRANSACTIONS: usize = 4;

/// A step: a transaction and what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Which transaction.
    pub transaction: usize,
    /// What it does.
    pub action: Action,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is the method of the same name in kv_api::Transaction")]
pub enum Action {
    Get {
        key: Vec<u8>,
        read: Read,
    },
    GetKey {
        selector: KeySelector,
        read: Read,
    },
    GetRange {
        request: RangeRequest,
        read: Read,
    },
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Clear {
        key: Vec<u8>,
    },
    ClearRange {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    Atomic {
        mutation: MutationType,
        key: Vec<u8>,
        operand: Vec<u8>,
    },
    StampedValue {
        key: Vec<u8>,
        operand: Vec<u8>,
    },
    StampedKey {
        template: Vec<u8>,
        value: Vec<u8>,
    },
    ReadConflict {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    WriteConflict {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    NextWriteNoWriteConflictRange,
    SnapshotRywDisable,
    SnapshotRywEnable,
    ReadVersion,
    /// Sets the read version to that of the commit this many commits ago.
    SetReadVersion {
        back: usize,
    },
    /// A write that is wrong: a key that is too long.
    KeyTooLong,
    /// A write that is wrong: at the end of the keyspace.
    KeyOutside,
    /// Commits, checks the outcome, and begins anew.
    Commit,
    OnError {
        code: i32,
    },
    Reset,
    Cancel,
}

/// Two tests for an engine: the pinned tapes, and a short random run, of as many tapes as the second
/// argument says: each opens a database.
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
