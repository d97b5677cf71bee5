//! Refuses logins after failed ones: for five minutes after five failures, by address, name and salt.
//!
//! Each process counts for itself. Addresses of IPv6 count by their first 64 bits, since a client has them all.
//!
//! Source: CouchDB's `couch_auth_lockout.erl`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::error::{ApiError, Result};

/// Number of failures after which logins are refused.
const THRESHOLD: u32 = 5;

/// Time from the first failure until the failures are forgotten.
const LIFETIME: Duration = Duration::from_secs(300);

/// Maximum number of counted names.
const MOST: usize = 10_000;

type Who = (IpAddr, String, String);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

/// Failed logins.
#[derive(Debug, Default)]
pub(crate) struct Lockout {
    failures: Mutex<HashMap<Who, Failures>>,
    /// Whether there are any, so that other logins take no lock.
    any: AtomicBool,
}

impl Lockout {
    fn lock(&self) -> MutexGuard<'_, HashMap<Who, Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// 403 if too many logins failed. For the right password too, since the answer would otherwise tell which it is.
    pub(crate) fn check(&self, address: IpAddr, name: &str, salt: &str) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found = self.lock().get(&who(address, name, salt)).copied();
        match found {
            Some(Failures { count, since }) if count >= THRESHOLD && since.elapsed() < LIFETIME => {
                Err(ApiError::forbidden("Account is temporarily locked due to multiple authentication failures"))
            }
            _ => Ok(()),
        }
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, address: IpAddr, name: &str, salt: &str) {
        let mut failures = self.lock();
        self.any.store(true, Ordering::Relaxed);
        if failures.len() >= MOST {
            failures.retain(|_, failures| failures.since.elapsed() < LIFETIME);
        }
        if failures.len() >= MOST {
            failures.retain(|_, failures| failures.count >= THRESHOLD);
        }
        if failures.len() >= MOST {
            failures.clear();
        }
        let now = Instant::now();
        let known = failures.entry(who(address, name, salt)).or_insert(Failures { count: 0, since: now });
        if known.since.elapsed() >= LIFETIME {
            *known = Failures { count: 0, since: now };
        }
        known.count = known.count.saturating_add(1);
    }

    /// Forgets the failures before a login that succeeded.
    pub(crate) fn succeeded(&self, address: IpAddr, name: &str, salt: &str) {
        if self.any.load(Ordering::Relaxed) {
            self.lock().remove(&who(address, name, salt));
        }
    }
}

fn who(address: IpAddr, name: &str, salt: &str) -> Who {
    let address = match address {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        },
        address => address,
    };
    (address, name.to_owned(), salt.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sixth_login_is_refused_until_one_succeeds_or_time_passes() {
        let (lockout, here) = (Lockout::default(), "2001:db8::1".parse().unwrap());
        let (neighbour, other) = ("2001:db8::2".parse().unwrap(), "2001:db8:1::1".parse().unwrap());
        for _ in 0..THRESHOLD {
            lockout.check(here, "anna", "salt").unwrap();
            lockout.failed(here, "anna", "salt");
        }
        for address in [here, neighbour] {
            assert_eq!(lockout.check(address, "anna", "salt").unwrap_err().status(), 403);
        }
        for (address, name, salt) in [(other, "anna", "salt"), (here, "berta", "salt"), (here, "anna", "new salt")] {
            lockout.check(address, name, salt).unwrap();
        }
        lockout.succeeded(here, "anna", "salt");
        lockout.check(here, "anna", "salt").unwrap();
    }

    #[test]
    fn the_number_of_counted_names_is_bounded() {
        let (lockout, here) = (Lockout::default(), "192.0.2.1".parse().unwrap());
        (0..THRESHOLD).for_each(|_| lockout.failed(here, "anna", ""));
        for number in 0..2 * MOST {
            lockout.failed(here, &number.to_string(), "");
        }
        assert!(lockout.lock().len() <= MOST);
        assert!(lockout.check(here, "anna", "").is_err(), "locked names are kept before others");
    }
}
