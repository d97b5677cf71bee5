//! New document ids, by CouchDB's `sequential` algorithm (`couch_uuids.erl`).
//!
//! ```text
//!   9f2c…(26 digits, random)  00a31f
//!   └── one prefix for many ids ┘└┬─┘
//!                     grows by a random step of 1..=0xffe
//! ```
//!
//! Successive ids sort in order, which keeps writes of new documents close together in an ordered store. They are
//! unique, not secret.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A generator of ids.
#[derive(Debug, Default)]
pub(crate) struct Uuids(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    prefix: String,
    counter: u32,
}

/// Above it a new prefix begins, so that the six digits never run over.
const LAST: u32 = 0xff_f000;

impl Uuids {
    /// The next `count` ids, 32 hexadecimal digits each.
    pub(crate) fn next(&self, count: usize) -> Result<Vec<String>, getrandom::Error> {
        let mut state = self.0.lock();
        (0..count).map(|_| state.next()).collect()
    }
}

impl State {
    fn next(&mut self) -> Result<String, getrandom::Error> {
        let step = getrandom::u32()? % 0xffe + 1;
        self.counter += step;
        if self.prefix.is_empty() || self.counter > LAST {
            self.prefix = random_hex::<13>()?;
            self.counter = step;
        }
        Ok(format!("{}{:06x}", self.prefix, self.counter))
    }
}

/// Ids of requests in the log: ten hexadecimal digits each, counted from a random number with a step that reaches
/// every number before it repeats one. So a request needs no system call.
#[derive(Debug)]
pub(crate) struct RequestIds(AtomicU64);

impl RequestIds {
    pub(crate) fn new() -> Self {
        // Without randomness they may start like those of another server.
        RequestIds(AtomicU64::new(getrandom::u64().unwrap_or_default()))
    }

    pub(crate) fn next(&self) -> [u8; 10] {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let bytes = self.0.fetch_add(STEP, Ordering::Relaxed).to_be_bytes();
        std::array::from_fn(|at| digit(if at % 2 == 0 { bytes[at / 2] >> 4 } else { bytes[at / 2] }))
    }
}

/// `BYTES` random bytes in hexadecimal.
pub(crate) fn random_hex<const BYTES: usize>() -> Result<String, getrandom::Error> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(model::hex(&bytes))
}

/// The digit of the lower half of a byte.
fn digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[usize::from(nibble & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let ids = RequestIds::new();
        let made: std::collections::HashSet<_> = (0..100_000).map(|_| ids.next()).collect();
        assert_eq!(made.len(), 100_000);
        assert!(made.iter().all(|id| id.iter().all(u8::is_ascii_hexdigit)));
    }

    #[test]
    fn ids_rise_and_never_repeat() {
        let uuids = Uuids::default();
        let made = uuids.next(20_000).unwrap();
        assert!(made.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
        let unique: std::collections::HashSet<_> = made.iter().collect();
        assert_eq!(unique.len(), made.len());
        let rising = made.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(rising > 19_900, "{rising}: a new prefix begins every eight thousand ids or so");
    }
}
