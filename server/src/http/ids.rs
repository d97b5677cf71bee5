//! New document ids, by CouchDB's algorithms (`couch_uuids.erl`). The setting `uuids/algorithm` selects one; the
//! default is `sequential`:
//!
//! ```text
//!   9f2c…(26 digits, random)  00a31f
//!   └── one prefix for many ids ┘└┬─┘
//!                     grows by a random step of 1..=0xffe
//! ```
//!
//! Successive ids sort in order, which keeps writes of new documents close together in an ordered store. They are
//! unique, not secret.
//!
//! | algorithm | ids |
//! |---|---|
//! | `random` | 32 random digits |
//! | `utc_random` | the microseconds since 1970 in 14 digits, 18 random ones |
//! | `utc_id` | the same microseconds, and `uuids/utc_id_suffix` |
//! | `uuid_v7` | version 7 of RFC 9562, without hyphens |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::http::config::rows::SettingRows;

/// How ids are generated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Algorithm {
    #[default]
    Sequential,
    Random,
    UtcRandom,
    /// With the text at the end of each id.
    UtcId(String),
    Version7,
}

impl Algorithm {
    /// The algorithm of the section `uuids`; the default for an unknown name.
    pub(crate) fn read(rows: &SettingRows) -> Algorithm {
        let suffix = || rows.get("uuids", "utc_id_suffix").unwrap_or_default().to_owned();
        let named = |name: &str| match name {
            "sequential" => Some(Algorithm::Sequential),
            "random" => Some(Algorithm::Random),
            "utc_random" => Some(Algorithm::UtcRandom),
            "utc_id" => Some(Algorithm::UtcId(suffix())),
            "uuid_v7" => Some(Algorithm::Version7),
            _ => None,
        };
        rows.read("uuids", "algorithm", named).unwrap_or_default()
    }
}

/// A generator of ids.
#[derive(Debug, Default)]
pub(crate) struct Uuids(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    prefix: String,
    counter: u32,
    /// The time in the last id that has one. A later id has a later time, even if the system's clock goes back.
    micros: u64,
}

/// Above it a new prefix starts, so that the six digits never overflow.
const LAST: u32 = 0xff_f000;

impl Uuids {
    /// The next `count` ids, of 32 hexadecimal digits each, except for `utc_id`.
    pub(crate) fn next(&self, count: usize, algorithm: &Algorithm) -> Result<Vec<String>, getrandom::Error> {
        let mut state = self.0.lock();
        let one = |_| match algorithm {
            Algorithm::Sequential => state.next(),
            Algorithm::Random => random_hex::<16>(),
            Algorithm::UtcRandom => Ok(format!("{:014x}{}", state.tick(), random_hex::<9>()?)),
            Algorithm::UtcId(suffix) => Ok(format!("{:014x}{suffix}", state.tick())),
            Algorithm::Version7 => version_7(),
        };
        (0..count).map(one).collect()
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn version_7() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    let time = u64::try_from(since_epoch().as_millis()).unwrap_or_default().to_be_bytes();
    bytes[..6].copy_from_slice(&time[2..]);
    bytes[6] = 0x70 | bytes[6] & 0x0f;
    bytes[8] = 0x80 | bytes[8] & 0x3f;
    Ok(model::hex(&bytes))
}

impl State {
    /// The time in microseconds, later than at the last call.
    fn tick(&mut self) -> u64 {
        let now = u64::try_from(since_epoch().as_micros()).unwrap_or_default();
        self.micros = now.max(self.micros + 1);
        self.micros
    }

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
        // If the random number generator fails, they may be the same as another server's.
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
    fn ids_are_those_of_the_configured_algorithm() {
        use crate::http::config::rows::rows_of;

        let made = |name: &str| {
            let rows = rows_of(&[("uuids", "algorithm", name), ("uuids", "utc_id_suffix", "-here")]);
            let made = Uuids::default().next(1_000, &Algorithm::read(&rows)).unwrap();
            let unique: std::collections::HashSet<_> = made.iter().collect();
            assert_eq!(unique.len(), 1_000, "{name}");
            made
        };
        let is_hex = |id: &String| id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        for name in ["sequential", "random", "utc_random", "uuid_v7", "unheard of"] {
            assert!(made(name).iter().all(is_hex), "{name}");
        }
        for name in ["utc_random", "utc_id"] {
            assert!(made(name).windows(2).all(|two| two[0][..14] < two[1][..14]), "{name}");
        }
        assert!(made("utc_id").iter().all(|id| id.len() == 19 && id.ends_with("-here")));
        let is_7 = |id: &String| &id[12..13] == "7" && matches!(&id[16..17], "8" | "9" | "a" | "b");
        assert!(made("uuid_v7").iter().all(is_7));
        let same = made("sequential").windows(2).filter(|two| two[0][..26] == two[1][..26]).count();
        assert!(same > 990 && made("random").windows(2).all(|two| two[0][..26] != two[1][..26]));
    }

    #[test]
    fn ids_rise_and_never_repeat() {
        let uuids = Uuids::default();
        let made = uuids.next(20_000, &Algorithm::Sequential).unwrap();
        assert!(made.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
        let unique: std::collections::HashSet<_> = made.iter().collect();
        assert_eq!(unique.len(), made.len());
        let rising = made.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(rising > 19_900, "{rising}: a new prefix begins every eight thousand ids or so");
    }
}
