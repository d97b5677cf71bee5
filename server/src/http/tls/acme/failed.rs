//! The pause after a failed order. It outlasts a restart: an ACME server allows few failures, whoever makes them.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// Pause after the first failed order. Each further one doubles it. Let's Encrypt allows five failures an hour.
const FIRST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Maximum pause after an order that failed before a certificate was issued.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// Pause after a certificate was issued that is not used. Let's Encrypt issues five of a name in a week.
const ISSUED_PAUSE: Duration = Duration::from_secs(86_400);

/// The last failed orders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Failed {
    /// How many failed in a row.
    count: u32,
    /// When the last one failed, in seconds since 1970.
    at: u64,
    /// The pause after it, in seconds.
    pause: u64,
}

impl Failed {
    /// What is assumed if the file cannot be read.
    pub(super) fn unknown() -> Failed {
        Failed { count: 1, at: now(), pause: LONGEST_PAUSE.as_secs() }
    }

    /// After one more failure. `is_issued`: the ACME server issued the certificate.
    pub(super) fn again(&self, is_issued: bool) -> Failed {
        let pause = if is_issued { ISSUED_PAUSE } else { pause_after(self.count) };
        Failed { count: self.count.saturating_add(1), at: now(), pause: pause.as_secs() }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "count": self.count, "at": self.at, "pause": self.pause })
    }

    /// `None` if this is no such object.
    pub(super) fn from_json(json: &[u8]) -> Option<Failed> {
        let json: Value = serde_json::from_slice(json).ok()?;
        let count = json["count"].as_u64()?.try_into().ok()?;
        Some(Failed { count, at: json["at"].as_u64()?, pause: json["pause"].as_u64()? })
    }

    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Ends the pause, and keeps the count.
    pub(super) fn hurry(&mut self) {
        self.pause = 0;
    }

    /// The rest of the pause. It begins anew when the clock went back.
    pub(super) fn rest(&mut self) -> Duration {
        self.rest_at(now())
    }

    fn rest_at(&mut self, now: u64) -> Duration {
        self.at = self.at.min(now);
        Duration::from_secs(self.pause.saturating_sub(now - self.at)).min(ISSUED_PAUSE)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Pause after this many earlier failures in a row.
fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_double_up_to_an_hour() {
        let minutes: Vec<u64> = (0..6).map(|failures| pause_after(failures).as_secs() / 60).collect();
        assert_eq!(minutes, [5, 10, 20, 40, 60, 60]);
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn an_issued_certificate_that_is_not_used_pauses_orders_for_a_day() {
        let failed = Failed::default().again(false);
        assert_eq!((failed.count, failed.pause), (1, 300));
        let issued = failed.again(true);
        assert_eq!((issued.count, issued.pause), (2, 86_400));
    }

    #[test]
    fn the_pause_follows_the_clock_and_is_never_longer_than_itself() {
        let failed = |at| Failed { count: 3, at, pause: 1_200 };
        let rest = |now| failed(10_000).rest_at(now).as_secs();
        assert_eq!([rest(10_000), rest(10_500), rest(11_200), rest(99_999)], [1_200, 700, 0, 0]);
        // The clock went back: the pause begins now, and ends.
        let mut back = failed(10_000);
        assert_eq!(
            [back.rest_at(500), back.rest_at(600), back.rest_at(1_700)].map(|rest| rest.as_secs()),
            [1_200, 1_100, 0]
        );
        assert_eq!(Failed { pause: u64::MAX, ..failed(0) }.rest_at(1), ISSUED_PAUSE, "a damaged file");
        let mut hurried = failed(10_000);
        hurried.hurry();
        assert_eq!((hurried.rest_at(10_000), hurried.count), (Duration::ZERO, 3));
        assert_eq!(Failed::default().rest_at(5), Duration::ZERO);
    }
}
