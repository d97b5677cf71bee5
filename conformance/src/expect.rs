//! The result of a scenario, and assertions for scenarios.

use std::fmt;
use std::panic::Location;

use bytes::Bytes;
use kv_api::{Error, KeyValue, Result};

/// Result of a scenario. Expectations panic. An unexpected error of the store is returned with the place where it
/// surfaced.
pub type Outcome = Result<(), Failure>;

/// An error of the store that the scenario did not expect.
pub struct Failure {
    error: Error,
    place: &'static Location<'static>,
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Failure { error, place: Location::caller() }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.error, self.place)
    }
}

/// Expects this error code.
#[track_caller]
pub(crate) fn fails<T: fmt::Debug>(result: Result<T>, code: i32) {
    match result {
        Ok(value) => panic!("expected {}, got {value:?}", Error::new(code)),
        Err(error) => assert_eq!(error, Error::new(code)),
    }
}

/// A value as reads return it.
pub(crate) fn some(value: impl AsRef<[u8]>) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(value.as_ref()))
}

/// Rows as readable text for failures: `a=1 b=2`.
pub(crate) fn show(rows: &[KeyValue]) -> String {
    let rows: Vec<String> =
        rows.iter().map(|row| format!("{}={}", row.key.escape_ascii(), row.value.escape_ascii())).collect();
    rows.join(" ")
}
