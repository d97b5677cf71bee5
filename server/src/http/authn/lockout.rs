//! Refuses logins after failed ones: for five minutes after five failures, by address, name and salt. Behind a proxy
//! all clients have one address, so the section `chttpd_auth_lockout` can say otherwise.
//!
//! Names and salts are counted by a digest, since users choose them, and a salt may be long.
//!
//! Each process counts for itself. IPv6 addresses are counted by their first 64 bits, since one client may have all
//! addresses behind these.
//!
//! Source: CouchDB's `couch_auth_lockout.erl`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::http::authn::passwords::mac;
use crate::http::config::rows::SettingRows;
use crate::http::error::{ApiError, Result};

/// Maximum number of counted names.
const MOST: usize = 10_000;

/// What too many failures lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// They are not counted.
    Off,
    /// The log reports too many failures.
    Warn,
    Enforce,
}

/// The section `chttpd_auth_lockout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    mode: Mode,
    /// Number of failures after which logins are refused.
    threshold: u32,
    /// Time from the first failure until the failures are forgotten.
    lifetime: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { mode: Mode::Enforce, threshold: 5, lifetime: Duration::from_secs(300) }
    }
}

impl Rules {
    /// An unreadable value counts as unset, so a typo never weakens the lockout. (In CouchDB an unknown mode is `off`.)
    pub(crate) fn read(rows: &SettingRows) -> Rules {
        let usual = Rules::default();
        let number = |name: &str| rows.number("chttpd_auth_lockout", name);
        Rules {
            mode: rows
                .read("chttpd_auth_lockout", "mode", |text| match text {
                    "off" => Some(Mode::Off),
                    "warn" => Some(Mode::Warn),
                    "enforce" => Some(Mode::Enforce),
                    _ => None,
                })
                .unwrap_or(Mode::Enforce),
            threshold: rows
                .read("chttpd_auth_lockout", "threshold", |text| text.parse().ok())
                .unwrap_or(usual.threshold),
            lifetime: number("max_lifetime").map_or(usual.lifetime, Duration::from_millis),
        }
    }
}

/// A digest of address, name and salt.
type Who = [u8; 32];

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

/// Failed logins.
#[derive(Debug)]
pub(crate) struct Lockout {
    /// The key of the digests, of this process alone.
    key: [u8; 32],
    failures: Mutex<HashMap<Who, Failures>>,
    /// Whether there are any failures. If not, logins take no lock.
    any: AtomicBool,
}

/// Somebody who tries to log in.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    lockout: Arc<Lockout>,
    rules: Rules,
    who: Who,
    pub(crate) network: IpAddr,
}

impl Lockout {
    /// `key` is random.
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Lockout { key, failures: Mutex::default(), any: AtomicBool::default() }
    }

    pub(crate) fn attempt(self: &Arc<Self>, rules: Rules, address: IpAddr, name: &str, salt: &str) -> Attempt {
        let network = network(address);
        let who = mac(&self.key, &[network.to_string().as_bytes(), name.as_bytes(), salt.as_bytes()]);
        Attempt { lockout: self.clone(), rules, who, network }
    }
}

impl Attempt {
    /// 403 if too many logins failed. The correct password is refused too; otherwise the answer would reveal it.
    pub(crate) fn check(&self) -> Result<()> {
        let Rules { mode, threshold, lifetime } = self.rules;
        if mode == Mode::Off || !self.lockout.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = self.lockout.failures.lock().get(&self.who).copied();
        let is_locked = found.is_some_and(|found| found.count >= threshold && found.since.elapsed() < lifetime);
        match mode {
            Mode::Enforce if is_locked => {
                Err(ApiError::forbidden("Account is temporarily locked due to multiple authentication failures"))
            }
            Mode::Warn if is_locked => {
                tracing::warn!(network = %self.network, "many logins by one name failed");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Counts a failure.
    pub(crate) fn failed(&self) {
        let Rules { mode, threshold, lifetime } = self.rules;
        if mode == Mode::Off {
            return;
        }
        let mut failures = self.lockout.failures.lock();
        self.lockout.any.store(true, Ordering::Relaxed);
        failures.retain(|_, failures| failures.since.elapsed() < lifetime);
        if failures.len() >= MOST {
            failures.retain(|_, failures| failures.count >= threshold);
        }
        if failures.len() >= MOST {
            failures.clear();
        }
        let now = Instant::now();
        let known = failures.entry(self.who).or_insert(Failures { count: 0, since: now });
        known.count = known.count.saturating_add(1);
    }

    /// Forgets the failures before a login that succeeded.
    pub(crate) fn succeeded(&self) {
        if self.lockout.any.load(Ordering::Relaxed) {
            self.lockout.failures.lock().remove(&self.who);
        }
    }
}

/// The addresses that count as one client.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        },
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    const RULES: Rules = Rules { mode: Mode::Enforce, threshold: 5, lifetime: Duration::from_secs(300) };

    #[test]
    fn the_sixth_login_is_refused_until_one_succeeds_or_time_passes() {
        let (lockout, here) = (Arc::new(Lockout::new([1; 32])), "2001:db8::1".parse().unwrap());
        let (neighbour, other) = ("2001:db8::2".parse().unwrap(), "2001:db8:1::1".parse().unwrap());
        let anna = lockout.attempt(RULES, here, "anna", "salt");
        for _ in 0..RULES.threshold {
            anna.check().unwrap();
            anna.failed();
        }
        for address in [here, neighbour] {
            assert_eq!(lockout.attempt(RULES, address, "anna", "salt").check().unwrap_err().status(), 403);
        }
        for (address, name, salt) in [(other, "anna", "salt"), (here, "berta", "salt"), (here, "anna", "new salt")] {
            lockout.attempt(RULES, address, name, salt).check().unwrap();
        }
        anna.succeeded();
        anna.check().unwrap();
    }

    #[test]
    fn the_configuration_says_what_follows() {
        let rules = |rows: &[(&str, &str)]| {
            let rows: Vec<_> = rows.iter().map(|(name, value)| ("chttpd_auth_lockout", *name, *value)).collect();
            Rules::read(&rows_of(&rows))
        };
        assert_eq!(rules(&[]), RULES);
        assert_eq!(rules(&[("mode", "of"), ("threshold", "-1"), ("max_lifetime", "x")]), RULES);
        let here = "192.0.2.1".parse().unwrap();
        let is_locked_after = |rows: &[(&str, &str)], count: u32| {
            let attempt = Arc::new(Lockout::new([1; 32])).attempt(rules(rows), here, "anna", "");
            (0..count).for_each(|_| attempt.failed());
            attempt.check().is_err()
        };
        for open in ["off", "warn"] {
            assert!(!is_locked_after(&[("mode", open)], 20), "{open}");
        }
        assert!(!is_locked_after(&[("threshold", "3")], 2) && is_locked_after(&[("threshold", "3")], 3));
        assert!(!is_locked_after(&[("max_lifetime", "0")], 20) && is_locked_after(&[("mode", "enforce")], 5));
    }

    #[test]
    fn the_number_of_counted_names_is_bounded() {
        let (lockout, here) = (Arc::new(Lockout::new([1; 32])), "192.0.2.1".parse().unwrap());
        let anna = lockout.attempt(RULES, here, "anna", "");
        (0..RULES.threshold).for_each(|_| anna.failed());
        for number in 0..2 * MOST {
            lockout.attempt(RULES, here, &number.to_string(), "").failed();
        }
        assert!(lockout.failures.lock().len() <= MOST);
        assert!(anna.check().is_err(), "locked names are kept before others");
    }

    #[test]
    fn failures_that_are_over_are_dropped() {
        let (lockout, here) = (Arc::new(Lockout::new([1; 32])), "192.0.2.1".parse().unwrap());
        lockout.attempt(RULES, here, "anna", "").failed();
        let Some(past) = Instant::now().checked_sub(RULES.lifetime) else { return };
        lockout.failures.lock().values_mut().for_each(|failures| failures.since = past);
        lockout.attempt(RULES, here, "berta", "").failed();
        assert_eq!(lockout.failures.lock().len(), 1);
    }
}
